"""Functions that write to their first argument. Each expression returns the new value of that argument."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from leapp.capture.numpy.table.table import IN_PLACE, Unmapped, expression
from leapp.capture.numpy.table.tensors import tensor

Tensor = torch.Tensor


@expression("copyto", table=IN_PLACE)
def _copyto(dst: Tensor, src: Any, casting: str = "same_kind", where: Any = True) -> Tensor:
    src = tensor(src).to(dst.dtype)
    src = src if src.shape == dst.shape else src.expand(dst.shape)
    return src if where is True else torch.where(tensor(where), src, dst)


@expression("putmask", table=IN_PLACE)
def _putmask(a: Tensor, mask: Any, values: Any) -> Tensor:
    values = tensor(values).to(a.dtype).reshape(-1)
    if values.numel() not in (1, a.numel()):
        raise Unmapped
    return torch.where(tensor(mask), values if values.numel() == 1 else values.reshape(a.shape), a)


@expression("place", table=IN_PLACE)
def _place(arr: Tensor, mask: Any, vals: Any) -> Tensor:
    values = tensor(vals).to(arr.dtype).reshape(-1)
    if values.numel() != 1:
        raise Unmapped
    return torch.where(tensor(mask), values, arr)


@expression("put", table=IN_PLACE)
def _put(a: Tensor, ind: Any, v: Any, mode: str = "raise") -> Tensor:
    if mode != "raise":
        raise Unmapped
    places = tensor(ind).reshape(-1).to(torch.int64)
    values = tensor(v).to(a.dtype).reshape(-1)
    if values.numel() not in (1, places.numel()):
        raise Unmapped
    places = torch.where(places < 0, places + a.numel(), places)
    return a.reshape(-1).scatter(0, places, values.expand(places.shape)).reshape(a.shape)


@expression("put_along_axis", table=IN_PLACE)
def _put_along_axis(arr: Tensor, indices: Any, values: Any, axis: int | None) -> Tensor:
    if axis is None:
        raise Unmapped
    indices = tensor(indices).to(torch.int64)
    shape = [indices.shape[d] if d == axis % arr.dim() else n for d, n in enumerate(arr.shape)]
    indices = indices.expand(shape)
    return arr.scatter(axis, indices, tensor(values).to(arr.dtype).expand(shape))


@expression("fill_diagonal", table=IN_PLACE)
def _fill_diagonal(a: Tensor, val: Any, wrap: bool = False) -> Tensor:
    values = tensor(val).to(a.dtype).reshape(-1)
    if values.numel() != 1:
        raise Unmapped
    marks = np.zeros(tuple(a.shape), bool)
    np.fill_diagonal(marks, True, wrap)
    return torch.where(torch.from_numpy(marks), values, a)
