"""The tables of operators that are written otherwise for ONNX, and how a function enters them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from leapp.compat.core import find_operator
from leapp.compat.graphs import is_whole_composite
from leapp.export.replacing import Replacement

aten: Any = torch.ops.aten
broadcast_shapes: Any = torch.broadcast_shapes

DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {}
"""ATen overload to the function that replaces it."""

TRANSLATIONS: dict[Any, Callable[..., Any]] = {}
"""ATen overload to a function that writes it as ONNX operators. What is not here is left to torch's library."""

_WHOLE = (
    "avg_pool1d.default", "bilinear.default", "embedding_bag.default", "embedding_bag.padding_idx",
    "fake_quantize_per_channel_affine.default", "fake_quantize_per_tensor_affine.default",
    "fake_quantize_per_tensor_affine.tensor_qparams", "grid_sampler.default", "logdet.default",
    "max_pool1d.default", "max_pool1d_with_indices.default", "max_pool2d.default", "max_pool3d.default", "nll_loss.default",
    "stft.default", "upsample_bicubic2d.vec", "upsample_bilinear2d.vec", "upsample_nearest1d.default",
    "upsample_nearest1d.vec", "upsample_nearest2d.default", "upsample_nearest2d.vec", "upsample_nearest3d.default",
    "upsample_nearest3d.vec", "upsample_trilinear3d.vec",
)  # fmt: skip
"""Composites that torch's library translates better than what they consist of."""


@functools.cache
def whole_composites() -> tuple[Any, ...]:
    """The composite operators that a trace must keep whole: those that we rewrite or translate, and some of the library."""
    named = (find_operator(name) for name in _WHOLE)
    found = {op for op in (*DECOMPOSITIONS, *TRANSLATIONS, *named) if op is not None and is_whole_composite(op)}
    return tuple(sorted(found, key=str))


def replaces(*targets: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register what overloads are written as; ``None`` is one that this version of torch does not have."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        DECOMPOSITIONS.update((target, function) for target in targets if target is not None)
        return function

    return register


def replaces_some(
    dtypes: Iterable[torch.dtype], *targets: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register what overloads are written as where one of their arguments has one of these types."""
    chosen = frozenset(dtypes)

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        DECOMPOSITIONS.update((target, Replacement(function, DECOMPOSITIONS.get(target), chosen)) for target in targets)
        return function

    return register


def translates(*targets: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register how overloads are written as ONNX operators.

    The function gets a writer and the overload's arguments, with tensors as values of the graph. It returns the value, or the
    list of values, that the overload makes; ``NotImplemented`` leaves these arguments to torch's library.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        TRANSLATIONS.update((target, function) for target in targets if target is not None)
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
