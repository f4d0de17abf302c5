"""Several ONNX models that run one after another, written as one.

One session instead of three saves two trips into the engine. The values that pass from model to model stay outputs of
the merged one. An engine never rewrites across an output, so each part computes exactly what it computes alone.

This works on the protobuf wire format: a robot needs no ``onnx`` package. Models that use a rare
feature (functions, external data, sparse initializers, different operator sets) are left unmerged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from leapp.bundle.protobuf import NUMBER, SIZED, Chunks, Value, WireError, copied, fields, message

__all__ = ["Part", "merge"]

LARGEST = 16 * 1024 * 1024
"""Beyond this size in bytes the arithmetic outweighs the trips, and a second copy of the weights would hurt."""

# Tags of onnx.proto.
MODEL_IR = 1 << 3 | NUMBER
MODEL_GRAPH, MODEL_OPSET, MODEL_TRAINING, MODEL_FUNCTIONS = (n << 3 | SIZED for n in (7, 8, 20, 25))
GRAPH_NODE, GRAPH_NAME, GRAPH_INIT, GRAPH_SPARSE = (n << 3 | SIZED for n in (1, 2, 5, 15))
GRAPH_IN, GRAPH_OUT, GRAPH_VALUE, GRAPH_QUANT = (n << 3 | SIZED for n in (11, 12, 13, 14))
NODE_IN, NODE_OUT, NODE_NAME, NODE_ATTRIBUTE = (n << 3 | SIZED for n in (1, 2, 3, 5))
ATTRIBUTE_TENSOR, ATTRIBUTE_GRAPH, ATTRIBUTE_TENSORS, ATTRIBUTE_GRAPHS = (n << 3 | SIZED for n in (5, 6, 10, 11))
TENSOR_NAME, TENSOR_EXTERNAL, VALUE_NAME = (n << 3 | SIZED for n in (8, 13, 1))


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
    nodes: Chunks = field(default_factory=list)
    initializers: Chunks = field(default_factory=list)
    inputs: Chunks = field(default_factory=list)
    outputs: Chunks = field(default_factory=list)
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
    except (_UnmergeableError, WireError, UnicodeDecodeError):
        # A malformed model is reported by the engine, which knows more about it.
        return None
    if len(merged.opsets) != 1:
        return None
    (opsets,) = merged.opsets
    graph = merged.nodes + message(GRAPH_NAME, [b"merged"]) + merged.initializers + merged.inputs + merged.outputs
    model = copied(MODEL_IR, merged.ir_version) + message(MODEL_GRAPH, graph)
    for opset in sorted(opsets):
        model += message(MODEL_OPSET, [opset])
    return b"".join(model)


def _add(merged: _Merged, part: Part) -> None:
    opsets: set[bytes] = set()
    for tag, value in fields(memoryview(part.model)):
        if tag in (MODEL_TRAINING, MODEL_FUNCTIONS):
            raise _UnmergeableError
        if tag == MODEL_IR and isinstance(value, int):
            merged.ir_version = max(merged.ir_version, value)
        elif tag == MODEL_OPSET:
            opsets.add(bytes(_payload(value)))
        elif tag == MODEL_GRAPH:
            _add_graph(merged, part, _payload(value))
    merged.opsets.add(frozenset(opsets))


def _add_graph(merged: _Merged, part: Part, graph: memoryview) -> None:
    names = _Names(part)
    made: set[str] = set()
    results: list[str] = []
    for tag, value in fields(graph):
        if tag in (GRAPH_QUANT, GRAPH_SPARSE):
            raise _UnmergeableError
        if tag == GRAPH_NODE:
            merged.nodes += message(tag, _node(_payload(value), names))
            made.update(_text(v) for t, v in fields(_payload(value)) if t == NODE_OUT)
        elif tag == GRAPH_INIT:
            merged.initializers += message(tag, _renamed(_payload(value), TENSOR_NAME, names))
        elif tag == GRAPH_IN and _name(value) not in part.fed:
            merged.inputs += message(tag, _renamed(_payload(value), VALUE_NAME, names))
        elif tag == GRAPH_OUT:
            results.append(_name(value))
            merged.outputs += message(tag, _renamed(_payload(value), VALUE_NAME, names))
    if not made.issuperset(results):
        # An output that is an input or a constant has no value of its own to hand on.
        raise _UnmergeableError


class _Names:
    """The merged name of each value of one part."""

    def __init__(self, part: Part) -> None:
        self._part = part

    def __call__(self, value: Value) -> bytes:
        name = _text(value)
        if not name:
            return b""  # An optional input that is not given.
        return self._part.fed.get(name, self._part.prefix + name).encode()


def _node(node: memoryview, names: _Names) -> Chunks:
    out: Chunks = []
    for tag, value in fields(node):
        if tag in (NODE_IN, NODE_OUT, NODE_NAME):
            out += message(tag, [names(value)])
        elif tag == NODE_ATTRIBUTE:
            out += message(tag, _attribute(_payload(value), names))
        else:
            out += copied(tag, value)
    return out


def _attribute(attribute: memoryview, names: _Names) -> Chunks:
    out: Chunks = []
    for tag, value in fields(attribute):
        if tag in (ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS):
            out += message(tag, _subgraph(_payload(value), names))
        elif tag in (ATTRIBUTE_TENSOR, ATTRIBUTE_TENSORS):
            out += message(tag, _renamed(_payload(value), TENSOR_NAME, names))
        else:
            out += copied(tag, value)
    return out


def _subgraph(graph: memoryview, names: _Names) -> Chunks:
    out: Chunks = []
    for tag, value in fields(graph):
        if tag in (GRAPH_QUANT, GRAPH_SPARSE):
            raise _UnmergeableError
        if tag == GRAPH_NODE:
            out += message(tag, _node(_payload(value), names))
        elif tag == GRAPH_INIT:
            out += message(tag, _renamed(_payload(value), TENSOR_NAME, names))
        elif tag in (GRAPH_IN, GRAPH_OUT, GRAPH_VALUE):
            out += message(tag, _renamed(_payload(value), VALUE_NAME, names))
        else:
            out += copied(tag, value)
    return out


def _renamed(entry: memoryview, name_field: int, names: _Names) -> Chunks:
    out: Chunks = []
    for tag, value in fields(entry):
        if tag == TENSOR_EXTERNAL and name_field == TENSOR_NAME:
            raise _UnmergeableError  # its values are in a file beside the one that the model came from
        out += message(tag, [names(value)]) if tag == name_field else copied(tag, value)
    return out


def _name(value_info: Value) -> str:
    return next((_text(v) for t, v in fields(_payload(value_info)) if t == VALUE_NAME), "")


def _text(value: Value) -> str:
    return bytes(_payload(value)).decode()


def _payload(value: Value) -> memoryview:
    if isinstance(value, int):
        raise _UnmergeableError
    return value
