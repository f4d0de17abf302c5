"""Random numbers, drawn in every run of a model, written as the uniform and normal numbers that torchlib translates correctly.

torchlib's translations of the other functions draw from other distributions than eager code: ``bernoulli`` from the complement,
``normal`` one number for all elements if the mean has fewer elements, ``multinomial`` always with replacement.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from leapp.export.operators.table import aten, broadcast_shapes, replaces


def _drawn(draw: Callable[..., Tensor], shape: Any, like: Tensor) -> Tensor:
    """Numbers of the type of a tensor, at least of float32: ONNX Runtime draws no narrower ones."""
    return draw(shape, dtype=torch.promote_types(like.dtype, torch.float32), device=like.device)


@replaces(aten.bernoulli.default, aten.bernoulli.Tensor)
def _bernoulli(x: Tensor, p: Tensor | None = None, *, generator: Any = None) -> Any:
    chance = x if p is None else p
    return (_drawn(torch.rand, x.shape, chance) < chance).to(x.dtype)


@replaces(aten.normal.Tensor_Tensor, aten.normal.Tensor_float, aten.normal.float_Tensor)
def _normal(mean: Any, std: Any = 1.0, *, generator: Any = None) -> Any:
    tensors = [v for v in (mean, std) if isinstance(v, Tensor)]
    shape = broadcast_shapes(*(v.shape for v in tensors))
    return (_drawn(torch.randn, shape, tensors[0]) * std + mean).to(tensors[0].dtype)


@replaces(aten.uniform.default)
def _uniform(x: Tensor, low: float = 0.0, high: float = 1.0, *, generator: Any = None) -> Any:
    return (_drawn(torch.rand, x.shape, x) * (high - low) + low).to(x.dtype)


@replaces(aten.multinomial.default)
def _multinomial(weights: Tensor, count: int, replacement: bool = False, *, generator: Any = None) -> Any:
    """Without replacement, as in eager code: the classes with the shortest exponential waiting times for their weights."""
    if replacement or count == 1:
        narrow = weights.to(torch.float32)  # ONNX Runtime takes no float64
        return NotImplemented if weights.dtype == torch.float32 else torch.multinomial(narrow, count, replacement)
    times = -torch.log1p(-_drawn(torch.rand, weights.shape, weights)).clamp(max=-torch.finfo(torch.float32).tiny)
    return (weights / times).topk(count).indices
