"""Sums, products, extremes, means and spreads along axes, running ones, and those that leave NaN out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from leapp.capture.numpy.table.table import Expression, Unmapped, expression
from leapp.capture.numpy.table.tensors import axes_of, dtype_of, floating, tensor
from leapp.capture.numpy.table.ufuncs import reduced

Tensor = torch.Tensor


def _sum_dtype(x: Tensor, dtype: Any) -> torch.dtype | None:
    if dtype is not None:
        return dtype_of(dtype)
    return None if x.dtype.is_floating_point or x.dtype.is_complex else torch.int64


def _spread_function(root: bool) -> Expression:
    def spread(
        a: Any, axis: Any = None, dtype: Any = None, ddof: float = 0, keepdims: bool = False, correction: float | None = None
    ) -> Tensor:
        a = floating(tensor(a)) if dtype is None else tensor(a).to(dtype_of(dtype))
        found = torch.std if root else torch.var
        return found(a, axes_of(a, axis), correction=ddof if correction is None else correction, keepdim=bool(keepdims))

    return spread


expression("std")(_spread_function(True))
expression("var")(_spread_function(False))


def _without_nan(a: Any, fill: float) -> Tensor:
    a = tensor(a)
    return torch.where(torch.isnan(a), fill, a) if a.dtype.is_floating_point else a


@expression("nansum")
def _nansum(a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    a = _without_nan(a, 0.0)
    return reduced("add", a, axis, _sum_dtype(a, dtype), keepdims)


@expression("nanprod")
def _nanprod(a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    a = _without_nan(a, 1.0)
    return reduced("multiply", a, axis, _sum_dtype(a, dtype), keepdims)


def _count(a: Tensor, axis: Any, keepdims: bool) -> Tensor:
    return reduced("add", (~torch.isnan(a)).to(torch.int64), axis, torch.int64, keepdims)


@expression("nanmean")
def _nanmean(a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
    a = floating(tensor(a)) if dtype is None else tensor(a).to(dtype_of(dtype))
    return _nansum(a, axis, None, keepdims) / _count(a, axis, keepdims)


@expression("nanvar")
def _nanvar(a: Any, axis: Any = None, dtype: Any = None, ddof: float = 0, keepdims: bool = False) -> Tensor:
    a = floating(tensor(a)) if dtype is None else tensor(a).to(dtype_of(dtype))
    deviation = _without_nan(a - _nanmean(a, axis, None, True), 0.0)
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


def _running(function: Callable[[Tensor, int], Tensor], fill: float) -> Callable[..., Tensor]:
    def run(a: Any, axis: int | None = None, dtype: Any = None) -> Tensor:
        a = _without_nan(a, fill)
        a = a.to(_sum_dtype(a, dtype) or a.dtype)
        return function(a.reshape(-1), 0) if axis is None else function(a, axis)

    return run


expression("nancumsum")(_running(torch.cumsum, 0.0))
expression("nancumprod")(_running(torch.cumprod, 1.0))


@expression("cumulative_sum")
def _cumulative_sum(x: Any, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Tensor:
    if include_initial or (axis is None and tensor(x).dim() > 1):
        raise Unmapped
    return _running(torch.cumsum, math.nan)(x, 0 if axis is None else axis, dtype)
