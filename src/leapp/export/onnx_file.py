"""Makes, checks and writes an ONNX model.

Weights are written from their tensors into the file without a copy: a protobuf message is a sequence of tagged fields, so
the initialisers are appended to the serialised graph.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import onnx
import torch

from leapp.export.onnx_graph import ONNX_TYPES, GraphWriter, Value

IR_VERSION = 10

SINGLE_FILE_LIMIT = 1_800_000_000
"""More bytes of weights than this go into ``<model>.data``: a protobuf message holds 2 GB."""

_GRAPH_FIELD = 7
_INITIALIZER_FIELD = 5
_RAW_DATA_FIELD = 9
_ALIGNMENT = 4096


@dataclass(slots=True)
class Weight:
    """A weight. ``elements`` is a tensor, or an object of ``onnx_ir`` that writes them to a file."""

    name: str
    shape: tuple[int, ...]
    kind: int
    nbytes: int
    elements: Any

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> Weight:
        """A tensor as a weight, without a copy."""
        size = tensor.numel() * tensor.element_size()
        return cls(name, tuple(tensor.shape), ONNX_TYPES[tensor.dtype], size, tensor.detach())

    def write(self, file: IO[bytes]) -> None:
        """Write the elements in order."""
        if isinstance(self.elements, torch.Tensor):
            plain = self.elements.cpu().contiguous()
            # NumPy has no bfloat16.
            file.write((plain.view(torch.int16) if plain.dtype is torch.bfloat16 else plain).numpy().data)
        elif hasattr(self.elements, "tofile"):
            self.elements.tofile(file)
        else:
            file.write(self.elements.tobytes())


@dataclass(slots=True)
class OnnxModel:
    """A model without its weights, and the weights."""

    proto: onnx.ModelProto
    weights: list[Weight]


def build_model(
    writer: GraphWriter, inputs: Sequence[tuple[str, Value]], outputs: Sequence[tuple[str, Value]], opset: int
) -> OnnxModel:
    """The model of a graph. An output that is an input, a constant or another output is copied."""
    own = {id(value) for value, _ in writer.constants.values()} | {id(value) for _, value in inputs}
    results = []
    for name, value in outputs:
        if id(value) in own:
            value = writer.copied(value)
        own.add(id(value))
        results.append((name, value))
    nodes = writer.used(value for _, value in results)
    names = _Names({id(value): name for name, value in (*inputs, *results)})
    proto = onnx.ModelProto(ir_version=IR_VERSION, producer_name="pytorch", producer_version=str(torch.__version__))
    proto.opset_import.add(domain="", version=opset)
    graph = proto.graph
    graph.name = "main_graph"
    for name, value in inputs:
        graph.input.add(name=name, type=_described(ONNX_TYPES[value.dtype], value.sizes))
    for name, value in results:
        graph.output.add(name=name, type=_described(ONNX_TYPES[value.dtype], value.sizes))
    ports = {id(value) for _, value in (*inputs, *results)}
    read = {id(value) for node in nodes for value in node.inputs}
    weights = [Weight.of(names.of(value, str(value.ref)), t) for value, t in writer.constants.values() if id(value) in read]
    for node in nodes:
        taken = ["" if value is None else names.of(value, node.kind) for value in node.inputs]
        made = []
        for value in node.outputs:
            made.append(names.of(value, node.kind.lower()))
            if value.shape is not None and id(value) not in ports:
                graph.value_info.add(name=made[-1], type=_described(ONNX_TYPES[value.dtype], value.sizes))
        added = graph.node.add(op_type=node.kind, name=f"node_{made[0]}", input=taken, output=made)
        for key in sorted(node.attributes):
            added.attribute.append(onnx.helper.make_attribute(key, node.attributes[key]))
    return OnnxModel(proto, weights)


class _Names:
    """Gives each value a name that no other value has."""

    def __init__(self, given: dict[int, str]) -> None:
        self._given = given
        self._taken = set(given.values())
        self._next: dict[str, int] = {}

    def of(self, value: Value, wish: str) -> str:
        """The name of a value: ``wish``, with a number if another value has that name."""
        found = self._given.get(id(value))
        if found is None:
            found, number = wish, self._next.get(wish, 0)
            while found in self._taken:
                number += 1
                found = f"{wish}_{number}"
            self._next[wish] = number
            self._taken.add(found)
            self._given[id(value)] = found
        return found


@functools.lru_cache
def _described(kind: int, sizes: tuple[int, ...]) -> onnx.TypeProto:
    """The type of a value in ONNX, cached: the values of a model have few types."""
    return onnx.helper.make_tensor_type_proto(kind, sizes)


def write_model(model: OnnxModel, path: Path, *, check: bool, limit: int = SINGLE_FILE_LIMIT) -> None:
    """Write a model to ``path``, and to ``<path>.data`` when its weights exceed ``limit`` bytes.

    Raises:
        onnx.checker.ValidationError: ``check`` is set and the model is not valid ONNX.
    """
    if check:
        _check(model)
    external = path.with_name(path.name + ".data")
    external.unlink(missing_ok=True)
    if sum(weight.nbytes for weight in model.weights) > limit:
        _write_external(model, path, external)
    else:
        _write_single(model, path)


def _check(model: OnnxModel) -> None:
    """Check the graph with weights declared as inputs, so that their values are not copied into the message."""
    checked = onnx.ModelProto()
    checked.CopyFrom(model.proto)
    for weight in model.weights:
        checked.graph.input.add(name=weight.name, type=_described(weight.kind, weight.shape))
    onnx.checker.check_model(checked)


def _write_single(model: OnnxModel, path: Path) -> None:
    graph = model.proto.graph.SerializeToString(deterministic=True)
    rest = onnx.ModelProto()
    rest.CopyFrom(model.proto)
    rest.ClearField("graph")
    heads = [_tensor_head(weight) for weight in model.weights]
    sizes = [len(head) + weight.nbytes for head, weight in zip(heads, model.weights, strict=True)]
    with path.open("wb") as file:
        file.write(rest.SerializeToString(deterministic=True))
        file.write(_tag(_GRAPH_FIELD, len(graph) + sum(len(_tag(_INITIALIZER_FIELD, size)) + size for size in sizes)))
        file.write(graph)
        for head, size, weight in zip(heads, sizes, model.weights, strict=True):
            file.write(_tag(_INITIALIZER_FIELD, size))
            file.write(head)
            weight.write(file)


def _write_external(model: OnnxModel, path: Path, data: Path) -> None:
    with data.open("wb") as file:
        for weight in model.weights:
            file.write(b"\0" * (-file.tell() % _ALIGNMENT))
            entry = model.proto.graph.initializer.add(name=weight.name, dims=list(weight.shape), data_type=weight.kind)
            entry.data_location = onnx.TensorProto.EXTERNAL
            for key, value in (("location", data.name), ("offset", file.tell()), ("length", weight.nbytes)):
                entry.external_data.add(key=key, value=str(value))
            weight.write(file)
    path.write_bytes(model.proto.SerializeToString(deterministic=True))


def _tensor_head(weight: Weight) -> bytes:
    message = onnx.TensorProto(name=weight.name, dims=list(weight.shape), data_type=weight.kind)
    return bytes(message.SerializeToString(deterministic=True)) + _tag(_RAW_DATA_FIELD, weight.nbytes)


def _tag(field: int, length: int) -> bytes:
    """The head of a length-delimited protobuf field."""
    head = bytearray([field << 3 | 2])
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head)
