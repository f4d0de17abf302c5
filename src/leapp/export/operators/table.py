"""The tables of operators that are written otherwise for ONNX, and how a function enters them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "BROKEN_COMPOSITES", "DECOMPOSITIONS", "TRANSLATIONS", "aten", "broadcast_shapes", "is_float", "promoted", "replaces",
    "replaces_where", "translates",
]  # fmt: skip

aten: Any = torch.ops.aten
broadcast_shapes: Any = torch.broadcast_shapes

DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {}
"""ATen overload to the function that replaces it."""

TRANSLATIONS: dict[Any, Callable[..., Any]] = {}
"""ATen overload to a function that writes it as ONNX operators."""

BROKEN_COMPOSITES = (
    aten.conv1d.default,
    aten.conv2d.default,
    aten.conv3d.default,
    aten.cross_entropy_loss.default,
)
"""Composites whose own translation fails or is wrong; what they consist of translates well."""


def replaces(*targets: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register what overloads are written as; ``None`` is one that this version of torch does not have."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        DECOMPOSITIONS.update((target, function) for target in targets if target is not None)
        return function

    return register


def replaces_where(
    applies: Callable[[Tensor], bool], *targets: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register what overloads are written as where a tensor among their arguments is such; else what replaced them stays."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for target in targets:
            DECOMPOSITIONS[target] = _chosen(applies, function, DECOMPOSITIONS.get(target))
        return function

    return register


def _chosen(
    applies: Callable[[Tensor], bool], function: Callable[..., Any], other: Callable[..., Any] | None
) -> Callable[..., Any]:
    def rewrite(*args: Any, **named: Any) -> Any:
        if any(isinstance(arg, Tensor) and applies(arg) for arg in args):
            result = function(*args, **named)
            if result is not NotImplemented:
                return result
        return NotImplemented if other is None else other(*args, **named)

    return rewrite


def translates(target: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register how an overload is written as ONNX operators."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        TRANSLATIONS[target] = function
        return function

    return register


def is_float(*values: Any) -> bool:
    """Whether one of these tensors and numbers is a float."""
    return any(v.is_floating_point() if isinstance(v, Tensor) else isinstance(v, float) for v in values)


def promoted(a: Any, b: Any) -> tuple[Tensor, Tensor]:
    """Both operands as tensors of the type that eager arithmetic would give them."""
    dtype = torch.result_type(a, b)
    like = a if isinstance(a, Tensor) else b

    def cast(value: Any) -> Tensor:
        return value.to(dtype) if isinstance(value, Tensor) else torch.full((), value, dtype=dtype, device=like.device)

    return cast(a), cast(b)
