"""Extremes, order statistics and cumulative functions along an axis, which torchlib lacks or which lose NaN there."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from leapp.export.operators.table import aten, replaces

# Reductions whose result is NaN if an element is NaN


def _with_nan(x: Tensor, reduced: Tensor, dim: list[int], keepdim: bool) -> Tensor:
    if not x.is_floating_point():
        return reduced
    poisoned = (x != x).to(torch.float32).sum(dim, keepdim) > 0
    return reduced.masked_fill(poisoned, math.nan)


# Reductions over as many elements as a mask has hits. If there are none, ONNX Runtime finds a true one, and a mean of zero.


def _counted_when_run(x: Tensor, dim: Any) -> bool:
    dims = range(x.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
    return x.dim() > 0 and any(isinstance(x.shape[d], torch.SymInt) for d in dims or range(x.dim()))


@replaces(aten.any.default, aten.any.dim, aten.any.dims)
def _any(x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    return ~(~x.to(torch.bool)).all(dim, keepdim) if _counted_when_run(x, dim) else NotImplemented


@replaces(aten.mean.default, aten.mean.dim)
def _mean(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    if not _counted_when_run(x, dim):
        return NotImplemented
    x = x if dtype is None else x.to(dtype)
    return x.sum(dim, keepdim) / torch.ones_like(x).sum(dim, keepdim)


@replaces(aten.var.correction)
def _var(x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    if not _counted_when_run(x, dim):
        return NotImplemented
    squares = (x - x.mean(dim, True)).square().sum(dim, keepdim)
    free = torch.ones_like(x).sum(dim, keepdim) - (1 if correction is None else correction)
    return squares / free.clamp_min(0)


@replaces(aten.std.correction)
def _std(x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    return NotImplemented if x.is_complex() else x.var(dim, correction=correction, keepdim=keepdim).sqrt()


def _with_mean(target: Any, spread: Callable[..., Tensor]) -> None:
    @replaces(target)
    def both(x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
        if x.is_complex():
            return NotImplemented
        return spread(x, dim, correction=correction, keepdim=keepdim), x.mean(dim, keepdim)


_with_mean(aten.var_mean.correction, torch.var)
_with_mean(aten.std_mean.correction, torch.std)


@replaces(aten.logsumexp.default)
def _logsumexp(x: Tensor, dim: list[int], keepdim: bool = False) -> Any:
    if x.is_complex() or 0 in x.shape:
        return NotImplemented
    x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    largest = x.amax(dim, True)
    base = torch.where(largest.abs() == math.inf, torch.zeros_like(largest), largest)
    total = (x - base).exp().sum(dim, True).log() + base
    return total if keepdim else total.squeeze(dim)


@replaces(aten.count_nonzero.default, aten.count_nonzero.dim_IntList)
def _count_nonzero(x: Tensor, dim: Any = None) -> Any:
    return NotImplemented if x.is_complex() else (x != 0).sum(dim)


@replaces(aten.nansum.default)
def _nansum(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    known = torch.where(x != x, torch.zeros_like(x), x) if x.is_floating_point() else x
    return known.sum(dim, keepdim, dtype=dtype)


@replaces(aten.aminmax.default)
def _aminmax(x: Tensor, *, dim: int | None = None, keepdim: bool = False) -> Any:
    dims = list(range(x.dim())) if dim is None else [dim]
    return x.amin(dims, keepdim), x.amax(dims, keepdim)


replaces(aten.max.default)(torch.amax)
replaces(aten.min.default)(torch.amin)


def _counted(x: Tensor) -> Tensor:
    """``x``, with booleans as numbers: eager code has no ``argmax`` of booleans."""
    return x.to(torch.uint8) if x.dtype == torch.bool else x


@replaces(aten.max.dim)
def _max_dim(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    return (x.amax(dim, keepdim), _counted(x).argmax(dim, keepdim)) if x.dim() else NotImplemented


@replaces(aten.min.dim)
def _min_dim(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    return (x.amin(dim, keepdim), _counted(x).argmin(dim, keepdim)) if x.dim() else NotImplemented


@replaces(aten.linalg_vector_norm.default)
def _vector_norm(
    x: Tensor, order: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    if x.is_complex():
        return NotImplemented
    x = x.to(dtype or x.dtype)
    if not x.dim():
        return (x != 0).to(x.dtype) if order == 0 else x.abs()
    if keepdim and not dim:  # torchlib forgets to keep the axes
        return aten.linalg_vector_norm.default(x, order, list(range(x.dim())), True)
    if math.isinf(order):
        return (torch.amax if order > 0 else torch.amin)(x.abs(), [] if dim is None else dim, keepdim)
    if order in (1, 2) or x.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    return (x != 0).to(x.dtype).sum(dim, keepdim) if order == 0 else x.abs().pow(order).sum(dim, keepdim).pow(1 / order)


@replaces(
    aten.norm.Scalar, aten.norm.ScalarOpt_dim, aten.norm.ScalarOpt_dtype, aten.norm.ScalarOpt_dim_dtype
)
def _norm(x: Tensor, p: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    return torch.linalg.vector_norm(x, 2 if p is None else p, dim, keepdim, dtype=dtype)


@replaces(aten.dist.default)
def _dist(a: Tensor, b: Tensor, p: Any = 2) -> Any:
    return torch.linalg.vector_norm(a - b, p)


# Order statistics


@replaces(aten.kthvalue.default)
def _kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    values, indices = aten.sort.default(x, dim, False)
    taken = values.narrow(dim, k - 1, 1), indices.narrow(dim, k - 1, 1)
    return taken if keepdim else (taken[0].squeeze(dim), taken[1].squeeze(dim))


@replaces(aten.median.dim)
def _median_dim(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    value, index = _kthvalue(x, (x.shape[dim] + 1) // 2, dim, keepdim)
    return _with_nan(x, value, [dim], keepdim), index


@replaces(aten.median.default)
def _median(x: Tensor) -> Any:
    return _median_dim(x.reshape(-1), 0)[0]


@replaces(aten.nanmedian.default)
def _nanmedian(x: Tensor) -> Any:
    flat = x.reshape(-1)
    if not x.is_floating_point():
        return _median(flat)
    values, _ = aten.sort.default(torch.where(flat != flat, math.inf, flat), 0, False)
    count = (flat == flat).to(torch.int64).sum()
    middle = values.index_select(0, ((count - 1) // 2).clamp(0, flat.shape[0] - 1).reshape(1)).squeeze(0)
    return torch.where(count == 0, math.nan, middle)


@replaces(aten.searchsorted.Tensor)
def _searchsorted(
    boundaries: Tensor,
    x: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    if sorter is not None:
        boundaries = boundaries.gather(-1, sorter)
    if boundaries.dim() > 1:
        boundaries = boundaries.unsqueeze(-2)
    values = x.unsqueeze(-1)
    before = boundaries <= values if right or side == "right" else boundaries < values
    # NaN sorts behind all numbers.
    count = (before | (values != values)).to(torch.int64).sum(-1)
    return count.to(torch.int32) if out_int32 else count


@replaces(aten.searchsorted.Scalar)
def _searchsorted_scalar(boundaries: Tensor, x: float, **options: Any) -> Any:
    return _searchsorted(boundaries, torch.full((), x, dtype=boundaries.dtype), **options)


@replaces(aten.bucketize.Tensor)
def _bucketize(x: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Any:
    return _searchsorted(boundaries, x, out_int32=out_int32, right=right)


@replaces(aten.isin.Tensor_Tensor)
def _isin(x: Tensor, chosen: Tensor, *, assume_unique: bool = False, invert: bool = False) -> Any:
    found = (x.unsqueeze(-1) == chosen.reshape(-1)).any(-1)
    return ~found if invert else found


@replaces(aten._unique2.default)
def _unique(x: Tensor, *options: Any, **named: Any) -> Any:
    if x.dtype in (torch.int64, torch.float32, torch.float64):
        return NotImplemented
    values, inverse, counts = aten._unique2.default(x.to(torch.int64), *options, **named)
    return values.to(x.dtype), inverse, counts


@replaces(aten.mode.default)
def _mode(x: Tensor, dim: int = -1, keepdim: bool = False) -> Any:
    if x.dim() == 0:
        return NotImplemented
    rows = x.movedim(dim, -1)
    count = (rows.unsqueeze(-1) == rows.unsqueeze(-2)).to(torch.int64).sum(-1)
    frequent = count == count.amax(-1, keepdim=True)
    # The smallest of the most frequent values is the mode. The wider type has a number above all values.
    wide = rows.to(torch.float64 if x.is_floating_point() else torch.int64)
    above = math.inf if x.is_floating_point() else torch.iinfo(torch.int64).max
    best = torch.where(frequent, wide, torch.full_like(wide, above)).amin(-1, keepdim=True)
    last = rows.shape[-1] - 1 - (wide == best).to(torch.int32).flip(-1).argmax(-1, keepdim=True)
    value = best.to(x.dtype)
    if keepdim:
        return value.movedim(-1, dim), last.movedim(-1, dim)
    return value.squeeze(-1), last.squeeze(-1)


# Cumulative functions by doubling, in log2(n) steps: ONNX has no operators for them.


def _steps(size: int) -> list[int]:
    return [1 << step for step in range(max(size - 1, 0).bit_length())]


@replaces(aten.cumprod.default)
def _cumprod(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    out = x.to(dtype or (x.dtype if x.is_floating_point() else torch.int64))
    if x.dim() == 0:
        return out.clone()
    for step in _steps(x.shape[dim]):
        head, rest = out.narrow(dim, 0, step), out.narrow(dim, step, x.shape[dim] - step)
        out = torch.cat([head, rest * out.narrow(dim, 0, x.shape[dim] - step)], dim)
    return out


@replaces(aten.logcumsumexp.default)
def _logcumsumexp(x: Tensor, dim: int) -> Tensor:
    """Torchlib subtracts the largest element of the whole axis, beside which the first sums are lost."""
    out = x
    for step in _steps(x.shape[dim]) if x.dim() else []:
        head, rest = out.narrow(dim, 0, step), out.narrow(dim, step, x.shape[dim] - step)
        out = torch.cat([head, torch.logaddexp(rest, out.narrow(dim, 0, x.shape[dim] - step))], dim)
    return out.clone()


def _cumulative_extreme(target: Any, wins: Callable[[Tensor, Tensor], Tensor]) -> None:
    @replaces(target)
    def extreme(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        if x.dim() == 0:
            return x.clone(), torch.zeros_like(x, dtype=torch.int64)
        size = x.shape[dim]
        shape = [size if d == dim % x.dim() else 1 for d in range(x.dim())]
        value, index = x, torch.arange(size).reshape(shape).expand(x.shape)
        for step in _steps(size):
            late, early = value.narrow(dim, step, size - step), value.narrow(dim, 0, size - step)
            late_at, early_at = index.narrow(dim, step, size - step), index.narrow(dim, 0, size - step)
            keep = wins(late, early) & (early == early) | (late != late)
            value = torch.cat([value.narrow(dim, 0, step), torch.where(keep, late, early)], dim)
            index = torch.cat([index.narrow(dim, 0, step), torch.where(keep, late_at, early_at)], dim)
        return value, index


_cumulative_extreme(aten.cummax.default, torch.ge)
_cumulative_extreme(aten.cummin.default, torch.le)
