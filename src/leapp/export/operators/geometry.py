"""Angles and distances: torchlib lacks them, or loses NaN, infinity and signed zeros."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from leapp.export.operators.arithmetic import sign, signbit
from leapp.export.operators.table import aten, promoted, replaces


@replaces(aten.atan2.default)
def _atan2(y: Tensor, x: Tensor) -> Tensor:
    y, x = promoted(y, x)
    if not y.is_floating_point():
        y, x = y.to(torch.get_default_dtype()), x.to(torch.get_default_dtype())
    infinite = y.isinf() & x.isinf()
    up, right = torch.where(infinite, sign(y), y), torch.where(infinite, sign(x), x)
    angle = torch.where((y == 0) & (x == x), torch.zeros_like(up / right), (up / right).atan())
    half_turn = torch.full((), math.pi, dtype=y.dtype)  # a Python number would be rounded to float32
    half_turn = torch.where(signbit(y), -half_turn, half_turn)
    return torch.where(signbit(x), angle + half_turn, angle)


replaces(aten.deg2rad.default)(lambda x: x * (math.pi / 180))
replaces(aten.rad2deg.default)(lambda x: x * (180 / math.pi))


@replaces(aten.hypot.default)
def _hypot(a: Tensor, b: Tensor) -> Tensor:
    a, b = (side.abs() for side in promoted(a, b))
    large, small = torch.maximum(a, b), torch.minimum(a, b)
    ratio = torch.where(large == 0, torch.zeros_like(large), small / large)
    return torch.where(a.isinf() | b.isinf(), math.inf, large * (1 + ratio * ratio).sqrt())


@replaces(aten._cdist_forward.default)
def _cdist(a: Tensor, b: Tensor, p: float, compute_mode: int | None = None) -> Tensor:
    apart = (a.unsqueeze(-2) - b.unsqueeze(-3)).abs()
    return _length(apart, p)


@replaces(aten._pdist_forward.default)
def _pdist(x: Tensor, p: float = 2.0) -> Any:
    pairs = torch.triu_indices(x.shape[0], x.shape[0], 1)
    apart = (x.index_select(0, pairs[0]) - x.index_select(0, pairs[1])).abs()
    return _length(apart, p)


def _length(apart: Tensor, p: float) -> Tensor:
    """The ``p``-norm along the last axis of differences without their signs."""
    if p == 0:
        return (apart != 0).to(apart.dtype).sum(-1)
    if p == 1:
        return apart.sum(-1)
    if p == 2:
        return (apart * apart).sum(-1).sqrt()
    return apart.amax(-1) if math.isinf(p) else apart.pow(p).sum(-1).pow(1 / p)
