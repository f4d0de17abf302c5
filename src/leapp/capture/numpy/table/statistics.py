"""Statistics: variance, median, quantiles, covariance, least squares, histograms, and reductions that leave NaN out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from leapp.capture.numpy.table.registry import Expression, Unmapped, expression, of_torch
from leapp.capture.numpy.table.tensors import axes_of, dtype_of, floating, promoted, tensor
from leapp.capture.numpy.table.ufuncs import reduced
from leapp.compat.numpy import PROMOTES_BY_VALUE
from leapp.compat.numpy import torch_numpy as tnp

Tensor = torch.Tensor


def _with_correction(function: Expression) -> Expression:
    """``std`` or ``var`` of ``torch._numpy``, which has only the old name ``ddof`` for ``correction``."""

    def spread(*args: Any, correction: float | None = None, **options: Any) -> Any:
        return of_torch(function)(*args, **options if correction is None else {**options, "ddof": correction})

    return spread


expression("std")(_with_correction(tnp.std))  # type: ignore[attr-defined]
expression("var")(_with_correction(tnp.var))  # type: ignore[attr-defined]


def _without_nan(a: Any, fill: float) -> Tensor:
    a = tensor(a)
    return torch.where(torch.isnan(a), fill, a) if a.dtype.is_floating_point else a


def _count(a: Tensor, axis: Any, keepdims: bool) -> Tensor:
    return reduced("add", (~torch.isnan(a)).to(torch.int64), axis, torch.int64, keepdims)


@expression("nanmean")
def _nanmean(a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
    a = floating(tensor(a)) if dtype is None else tensor(a).to(dtype_of(dtype))
    return reduced("add", _without_nan(a, 0.0), axis, None, keepdims) / _count(a, axis, keepdims)


@expression("nanvar")
def _nanvar(a: Any, axis: Any = None, dtype: Any = None, ddof: float = 0, keepdims: bool = False) -> Tensor:
    a = floating(tensor(a)) if dtype is None else tensor(a).to(dtype_of(dtype))
    deviation = torch.where(torch.isnan(a), 0.0, a - _nanmean(a, axis, None, True))
    freedom = _count(a, axis, keepdims) - ddof
    result = reduced("add", deviation * deviation, axis, None, keepdims) / freedom
    return torch.where(freedom <= 0, torch.nan, result)


@expression("nanstd")
def _nanstd(a: Any, axis: Any = None, dtype: Any = None, ddof: float = 0, keepdims: bool = False) -> Tensor:
    return torch.sqrt(_nanvar(a, axis, dtype, ddof, keepdims))


def _nan_extreme(name: str, fill: float) -> Expression:
    def extreme(a: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
        a = tensor(a)
        if not a.dtype.is_floating_point:
            return reduced(name, a, axis, None, keepdims)
        found = reduced(name, _without_nan(a, fill), axis, None, keepdims)
        return torch.where(_count(a, axis, keepdims) == 0, torch.nan, found)

    return extreme


expression("nanmax")(_nan_extreme("maximum", -math.inf))
expression("nanmin")(_nan_extreme("minimum", math.inf))


@expression("nanargmax")
def _nanargmax(a: Any, axis: int | None = None, keepdims: bool = False) -> Tensor:
    return torch.argmax(_without_nan(a, -math.inf), axis, bool(keepdims))


@expression("nanargmin")
def _nanargmin(a: Any, axis: int | None = None, keepdims: bool = False) -> Tensor:
    return torch.argmin(_without_nan(a, math.inf), axis, bool(keepdims))


def _first_lane(x: Tensor, axis: Any) -> tuple[Tensor, list[int]]:
    """``x`` with the reduced axes joined into the last axis, and the shape of the result with ``keepdims``."""
    dims = axes_of(x, axis)
    rest = [d for d in range(x.dim()) if d not in dims]
    kept = [1 if d in dims else n for d, n in enumerate(x.shape)]
    lane = math.prod(x.shape[d] for d in dims)
    return x.permute([*rest, *dims]).reshape([x.shape[d] for d in rest] + [lane]), kept


def _median_function(skip_nan: bool) -> Expression:
    def median(a: Any, axis: Any = None, overwrite_input: bool = False, keepdims: bool = False) -> Tensor:
        lanes, kept = _first_lane(floating(tensor(a)), axis)
        nan, n = torch.isnan(lanes), lanes.shape[-1]
        ordered = torch.sort(torch.where(nan, math.inf, lanes), -1).values
        if skip_nan:
            count = (~nan).sum(-1)
            low, high = _pick(ordered, (count - 1).clamp(min=0) // 2), _pick(ordered, count // 2)
            result = torch.where(count == 0, lanes[..., 0], low / 2 + high / 2)
        else:
            low, high = ordered[..., (n - 1) // 2], ordered[..., n // 2]
            result = torch.where(nan.any(-1), torch.nan, low / 2 + high / 2)
        return result.reshape(kept) if keepdims else result

    return median


expression("median")(_median_function(skip_nan=False))
expression("nanmedian")(_median_function(skip_nan=True))


def _pick(ordered: Tensor, place: Tensor) -> Tensor:
    if place.dim() == 0:
        return torch.index_select(ordered, -1, place.reshape(1)).squeeze(-1)
    return torch.gather(ordered, -1, place.unsqueeze(-1)).squeeze(-1)


def _quantile_function(percent: bool, skip_nan: bool) -> Expression:
    def quantile(
        a: Any, q: Any, axis: Any = None, overwrite_input: bool = False, method: str = "linear", keepdims: bool = False
    ) -> Tensor:
        if method != "linear":
            raise Unmapped
        lanes, kept = _first_lane(floating(tensor(a)), axis)
        narrow = isinstance(q, (int, float)) and not PROMOTES_BY_VALUE
        precision = lanes.dtype if narrow else torch.promote_types(lanes.dtype, torch.float64)
        q = tensor(q).to(torch.float64)
        nan = torch.isnan(lanes)
        # Engines sort NaN to different ends, so it is replaced before.
        ordered = torch.sort(torch.where(nan, math.inf, lanes), -1).values
        count: Any = (~nan).sum(-1) if skip_nan else lanes.shape[-1]
        results = []
        for one in (q / 100 if percent else q).reshape(-1):
            place = one * (count - 1)
            below = torch.floor(place).clamp(min=0).to(torch.int64)
            above = torch.minimum(below + 1, tensor(count).to(torch.int64) - 1).clamp(min=0)
            weight = (place - below).to(precision)
            low, high = _pick(ordered, below), _pick(ordered, above)
            step = (high - low).to(precision)
            mixed = torch.where(weight < 0.5, low + step * weight, high - step * (1 - weight))
            mixed = mixed if skip_nan else torch.where(nan.any(-1), torch.nan, mixed)
            results.append(mixed.reshape(kept) if keepdims else mixed)
        return torch.stack(results).reshape([*q.shape, *results[0].shape])

    return quantile


for _names, _flags in {
    "percentile": (True, False), "quantile": (False, False), "nanpercentile": (True, True), "nanquantile": (False, True),
}.items():  # fmt: skip
    expression(_names)(_quantile_function(*_flags))


@expression("cov")
def _cov(
    m: Any, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: int | None = None, fweights: None = None,
    aweights: None = None, *, dtype: Any = None,
) -> Any:  # fmt: skip
    given = [tensor(v) for v in (m, y) if v is not None]
    if fweights is not None or aweights is not None or dtype is not None or any(v.dim() > 2 for v in given):
        raise Unmapped
    given = [v.to(torch.promote_types(v.dtype, torch.float64)) for v in given]
    rows = torch.cat([v.reshape(1, -1) if v.dim() < 2 else v if rowvar else v.mT for v in given])
    rows = rows - torch.mean(rows, 1, keepdim=True)
    found = torch.matmul(rows, torch.conj_physical(rows).mT) / (rows.shape[1] - (int(not bias) if ddof is None else ddof))
    return found.squeeze()


@expression("average")
def _average(a: Any, axis: Any = None, weights: Any = None, returned: bool = False, **options: Any) -> Any:
    if weights is not None:  # torch promotes a float and an integer to the float, NumPy to float64
        a, options["weights"] = promoted(a, weights)
    return of_torch(tnp.average)(a, axis, returned=returned, **options)  # type: ignore[attr-defined]


@expression("histogram")
def _histogram(a: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None) -> tuple[Tensor, Tensor]:
    if density or weights is not None or (isinstance(bins, int) and range is None) or isinstance(bins, str):
        raise Unmapped
    a = tensor(a).reshape(-1).to(torch.float64)
    edges = torch.from_numpy(np.histogram_bin_edges(np.zeros(1), bins, range)) if isinstance(bins, int) else tensor(bins)
    low, high = edges[:-1].to(torch.float64), edges[1:].to(torch.float64)
    last = torch.arange(low.numel()) == low.numel() - 1
    value = a.unsqueeze(-1)
    inside = (value >= low) & ((value < high) | (last & (value == high)))
    return inside.sum(0), edges


@expression("lstsq", np.linalg)
def _lstsq(a: Any, b: Any, rcond: Any = None) -> Any:
    """The solution of least norm, as NumPy gives it for matrices of any rank. The number of residuals depends on the rank."""
    a, b = (floating(tensor(v)) for v in (a, b))
    kind = torch.promote_types(a.dtype, b.dtype)
    a, columns = a.to(kind), (b if b.dim() > 1 else b.unsqueeze(1)).to(kind)
    rows, unknowns = a.shape
    if not isinstance(rcond, (int, float, type(None))) or not rows * unknowns:
        raise Unmapped
    if rcond is None or rcond < 0:
        rcond = torch.finfo(kind).eps * (max(rows, unknowns) if rcond is None else 1)
    u, s, v = torch.linalg.svd(a, full_matrices=False)
    kept = s > rcond * s[:1]
    x = v.mH @ (u.mH @ columns * torch.where(kept, 1 / s, 0.0).unsqueeze(1))
    rank = kept.sum()
    rest = ((columns - a @ x) ** 2).sum(0)
    rest = rest[(rank == unknowns).expand(rest.shape)] if rows > unknowns else rest[:0]
    return (x if b.dim() > 1 else x.squeeze(1)), rest, rank.to(torch.int32), s
