"""Writes a node as ONNX with the help of torch's own ONNX library.

It translates what our functions leave to it: rare operators, complex numbers, sizes that are not known. To load it, with all
that it needs, takes seconds, and its tables are built once per process; building them for every node is what makes the stock
exporter slow.
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
from leapp.export.aten import trace_aten
from leapp.export.failures import MissingOperatorsError
from leapp.export.job import ExportJob
from leapp.export.listing import AtenGraph
from leapp.export.numbers import keep_precision
from leapp.export.onnxfile import IR_VERSION, Draft, Weight
from leapp.export.onnxgraph import ONNX_TYPES, UnknownSizeError, Value, Writer
from leapp.export.operators import DECOMPOSITIONS, TRANSLATIONS, whole_composites
from leapp.export.replacing import Replacement


@dataclass(frozen=True, slots=True)
class _Tables:
    """What torch's ONNX library knows at one opset, with our additions."""

    registry: Any
    decompositions: dict[Any, Any]
    keep: tuple[Any, ...]


def draft_with_library(job: ExportJob, opset: int) -> Draft:
    """The ONNX model of a node."""
    tables = _tables(opset)
    aten = trace_aten(job.module, job.example, tables.decompositions, tables.keep, job.batch_axes)
    model = _translate(aten, tables)
    _convert(model, opset)
    _optimize(model, aten, full=job.params.get("optimize") is not False)
    name_values(model, job.input_names, job.output_names)
    if aten.batch is not None:
        name_sizes(model, {aten.batch: "batch"})
    strip_metadata(model)
    return model_as_draft(model)


def model_as_draft(model: ir.Model) -> Draft:
    """A model without its weights, and the weights."""
    weights = [value for value in model.graph.initializers.values() if value.const_value is not None]
    model.graph.initializers.clear()
    try:
        proto = ir.serde.serialize_model(model)
    finally:
        for value in weights:
            model.graph.initializers[str(value.name)] = value
    return Draft(proto, [_weight(str(value.name), value.const_value) for value in weights])


def _weight(name: str, tensor: Any) -> Weight:
    return Weight(name, tuple(tensor.shape), tensor.dtype.value, tensor.nbytes, tensor)


@functools.cache
def _tables(opset: int) -> _Tables:
    registry = onnx_exporter.operator_library(opset)
    table = onnx_exporter.decomposition_table(onnx_exporter.translated_operators(registry))
    decompositions = {target: function for target, function in table.items() if not is_whole_composite(target)}
    for target, function in TRANSLATIONS.items():
        # What torch writes as other operators may have any sizes.
        if target not in decompositions:
            ours = _written(target, function, onnx_exporter.real_translation(registry, target))
            onnx_exporter.add_translation(registry, target, ours)
    keep = whole_composites()
    for op, ours in DECOMPOSITIONS.items():
        decompositions[op] = Replacement(ours, decompositions[op]) if op in decompositions else ours
    return _Tables(registry, decompositions, keep)


class _Added(Writer):
    """Adds to the graph that torch's exporter is making."""

    def put(
        self, kind: str, inputs: Sequence[Value | None], outputs: list[Value], attributes: dict[str, Any]
    ) -> list[Value]:
        """Add an operator; returns its results."""
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


def _written(target: Any, ours: Callable[..., Any], theirs: Callable[..., Any] | None) -> Callable[..., Any]:
    """Our translation of an operator, as torch's exporter calls it; the library's where ours leaves the operator to it."""
    kinds = {argument.name: str(argument.type) for argument in target._schema.arguments}

    def write(*args: Any, **named: Any) -> Any:
        if named.get("dtype") == -1:  # how the exporter spells that none is given
            del named["dtype"]
        given = [*zip(kinds.values(), args, strict=False), *((kinds[name], value) for name, value in named.items())]
        result: Any = NotImplemented
        try:
            values = [_as_value(value, kind) for kind, value in given]
            result = ours(_Added(), *values[: len(args)], **dict(zip(named, values[len(args) :], strict=True)))
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
    """An argument as our functions take it."""
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
    if isinstance(result, (list, tuple)):
        return [_as_ref(item, args) for item in result]
    if any(result.ref is arg for arg in args):
        return _Added()("Identity", result, shape=result.shape).ref
    return result.ref


def _translate(aten: AtenGraph, tables: _Tables) -> ir.Model:
    """The ATen graph as an ONNX model whose inputs are the node's and whose initialisers are its weights."""
    graph = aten.module.graph
    if _mixes_types(graph):
        onnx_exporter.insert_type_promotion(aten.module)
    keep_precision(aten, tables.registry)
    onnx_exporter.remove_assertions(aten.module)
    _refuse_unknown(graph, tables)
    model = ir.Model(
        ir.Graph([], [], nodes=[], name="main_graph"),
        ir_version=IR_VERSION,
        producer_name="pytorch",
        producer_version=str(torch.__version__),
    )
    with _blamed(graph):
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
def _blamed(graph: torch.fx.Graph) -> Iterator[None]:
    """Note with an error of the translation which recorded call made the operator."""
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
    """Whether some operator may promote: its tensors are not all of one floating type."""
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
    """Whether the converter of versions would leave an operator as it is."""
    try:
        if onnx.defs.get_schema(kind, have).since_version == onnx.defs.get_schema(kind, opset).since_version:
            return True
    except onnx.defs.SchemaError:
        return False
    return not onnx_exporter.changes_between(kind, have, opset)


class _Fold(onnx_exporter.FoldConstantsPass):
    """Infers only what the translation left open: most values carry their type and shape already."""

    def _do_inference(self, node: ir.Node) -> None:
        if any(value.type is None or value.shape is None for value in node.outputs):
            super()._do_inference(node)


def _optimize(model: ir.Model, aten: AtenGraph, *, full: bool) -> None:
    """Fold what is constant and drop what is unused.

    The library's rewrite rules stay out: they match constants within a tolerance, and ``x + 1e-8`` is not ``x``.
    """
    weights = {name for name, _ in aten.constants.values()}

    def should_fold(node: ir.Node) -> bool | None:
        # A folded weight is a second copy under a name that says nothing.
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


# -- names --------------------------------------------------------------------------------------------------------------


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
