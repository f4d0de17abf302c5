"""Writes a node as ONNX: an ATen graph, translated operator by operator with torch's own ONNX library.

The tables of that library are built once per process; building them for every node is what makes the stock exporter
slow. ``onnx`` and ``onnx-torchscript`` are both written here: torch's TorchScript-based exporter gives other values than
eager for floor division, writes through views and more, and its gain, whole ``GRU`` and ``LSTM`` operators, is kept.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import torch
from onnx_ir.passes import common
from onnxscript import version_converter

from leapp.compat import graphs, onnx_exporter
from leapp.errors import ExportError

from .aten import AtenGraph, trace_aten
from .failures import MissingOperatorsError
from .job import ExportJob, ExportResult
from .numbers import keep_precision
from .onnxfile import name_sizes, name_values, strip_metadata, write_model
from .operators import BROKEN_COMPOSITES, DECOMPOSITIONS, TRANSLATIONS

__all__ = ["DEFAULT_OPSET", "export_onnx"]

DEFAULT_OPSET = 20


@dataclass(frozen=True, slots=True)
class _Tables:
    """What torch's ONNX library knows at one opset, with our additions."""

    registry: Any
    decompositions: dict[Any, Any]
    keep: tuple[Any, ...]


def export_onnx(job: ExportJob, directory: Path) -> ExportResult:
    """Write ``<node>.onnx`` with the port names as input and output names."""
    path = directory / f"{job.node}.onnx"
    opset = job.params.get("opset_version") or DEFAULT_OPSET
    tables = _tables(opset)
    aten = trace_aten(job.module, job.example, tables.decompositions, tables.keep, job.batch_axes)
    model = _translate(aten, tables)
    _convert(model, opset)
    _optimize(model, aten, full=job.params.get("optimize") is not False)
    name_values(model, job.input_names, job.output_names)
    if aten.batch is not None:
        name_sizes(model, {aten.batch: "batch"})
    strip_metadata(model)
    write_model(model, path, check=not job.params.get("skip_validation"))
    if job.params.get("report"):
        report = f"{job.node}, ONNX opset {opset}\n\n{aten.module.code}\n{model.graph}\n"
        (directory / f"{job.node}_report.txt").write_text(report, encoding="utf-8")
    if job.params.get("verify"):
        _verify(job, path)
    return ExportResult(path=path, backend="onnx", extra={"opset_version": opset})


@functools.cache
def _tables(opset: int) -> _Tables:
    registry = onnx_exporter.operator_library(opset)
    for target, function in TRANSLATIONS.items():
        registry.register_op(target, function)
    known = onnx_exporter.translated_operators(registry)
    composites = graphs.whole_composites()
    table = onnx_exporter.decomposition_table(known)
    decompositions = {target: function for target, function in table.items() if target not in composites}
    decompositions.update({op: _before(ours, decompositions.get(op)) for op, ours in DECOMPOSITIONS.items()})
    # A composite that we rewrite must reach the trace whole as well.
    whole = (op for op in composites if (op in known and not _is_broken(op)) or op in DECOMPOSITIONS)
    keep = tuple(sorted(whole, key=str))
    return _Tables(registry, decompositions, keep)


def _is_broken(composite: Any) -> bool:
    # The functions of torch.special are second names, and what stands behind them may be written otherwise.
    return composite in BROKEN_COMPOSITES or composite.name().startswith("aten::special_")


def _before(ours: Callable[..., Any], theirs: Callable[..., Any] | None) -> Callable[..., Any]:
    """Our rewriting of an operator; torch's own where ours leaves it as it is."""
    if theirs is None:
        return ours

    def rewrite(*args: Any, **named: Any) -> Any:
        result = ours(*args, **named)
        return theirs(*args, **named) if result is NotImplemented else result

    return rewrite


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
        ir_version=onnx_exporter.IR_VERSION,
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


def _verify(job: ExportJob, path: Path) -> None:
    import numpy as np
    import onnxruntime

    with torch.no_grad():
        expected = job.module(*job.example)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feeds = {name: tensor.detach().cpu().numpy() for name, tensor in zip(job.input_names, job.example, strict=True)}
    for name, got, want in zip(job.output_names, session.run(None, feeds), expected, strict=True):
        if not np.allclose(got, want.detach().cpu().numpy(), rtol=1e-3, atol=1e-5, equal_nan=True):
            raise ExportError(f"verify: output {name!r} of the written model differs from eager.")
