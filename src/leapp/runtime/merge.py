"""Merges ONNX models that run one after another into one model.

One session instead of three saves two calls of the engine. The values that pass from model to model stay outputs of the merged
model. An engine never optimises across an output, so each part computes exactly what it computes alone.

This works on the protobuf wire format: a robot needs no ``onnx`` package. Models that use a rare
feature (functions, external data, sparse initializers, different operator sets) are left unmerged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from leapp.bundle.protobuf import NUMBER, SIZED, Chunks, WireError, message, number, read_number, sized, spans

LARGEST = 16 * 1024 * 1024
"""Larger models, in bytes, are not merged: the saved calls matter less than a second copy of the weights."""

# Field numbers of onnx.proto, which never change.
_MODEL_IR, _MODEL_GRAPH, _MODEL_OPSET = 1, 7, 8
_GRAPH_NODE, _GRAPH_NAME, _GRAPH_WEIGHT, _GRAPH_INPUT, _GRAPH_OUTPUT = 1, 2, 5, 11, 12
_NAME, _MADE, _REFUSED = "name", "made", "refused"
"""What a field may hold besides a message: the name of a value or node, of a value that a node makes, or a rare feature."""
_FIELDS = {
    kind: {place << 3 | SIZED: what for place, what in fields.items()}
    for kind, fields in {
        "graph": {1: "node", 5: "tensor", 11: "value", 12: "value", 13: "value", 14: _REFUSED, 15: _REFUSED},
        "node": {1: _NAME, 2: _MADE, 3: _NAME, 5: "attribute"},
        "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph"},
        "tensor": {8: _NAME, 13: _REFUSED},
        "value": {1: _NAME},
    }.items()
}
"""What the fields of a message hold. Refused are quantization, sparse initializers and values in a file beside the model."""
_MODEL_REFUSED = (_MODEL_IR, _MODEL_GRAPH, _MODEL_OPSET, 20, 25)
"""Known fields of another wire type; training and functions."""
_LONG = 1 << 10
"""Unchanged bytes of at least this length are copied only once, when the merged model is put together."""


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
    for tag, _, at, end in spans(part.model):
        if tag == _MODEL_IR << 3 | NUMBER:
            merged.ir_version = max(merged.ir_version, read_number(part.model, at, end)[0])
        elif tag == _MODEL_OPSET << 3 | SIZED:
            opsets.add(part.model[at:end])
        elif tag == _MODEL_GRAPH << 3 | SIZED:
            _Renaming(part).add_graph(merged, at, end)
        elif tag >> 3 in _MODEL_REFUSED:
            raise _UnmergeableError
    merged.opsets.add(frozenset(opsets))


class _Renaming:
    """Gives the values of one part their merged names."""

    def __init__(self, part: Part) -> None:
        self._model, self._view = part.model, memoryview(part.model)
        self._prefix = part.prefix.encode()
        self._fed = {name.encode() for name in part.fed}
        self._names = {name.encode(): sized(merged.encode()) for name, merged in part.fed.items()}
        self._made: set[bytes] = set()

    def add_graph(self, merged: _Merged, at: int, end: int) -> None:
        results: list[bytes] = []
        for tag, _, first, last in spans(self._model, at, end):
            place, kind = tag >> 3, _FIELDS["graph"].get(tag)
            if kind is _REFUSED or (kind is None and place << 3 | SIZED in _FIELDS["graph"]):
                raise _UnmergeableError
            if kind is None or place not in merged.graph:
                continue
            if kind == "value":
                names = (self._model[a:b] for tag, _, a, b in spans(self._model, first, last) if tag in _FIELDS["value"])
                name = next(names, b"")
                if place == _GRAPH_INPUT and name in self._fed:
                    continue
                if place == _GRAPH_OUTPUT:
                    results.append(name)
            merged.graph[place] += message(tag, self._renamed(kind, first, last))
        if not self._made.issuperset(results):
            # An output that is an input or a constant is made by no node, so it cannot be renamed.
            raise _UnmergeableError

    def _renamed(self, kind: str, at: int, end: int) -> Chunks:
        """A message with its value names replaced by the merged names. All other bytes are copied."""
        holds, model, known = _FIELDS[kind], self._model, self._names
        out: Chunks = []
        copied = at
        for tag, start, first, last in spans(model, at, end):
            what = holds.get(tag)
            if what is None:
                continue
            if what is _NAME or what is _MADE:
                name = model[first:last]
                if not name:
                    continue  # an optional input that is not given
                if what is _MADE:
                    self._made.add(name)
                if name not in known:
                    known[name] = sized(self._prefix + name)
                # The tag of a name is one byte.
                out += (model[copied : start + 1], known[name])
            elif what is _REFUSED:
                raise _UnmergeableError
            else:
                changed = self._renamed(what, first, last)
                if len(changed) == 1:
                    continue
                out += (model[copied:start], *message(tag, changed))
            copied = last
        out.append(model[copied:end] if end - copied < _LONG else self._view[copied:end])
        return out
