"""Sums, extremes and order along axes, written as ONNX."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from leapp.export.onnx_graph import Value, Writer
from leapp.export.operators.onnx_arithmetic import as_float
from leapp.export.operators.table import aten, translates


def _axes(op: Writer, x: Value, dims: Any) -> Value:
    chosen = [dims] if isinstance(dims, int) else dims
    return op.ints(sorted(d % x.rank for d in chosen) if chosen else range(x.rank))


def _reduced(op: Writer, kind: str, x: Value, dims: Any = None, keepdim: bool = False) -> Value:
    return op(kind, x, _axes(op, x, dims), keepdims=int(keepdim)) if x.rank else x


def _whole(x: Value, dtype: torch.dtype | None) -> torch.dtype:
    """The type of a sum or product."""
    return dtype or (x.dtype if x.dtype.is_floating_point else torch.int64)


@translates(aten.sum.default, aten.sum.dim_IntList)
def _sum(op: Writer, x: Value, dims: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    """A sum, of integers in int64: ONNX Runtime stops a sum of int32 at its limits, eager arithmetic wraps around."""
    x = op.cast(x, _whole(x, dtype))
    wide = x if x.dtype.is_floating_point else op.cast(x, torch.int64)
    return op.cast(_reduced(op, "ReduceSum", wide, dims, keepdim), x.dtype)


@translates(aten.mean.default, aten.mean.dim)
def _mean(op: Writer, x: Value, dims: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    x = op.cast(x, dtype or x.dtype)
    if x.shape is None or 0 not in x.shape:
        return _reduced(op, "ReduceMean", x, dims, keepdim)
    # The mean of no elements is NaN in eager code and 0 in ONNX Runtime.
    return op("Div", _reduced(op, "ReduceSum", x, dims, keepdim), op.number(0.0, x.dtype))


@translates(aten.prod.default, aten.prod.dim_int)
def _prod(op: Writer, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    return _reduced(op, "ReduceProd", op.cast(x, _whole(x, dtype)), dim, keepdim)


def _truth(kind: str, *targets: Any) -> None:
    @translates(*targets)
    def write(op: Writer, x: Value, dims: Any = None, keepdim: bool = False) -> Any:
        if 0 in x.sizes or x.dtype == torch.uint8:
            return NotImplemented
        if isinstance(dims, (list, tuple)) and not dims:  # for these two functions an empty list means no axis, not all axes
            return op.cast(x, torch.bool)
        return op.cast(_reduced(op, kind, op.cast(op.cast(x, torch.bool), torch.int32), dims, keepdim), torch.bool)


_truth("ReduceMax", aten.any.default, aten.any.dim, aten.any.dims)
_truth("ReduceMin", aten.all.default, aten.all.dim, aten.all.dims)


@translates(aten.var.correction)
def _var(op: Writer, x: Value, dims: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    if not x.rank:
        return NotImplemented
    chosen = [d % x.rank for d in dims] if dims else list(range(x.rank))
    centred = op("Sub", x, _reduced(op, "ReduceMean", x, chosen, True))
    total = _reduced(op, "ReduceSum", op("Mul", centred, centred, shape=x.shape), chosen, keepdim)
    count = math.prod(x.sizes[d] for d in chosen) - (1 if correction is None else correction)
    return op("Div", total, op.number(max(count, 0), x.dtype))


@translates(aten.linalg_vector_norm.default)
def _vector_norm(
    op: Writer, x: Value, order: Any = 2, dims: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    kind = {1: "ReduceL1", 2: "ReduceL2"}.get(order)
    return NotImplemented if kind is None or not x.rank else _reduced(op, kind, op.cast(x, dtype or x.dtype), dims, keepdim)


@translates(aten.cumsum.default)
def _cumsum(op: Writer, x: Value, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    wide = op.cast(x, _whole(x, dtype))
    return op("CumSum", wide, op.number(dim % x.rank, torch.int64)) if x.rank else wide


def _softmax(kind: str, target: Any, composite: Any) -> None:
    @translates(target)
    def write(op: Writer, x: Value, dim: int, half_to_float: bool = False) -> Any:
        return op(kind, x, axis=dim % x.rank) if x.rank and not half_to_float else NotImplemented

    @translates(composite)
    def write_composite(op: Writer, x: Value, dim: int, dtype: torch.dtype | None = None) -> Any:
        return write(op, op.cast(as_float(op, x), dtype) if dtype else as_float(op, x), dim)


_softmax("Softmax", aten._softmax.default, aten.softmax.int)
_softmax("LogSoftmax", aten._log_softmax.default, aten.log_softmax.int)


# Extremes: ONNX Runtime's ReduceMax and ReduceMin skip NaN.

_NARROW = (torch.bool, torch.int8, torch.int16, torch.uint8)


def _extreme(kind: str, target: Any) -> None:
    @translates(target)
    def extreme(op: Writer, x: Value, dims: Sequence[int] = (), keepdim: bool = False) -> Any:
        wide = op.cast(x, torch.int32) if x.dtype in _NARROW else x
        out = _reduced(op, kind, wide, dims, keepdim)
        if not x.dtype.is_floating_point or not x.rank:
            return op.cast(out, x.dtype)
        nan = op.cast(op("IsNaN", x, dtype=torch.bool, shape=x.shape), torch.float32)
        poisoned = op("Greater", _reduced(op, "ReduceMax", nan, dims, keepdim), op.number(0.0, torch.float32), dtype=torch.bool)
        return op("Where", poisoned, op.number(math.nan, x.dtype), out, dtype=x.dtype)


_extreme("ReduceMax", aten.amax.default)
_extreme("ReduceMin", aten.amin.default)


# Order: torch sorts NaN behind all numbers, and argmax and argmin find it. In ONNX Runtime its place is undefined.
# A stable sort is a TopK over the whole axis.


def _ordered(op: Writer, x: Value, sign: int = 1) -> Value:
    """``x`` in a wider type, with infinity in place of NaN and the largest number in place of infinity.

    ``sign`` says which infinity. Narrow integers become int32, which TopK and ArgMax take.
    """
    if not x.dtype.is_floating_point:
        return op.cast(x, torch.int32) if x.dtype in _NARROW else x
    wide = torch.float64 if x.dtype in (torch.float32, torch.float64) else torch.float32
    limit, infinite = (op.number(sign * v, wide, (1,)) for v in (torch.finfo(wide).max, math.inf))
    finite = op("Min" if sign > 0 else "Max", op.cast(x, wide), limit)
    return op("Where", op("IsNaN", x, dtype=torch.bool), infinite, finite, dtype=wide, shape=x.shape)


def _leading(op: Writer, x: Value, count: Value, axis: int, largest: bool) -> Any:
    """The first elements along an axis in order, and their indices."""
    values = _ordered(op, x)
    types = [values.dtype, torch.int64]
    _, indices = op.many("TopK", values, count, shapes=[None, None], dtypes=types, axis=axis, largest=int(largest), sorted=1)
    return [op("GatherElements", x, indices, axis=axis), indices]


def _place(kind: str, sign: int, target: Any) -> None:
    @translates(target)
    def place(op: Writer, x: Value, dim: int | None = None, keepdim: bool = False) -> Any:
        if not x.rank:
            return op.number(0, torch.int64)
        if dim is not None:
            return op(kind, _ordered(op, x, sign), dtype=torch.int64, axis=dim % x.rank, keepdims=int(keepdim))
        flat = op("Reshape", _ordered(op, x, sign), op.ints([-1]))
        found = op(kind, flat, dtype=torch.int64, axis=0, keepdims=0)
        return op("Reshape", found, op.ints([1] * x.rank)) if keepdim else found


_place("ArgMax", 1, aten.argmax.default)
_place("ArgMin", -1, aten.argmin.default)


@translates(aten.sort.stable)
def _stable_sort(op: Writer, x: Value, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    return _sort(op, x, dim, descending)


@translates(aten.sort.default)
def _sort(op: Writer, x: Value, dim: int = -1, descending: bool = False) -> Any:
    if not x.rank:
        return [x, op.number(0, torch.int64)]
    axis = dim % x.rank
    size = x.shape[axis] if x.shape is not None else None
    count = op("Shape", x, dtype=torch.int64, start=axis, end=axis + 1) if size is None else op.ints([size])
    return _leading(op, x, count, axis, descending)


@translates(aten.topk.default)
def _topk(op: Writer, x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    if not x.rank:
        return [x, op.number(0, torch.int64)]
    return _leading(op, x, op.ints([k]), dim % x.rank, largest)
