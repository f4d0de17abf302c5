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


@translates(aten.split_with_sizes.default, aten.unsafe_split_with_sizes.default)
def _split_at(op: Writer, x: Value, sizes: Sequence[int], dim: int = 0) -> Any:
    axis = dim % x.rank
    if len(sizes) == 1:
        return [x]
    shapes = [[part if d == axis else size for d, size in enumerate(x.sizes)] for part in sizes]
    return op.many("Split", x, op.ints(sizes), shapes=shapes, axis=axis)


@translates(aten.split.Tensor, aten.unsafe_split.Tensor)
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
    return op("Slice", x, op.ints([-1] * len(dims)), ends, axes, steps, shape=x.shape)


@translates(aten.roll.default)
def _roll(op: Writer, x: Value, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    if not dims:
        flat = op.reshaped(x, [math.prod(x.sizes)])
        return op.reshaped(_roll(op, flat, shifts, [0]), x.sizes)
    for shift, dim in zip(shifts, dims, strict=True):
        axis = dim % x.rank
        first = -shift % x.sizes[axis] if x.sizes[axis] else 0
        if first:
            x = op("Concat", _slice(op, x, axis, first), _slice(op, x, axis, 0, first), axis=axis, shape=x.shape)
    return x


@translates(aten.rot90.default)
def _rot90(op: Writer, x: Value, k: int = 1, dims: Sequence[int] = (0, 1)) -> Any:
    flipped = {0: [], 1: [dims[1]], 2: dims, 3: [dims[0]]}[k % 4]
    if not flipped:
        return x
    x = _flip(op, x, flipped)
    return _transpose(op, x, *dims) if k % 2 else x


@translates(aten.index_select.default)
def _index_select(op: Writer, x: Value, dim: int, index: Value) -> Any:
    return op("Gather", x, op.reshaped(index, [math.prod(index.sizes)]), axis=dim % x.rank) if x.rank else NotImplemented


@translates(aten.index.Tensor, aten._unsafe_index.Tensor)
def _index(op: Writer, x: Value, indices: Sequence[Value | None]) -> Any:
    chosen = {axis: index for axis, index in enumerate(indices) if index is not None}
    if any(index.dtype != torch.int64 for index in chosen.values()):
        return NotImplemented
    if len(chosen) == 1:
        axis, index = chosen.popitem()
        return op("Gather", x, index, axis=axis)
    places, shape = _places(op, chosen)
    if 0 in shape or 0 in x.sizes:
        return NotImplemented
    rest = [axis for axis in range(x.rank) if axis not in chosen]
    found = [*shape, *(x.sizes[axis] for axis in rest)]
    out = op("GatherND", _permute(op, x, [*chosen, *rest]), places, shape=found)
    return _permute(op, out, _spread(chosen, len(shape), len(rest)))


def _places(op: Writer, chosen: dict[int, Value]) -> tuple[Value, list[int]]:
    """Indices into some axes as rows of indices, and the sizes that they have in common."""
    shape = list(np.broadcast_shapes(*(index.sizes for index in chosen.values())))
    columns = [_unsqueeze(op, _expand(op, index, shape), -1) for index in chosen.values()]
    return op("Concat", *columns, axis=-1, shape=[*shape, len(columns)]) if len(columns) > 1 else columns[0], shape


def _spread(chosen: dict[int, Value], count: int, rest: int) -> list[int]:
    """Where eager code puts the ``count`` axes of indices, which come first: at the indexed axes, if these are neighbours."""
    first, last = min(chosen), max(chosen)
    front = first if last - first + 1 == len(chosen) else 0
    behind = list(range(count, count + rest))
    return [*behind[:front], *range(count), *behind[front:]]


@translates(aten.index_put.default)
def _index_put(
    op: Writer, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False
) -> Any:
    chosen = {axis: index for axis, index in enumerate(indices) if index is not None}
    if not chosen or any(index.dtype != torch.int64 for index in chosen.values()) or x.dtype != values.dtype:
        return NotImplemented
    places, shape = _places(op, chosen)
    if 0 in shape or 0 in x.sizes or (accumulate and x.dtype not in _ADDED):
        return NotImplemented
    rest = [axis for axis in range(x.rank) if axis not in chosen]
    order, spread = [*chosen, *rest], _spread(chosen, len(shape), len(rest))
    found = [*shape, *(x.sizes[axis] for axis in rest)]
    values = _permute(op, _expand(op, values, [found[axis] for axis in spread]), _inverse(spread))
    moved = _permute(op, x, order)
    written = op("ScatterND", moved, places, values, shape=moved.shape, reduction="add" if accumulate else "none")
    return _permute(op, written, _inverse(order))


def _inverse(order: Sequence[int]) -> list[int]:
    return [order.index(axis) for axis in range(len(order))]


_ADDED = (torch.float32, torch.float64, torch.int32, torch.int64)
"""Types that a scattered write may add up."""


def _scattered(op: Writer, x: Value, dim: int, index: Value, source: Value, reduction: str = "none") -> Any:
    """A write to elements. Of a larger ``source`` eager code takes the first ones."""
    if not x.rank or not index.rank or 0 in x.sizes or x.dtype != source.dtype:
        return NotImplemented
    if 0 in index.sizes:
        return x
    for axis, size in enumerate(index.sizes):
        source = _slice(op, source, axis, 0, size)
    return op("ScatterElements", x, op.cast(index, torch.int64), source, axis=dim % x.rank, reduction=reduction)


@translates(aten.scatter.src)
def _scatter(op: Writer, x: Value, dim: int, index: Value, source: Value) -> Any:
    return _scattered(op, x, dim, index, source)


@translates(aten.scatter.value)
def _scatter_value(op: Writer, x: Value, dim: int, index: Value, value: Any) -> Any:
    return _scattered(op, x, dim, index, _filled(op, index.sizes, value, x.dtype))


@translates(aten.scatter_add.default)
def _scatter_add(op: Writer, x: Value, dim: int, index: Value, source: Value) -> Any:
    return _scattered(op, x, dim, index, source, reduction="add") if x.dtype in _ADDED else NotImplemented


@translates(aten.scatter_reduce.two)
def _scatter_reduce(
    op: Writer, x: Value, dim: int, index: Value, source: Value, reduce: str, *, include_self: bool = True
) -> Any:
    kind = {"sum": "add", "prod": "mul"}.get(reduce)
    if kind is None or not include_self or x.dtype not in _ADDED:
        return NotImplemented
    return _scattered(op, x, dim, index, source, reduction=kind)


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


def _reflected(*targets: Any, kind: str) -> None:
    @translates(*targets)
    def write(op: Writer, x: Value, pad: Sequence[int]) -> Any:
        if x.dtype not in _PADDED or min(pad) < 0 or 0 in x.sizes:
            return NotImplemented
        pairs = [*([(0, 0)] * (x.rank - len(pad) // 2)), *list(zip(pad[::2], pad[1::2], strict=True))[::-1]]
        return op("Pad", x, op.ints([first for first, _ in pairs] + [last for _, last in pairs]), mode=kind)


_PADDED = (torch.float16, torch.float32, torch.float64, torch.int32, torch.int64)

_reflected(aten.reflection_pad1d.default, aten.reflection_pad2d.default, aten.reflection_pad3d.default, kind="reflect")
_reflected(aten.replication_pad1d.default, aten.replication_pad2d.default, aten.replication_pad3d.default, kind="edge")


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
