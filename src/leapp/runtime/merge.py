"""Several ONNX models that run one after another, written as one.

One session instead of three saves two trips into the engine. The values that pass from model to model stay outputs of
the merged one. An engine never rewrites across an output, so each part computes exactly what it computes alone.

This works on the protobuf wire format: a robot needs no ``onnx`` package. Models that use a rare
feature (functions, external data, sparse initializers, different operator sets) are left unmerged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from leapp.bundle.protobuf import NUMBER, SIZED, Chunks, Value, WireError, copied, fields, message

LARGEST = 16 * 1024 * 1024
"""Beyond this size in bytes the arithmetic outweighs the trips, and a second copy of the weights would hurt."""

# Field numbers of onnx.proto, which never change.
_MODEL_IR, _MODEL_GRAPH, _MODEL_OPSET = 1, 7, 8
_GRAPH_NODE, _GRAPH_NAME, _GRAPH_WEIGHT, _GRAPH_INPUT, _GRAPH_OUTPUT = 1, 2, 5, 11, 12
_NODE_OUTPUT, _VALUE_NAME = 2, 1
_NAMES = {"node": (1, 2, 3), "tensor": (8,), "value": (1,)}
"""The fields of a message that hold names of values, or of the node."""
_HOLDS = {
    "graph": {1: "node", 5: "tensor", 11: "value", 12: "value", 13: "value"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph"},
}
"""The fields of a message that hold messages with such names."""
_REFUSED = {"model": (20, 25), "graph": (14, 15), "tensor": (13,)}
"""Training, functions; quantization, sparse initializers; values in a file beside the one that the model came from."""


@dataclass(frozen=True, slots=True)
class Part:
    """One model of the chain.

    Attributes:
        model: The serialized ONNX model.
        prefix: What its values are called in the merged model, before their own name.
        fed: Its inputs that an earlier part feeds, each with the merged name of the value.
    """

    model: bytes
    prefix: str
    fed: Mapping[str, str]


@dataclass(slots=True)
class _Merged:
    graph: dict[int, Chunks] = field(
        default_factory=lambda: {number: [] for number in (_GRAPH_NODE, _GRAPH_WEIGHT, _GRAPH_INPUT, _GRAPH_OUTPUT)}
    )
    opsets: set[frozenset[bytes]] = field(default_factory=set)
    ir_version: int = 0


class _UnmergeableError(Exception):
    """A part uses something this module leaves alone."""


def merge(parts: Iterable[Part]) -> bytes | None:
    """Merge models that run in the given order, or return None when they must stay apart."""
    parts = tuple(parts)
    if sum(len(part.model) for part in parts) > LARGEST:
        return None
    merged = _Merged()
    try:
        for part in parts:
            _add(merged, part)
    except (_UnmergeableError, WireError, UnicodeDecodeError, RecursionError):
        # A malformed model is reported by the engine, which knows more about it.
        return None
    if len(merged.opsets) != 1:
        return None
    (opsets,) = merged.opsets
    graph = message(_GRAPH_NAME << 3 | SIZED, [b"merged"]) + [chunk for chunks in merged.graph.values() for chunk in chunks]
    model = copied(_MODEL_IR << 3 | NUMBER, merged.ir_version) + message(_MODEL_GRAPH << 3 | SIZED, graph)
    for opset in sorted(opsets):
        model += message(_MODEL_OPSET << 3 | SIZED, [opset])
    return b"".join(model)


def _add(merged: _Merged, part: Part) -> None:
    opsets: set[bytes] = set()
    for number, value in _fields("model", memoryview(part.model)):
        if number == _MODEL_IR and isinstance(value, int):
            merged.ir_version = max(merged.ir_version, value)
        elif number == _MODEL_OPSET:
            opsets.add(bytes(_payload(value)))
        elif number == _MODEL_GRAPH:
            _add_graph(merged, part, _payload(value))
    merged.opsets.add(frozenset(opsets))


def _add_graph(merged: _Merged, part: Part, graph: memoryview) -> None:
    made: set[str] = set()
    results: list[str] = []
    for number, value in _fields("graph", graph):
        if number not in merged.graph or (number == _GRAPH_INPUT and _name(value) in part.fed):
            continue
        if number == _GRAPH_NODE:
            made.update(_text(v) for n, v in _fields("node", _payload(value)) if n == _NODE_OUTPUT)
        elif number == _GRAPH_OUTPUT:
            results.append(_name(value))
        merged.graph[number] += message(number << 3 | SIZED, _renamed(_HOLDS["graph"][number], _payload(value), part))
    if not made.issuperset(results):
        # An output that is an input or a constant has no value of its own to hand on.
        raise _UnmergeableError


def _renamed(kind: str, body: memoryview, part: Part) -> Chunks:
    """A message with the merged names of the values in it."""
    names, holds, out = _NAMES.get(kind, ()), _HOLDS.get(kind, {}), []
    refused = _REFUSED.get(kind, ())
    for tag, value in fields(body):
        number = tag >> 3 if tag & 7 == SIZED else 0
        if number in refused:
            raise _UnmergeableError
        if number in names:
            name = _text(value)  # empty for an optional input that is not given
            out += message(tag, [part.fed.get(name, part.prefix + name).encode() if name else b""])
        elif number in holds:
            out += message(tag, _renamed(holds[number], _payload(value), part))
        else:
            out += copied(tag, value)
    return out


def _fields(kind: str, body: memoryview) -> Iterator[tuple[int, Value]]:
    for tag, value in fields(body):
        if tag >> 3 in _REFUSED.get(kind, ()):
            raise _UnmergeableError
        yield tag >> 3, value


def _name(value_info: Value) -> str:
    return next((_text(value) for number, value in _fields("value", _payload(value_info)) if number == _VALUE_NAME), "")


def _text(value: Value) -> str:
    return bytes(_payload(value)).decode()


def _payload(value: Value) -> memoryview:
    if isinstance(value, int):
        raise _UnmergeableError
    return value
