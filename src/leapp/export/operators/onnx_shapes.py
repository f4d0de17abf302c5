"""Operators that make, move and select elements, written as ONNX. Most need sizes that are known."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from leapp.export.onnx_graph import ONNX_TYPES, Value, Writer, result_type
from leapp.export.operators.table import aten, translates

# Shapes


def _resolved(shape: Sequence[int], count: int) -> list[int]:
    """A shape with its -1 replaced by a size."""
    known = math.prod(size for size in shape if size != -1)
    return [(count // known if known else 0) if size == -1 else size for size in shape]


@translates(aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten._reshape_alias.default)
def _view(op: Writer, x: Value, shape: Sequence[int], *_: Any) -> Any:
    return op.reshaped(x, _resolved(shape, math.prod(x.sizes)))


@translates(aten.unsqueeze.default)
def _unsqueeze(op: Writer, x: Value, dim: int) -> Any:
    shape = list(x.sizes)
    shape.insert(dim % (len(shape) + 1), 1)
    return op.reshaped(x, shape)


@translates(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def _squeeze(op: Writer, x: Value, dims: Any = None) -> Any:
    # An axis of another length stays, as in eager code. ONNX Runtime refuses to squeeze it.
    chosen = range(x.rank) if dims is None else [d % max(x.rank, 1) for d in ([dims] if isinstance(dims, int) else dims)]
    dropped = [d for d in range(x.rank) if d in chosen and x.shape is not None and x.shape[d] == 1]
    kept = [size for d, size in enumerate(x.shape or ()) if d not in dropped]
    return op("Squeeze", x, op.ints(dropped), shape=kept) if dropped else x


@translates(aten.permute.default)
def _permute(op: Writer, x: Value, dims: Sequence[int]) -> Any:
    order = [d % x.rank for d in dims]
    if order == list(range(x.rank)):
        return x
    return op("Transpose", x, shape=[x.sizes[d] for d in order], perm=order)


@translates(aten.transpose.int)
def _transpose(op: Writer, x: Value, first: int, second: int) -> Any:
    order = list(range(x.rank))
    if not order:
        return x
    order[first], order[second] = order[second], order[first]
    return _permute(op, x, order)


@translates(aten.expand.default)
def _expand(op: Writer, x: Value, shape: Sequence[int], *, implicit: bool = False) -> Any:
    sizes = [*([1] * (len(shape) - x.rank)), *x.sizes]
    wanted = [have if size == -1 else size for size, have in zip(shape, sizes, strict=True)]
    return x if list(x.sizes) == wanted else op("Expand", x, op.ints(wanted), shape=wanted)


@translates(aten.repeat.default)
def _repeat(op: Writer, x: Value, repeats: Sequence[int]) -> Any:
    sizes = [*([1] * (len(repeats) - x.rank)), *x.sizes]
    shape = [size * count for size, count in zip(sizes, repeats, strict=True)]
    return op("Tile", op.reshaped(x, sizes), op.ints(repeats), shape=shape) if sizes else x


@translates(aten.cat.default)
def _cat(op: Writer, tensors: Sequence[Value], dim: int = 0) -> Any:
    # An empty tensor of one dimension fits any shape.
    parts = [t for t in tensors if t.sizes != (0,)] or [tensors[0]]
    dtype = parts[0].dtype
    for part in tensors:
        dtype = result_type(Value(dtype, (1,)), Value(part.dtype, (1,)))
    parts = [op.cast(part, dtype) for part in parts]
    return parts[0] if len(parts) == 1 else op("Concat", *parts, axis=dim % parts[0].rank)


@translates(aten.stack.default)
def _stack(op: Writer, tensors: Sequence[Value], dim: int = 0) -> Any:
    axis = dim % (tensors[0].rank + 1)
    return _cat(op, [_unsqueeze(op, t, axis) for t in tensors], axis)


# Parts


@translates(aten.slice.Tensor)
def _slice(op: Writer, x: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    axis = dim % x.rank
    first, last, _ = slice(start, end, step).indices(x.sizes[axis])
    if (first, step) == (0, 1) and last == x.sizes[axis]:
        return x
    shape = [len(range(first, last, step)) if d == axis else size for d, size in enumerate(x.sizes)]
    return op("Slice", x, op.ints([first]), op.ints([max(first, last)]), op.ints([axis]), op.ints([step]), shape=shape)


@translates(aten.select.int)
def _select(op: Writer, x: Value, dim: int, index: int) -> Any:
    axis = dim % x.rank
    shape = [size for d, size in enumerate(x.sizes) if d != axis]
    return op("Gather", x, op.number(index % x.sizes[axis], torch.int64), axis=axis, shape=shape)


@translates(aten.split_with_sizes.default)
def _split_at(op: Writer, x: Value, sizes: Sequence[int], dim: int = 0) -> Any:
    axis = dim % x.rank
    if len(sizes) == 1:
        return [x]
    shapes = [[part if d == axis else size for d, size in enumerate(x.sizes)] for part in sizes]
    return op.many("Split", x, op.ints(sizes), shapes=shapes, axis=axis)


@translates(aten.split.Tensor)
def _split(op: Writer, x: Value, size: int, dim: int = 0) -> Any:
    total = x.sizes[dim]
    return _split_at(op, x, [min(size, total - at) for at in range(0, total, size)] if total else [0], dim)


@translates(aten.unbind.int)
def _unbind(op: Writer, x: Value, dim: int = 0) -> Any:
    return [_select(op, x, dim, index) for index in range(x.sizes[dim])]


@translates(aten.flip.default)
def _flip(op: Writer, x: Value, dims: Sequence[int]) -> Any:
    if not dims or not x.rank:
        return x
    ends = op.ints([torch.iinfo(torch.int64).min] * len(dims))
    axes, steps = op.ints(d % x.rank for d in dims), op.ints([-1] * len(dims))
    return op("Slice", x, op.ints([-1] * len(dims)), ends, axes, steps)


@translates(aten.index_select.default)
def _index_select(op: Writer, x: Value, dim: int, index: Value) -> Any:
    return op("Gather", x, op.reshaped(index, [math.prod(index.sizes)]), axis=dim % x.rank) if x.rank else NotImplemented


@translates(aten.index.Tensor)
def _index(op: Writer, x: Value, indices: Sequence[Value | None]) -> Any:
    chosen = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if len(chosen) != 1 or chosen[0][1].dtype != torch.int64:
        return NotImplemented
    axis, index = chosen[0]
    return op("Gather", x, index, axis=axis)


@translates(aten.index_put.default)
def _index_put(op: Writer, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False) -> Any:
    if any(index is None or index.dtype != torch.int64 for index in indices):
        return NotImplemented
    chosen = [index for index in indices if index is not None]
    at = list(np.broadcast_shapes(*(index.sizes for index in chosen)))  # torch's own imports sympy
    columns = [op.reshaped(_expand(op, index, at), [*at, 1]) for index in chosen]
    places = columns[0] if len(columns) == 1 else op("Concat", *columns, axis=len(at), shape=[*at, len(columns)])
    written = _expand(op, values, [*at, *x.sizes[len(chosen) :]])
    return op("ScatterND", x, places, written, shape=x.sizes, reduction="add" if accumulate else "none")


@translates(aten.gather.default)
def _gather(op: Writer, x: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Any:
    if not x.rank or not index.rank:
        return NotImplemented
    return op("GatherElements", x, index, axis=dim % x.rank)


def _triangle(target: Any, upper: int) -> None:
    @translates(target)
    def write(op: Writer, x: Value, diagonal: int = 0) -> Any:
        # ONNX Runtime 1.23 has Trilu for int64, not for int32.
        wide = op.cast(x, torch.int64) if x.dtype == torch.int32 else x
        return op.cast(op("Trilu", wide, op.number(diagonal, torch.int64), upper=upper), x.dtype)


_triangle(aten.tril.default, 0)
_triangle(aten.triu.default, 1)


@translates(aten.constant_pad_nd.default)
def _pad(op: Writer, x: Value, pad: Sequence[int], value: Any = 0) -> Any:
    if x.dtype == torch.bool:
        return NotImplemented
    pairs = list(itertools.zip_longest(pad[::2], pad[1::2]))
    pairs = [*([(0, 0)] * (x.rank - len(pairs))), *pairs[::-1]]
    return op("Pad", x, op.ints([first for first, _ in pairs] + [last for _, last in pairs]), op.number(value, x.dtype))


# Tensors of known numbers

_LITERAL = 64
"""Up to this many equal elements are a constant; more are an ``Expand`` of one number."""


def _filled(op: Writer, shape: Sequence[int], value: Any, dtype: torch.dtype | None) -> Any:
    if isinstance(value, (Value, complex)) or dtype not in ONNX_TYPES:
        return NotImplemented
    if math.prod(shape) <= _LITERAL:
        return op.number(value, dtype, shape)
    return op("Expand", op.number(value, dtype), op.ints(shape), shape=shape)


@translates(aten.full.default)
def _full(op: Writer, shape: Sequence[int], value: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
    natural = {bool: torch.bool, int: torch.int64}.get(type(value), torch.get_default_dtype())
    return _filled(op, shape, value, dtype or natural)


@translates(aten.zero.default)
def _zero(op: Writer, x: Value) -> Any:
    return _filled(op, x.sizes, 0, x.dtype)


@translates(aten.full_like.default, aten.fill.Scalar)
def _full_like(op: Writer, x: Value, value: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
    return _filled(op, x.sizes, value, dtype or x.dtype)


def _of_one_number(number: int, make: Any, make_like: Any, make_new: Any) -> None:
    @translates(make)
    def made(op: Writer, shape: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any) -> Any:
        return _filled(op, shape, number, dtype or torch.get_default_dtype())

    @translates(make_like)
    def made_like(op: Writer, x: Value, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
        return _filled(op, x.sizes, number, dtype or x.dtype)

    @translates(make_new)
    def made_new(op: Writer, x: Value, shape: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any) -> Any:
        return _filled(op, shape, number, dtype or x.dtype)


_of_one_number(0, aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)
_of_one_number(0, aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default)
_of_one_number(1, aten.ones.default, aten.ones_like.default, aten.new_ones.default)


@translates(aten.scalar_tensor.default)
def _scalar_tensor(op: Writer, value: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
    return _filled(op, (), value, dtype or torch.get_default_dtype())


def _series(target: Any) -> None:
    @translates(target)
    def series(op: Writer, *args: Any, dtype: torch.dtype | None = None, **_: Any) -> Any:
        if any(isinstance(arg, Value) for arg in args):
            return NotImplemented
        made = target(*args, dtype=dtype, device="cpu")
        return op.constant(made) if made.dtype in ONNX_TYPES else NotImplemented


for _target in (
    aten.arange.default, aten.arange.start, aten.arange.start_step, aten.eye.default, aten.eye.m, aten.linspace.default,
    aten.logspace.default,
):  # fmt: skip
    _series(_target)
