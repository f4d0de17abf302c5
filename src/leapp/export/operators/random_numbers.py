"""Random numbers, drawn anew in every run, from the two kinds that torch's library translates as they are: uniform and normal.

The library's own translations draw from other distributions than eager: ``bernoulli`` from the complement, ``normal`` one
number for all elements where the mean has fewer of them, ``multinomial`` with replacement where none is asked for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from leapp.export.operators.table import aten, broadcast_shapes, replaces


@replaces(aten.bernoulli.default, aten.bernoulli.Tensor)
def _bernoulli(x: Tensor, p: Tensor | None = None, *, generator: Any = None) -> Any:
    chance = x if p is None else p
    drawn = torch.rand(x.shape, dtype=torch.promote_types(chance.dtype, torch.float32), device=x.device)
    return (drawn < chance).to(x.dtype)


@replaces(aten.normal.Tensor_Tensor, aten.normal.Tensor_float, aten.normal.float_Tensor)
def _normal(mean: Any, std: Any = 1.0, *, generator: Any = None) -> Any:
    tensors = [v for v in (mean, std) if isinstance(v, Tensor)]
    shape = broadcast_shapes(*(v.shape for v in tensors))
    return torch.randn(shape, dtype=tensors[0].dtype, device=tensors[0].device) * std + mean


@replaces(aten.uniform.default)
def _uniform(x: Tensor, low: float = 0.0, high: float = 1.0, *, generator: Any = None) -> Any:
    return torch.rand(x.shape, dtype=x.dtype, device=x.device) * (high - low) + low


@replaces(aten.multinomial.default)
def _multinomial(weights: Tensor, count: int, replacement: bool = False, *, generator: Any = None) -> Any:
    """Without replacement as eager does it: the classes whose waiting times, exponential with their weights, end first."""
    if replacement or count == 1:
        return NotImplemented
    drawn = torch.rand(weights.shape, dtype=weights.dtype, device=weights.device)
    times = -torch.log1p(-drawn).clamp(max=-torch.finfo(weights.dtype).tiny)
    return (weights / times).topk(count).indices
