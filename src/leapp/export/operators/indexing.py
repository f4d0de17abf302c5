"""Reads and writes of parts of tensors, by index or mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leapp.export.operators.table import aten, broadcast_shapes, replaces, torch_replaces

torch_replaces(aten.embedding.default, aten.new_full.default, aten.t.default)

# Writes to a part. torchlib computes with the old content, so that NaN or infinity in it reaches the result.


def _with_slices(x: Tensor, source: Tensor, dim: int, positions: range) -> Tensor:
    """``x`` with the slices at ``positions`` along ``dim`` taken from ``source``, without arithmetic."""
    # Later views expect the result to have the memory layout of ``x``.
    order = sorted(range(x.dim()), key=lambda d: -x.stride()[d])
    out = _with_dense_slices(x.permute(order), source.to(x.dtype).permute(order), order.index(dim), positions)
    return out.permute([order.index(d) for d in range(x.dim())])


def _with_dense_slices(x: Tensor, source: Tensor, dim: int, positions: range) -> Tensor:
    size = x.shape[dim]
    first, step = positions.start, positions.step
    if step == 1:
        return torch.cat([x.narrow(dim, 0, first), source, x.narrow(dim, positions.stop, size - positions.stop)], dim)
    places = torch.arange(first, positions.stop, step, device=x.device)
    written: Tensor = aten.index_put.default(x.movedim(dim, 0), [places], source.movedim(dim, 0))
    return written.movedim(0, dim)


@replaces(aten.slice_scatter.default)
def _slice_scatter(
    x: Tensor, source: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    dim = dim % x.dim()
    if isinstance(x.shape[dim], torch.SymInt):
        from leapp.compat.tracers import statically_known_true

        whole = start in (None, 0) and step == 1 and (end is None or statically_known_true(end >= x.shape[dim]))
        return source.to(x.dtype).expand(x.shape).clone() if whole else NotImplemented
    positions = range(x.shape[dim])[slice(start, end, step)]
    shape = [*x.shape[:dim], len(positions), *x.shape[dim + 1 :]]
    return _with_slices(x, source.expand(shape), dim, positions) if len(positions) else x.clone()


@replaces(aten.select_scatter.default)
def _select_scatter(x: Tensor, source: Tensor, dim: int, index: int) -> Any:
    dim = dim % x.dim()
    if isinstance(x.shape[dim], torch.SymInt):
        return NotImplemented
    return _with_slices(x, source.unsqueeze(dim), dim, range(index % x.shape[dim], index % x.shape[dim] + 1))


# Selection: torchlib lacks these, and ONNX takes indices of int64 only.


_INDEX_TYPES = (torch.int8, torch.int16, torch.int32)


@replaces(aten.index.Tensor)
def _index(x: Tensor, indices: Sequence[Tensor | None]) -> Any:
    if not any(i is not None and i.dtype in _INDEX_TYPES for i in indices):
        return NotImplemented
    return aten.index.Tensor(x, [i.to(torch.int64) if i is not None and i.dtype in _INDEX_TYPES else i for i in indices])


@replaces(aten.diagonal.default, aten.diagonal_copy.default)
def _diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """Torchlib multiplies with a mask and adds up, so that NaN or infinity beside the diagonal reaches it."""
    if isinstance(x.shape[dim1], torch.SymInt) or isinstance(x.shape[dim2], torch.SymInt):
        return NotImplemented
    rows, columns = x.shape[dim1], x.shape[dim2]
    count = max(min(rows + min(offset, 0), columns - max(offset, 0)), 0)
    first = max(offset, 0) - min(offset, 0) * columns
    places = torch.arange(count, device=x.device) * (columns + 1) + first
    return x.movedim((dim1, dim2), (-2, -1)).flatten(-2).index_select(-1, places)


@replaces(aten.trace.default)
def _trace(x: Tensor) -> Any:
    return x.diagonal().sum()


@replaces(aten.masked_select.default)
def _masked_select(x: Tensor, mask: Tensor) -> Any:
    shape = broadcast_shapes(x.shape, mask.shape)
    return aten.index.Tensor(x.expand(shape), [mask.expand(shape)])


@replaces(aten.nonzero_static.default)
def _nonzero_static(x: Tensor, *, size: int, fill_value: int = -1) -> Any:
    hits = (x != 0).reshape(-1)
    place = torch.cumsum(hits.to(torch.int64), 0) - 1
    # Zeros, and hits after the first ``size``, go to an extra last row, which is dropped.
    place = torch.where(hits & (place < size), place, torch.full_like(place, size))
    found = torch.full((size + 1,), -1, dtype=torch.int64).scatter(0, place, torch.arange(hits.numel()))[:size]
    columns, stride = [], 1
    for length in reversed(x.shape):
        columns.append(torch.div(found, stride, rounding_mode="trunc") % length)
        stride *= length
    at = torch.stack(columns[::-1], 1) if columns else torch.zeros((size, 0), dtype=torch.int64)
    return torch.where((found < 0).unsqueeze(1), torch.full_like(at, fill_value), at)


# Scattered writes: torchlib lacks these or fails on some of their arguments.


@replaces(aten.index_put.default)
def _masked_write(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Any:
    """A write through a mask over some axes. The other axes are written whole."""
    masks = [(axis, i) for axis, i in enumerate(indices) if i is not None]
    if len(masks) != 1 or masks[0][1].dtype != torch.bool or accumulate:
        return NotImplemented
    axis, mask = masks[0]
    behind = x.dim() - axis - mask.dim()
    hits = values.shape[values.dim() - behind - 1] if values.dim() > behind else 1
    counted = not isinstance(hits, int)  # as many values as another mask has hits
    if (counted or hits != 1) and axis == 0:
        return NotImplemented
    if values.dim() > behind:
        # The axis of hits becomes the axes of the mask.
        front, back = values.shape[: values.dim() - behind - 1], values.shape[values.dim() - behind :]
        if counted or hits != 1:
            # The first hit takes the first value, and so on. More hits than values are an index error, as in eager code.
            turn = torch.cumsum(mask.reshape(-1).to(torch.int64), 0)
            turn = torch.where(mask.reshape(-1), turn, torch.zeros_like(turn))
            unused = values.new_zeros((*front, 1, *back))  # there may be no value at all
            values = torch.cat([unused, values], len(front)).index_select(len(front), turn).reshape(*front, *mask.shape, *back)
        else:
            values = values.reshape(*front, *([1] * mask.dim()), *back)
    spread = mask.reshape(*mask.shape, *([1] * behind))
    return torch.where(spread, values.to(x.dtype), x)


@replaces(aten.masked_scatter.default)
def _masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Any:
    """The first hit takes the first value, and so on. Fewer values than hits are an index error, as in eager code."""
    if not _is_fixed(x, mask, source) or not source.numel():
        return NotImplemented
    shape = np.broadcast_shapes(x.shape, mask.shape)  # torch's function loads sympy
    hits = mask.expand(shape)
    turn = torch.cumsum(hits.reshape(-1).to(torch.int64), 0).reshape(shape) - 1
    turn = torch.where(hits, turn, torch.zeros_like(turn))
    return torch.where(hits, aten.index.Tensor(source.reshape(-1), [turn]), x)


def _is_fixed(*tensors: Tensor) -> bool:
    """Whether all sizes are known."""
    return all(isinstance(size, int) for tensor in tensors for size in tensor.shape)


def _rows(x: Tensor, dim: int, index: Tensor) -> list[Tensor | None]:
    return [*[None] * (dim % x.dim()), index.reshape(-1).to(torch.int64)]


@replaces(aten.index_copy.default)
def _index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Any:
    if not x.dim() or source.dim() != x.dim() or not _is_fixed(x, source):
        return NotImplemented
    return aten.index_put.default(x, _rows(x, dim, index), source)


@replaces(aten.index_add.default)
def _index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Any:
    if not x.dim() or source.dim() != x.dim() or source.dtype != x.dtype or not _is_fixed(x, source):
        return NotImplemented
    return aten.index_put.default(x, _rows(x, dim, index), source if alpha == 1 else source * alpha, True)


@replaces(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def _index_fill(x: Tensor, dim: int, index: Tensor, value: Any) -> Any:
    if not x.dim() or not _is_fixed(x, index):
        return NotImplemented
    number = value.to(x.dtype) if isinstance(value, Tensor) else torch.full((), value, dtype=x.dtype, device=x.device)
    return aten.index_put.default(x, _rows(x, dim, index), number)


@replaces(aten.take.default)
def _take(x: Tensor, index: Tensor) -> Any:
    return aten.index.Tensor(x.reshape(-1), [index])


@replaces(aten.one_hot.default)
def _one_hot(x: Tensor, num_classes: int = -1) -> Any:
    """An index beyond the classes is an error, as in eager code."""
    count = int(x.max().item()) + 1 if num_classes < 0 else num_classes
    return x.new_zeros((*x.shape, count)).scatter(-1, x.unsqueeze(-1), 1)


@replaces(aten.diag_embed.default)
def _diag_embed(x: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    if x.is_complex() or not _is_fixed(x):
        return NotImplemented
    front, back = (x.new_zeros((*x.shape[:-1], max(side, 0))) for side in (-offset, offset))
    rows = torch.cat([front, x, back], -1).unsqueeze(-1)
    place = torch.arange(rows.shape[-2], device=x.device)
    found = torch.where(place - place.unsqueeze(-1) == offset, rows, torch.zeros_like(rows))
    return found.movedim((-2, -1), (dim1, dim2))


@replaces(aten.block_diag.default)
def _block_diag(blocks: Sequence[Tensor]) -> Any:
    if any(block.is_complex() or not _is_fixed(block) for block in blocks):
        return NotImplemented
    matrices = [block if block.dim() == 2 else block.reshape(1, -1) for block in blocks]
    width, before, rows = sum(m.shape[1] for m in matrices), 0, []
    for m in matrices:
        after = width - before - m.shape[1]
        rows.append(torch.cat([m.new_zeros((m.shape[0], before)), m, m.new_zeros((m.shape[0], after))], 1))
        before += m.shape[1]
    return torch.cat(rows, 0)


@replaces(aten.narrow_copy.default)
def _narrow_copy(x: Tensor, dim: int, start: int, length: int) -> Tensor:
    return x.narrow(dim, start, length).clone()


@replaces(aten.copy.default)
def _copy(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    return source.to(x.dtype).expand(x.shape).clone()


@replaces(aten.fill.Tensor)
def _fill(x: Tensor, value: Tensor) -> Tensor:
    return value.to(x.dtype).expand(x.shape).clone()


@replaces(aten.diagonal_scatter.default)
def _diagonal_scatter(x: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    count = source.shape[-1]
    rows, columns = torch.arange(count) + max(-offset, 0), torch.arange(count) + max(offset, 0)
    front = x.movedim((dim1, dim2), (0, 1))
    written = aten.index_put.default(front, [rows, columns], source.movedim(-1, 0))
    return written.movedim((0, 1), (dim1, dim2))


# Elements by their place in memory: torchlib treats every tensor as contiguous.


def _order_in_memory(x: Tensor) -> list[int] | None:
    """The axes from the largest stride to the smallest, if ``x`` fills its memory without gaps."""
    order = sorted(range(x.dim()), key=lambda d: -x.stride()[d])
    return order if x.permute(order).is_contiguous() and not x.storage_offset() else None


def _places(size: Sequence[int], stride: Sequence[int], offset: int | None) -> Tensor:
    places = torch.full((), offset or 0, dtype=torch.int64)
    for length, step in zip(size, stride, strict=True):
        places = places.unsqueeze(-1) + torch.arange(length) * step
    return places.reshape(-1)


@replaces(aten.as_strided.default)
def _as_strided(x: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Any:
    if not all(isinstance(n, int) for n in (*x.shape, *size, *stride)):
        return NotImplemented
    order = _order_in_memory(x)
    if order is None:
        raise NotImplementedError("as_strided() of a tensor that is a part of its memory. Take it of the whole tensor.")
    return x.permute(order).reshape(-1).index_select(0, _places(size, stride, storage_offset)).reshape(size)


@replaces(aten.as_strided_scatter.default)
def _as_strided_scatter(
    x: Tensor, source: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Any:
    order = _order_in_memory(x)
    if order is None:
        return NotImplemented
    dense = x.permute(order)
    places = _places(size, stride, storage_offset)
    written = aten.index_put.default(dense.reshape(-1), [places], source.reshape(-1)).reshape(dense.shape)
    return written.permute([order.index(d) for d in range(x.dim())])


@replaces(aten.scatter_reduce.two)
def _scatter_mean(x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True) -> Any:
    if reduce != "mean" or not x.is_floating_point():
        return NotImplemented
    ones = torch.ones_like(source)
    count = torch.zeros_like(x).scatter_add(dim, index, ones)
    base = x if include_self else torch.where(count > 0, torch.zeros_like(x), x)
    total = base.scatter_add(dim, index, source)
    return total / (count + 1 if include_self else count.clamp(min=1.0))


@replaces(aten.scatter.reduce)
def _scatter_reduce(x: Tensor, dim: int, index: Tensor, source: Tensor, *, reduce: str) -> Any:
    used = source[tuple(slice(size) for size in index.shape)]
    return aten.scatter_reduce.two(x, dim, index, used, {"add": "sum", "multiply": "prod"}[reduce])


@replaces(aten.scatter.value_reduce)
def _scatter_value_reduce(x: Tensor, dim: int, index: Tensor, value: Any, *, reduce: str) -> Any:
    return _scatter_reduce(x, dim, index, torch.full_like(index, value, dtype=x.dtype), reduce=reduce)


@replaces(aten.index_reduce.default)
def _index_reduce(x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True) -> Any:
    shape = [-1 if d == dim % x.dim() else 1 for d in range(x.dim())]
    spread = index.to(torch.int64).reshape(shape).expand(source.shape)
    return aten.scatter_reduce.two(x, dim, spread, source, reduce, include_self=include_self)


@replaces(aten.pad.default)
def _pad(x: Tensor, pad: Sequence[int], mode: str = "constant", value: Any = None) -> Any:
    if mode == "constant":
        return aten.constant_pad_nd.default(x, pad, value or 0)
    if mode == "circular":
        return _wrapped(x, pad)
    kinds = _REFLECTIONS if mode == "reflect" else _REPLICATIONS
    return kinds[len(pad) // 2 - 1].default(x, pad)


def _wrapped(x: Tensor, pad: Sequence[int]) -> Any:
    if min(pad) < 0:
        return NotImplemented
    for axis, before, after in zip(range(-1, -len(pad), -1), pad[::2], pad[1::2], strict=False):
        x = torch.cat([x.narrow(axis, x.shape[axis] - before, before), x, x.narrow(axis, 0, after)], axis)
    return x


_REFLECTIONS = aten.reflection_pad1d, aten.reflection_pad2d, aten.reflection_pad3d
_REPLICATIONS = aten.replication_pad1d, aten.replication_pad2d, aten.replication_pad3d


@replaces(aten.unfold.default)
def _unfold(x: Tensor, dim: int, size: int, step: int) -> Any:
    # torchlib gives tensors of one element to Range, which ONNX Runtime 1.20 refuses.
    if not x.dim() or isinstance(x.shape[dim], torch.SymInt):
        return NotImplemented
    dim = dim % x.dim()
    count = (x.shape[dim] - size) // step + 1
    places = torch.arange(count, device=x.device).unsqueeze(1) * step + torch.arange(size, device=x.device)
    taken = x.index_select(dim, places.reshape(-1))
    return taken.reshape(*x.shape[:dim], count, size, *x.shape[dim + 1 :]).movedim(dim + 1, -1)


@replaces(aten.unfold_backward.default)
def _unfold_backward(written: Tensor, sizes: Sequence[int], dim: int, size: int, step: int) -> Any:
    """Add the windows up at the places where they were taken."""
    dim = dim % len(sizes)
    places = torch.arange(sizes[dim]).unfold(0, size, step).reshape(-1)
    values = written.movedim(-1, dim + 1).flatten(dim, dim + 1)
    return aten.index_add.default(written.new_zeros(sizes), dim, places, values)


@replaces(aten.put.default)
def _put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Any:
    flat = aten.index_put.default(x.reshape(-1), [index.reshape(-1)], source.reshape(-1), accumulate)
    return flat.reshape(x.shape)


@replaces(aten.repeat_interleave.self_int)
def _repeat_interleave(x: Tensor, repeats: int, dim: int | None = None, output_size: int | None = None) -> Any:
    """The translation of onnxscript 0.7.1 loses an axis."""
    x, dim = (x.flatten(), 0) if dim is None else (x, dim % x.dim())
    return x.unsqueeze(dim + 1).expand(*x.shape[: dim + 1], repeats, *x.shape[dim + 1 :]).flatten(dim, dim + 1)


@replaces(aten.repeat_interleave.Tensor)
def _repeated_places(repeats: Tensor, *, output_size: int | None = None) -> Any:
    """Torchlib does not take the size of the result."""
    if output_size is None:
        return NotImplemented
    places = torch.arange(output_size, device=repeats.device)
    return torch.searchsorted(repeats.cumsum(0), places, right=True).to(repeats.dtype)
