"""Names, checks and writes an ONNX model.

The values of weights go from their tensors straight into the file: a protobuf message is a sequence of tagged fields,
so the initialisers can be appended to a serialised graph without building it in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import onnx
import onnx_ir as ir

__all__ = ["SINGLE_FILE_LIMIT", "name_sizes", "name_values", "strip_metadata", "write_model"]

SINGLE_FILE_LIMIT = 1_800_000_000
"""Above this many bytes of weights they go into ``<model>.data``; protobuf itself ends at 2 GB."""

_GRAPH_FIELD = 7
_INITIALIZER_FIELD = 5
_RAW_DATA_FIELD = 9
_ALIGNMENT = 4096


def name_values(model: ir.Model, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Give the graph's inputs and outputs the port names, each output a value of its own, and move clashing names."""
    graph = model.graph
    _separate_outputs(graph)
    ports = set(inputs) | set(outputs)
    bound = {id(value) for value in (*graph.inputs, *graph.outputs)}
    taken = ports | {value.name for value in _values(graph) if value.name and id(value) not in bound}
    # First out of the way, then into place: a port may carry the present name of another one.
    for position, value in enumerate((*graph.inputs, *graph.outputs)):
        value.name = _fresh(f"port_{position}", taken)
    for value in _values(graph):
        if value.name in ports and id(value) not in bound:
            _rename(graph, value, _fresh(value.name, taken))
    for value, name in zip((*graph.inputs, *graph.outputs), (*inputs, *outputs), strict=True):
        value.name = name


def name_sizes(model: ir.Model, names: dict[str, str]) -> None:
    """Give the symbolic sizes of values their public names."""
    for value in (*_values(model.graph), *model.graph.outputs):
        if value.shape is not None:
            value.shape = ir.Shape([_size_name(size, names) for size in value.shape])


def _size_name(size: Any, names: dict[str, str]) -> Any:
    if not isinstance(size, ir.SymbolicDim) or size.value is None:
        return size
    return re.sub(r"\w+", lambda word: names.get(word[0], word[0]), size.value)


def strip_metadata(model: ir.Model) -> None:
    """Remove what the exporter noted about itself: stack traces, module paths, node names of its own."""
    model.metadata_props.clear()
    model.doc_string = None
    graphs: list[Any] = [model.graph, *model.functions.values()]
    for graph in graphs:
        graph.metadata_props.clear()
        graph.doc_string = None
        for value in _values(graph):
            value.metadata_props.clear()
            value.doc_string = None
        for node in ir.traversal.RecursiveGraphIterator(graph):
            node.metadata_props.clear()
            node.doc_string = None


def write_model(model: ir.Model, path: Path, *, check: bool, limit: int = SINGLE_FILE_LIMIT) -> None:
    """Write ``model`` to ``path``, and to ``<path>.data`` when its weights exceed ``limit`` bytes.

    Raises:
        onnx.checker.ValidationError: ``check`` is set and the model is not valid ONNX.
    """
    weights = [value for value in model.graph.initializers.values() if value.const_value is not None]
    tensors: list[tuple[str, Any]] = [(str(value.name), value.const_value) for value in weights]
    model.graph.initializers.clear()
    try:
        proto = ir.serde.serialize_model(model)
    finally:
        for value in weights:
            model.graph.initializers[str(value.name)] = value
    if check:
        _check(proto, tensors)
    external = path.with_name(path.name + ".data")
    external.unlink(missing_ok=True)
    if sum(tensor.nbytes for _, tensor in tensors) > limit:
        _write_external(proto, tensors, path, external)
    else:
        _write_single(proto, tensors, path)


def _separate_outputs(graph: ir.Graph) -> None:
    """An output that is also an input, a weight or another output gets an ``Identity`` of its own."""
    seen = {id(value) for value in graph.inputs}
    for position, value in enumerate(graph.outputs):
        if id(value) in seen or value.is_initializer() or value.producer() is None:
            node = ir.node("Identity", [value], name=f"node_output_{position}")
            copy = node.outputs[0]
            copy.type, copy.shape, copy.name = value.type, value.shape, f"output_{position}"
            graph.append(node)
            graph.outputs[position] = copy
        seen.add(id(graph.outputs[position]))


def _values(graph: Any) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from list(getattr(graph, "initializers", {}).values())
    for node in ir.traversal.RecursiveGraphIterator(graph):
        yield from node.outputs
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                yield from attribute.value.inputs
                yield from list(attribute.value.initializers.values())


def _rename(graph: ir.Graph, value: ir.Value, name: str) -> None:
    if value.is_initializer() and graph.initializers.get(str(value.name)) is value:
        graph.initializers.pop(str(value.name))
        value.name = name
        graph.initializers[name] = value
    else:
        value.name = name


def _fresh(name: str, taken: set[str]) -> str:
    candidate, number = name, 0
    while candidate in taken:
        number += 1
        candidate = f"{name}_{number}"
    taken.add(candidate)
    return candidate


def _check(proto: onnx.ModelProto, tensors: Iterable[tuple[str, Any]]) -> None:
    """Check the graph with weights declared as inputs, so that their values are not copied into the message."""
    checked = onnx.ModelProto()
    checked.CopyFrom(proto)
    for name, tensor in tensors:
        checked.graph.input.append(onnx.helper.make_tensor_value_info(name, tensor.dtype.value, list(tensor.shape)))
    onnx.checker.check_model(checked)


def _write_single(proto: onnx.ModelProto, tensors: Sequence[tuple[str, Any]], path: Path) -> None:
    graph = proto.graph.SerializeToString(deterministic=True)
    proto.ClearField("graph")
    heads = [_tensor_head(name, tensor) for name, tensor in tensors]
    size = len(graph) + sum(
        len(_tag(_INITIALIZER_FIELD, len(head) + tensor.nbytes)) + len(head) + tensor.nbytes
        for head, (_, tensor) in zip(heads, tensors, strict=True)
    )
    with path.open("wb") as file:
        file.write(proto.SerializeToString(deterministic=True))
        file.write(_tag(_GRAPH_FIELD, size))
        file.write(graph)
        for head, (_, tensor) in zip(heads, tensors, strict=True):
            file.write(_tag(_INITIALIZER_FIELD, len(head) + tensor.nbytes))
            file.write(head)
            _write_data(tensor, file)


def _write_external(proto: onnx.ModelProto, tensors: Sequence[tuple[str, Any]], path: Path, data: Path) -> None:
    with data.open("wb") as file:
        for name, tensor in tensors:
            file.write(b"\0" * (-file.tell() % _ALIGNMENT))
            entry = proto.graph.initializer.add(name=name, dims=list(tensor.shape), data_type=tensor.dtype.value)
            entry.data_location = onnx.TensorProto.EXTERNAL
            for key, value in (("location", data.name), ("offset", file.tell()), ("length", tensor.nbytes)):
                entry.external_data.add(key=key, value=str(value))
            _write_data(tensor, file)
    path.write_bytes(proto.SerializeToString(deterministic=True))


def _write_data(tensor: Any, file: IO[bytes]) -> None:
    if hasattr(tensor, "tofile"):
        tensor.tofile(file)
    else:
        file.write(tensor.tobytes())


def _tensor_head(name: str, tensor: Any) -> bytes:
    message = onnx.TensorProto(name=name, dims=list(tensor.shape), data_type=tensor.dtype.value)
    return bytes(message.SerializeToString(deterministic=True)) + _tag(_RAW_DATA_FIELD, tensor.nbytes)


def _tag(field: int, length: int) -> bytes:
    """The head of a length-delimited protobuf field."""
    head = bytearray([field << 3 | 2])
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head)
