"""The content and the notation of a Triton model's ``config.pbtxt``: options, names, data types and dimensions.

A port that the server cannot handle is refused with its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import numpy as np

from leapp.errors import BundleError, InputError
from leapp.graph.contract import Port
from leapp.runtime.arrays import numpy_dtype
from leapp.runtime.plan import Plan
from leapp.runtime.values import castable

_TYPES = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "int8": "INT8",
    "int16": "INT16", "int32": "INT32", "int64": "INT64", "float16": "FP16", "float32": "FP32", "float64": "FP64",
}  # fmt: skip
_TORCH_LACKS = ("uint16", "uint32", "uint64")


@dataclass(frozen=True, slots=True)
class TritonOptions:
    """How a Triton model repository is written.

    Attributes:
        backend: ``native`` gives every node to the server's own engine; ``python`` runs ``leapp.runtime`` in its Python
            backend.
        version: The number of the version directory, and the version a client may ask for.
        version_policy: Which versions the server loads: ``latest``, ``all``, or ``specific`` for this version only.
        max_batch_size: The most requests of different sequences in one batch; 0 for no batches.
        instances: How many instances of each model.
        kind: Where instances of engine models run: ``auto``, ``cpu`` or ``gpu``.
        gpus: The GPUs to use with ``kind="gpu"``; all if empty.
        sequences: How many sequences an instance serves at the same time; further ones wait.
        idle_seconds: After how many seconds without a request a sequence is forgotten.
        threads: Threads of one ONNX session; the Python backend only.
        nonfinite: What to do about NaN and infinity in inputs, ``ignore`` or ``raise``; the Python backend only.
        dtypes: The dtype in which clients send or receive a port, if not the port's own; the Python backend only, which
            converts. Inputs are rounded to the port's dtype, outputs keep their values.

    Raises:
        InputError: Two options contradict each other.

    Example:
        >>> TritonOptions(backend="python", idle_seconds=10).sequences
        1024
    """

    backend: Literal["native", "python"] = "native"
    version: int = 1
    version_policy: Literal["latest", "all", "specific"] = "latest"
    max_batch_size: int = 0
    instances: int = 1
    kind: Literal["auto", "cpu", "gpu"] = "auto"
    gpus: tuple[int, ...] = ()
    sequences: int = 1024
    idle_seconds: float = 60.0
    threads: int = 1
    nonfinite: Literal["ignore", "raise"] = "ignore"
    dtypes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("version", "instances", "sequences", "threads"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is at least 1, not {getattr(self, name)}.")
        if not 0 < self.idle_seconds < 1e9:
            raise InputError(f"idle_seconds is a time above 0, not {self.idle_seconds}.")
        if self.max_batch_size < 0:
            raise InputError(f"max_batch_size is at least 0, not {self.max_batch_size}.")
        if self.gpus and self.kind != "gpu":
            raise InputError(f"gpus={list(self.gpus)} needs kind='gpu', not {self.kind!r}.")
        if self.backend == "python" and self.max_batch_size:
            raise InputError("The Python backend steps one sequence at a time: leave max_batch_size at 0.")
        if self.backend == "python" and self.kind == "gpu":
            raise InputError("Instances of the Python backend run on the CPU: leave kind at 'auto'.")
        if self.backend == "native" and (self.threads != 1 or self.nonfinite != "ignore" or self.dtypes):
            raise InputError("threads, nonfinite and dtypes need backend='python'; the server's own engines do not have them.")


class Word(str):
    """A text that is written without quotes: the name of an enum value."""

    __slots__ = ()


def describe(where: str, name: str, port: Port, backend: str | None, *, batched: bool = False) -> dict[str, Any]:
    """The entry of a port in a configuration.

    Args:
        where: The key of the port, for messages.
        name: The name of the tensor on the server.
        port: The port.
        backend: The backend of the node, or None if Python runs it.
        batched: Whether the first axis is the batch, which the server adds by itself.

    Raises:
        BundleError: The server has no such data type or shape.
    """
    if port.dtype not in _TYPES or (backend == "jit" and port.dtype in _TORCH_LACKS):
        advice = "keeps values between nodes inside leapp, and --dtype converts graph ports."
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
    # The server has no 0-d tensors. Engines accept a tensor of one element instead.
    return {"name": name, "data_type": Word(f"TYPE_{_TYPES[port.dtype]}"), "dims": list(shape or (1,))}


def seen_ports(plan: Plan, dtypes: Mapping[str, str]) -> tuple[dict[str, Port], dict[str, Port]]:
    """The inputs and outputs of the graph as clients see them.

    Args:
        plan: The pipeline.
        dtypes: For a port, the dtype that clients see instead of its own.

    Raises:
        InputError: There is no such port, or its values cannot be converted.
    """
    inputs = {k: plan.input_ports[k] for k in plan.inputs}
    outputs = {k: plan.output_ports[k] for k in plan.outputs}
    for where, dtype in dtypes.items():
        if where not in inputs and where not in outputs:
            raise InputError(f"{where!r} is not a graph input or output. Those are {[*inputs, *outputs]}.")
        if dtype not in _TYPES:
            raise InputError(f"{where!r} cannot be {dtype} for clients; Triton has {', '.join(_TYPES)}.")
        for ports in (inputs, outputs):
            if where not in ports:
                continue
            seen, own = np.dtype(dtype), numpy_dtype(ports[where].dtype)
            if not (castable(seen, own) if ports is inputs else np.can_cast(own, seen, "safe")):
                raise InputError(f"{where!r} cannot be {dtype} for clients: it is {own}, and the two cannot be converted.")
            ports[where] = msgspec.structs.replace(ports[where], dtype=dtype)
    return inputs, outputs


def output_names(plan: Plan) -> dict[str, str]:
    """The server's name of each output: its key, or another name if an input has that key.

    An ensemble finds tensors by name only, so an input and an output cannot share one.
    """
    taken = {*plan.inputs, *plan.feedback}
    names = {}
    for key in plan.output_ports:
        names[key] = free_name(key, taken, "_out")
        taken.add(names[key])
    return names


def safe_name(text: str) -> str:
    """The text as a name for a directory, which is also part of a URL."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", re.sub(r"^[.-]", "_", text)) or "_"


def free_name(name: str, taken: Iterable[str], suffix: str) -> str:
    """The name, with suffixes added until it differs from all taken ones, also in upper or lower case."""
    folded = {other.casefold() for other in taken}
    while name.casefold() in folded:
        name += suffix
    return name


def pbtxt(message: Mapping[str, Any]) -> str:
    """The text of a message.

    A mapping is a message, a list of mappings a repeated message, any other list a repeated value.

    Example:
        >>> print(pbtxt({"name": "leg", "input": [{"dims": [1, 3]}]}), end="")
        name: "leg"
        input {
          dims: [1, 3]
        }
    """
    return "".join(f"{line}\n" for line in _lines(message, ""))


def entries(mapping: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A map field in this notation: a list of entries with key and value."""
    return [{"key": key, "value": value} for key, value in mapping.items()]


def _lines(message: Mapping[str, Any], indent: str) -> Iterator[str]:
    for name, value in message.items():
        repeated = isinstance(value, list) and all(isinstance(item, Mapping) for item in value)
        if isinstance(value, Mapping) or repeated:
            for item in value if repeated else [value]:
                yield f"{indent}{name} {{"
                yield from _lines(item, indent + "  ")
                yield f"{indent}}}"
        elif isinstance(value, list):
            yield f"{indent}{name}: [{', '.join(map(_scalar, value))}]"
        else:
            yield f"{indent}{name}: {_scalar(value)}"


def _scalar(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (Word, int)):
        return str(value)
    if not isinstance(value, str):
        raise TypeError(f"{value!r} has no place in a configuration.")
    # Octal, because a hexadecimal escape would include hexadecimal digits that follow it.
    return '"' + "".join(_ESCAPES.get(c) or (f"\\{ord(c):03o}" if ord(c) < 32 or ord(c) == 127 else c) for c in value) + '"'


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
