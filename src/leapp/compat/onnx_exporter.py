"""Private names of torch's ONNX exporter and of onnxscript.

``torch.onnx.export`` builds the tables of its library for every model, and offers no way to translate a graph that was traced
already.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir
import torch
from onnxscript import evaluator
from onnxscript.optimizer._constant_folding import FoldConstantsPass
from onnxscript.version_converter import _version_converter
from torch.onnx._internal.exporter import (
    _constants,
    _core,
    _decomp,
    _dispatching,
    _fx_passes,
    _ir_passes,
    _registration,
    _tensors,
)

from leapp.compat.core import OpOverload

__all__ = [
    "LIBRARY_OPSET", "FoldConstantsPass", "TorchTensor", "add_node", "add_opset_imports", "add_translation",
    "changes_between", "decomposition_table", "find_translation", "insert_type_promotion", "operator_library",
    "real_translation", "remove_assertions", "translate_graph", "translated_operators",
]  # fmt: skip

LIBRARY_OPSET: int = _constants.TORCHLIB_OPSET
"""The ONNX opset that the library's translations are written in."""

TorchTensor: Any = _core.TorchTensor
"""A tensor as the value of an ONNX weight, without a copy."""

insert_type_promotion: Callable[[torch.fx.GraphModule], Any] = _fx_passes.insert_type_promotion_nodes
remove_assertions: Callable[[torch.fx.GraphModule], Any] = _fx_passes.remove_assertion_nodes
add_opset_imports: Callable[[ir.Model], None] = _ir_passes.add_opset_imports


@contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    # ``disabled`` and not a level: setting a level clears the caches of all loggers of the process.
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


def operator_library(opset: int) -> Any:
    """The translations of torch's operators to ONNX, at least at ``LIBRARY_OPSET``; the model is converted afterwards."""
    build = _registration.ONNXRegistry.from_torchlib
    # torch 2.7 and 2.8 have translations for one opset only.
    named = {"opset_version": max(opset, LIBRARY_OPSET)} if "opset_version" in inspect.signature(build).parameters else {}
    # Silent, because it logs every vision operator that it cannot translate without torchvision.
    with _quiet(_registration.logger):
        return build(**named)


def add_translation(library: Any, target: Any, function: Callable[..., Any]) -> None:
    """Add a translation of an operator to the library."""
    library.register_op(target, function)
    # torch 2.7 and 2.8 read a signature from the function and match arguments by name. Without a signature they do not.
    if "opset_version" not in inspect.signature(_registration.ONNXRegistry.from_torchlib).parameters:
        library.get_decomps(target)[0].signature = None


def real_translation(library: Any, target: Any) -> Callable[..., Any] | None:
    """The library's translation of an operator on real numbers."""
    found = (meta.onnx_function for meta in library.get_decomps(target) if not meta.is_complex)
    return next(found, None)


def add_node(kind: str, inputs: Sequence[Any], attributes: Mapping[str, Any], count: int) -> Sequence[Any]:
    """Add an ONNX operator to the graph that is being made, from inside a translation; returns its results."""
    tracer: Any = evaluator.default()
    outputs = [_tensors.SymbolicTensor(tracer.opset) for _ in range(count)]
    made = ir.convenience.convert_attributes(attributes)
    tracer.nodes.append(ir.Node("", kind, inputs, made, outputs=outputs, version=tracer.opset.version))
    return outputs


def translated_operators(library: Any) -> set[Any]:
    """The operators that a library translates."""
    return set(_decomp.get_onnx_implemented_overloads(library))


def decomposition_table(known: set[Any]) -> dict[Any, Callable[..., Any]]:
    """Decompositions of the operators that are not in ``known``."""
    table: dict[Any, Callable[..., Any]] = _decomp.create_onnx_friendly_decomposition_table(known)
    return table


def find_translation(node: torch.fx.Node, library: Any) -> Any:
    """The translation of a node's operator for its arguments, or ``None``, as for operators of ``torch.onnx.ops``."""
    target = node.target
    if isinstance(target, OpOverload) and target.name().startswith("onnx::"):
        return target
    return _dispatching.dispatch(node, library)[0]


def translate_graph(graph: torch.fx.Graph, model: ir.Model, library: Any) -> Mapping[str, Any]:
    """Add the nodes of a graph to a model; returns the ONNX value of each by name."""
    # Silent, because it logs every node without a module path for the metadata, which leapp removes.
    with _quiet(_core.logger), _signatures_kept():
        values: Mapping[str, Any] = _core._translate_fx_graph(
            graph, model, graph_like=model.graph, owned_graphs={}, lower="at_conversion", registry=library
        )
    return values


@contextmanager
def _signatures_kept() -> Iterator[None]:
    """Cache the signatures that the translation makes from operator schemas.

    Torch makes them anew for every node of a graph, which takes a third of the time.
    """
    holder: Any = ir.schemas.OpSignature
    theirs = holder.__dict__["from_op_schema"]
    holder.from_op_schema = staticmethod(_signature)
    try:
        yield
    finally:
        holder.from_op_schema = theirs


_signatures: dict[tuple[str, str, int], Any] = {}
_read_signature = ir.schemas.OpSignature.from_op_schema


def _signature(schema: Any) -> Any:
    key = schema.domain, schema.name, schema.since_version
    if key not in _signatures:
        _signatures[key] = _read_signature(schema)
    return _signatures[key]


@functools.cache
def changes_between(kind: str, have: int, opset: int) -> bool:
    """Whether onnxscript's converter of versions would rewrite an operator that has changed between two opsets."""
    least, most = _version_converter.SUPPORTED_MIN_ONNX_OPSET, _version_converter.SUPPORTED_MAX_ONNX_OPSET
    if not least <= have <= opset <= most:
        return True
    adapters = _version_converter.registry.op_adapters
    return any(("", kind, version, True) in adapters for version in range(opset))
