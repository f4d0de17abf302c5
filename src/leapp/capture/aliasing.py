"""Aliases: how the elements of one tensor lie inside the memory of another.

Two tensors over one storage are aliases, however they were made. Given the geometries of two tensors over one storage, this
module tells whether they overlap, and expresses one as a view of the other with view ops that every backend has.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import torch


class Geometry(NamedTuple):
    """Where a tensor's elements lie in its storage, counted in elements of its dtype."""

    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @property
    def span(self) -> tuple[int, int]:
        """First and one-past-last byte that the tensor may touch."""
        item = self.dtype.itemsize
        if 0 in self.size:
            return self.offset * item, self.offset * item
        last = self.offset + sum((n - 1) * s for n, s in zip(self.size, self.stride, strict=True))
        return self.offset * item, (last + 1) * item


def geometry(t: torch.Tensor) -> Geometry:
    """The geometry of a strided tensor."""
    return Geometry(t.dtype, tuple(t.shape), t.stride(), int(t.storage_offset()))


def storage_of(t: torch.Tensor) -> torch.UntypedStorage | None:
    """The storage of a tensor, or ``None``: a sparse tensor has no storage of its own."""
    try:
        return t.untyped_storage()
    except (RuntimeError, NotImplementedError, ValueError):
        return None


def storage_id(t: torch.Tensor) -> int | None:
    """The address of torch's storage object, which identifies the memory of a tensor."""
    storage = storage_of(t)
    return None if storage is None else int(storage._cdata)


def version_of(t: torch.Tensor) -> int | None:
    """Torch's count of the writes to a tensor; ``None`` for a tensor made in inference mode, which has no count."""
    return None if t.is_inference() else t._version


def same_storage(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors lie over the same memory."""
    mine = storage_id(a)
    return mine is not None and mine == storage_id(b)


def lent_memory(t: torch.Tensor, lent: bool = True) -> tuple[int, int, int] | None:
    """The identity of the storage of a tensor, and the first and one-past-last address of its memory.

    ``None`` unless the memory may also belong to an array, which torch shows by a storage that may not grow. ``lent=False``
    leaves that test out.
    """
    storage = storage_of(t)
    if storage is None or not t.is_cpu or (lent and storage.resizable()) or not storage.nbytes():
        return None
    start = storage.data_ptr()
    return int(storage._cdata), start, start + storage.nbytes()


def overlaps(a: Geometry, b: Geometry) -> bool:
    """Whether two tensors over one storage share at least one byte."""
    (a0, a1), (b0, b1) = a.span, b.span
    if a1 <= b0 or b1 <= a0:
        return False
    if a.dtype.itemsize != b.dtype.itemsize:
        return True
    marks = torch.zeros(max(a1, b1) // a.dtype.itemsize, dtype=torch.bool)
    marks.as_strided(a.size, a.stride, a.offset).fill_(True)
    return bool(marks.as_strided(b.size, b.stride, b.offset).any())


def locate(inner: Geometry, outer: Geometry) -> tuple[int, tuple[int, ...], tuple[int, ...], int] | None:
    """``inner`` as a view of the row-major flattening of ``outer``; ``None`` where that is impossible.

    Returns:
        How many elements ``outer`` has, and size, stride and offset of the view: the arguments of :func:`region`.
    """
    if inner.dtype != outer.dtype:
        return None
    total = math.prod(outer.size)
    if outer.stride == _dense(outer.size):
        offset, stride = inner.offset - outer.offset, inner.stride
        lo, hi = inner.span
        outer_lo, outer_hi = outer.span
        return (total, inner.size, stride, offset) if outer_lo <= lo and hi <= outer_hi else None
    length = max(inner.span[1], outer.span[1]) // inner.dtype.itemsize
    position = torch.full((length,), -1, dtype=torch.int64)
    window = position.as_strided(outer.size, outer.stride, outer.offset)
    window.copy_(torch.arange(window.numel()).view(outer.size))
    index = position.as_strided(inner.size, inner.stride, inner.offset)
    if index.numel() == 0 or bool((index < 0).any()):
        return None
    offset = int(index.flatten()[0])
    strides = tuple(
        int(index.select(d, 1).flatten()[0]) - offset if n > 1 else 0 for d, n in enumerate(inner.size)
    )
    affine = torch.tensor(offset)
    for d, (n, s) in enumerate(zip(inner.size, strides, strict=True)):
        shape = [1] * len(inner.size)
        shape[d] = n
        affine = affine + (torch.arange(n) * s).view(shape)
    return (total, inner.size, strides, offset) if torch.equal(affine.expand(inner.size), index) else None


def _dense(size: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for n in reversed(size):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def region(
    base: torch.Tensor, total: int, size: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> torch.Tensor:
    """The elements ``offset + i · stride`` of ``base`` flattened: a view of ``base`` when that is contiguous.

    Built from view ops where the layout allows, because most exporters have no ``as_strided``. All sizes are arguments, and
    none is read from ``base``, so that an exporter that traces this function sees constants.
    """
    flat = base.reshape(total)
    view = _by_slices(flat, total, size, stride, offset)
    return flat.as_strided(size, stride, offset) if view is None else view


def _by_slices(
    flat: torch.Tensor, total: int, size: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> torch.Tensor | None:
    """View ``flat`` as a grid whose dimensions have the wanted strides, then cut the window out of it."""
    if 0 in size:
        return flat[:0].view(size)
    moving = [d for d in range(len(size)) if size[d] > 1 and stride[d] != 0]
    order = sorted(moving, key=lambda d: -stride[d])
    steps = [stride[d] for d in order]
    if any(s < 0 for s in steps) or len(set(steps)) != len(steps):
        return None
    if len(steps) == 1:  # for example a diagonal
        line = flat[offset : offset + (size[order[0]] - 1) * steps[0] + 1 : steps[0]]
        return _widened(line, [n if d == order[0] else 1 for d, n in enumerate(size)], size)
    if not steps or steps[-1] != 1:
        steps.append(1)
    if any(a % b for a, b in pairwise(steps)) or total % steps[0]:
        return None
    grid = [total // steps[0]] + [a // b for a, b in pairwise(steps)]
    view, rest = flat.view(grid), offset
    for axis, step in enumerate(steps):
        start, rest = divmod(rest, step)
        length = size[order[axis]] if axis < len(order) else 1
        if start + length > grid[axis]:
            return None
        view = view.narrow(axis, start, length)
    # The view has one axis for each dimension of `order`, and perhaps a last axis of length one. Restore the wanted order.
    view = view.reshape([size[d] for d in order])
    view = view.permute([order.index(d) for d in moving])
    return _widened(view, [size[d] if d in moving else 1 for d in range(len(size))], size)


def _widened(t: torch.Tensor, shape: list[int], size: tuple[int, ...]) -> torch.Tensor:
    """``t`` in ``shape``, expanded to ``size`` only if needed: a write through ``expand`` is computed from differences."""
    t = t.view(shape)
    return t if tuple(shape) == tuple(size) else t.expand(size)
