"""Numbers in float64 arithmetic.

ONNX attributes hold float32, and the library writes Python numbers through them. Where an operator computes in float64, its
numbers become float64 tensors before the translation, with the overload that takes tensors if need be.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from .aten import AtenGraph

__all__ = ["keep_precision"]

_NUMBERS = ("number", "Optional[number]")
_TENSORS = ("Tensor", "Optional[Tensor]")


def keep_precision(aten: AtenGraph) -> None:
    """Replace the numbers of float64 operators by constants of that type."""
    graph = aten.module.graph
    made: dict[float, torch.fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload) or not _is_double(node):
            continue
        target = _taking_tensors(node.target)
        if target is None or any(_loses(v) for v in node.kwargs.values()):
            continue
        positions = [i for i, value in enumerate(node.args) if _loses(value) and _takes_tensor(target, i)]
        if not positions or any(_loses(v) and i not in positions for i, v in enumerate(node.args)):
            continue
        args = list(node.args)
        for i in positions:
            args[i] = _constant(aten, made, node.args[i])
        node.target, node.args = target, tuple(args)


def _is_double(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype == torch.float64


def _loses(value: Any) -> bool:
    """Whether float32 cannot hold a number."""
    return isinstance(value, float) and value == value and float(torch.tensor(value, dtype=torch.float32)) != value


@functools.cache
def _taking_tensors(op: Any) -> Any:
    """The overload of an operator that takes tensors where ``op`` takes numbers; ``None`` if there is none."""
    wanted = [_as_tensor(str(a.type)) for a in op._schema.arguments]
    for name in op.overloadpacket.overloads():
        candidate = getattr(op.overloadpacket, name)
        arguments = candidate._schema.arguments
        if [str(a.type) for a in arguments] == wanted and not candidate._schema.is_mutable:
            return candidate
    return op


def _as_tensor(kind: str) -> str:
    return _TENSORS[_NUMBERS.index(kind)] if kind in _NUMBERS else kind


def _takes_tensor(op: Any, position: int) -> bool:
    return str(op._schema.arguments[position].type) in _TENSORS


def _constant(aten: AtenGraph, made: dict[float, torch.fx.Node], value: Any) -> torch.fx.Node:
    if value not in made:
        graph = aten.module.graph
        tensor = torch.tensor(value, dtype=torch.float64)
        with graph.inserting_before(next(iter(graph.nodes))):
            node = graph.placeholder(f"number{len(made)}")
        node.meta["val"] = tensor
        aten.constants[node] = (f"number{len(made)}", tensor)
        made[value] = node
    return made[value]
