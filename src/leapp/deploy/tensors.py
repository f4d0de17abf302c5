"""Ports as a Triton server sees them: names, data types, dimensions. What it cannot take is refused by name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from leapp.deploy.pbtxt import Word
from leapp.errors import BundleError
from leapp.graph.contract import Port
from leapp.runtime.plan import Plan

__all__ = ["describe", "free_name", "output_names", "safe_name"]

_TYPES = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "int8": "INT8",
    "int16": "INT16", "int32": "INT32", "int64": "INT64", "float16": "FP16", "float32": "FP32", "float64": "FP64",
}  # fmt: skip
_TORCH_LACKS = ("uint16", "uint32", "uint64")


def describe(where: str, name: str, port: Port, backend: str | None, *, batched: bool = False) -> dict[str, Any]:
    """The entry of a port in a configuration.

    Args:
        where: The key of the port, for messages.
        name: What the server calls the tensor.
        port: The port.
        backend: The backend of the node that runs it, or None where Python does.
        batched: Whether the first axis is the batch, which the server adds by itself.

    Raises:
        BundleError: The server has no such data type or shape.
    """
    if port.dtype not in _TYPES or (backend == "jit" and port.dtype in _TORCH_LACKS):
        advice = "" if backend is None else " --backend python keeps values inside the pipeline away from the server."
        raise BundleError(f"{where!r} is {port.dtype}, which Triton cannot pass on. Convert it to another dtype.{advice}")
    if 0 in port.shape:
        raise BundleError(f"{where!r} has the shape {list(port.shape)}; Triton takes no empty tensors. Leave the port out.")
    shape = port.shape[1:] if batched else port.shape
    if not shape and batched:
        raise BundleError(f"{where!r} has the shape {list(port.shape)}; batches need an axis beside the first one.")
    if not shape and backend == "jit":
        raise BundleError(f"{where!r} is a single number without axes, which Triton cannot give to TorchScript. Use ONNX.")
    # The server knows no tensors without axes; engines that do take a tensor of one element for one.
    return {"name": name, "data_type": Word(f"TYPE_{_TYPES[port.dtype]}"), "dims": list(shape or (1,))}


def output_names(plan: Plan) -> dict[str, str]:
    """What the server calls each output: its key, or another name where an input has it.

    An ensemble knows tensors by name alone, so an input and an output cannot share one.
    """
    taken = {*plan.inputs, *plan.feedback}
    names = {}
    for key in plan.output_ports:
        names[key] = free_name(key, taken, "_out")
        taken.add(names[key])
    return names


def safe_name(text: str) -> str:
    """The text as the name of a directory that is also part of an address."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", re.sub(r"^[.-]", "_", text)) or "_"


def free_name(name: str, taken: Iterable[str], suffix: str) -> str:
    """The name, with as many suffixes as it takes to be no other in upper or lower case."""
    folded = {other.casefold() for other in taken}
    while name.casefold() in folded:
        name += suffix
    return name
