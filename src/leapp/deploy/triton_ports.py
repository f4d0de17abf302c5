"""Ports as a Triton server sees them: names, data types, dimensions. What it cannot take is refused by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np

from leapp.deploy.pbtxt import Word
from leapp.errors import BundleError, InputError
from leapp.graph.contract import Port
from leapp.runtime.arrays import numpy_dtype
from leapp.runtime.plan import Plan
from leapp.runtime.values import castable

__all__ = ["describe", "free_name", "output_names", "safe_name", "seen_ports"]

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
        advice = "keeps values inside the pipeline away from the server, and can convert graph ports with --dtype."
        raise BundleError(
            f"{where!r} is {port.dtype}, which Triton cannot pass on. Convert it to another dtype. --backend python {advice}"
        )
    if 0 in port.shape:
        raise BundleError(f"{where!r} has the shape {list(port.shape)}; Triton takes no empty tensors. Leave the port out.")
    shape = port.shape[1:] if batched else port.shape
    if not shape and batched:
        raise BundleError(f"{where!r} has the shape {list(port.shape)}; batches need an axis beside the first one.")
    if not shape and backend == "jit":
        raise BundleError(f"{where!r} is a single number without axes, which Triton cannot give to TorchScript. Use ONNX.")
    # The server knows no tensors without axes; engines that do take a tensor of one element for one.
    return {"name": name, "data_type": Word(f"TYPE_{_TYPES[port.dtype]}"), "dims": list(shape or (1,))}


def seen_ports(plan: Plan, dtypes: Mapping[str, str]) -> tuple[dict[str, Port], dict[str, Port]]:
    """The inputs and outputs of the graph as clients see them.

    Args:
        plan: The pipeline.
        dtypes: The dtype of a port, where clients are to see another than its own.

    Raises:
        InputError: There is no such port, or its values cannot be converted.
    """
    inputs = {k: plan.input_ports[k] for k in plan.inputs}
    outputs = {k: plan.output_ports[k] for k in plan.outputs}
    for where, dtype in dtypes.items():
        if where not in inputs and where not in outputs:
            raise InputError(f"There is no port {where!r} that clients see; there are {[*inputs, *outputs]}.")
        if dtype not in _TYPES:
            raise InputError(f"Clients cannot see {where!r} as {dtype}; Triton knows {', '.join(_TYPES)}.")
        for ports in (inputs, outputs):
            if where not in ports:
                continue
            seen, own = np.dtype(dtype), numpy_dtype(ports[where].dtype)
            if not (castable(seen, own) if ports is inputs else np.can_cast(own, seen, "safe")):
                raise InputError(f"Clients cannot see {where!r} as {dtype}: it is {own}, which cannot be converted to {dtype}.")
            ports[where] = msgspec.structs.replace(ports[where], dtype=dtype)
    return inputs, outputs


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
