"""Functions of the singular values of small matrices, and the matrix exponential, unrolled.

Singular vectors themselves stay out: their signs are a choice of the engine that no translation can repeat.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from leapp.export.operators.table import aten, replaces

_UNROLL_LIMIT = 8
_SWEEPS = 10
"""How often each pair of columns is turned. The remaining angles shrink quadratically."""


def _rounds(n: int) -> list[tuple[list[int], list[int]]]:
    """Each pair of ``n`` columns once, in rounds of pairs that do not meet: the circle method of tournaments."""
    seats = [*range(n), *([] if n % 2 == 0 else [-1])]
    found = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        pairs = [(a, b) for a, b in zip(seats[:half], reversed(seats[half:]), strict=True) if a >= 0 and b >= 0]
        if pairs:
            found.append(([min(p) for p in pairs], [max(p) for p in pairs]))
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return found


def _orthogonal_columns(a: Tensor) -> tuple[Tensor, Tensor]:
    """``a @ v`` with orthogonal columns, and the orthogonal ``v``, by one-sided Jacobi rotations."""
    m, n = a.shape[-2:]
    work = torch.cat([a, torch.eye(n, dtype=a.dtype, device=a.device).expand(*a.shape[:-2], n, n)], -2)
    kept = list(work.unbind(-1))
    for first, second in _rounds(n) * _SWEEPS:
        p, q = torch.stack([kept[i] for i in first], -1), torch.stack([kept[i] for i in second], -1)
        pa, qa = p[..., :m, :], q[..., :m, :]
        common = (pa * qa).sum(-2, keepdim=True)
        apart = (qa * qa).sum(-2, keepdim=True) - (pa * pa).sum(-2, keepdim=True)
        turned = common != 0
        ratio = apart / (2 * torch.where(turned, common, torch.ones_like(common)))
        tangent = 1 / (ratio.abs() + (1 + ratio * ratio).sqrt())
        tangent = torch.where(turned, torch.where(ratio < 0, -tangent, tangent), torch.zeros_like(tangent))
        cosine = 1 / (1 + tangent * tangent).sqrt()
        sine = cosine * tangent
        for columns, made in ((first, cosine * p - sine * q), (second, sine * p + cosine * q)):
            for i, column in zip(columns, made.unbind(-1), strict=True):
                kept[i] = column
    work = torch.stack(kept, -1)
    return work[..., :m, :], work[..., m:, :]


def _fits(a: Tensor) -> bool:
    return a.dim() >= 2 and 0 < min(a.shape[-2:]) <= _UNROLL_LIMIT and a.is_floating_point()


@replaces(aten.linalg_svdvals.default)
def _svdvals(a: Tensor, *, driver: str | None = None) -> Any:
    if not _fits(a):
        return NotImplemented
    columns, _ = _orthogonal_columns(a if a.shape[-2] >= a.shape[-1] else a.mT)
    return (columns * columns).sum(-2).sqrt().sort(-1, descending=True)[0]


@replaces(aten.linalg_pinv.atol_rtol_tensor, aten.linalg_pinv.atol_rtol_float)
def _pinv(a: Tensor, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Any:
    if hermitian or not _fits(a):
        return NotImplemented
    wide = a.shape[-2] < a.shape[-1]
    columns, turned = _orthogonal_columns(a.mT if wide else a)
    square = (columns * columns).sum(-2, keepdim=True)
    sizes = square.sqrt()
    if rtol is None:
        rtol = max(a.shape[-2:]) * torch.finfo(a.dtype).eps if atol is None else 0.0
    limit = _like(rtol, a) * sizes.amax(-1, keepdim=True)
    limit = limit if atol is None else torch.maximum(limit, _like(atol, a))
    kept = sizes > limit
    scale = torch.where(kept, 1 / torch.where(kept, square, torch.ones_like(square)), torch.zeros_like(square))
    found = (turned * scale) @ columns.mT
    return found.mT if wide else found


def _like(value: Any, a: Tensor) -> Tensor:
    if not isinstance(value, Tensor):
        return torch.full((), float(value), dtype=a.dtype, device=a.device)
    return value.to(a.dtype).reshape(*value.shape, *([1, 1] if value.dim() else []))


# Scaling and squaring with a Pade approximant of order 13, whose error is below the rounding of float64 up to this norm.
_REACH = 5.371920351148152
_PADE = [
    64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0, 129060195264000.0, 10559470521600.0,
    670442572800.0, 33522128640.0, 1323241920.0, 40840800.0, 960960.0, 16380.0, 182.0, 1.0,
]  # fmt: skip
_SQUARINGS = 16


@replaces(aten.linalg_matrix_exp.default, aten.matrix_exp.default)
def _matrix_exp(a: Tensor) -> Any:
    if a.dim() < 2 or a.shape[-1] > 4 * _UNROLL_LIMIT or not a.is_floating_point():
        return NotImplemented
    x = a.to(torch.float64)
    size = x.abs().sum(-2, keepdim=True).amax(-1, keepdim=True)
    halvings = (size.clamp(min=_REACH) / _REACH).log2().ceil()
    x = x * torch.exp(-halvings * math.log(2))
    one = torch.eye(a.shape[-1], dtype=torch.float64, device=a.device)
    x2 = x @ x
    x4 = x2 @ x2
    x6 = x4 @ x2
    b = _PADE
    odd = x @ (x6 @ (b[13] * x6 + b[11] * x4 + b[9] * x2) + b[7] * x6 + b[5] * x4 + b[3] * x2 + b[1] * one)
    even = x6 @ (b[12] * x6 + b[10] * x4 + b[8] * x2) + b[6] * x6 + b[4] * x4 + b[2] * x2 + b[0] * one
    found = torch.linalg.solve(even - odd, even + odd)
    for k in range(_SQUARINGS):
        found = torch.where(halvings > k, found @ found, found)
    # Beyond this the result could not be held to any accuracy.
    found = torch.where(halvings > _SQUARINGS, torch.full_like(found, math.nan), found)
    return found.to(a.dtype)
