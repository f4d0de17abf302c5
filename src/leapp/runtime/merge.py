"""Merges ONNX models that run one after another into one model.

One session instead of three saves two calls of the engine. The values that pass from model to model stay outputs of the merged
model. An engine never optimises across an output, so each part computes exactly what it computes alone.

This works on the protobuf wire format: a robot needs no ``onnx`` package. Models that use a rare
feature (functions, external data, sparse initializers, different operator sets) are left unmerged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from leapp.bundle.protobuf import NUMBER, SIZED, Chunks, WireError, fields, message, number, spans

LARGEST = 16 * 1024 * 1024
"""Larger models, in bytes, are not merged: the saved calls matter less than a second copy of the weights."""

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
"""The fields of a message that hold messages with names of values."""
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
    """A part uses a feature that this module does not merge."""


def merge(parts: Iterable[Part]) -> bytes | None:
    """Merge models that run in the given order. Returns None if they cannot be merged."""
    parts = tuple(parts)
    if sum(len(part.model) for part in parts) > LARGEST:
        return None
    merged = _Merged()
    try:
        for part in parts:
            _add(merged, part)
    except (_UnmergeableError, WireError, RecursionError):
        # The engine reports a malformed model with a better message.
        return None
    if len(merged.opsets) != 1:
        return None
    (opsets,) = merged.opsets
    graph = message(_GRAPH_NAME << 3 | SIZED, [b"merged"]) + [chunk for chunks in merged.graph.values() for chunk in chunks]
    model = number(_MODEL_IR << 3 | NUMBER, merged.ir_version) + message(_MODEL_GRAPH << 3 | SIZED, graph)
    for opset in sorted(opsets):
        model += message(_MODEL_OPSET << 3 | SIZED, [opset])
    return b"".join(model)


def _add(merged: _Merged, part: Part) -> None:
    opsets: set[bytes] = set()
    for tag, value in fields(memoryview(part.model)):
        field_number = tag >> 3
        if field_number in _REFUSED["model"]:
            raise _UnmergeableError
        if field_number == _MODEL_IR and isinstance(value, int):
            merged.ir_version = max(merged.ir_version, value)
        elif isinstance(value, int):
            continue
        elif field_number == _MODEL_OPSET:
            opsets.add(bytes(value))
        elif field_number == _MODEL_GRAPH:
            _Renaming(part).add_graph(merged, value)
    merged.opsets.add(frozenset(opsets))


class _Renaming:
    """Gives the values of one part their merged names."""

    def __init__(self, part: Part) -> None:
        self._prefix = part.prefix.encode()
        self._fed = {name.encode(): merged.encode() for name, merged in part.fed.items()}
        self._made: set[bytes] = set()

    def add_graph(self, merged: _Merged, graph: memoryview) -> None:
        results: list[bytes] = []
        for tag, _, at, end in spans(graph):
            place, body = tag >> 3, graph[at:end]
            if place in _REFUSED["graph"]:
                raise _UnmergeableError
            if place not in merged.graph:
                continue
            if tag & 7 != SIZED:
                raise _UnmergeableError
            if place in (_GRAPH_INPUT, _GRAPH_OUTPUT):
                name = next((bytes(body[at:end]) for tag, _, at, end in spans(body) if tag >> 3 == _VALUE_NAME), b"")
                if place == _GRAPH_INPUT and name in self._fed:
                    continue
                if place == _GRAPH_OUTPUT:
                    results.append(name)
            merged.graph[place] += message(tag, self._renamed(_HOLDS["graph"][place], body))
        if not self._made.issuperset(results):
            # An output that is an input or a constant is made by no node, so it cannot be renamed.
            raise _UnmergeableError

    def _renamed(self, kind: str, body: memoryview) -> Chunks:
        """A message with its value names replaced by the merged names. All other bytes are copied."""
        names, holds, refused = _NAMES.get(kind, ()), _HOLDS.get(kind, _NOTHING), _REFUSED.get(kind, ())
        out: Chunks = []
        copied = 0
        for tag, start, at, end in spans(body):
            if tag & 7 != SIZED:
                continue
            place = tag >> 3
            if place in refused:
                raise _UnmergeableError
            if place in names:
                name = bytes(body[at:end])
                if not name:
                    continue  # an optional input that is not given
                if place == _NODE_OUTPUT:
                    self._made.add(name)
                changed: Chunks = [self._fed.get(name) or self._prefix + name]
            elif place in holds:
                changed = self._renamed(holds[place], body[at:end])
                if len(changed) == 1:
                    continue
            else:
                continue
            out += [body[copied:start], *message(tag, changed)]
            copied = end
        out.append(body[copied:])
        return out


_NOTHING: dict[int, str] = {}
