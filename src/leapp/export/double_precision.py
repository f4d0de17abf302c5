"""Keeps Python numbers exact in operators that compute in float64.

torchlib writes Python numbers as ONNX attributes, which are float32. Here the numbers of float64 operators become float64
tensors before the translation, and the operator becomes its overload that takes tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from leapp.compat.core import OpOverload
from leapp.export.aten import AtenGraph

Made = dict[tuple[float, tuple[int, ...]], torch.fx.Node]
"""The constants made so far, by value and shape."""

_NUMBERS = ("number", "Optional[number]")
_TENSORS = ("Tensor", "Optional[Tensor]")


def keep_precision(aten: AtenGraph, registry: Any) -> None:
    """Replace the numbers of float64 operators by constants of that type.

    Args:
        aten: The graph, changed in place.
        registry: The operators that can be translated; an overload that takes tensors must be among them.
    """
    made: Made = {}
    for node in list(aten.module.graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, OpOverload) or not _is_double(node):
            continue
        if node.target in _FILLED:
            _expand(aten, made, node)
        elif node.target in _SERIES:
            _evaluate(aten, node)
        else:
            _take_tensors(aten, made, node, registry)


def _take_tensors(aten: AtenGraph, made: Made, node: torch.fx.Node, registry: Any) -> None:
    """Replace an operator on numbers by its overload on tensors."""
    target = _taking_tensors(node.target)
    names = [argument.name for argument in target._schema.arguments]
    takes = {name for name, argument in zip(names, target._schema.arguments, strict=True) if str(argument.type) in _TENSORS}
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    divides = target is _aten.div.Tensor
    losing = [n for n, value in given.items() if loses(value) or (divides and n == "other" and loses_divided_by(value))]
    if not losing or not takes.issuperset(losing) or not registry.is_registered(target):
        return
    shape = factor_shape(node.meta["val"].shape) if target in _FACTORS else ()
    for name in losing:
        given[name] = _constant(aten, made, given[name], shape)
    count = len(node.args)
    node.target = target
    node.args = tuple(given[name] for name in names[:count])
    node.kwargs = {name: value for name, value in given.items() if name in node.kwargs}


def _expand(aten: AtenGraph, made: Made, node: torch.fx.Node) -> None:
    """Replace a tensor filled with a number by the number as a constant, expanded to the shape."""
    value, shape = node.args[_FILLED[node.target]], list(node.meta["val"].shape)
    if loses(value) and all(isinstance(size, int) for size in shape):
        node.args = (_constant(aten, made, value), shape)
        node.kwargs = {}
        node.target = torch.ops.aten.expand.default


def _evaluate(aten: AtenGraph, node: torch.fx.Node) -> None:
    """Replace ``arange`` and its like by a constant with their values."""
    if not any(map(loses, (*node.args, *node.kwargs.values()))) or node.all_input_nodes:
        return
    options = {name: value for name, value in node.kwargs.items() if name != "device"}
    tensor = node.target(*node.args, **options)  # type: ignore[operator]
    node.replace_all_uses_with(_placeholder(aten, f"series_{node.name}", tensor))
    aten.module.graph.erase_node(node)


_aten: Any = torch.ops.aten
_FILLED = {
    _aten.full.default: 1, _aten.full_like.default: 1, _aten.new_full.default: 2, _aten.scalar_tensor.default: 0
}  # fmt: skip
"""Operators that fill a tensor, and the position of the number."""

_FACTORS = frozenset({_aten.mul.Tensor, _aten.div.Tensor})

_SERIES = frozenset(
    {_aten.arange.default, _aten.arange.start, _aten.arange.start_step, _aten.linspace.default, _aten.logspace.default}
)


def _is_double(node: torch.fx.Node) -> bool:
    values = (value.meta.get("val") for value in (node, *node.all_input_nodes))
    return any(isinstance(value, torch.Tensor) and value.dtype == torch.float64 for value in values)


def loses(value: Any) -> bool:
    """Whether float32 rounds a number."""
    return isinstance(value, float) and value == value and float(torch.tensor(value, dtype=torch.float32)) != value


def loses_divided_by(value: Any) -> bool:
    """Whether float32 rounds the inverse of a number: ONNX Runtime turns a division into a factor of a matrix product."""
    return isinstance(value, (int, float)) and bool(value) and loses(1.0 / value)


@functools.cache
def _taking_tensors(op: Any) -> Any:
    """The overload that takes the most tensors where ``op`` takes numbers; ``op`` if there is none."""
    given = op._schema.arguments
    best, most = op, 0
    for name in op.overloadpacket.overloads():
        candidate = getattr(op.overloadpacket, name)
        arguments = candidate._schema.arguments
        if candidate._schema.is_mutable or [a.name for a in arguments] != [a.name for a in given]:
            continue
        changed = [(str(a.type), str(b.type)) for a, b in zip(given, arguments, strict=True) if str(a.type) != str(b.type)]
        if all(pair in zip(_NUMBERS, _TENSORS, strict=True) for pair in changed) and len(changed) > most:
            best, most = candidate, len(changed)
    return best


def factor_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of a constant that multiplies a tensor of this ``shape``: as long as its last axis, not a single number.

    ONNX Runtime moves single numbers into its matrix products, which round them to float32.
    """
    for axis in reversed(range(len(shape))):
        if isinstance(shape[axis], int) and shape[axis] > 1:
            return (shape[axis], *(1 for _ in shape[axis + 1 :]))
    return ()


def _constant(aten: AtenGraph, made: Made, value: Any, shape: tuple[int, ...] = ()) -> torch.fx.Node:
    if (value, shape) not in made:
        tensor = torch.full(shape, value, dtype=torch.float64)
        made[value, shape] = _placeholder(aten, f"number{len(made)}", tensor)
    return made[value, shape]


def _placeholder(aten: AtenGraph, name: str, tensor: torch.Tensor) -> torch.fx.Node:
    graph = aten.module.graph
    with graph.inserting_before(next(iter(graph.nodes))):
        node = graph.placeholder(name)
    node.meta["val"] = tensor
    aten.constants[node] = (name, tensor)
    return node
