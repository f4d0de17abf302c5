"""Writes a node as ONNX with the help of torchlib, the library of translations that torch's own ONNX exporter uses.

torchlib translates what is not in our tables: rare operators, complex numbers, sizes that are not known. It takes seconds to
load. Its tables are built once per process; torch's exporter is slow because it builds them for every node.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir
import torch
from onnx_ir.passes import common
from onnxscript import version_converter

from leapp.compat import onnx_exporter
from leapp.compat.graphs import is_whole_composite
from leapp.errors import ExportError
from leapp.export.aten import AtenGraph, trace_aten
from leapp.export.failures import MissingOperatorsError
from leapp.export.job import ExportJob
from leapp.export.onnx_file import IR_VERSION, OnnxModel, Weight
from leapp.export.onnx_graph import ONNX_TYPES, UnknownSizeError, Value, Writer
from leapp.export.operators import DECOMPOSITIONS, TRANSLATIONS, whole_composites
from leapp.export.operators.table import Replacement


@dataclass(frozen=True, slots=True)
class _Tables:
    """The operators of torchlib at one opset, with those of our tables."""

    registry: Any
    decompositions: dict[Any, Any]
    keep: frozenset[Any]


def build_with_torchlib(job: ExportJob, opset: int) -> OnnxModel:
    """The ONNX model of a node."""
    tables = _tables(opset)
    aten = trace_aten(job.module, job.example, tables.decompositions, tables.keep, job.batch_axes)
    model = _translate(aten, tables)
    _convert(model, opset)
    _optimize(model, aten, full=job.params.get("optimize") is not False)
    _name_values(model, job.input_names, job.output_names)
    if aten.batch is not None:
        _name_sizes(model, {aten.batch: "batch"})
    _strip_metadata(model)
    return split_weights(model)


def split_weights(model: ir.Model) -> OnnxModel:
    """Separate a model from its weights."""
    weights = [value for value in model.graph.initializers.values() if value.const_value is not None]
    model.graph.initializers.clear()
    try:
        proto = ir.serde.serialize_model(model)
    finally:
        for value in weights:
            model.graph.initializers[str(value.name)] = value
    return OnnxModel(proto, [_weight(str(value.name), value.const_value) for value in weights])


def _weight(name: str, tensor: Any) -> Weight:
    return Weight(name, tuple(tensor.shape), tensor.dtype.value, tensor.nbytes, tensor)


@functools.cache
def _tables(opset: int) -> _Tables:
    registry = onnx_exporter.operator_library(opset)
    table = onnx_exporter.decomposition_table(onnx_exporter.translated_operators(registry))
    decompositions = {target: function for target, function in table.items() if not is_whole_composite(target)}
    for target, function in TRANSLATIONS.items():
        theirs = onnx_exporter.real_translation(registry, target)
        # Torch's decompositions also take sizes that are not known. What is decomposed may come again: the promotion of types
        # makes aten.mul.Scalar, which torchlib does not know before onnxscript 0.7.2.
        if target not in decompositions or theirs is None:
            onnx_exporter.add_translation(registry, target, _torchlib_function(target, function, theirs))
    keep = whole_composites()
    for op, ours in DECOMPOSITIONS.items():
        decompositions[op] = Replacement(ours, decompositions[op]) if op in decompositions else ours
    return _Tables(registry, decompositions, keep)


class _TorchlibWriter(Writer):
    """Adds ONNX operators to the graph that torch's exporter makes."""

    def put(
        self, kind: str, inputs: Sequence[Value | None], outputs: list[Value], attributes: dict[str, Any]
    ) -> list[Value]:
        """Add an operator and return its results."""
        refs = onnx_exporter.add_node(kind, [None if v is None else v.ref for v in inputs], attributes, len(outputs))
        for output, ref in zip(outputs, refs, strict=True):
            output.ref = ref
            ref.dtype = ir.DataType(ONNX_TYPES[output.dtype])
            if output.shape is not None and None not in output.shape:
                ref.shape = ir.Shape(output.shape)
        return outputs

    def constant(self, tensor: torch.Tensor) -> Value:
        """A tensor that is part of the model."""
        made = Value(tensor.dtype, tuple(tensor.shape))
        return self.put("Constant", [], [made], {"value": onnx_exporter.TorchTensor(tensor)})[0]


def _torchlib_function(
    target: Any, ours: Callable[..., Any], theirs: Callable[..., Any] | None
) -> Callable[..., Any]:
    """Our translation of an operator as torchlib calls it. Where ours returns ``NotImplemented``, ``theirs`` is called."""
    kinds = {argument.name: str(argument.type) for argument in target._schema.arguments}

    def write(*args: Any, **named: Any) -> Any:
        if named.get("dtype") == -1:  # the exporter's value for no dtype
            del named["dtype"]
        given = [*zip(kinds.values(), args, strict=False), *((kinds[name], value) for name, value in named.items())]
        result: Any = NotImplemented
        try:
            values = [_as_value(value, kind) for kind, value in given]
            result = ours(_TorchlibWriter(), *values[: len(args)], **dict(zip(named, values[len(args) :], strict=True)))
        except UnknownSizeError:
            pass
        if result is NotImplemented:
            if theirs is None:
                raise MissingOperatorsError([str(target)])
            return theirs(*args, **named)
        return _as_ref(result, args)

    return write


_DTYPES = {code: dtype for dtype, code in ONNX_TYPES.items()}


def _as_value(given: Any, kind: str) -> Any:
    """An argument as our translations take it."""
    if isinstance(given, ir.Value):
        if given.dtype is None or given.shape is None or int(given.dtype) not in _DTYPES or "Tensor" not in kind:
            raise UnknownSizeError
        sizes = tuple(size if isinstance(size, int) else None for size in given.shape)
        return Value(_DTYPES[int(given.dtype)], sizes, given)
    if isinstance(given, ir.DataType):
        if int(given) not in _DTYPES:
            raise UnknownSizeError
        return _DTYPES[int(given)]
    if isinstance(given, (list, tuple)):
        return [_as_value(item, kind) for item in given]
    return given


def _as_ref(result: Any, args: Sequence[Any]) -> Any:
    """A result of our translations as torchlib takes it."""
    if isinstance(result, (list, tuple)):
        return [_as_ref(item, args) for item in result]
    if any(result.ref is arg for arg in args):
        return _TorchlibWriter()("Identity", result, shape=result.shape).ref
    return result.ref


def _translate(aten: AtenGraph, tables: _Tables) -> ir.Model:
    """The ATen graph as an ONNX model. Its inputs are those of the node, its initialisers the weights."""
    graph = aten.module.graph
    if _mixes_types(graph):
        onnx_exporter.insert_type_promotion(aten.module)
    onnx_exporter.remove_assertions(aten.module)
    _refuse_unknown(graph, tables)
    model = ir.Model(
        ir.Graph([], [], nodes=[], name="main_graph"),
        ir_version=IR_VERSION,
        producer_name="pytorch",
        producer_version=str(torch.__version__),
    )
    with _note_call(graph):
        values = onnx_exporter.translate_graph(graph, model, tables.registry)
    model.graph.inputs.clear()
    model.graph.inputs.extend(_single(values[node.name]) for node in aten.inputs)
    outputs: Any = graph.output_node().args[0]
    model.graph.outputs.clear()
    model.graph.outputs.extend(_single(values[node.name]) for node in outputs)
    for node, (name, tensor) in aten.constants.items():
        if node.users:
            _add_weight(model, _single(values[node.name]), name, tensor)
    onnx_exporter.add_opset_imports(model)
    return model


@contextmanager
def _note_call(graph: torch.fx.Graph) -> Iterator[None]:
    """Attach to an error of a translation the recorded call that made the operator."""
    try:
        yield
    except Exception as error:
        named = re.search(r"translating node %(\w+)", str(error))
        node = next((n for n in graph.nodes if named is not None and n.name == named[1]), None)
        if node is not None:
            error.call = node.meta.get("call")  # type: ignore[attr-defined]
        raise


def _single(value: Any) -> ir.Value:
    assert isinstance(value, ir.Value)
    return value


def _add_weight(model: ir.Model, value: ir.Value, name: str, tensor: torch.Tensor) -> None:
    data = tensor.detach()
    if data.is_complex():
        data = torch.view_as_real(data.resolve_conj())
    value.name = name
    value.const_value = onnx_exporter.TorchTensor(data, name=name)
    model.graph.initializers[name] = value


def _mixes_types(graph: torch.fx.Graph) -> bool:
    """Whether an operator may promote types: its tensors are not all of one floating type."""
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        kinds = {
            value.meta["val"].dtype
            for value in (*node.all_input_nodes, node)
            if isinstance(value.meta.get("val"), torch.Tensor)
        }
        sizes = any(isinstance(value.meta.get("val"), (torch.SymInt, torch.SymFloat)) for value in node.all_input_nodes)
        if sizes or len(kinds) > 1 or not all(kind.is_floating_point for kind in kinds):
            return True
    return False


def _refuse_unknown(graph: torch.fx.Graph, tables: _Tables) -> None:
    missing: dict[str, Any] = {}
    for node in graph.nodes:
        if node.op != "call_function" or str(getattr(node.target, "__name__", "")) == "getitem":
            continue
        if onnx_exporter.find_translation(node, tables.registry) is None:
            kind = " on complex values" if _has_complex(node) and tables.registry.is_registered(node.target) else ""
            missing.setdefault(f"{node.target}{kind}", node.meta.get("call"))
    if missing:
        raise MissingOperatorsError(list(missing), next(iter(missing.values())))


def _has_complex(node: torch.fx.Node) -> bool:
    values = (value.meta.get("val") for value in node.all_input_nodes)
    return any(isinstance(value, torch.Tensor) and value.is_complex() for value in values)


def _convert(model: ir.Model, opset: int) -> None:
    if model.functions:
        common.InlinePass()(model)
    have = model.opset_imports.get("")
    used = {node.op_type for node in model.graph.all_nodes() if not node.domain}
    if have is not None and not model.functions and all(_is_kept(kind, have, opset) for kind in used):
        model.opset_imports[""] = opset
        return
    version_converter.convert_version(model, opset, fallback=True)
    reached = model.opset_imports.get("")
    if reached is not None and reached != opset:
        raise ExportError(f"the model needs ONNX opset {reached} and cannot be converted to opset_version={opset}.")
    model.opset_imports[""] = opset


@functools.cache
def _is_kept(kind: str, have: int, opset: int) -> bool:
    """Whether the version converter would leave an operator as it is."""
    try:
        if onnx.defs.get_schema(kind, have).since_version == onnx.defs.get_schema(kind, opset).since_version:
            return True
    except onnx.defs.SchemaError:
        return False
    return not onnx_exporter.changes_between(kind, have, opset)


class _Fold(onnx_exporter.FoldConstantsPass):
    """Infers types and shapes only of values that have none: the translation set most of them."""

    def _do_inference(self, node: ir.Node) -> None:
        if any(value.type is None or value.shape is None for value in node.outputs):
            super()._do_inference(node)


def _optimize(model: ir.Model, aten: AtenGraph, *, full: bool) -> None:
    """Fold constants and drop unused operators.

    onnxscript's rewrite rules are not used: they match constants within a tolerance, and would drop ``+ 1e-8``.
    """
    weights = {name for name, _ in aten.constants.values()}

    def should_fold(node: ir.Node) -> bool | None:
        # A folded weight would be a second copy, without the name of the weight.
        named = any(value is not None and value.is_initializer() and value.name in weights for value in node.inputs)
        return False if named else None

    passes: list[Any] = []
    if full:
        limits = {"input_size_limit": 8192, "output_size_limit": 512 * 512}
        passes.append(_Fold(shape_inference=True, should_fold=should_fold, **limits))
    passes += [common.RemoveUnusedNodesPass(), common.RemoveUnusedOpsetsPass()]
    if model.functions:
        passes.append(common.RemoveUnusedFunctionsPass())  # type: ignore[no-untyped-call]
    passes.append(common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0))
    if any(True for _ in model.graph.subgraphs()):
        passes.append(common.LiftSubgraphInitializersToMainGraphPass())
    if full:
        passes += [common.DeduplicateInitializersPass(), common.CommonSubexpressionEliminationPass()]
    ir.passes.Sequential(*passes)(model)


# Names


def _name_values(model: ir.Model, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Give the graph's inputs and outputs the names of the ports. A value that has the name of a port gets another name."""
    graph = model.graph
    _separate_outputs(graph)
    ports = set(inputs) | set(outputs)
    bound = {id(value) for value in (*graph.inputs, *graph.outputs)}
    taken = ports | {value.name for value in _values(graph) if value.name and id(value) not in bound}
    # Two steps, because a port may have the name that another port has now.
    for position, value in enumerate((*graph.inputs, *graph.outputs)):
        value.name = _fresh(f"port_{position}", taken)
    for value in _values(graph):
        if value.name in ports and id(value) not in bound:
            _rename(graph, value, _fresh(value.name, taken))
    for value, name in zip((*graph.inputs, *graph.outputs), (*inputs, *outputs), strict=True):
        value.name = name


def _name_sizes(model: ir.Model, names: dict[str, str]) -> None:
    """Give the symbolic sizes of values their public names."""
    for value in (*_values(model.graph), *model.graph.outputs):
        if value.shape is not None:
            value.shape = ir.Shape([_size_name(size, names) for size in value.shape])


def _size_name(size: Any, names: dict[str, str]) -> Any:
    if not isinstance(size, ir.SymbolicDim) or size.value is None:
        return size
    return re.sub(r"\w+", lambda word: names.get(word[0], word[0]), size.value)


def _strip_metadata(model: ir.Model) -> None:
    """Remove the notes of the exporter: stack traces, module paths, documentation."""
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


def _separate_outputs(graph: ir.Graph) -> None:
    """Copy an output that is also an input, a weight or another output with an ``Identity``."""
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
