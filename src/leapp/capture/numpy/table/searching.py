"""Functions that search and sort."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from leapp.capture.numpy.table.registry import Unmapped, expression
from leapp.capture.numpy.table.tensors import promoted, tensor

Tensor = torch.Tensor


def _rank(edges: Tensor, values: Tensor, strict: bool) -> Tensor:
    """How many edges lie below each value (or at it, if not ``strict``). Uses comparisons only, which every backend has."""
    edges, values = promoted(edges, values)
    values = values.unsqueeze(-1)
    below = (edges < values) if strict else (edges <= values)
    return (below | (values != values)).sum(-1)  # NaN sorts behind all numbers


@expression("digitize")
def _digitize(x: Any, bins: Any, right: bool = False) -> Any:
    x, bins = tensor(x), tensor(bins)
    rank = _rank(bins, x, strict=right)
    return rank if bool(bins[0] <= bins[-1]) else bins.numel() - rank


@expression("interp")
def _interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Tensor:
    x, xp, fp = (tensor(v).to(torch.float64) for v in (x, xp, fp))
    n = xp.numel()
    if period is not None or n < 2:
        raise Unmapped
    above = _rank(xp, x, strict=False).clamp(1, n - 1)
    below = above - 1
    slope = (fp[above] - fp[below]) / (xp[above] - xp[below])
    inner = slope * (x - xp[below]) + fp[below]
    result = torch.where(x < xp[0], fp[0] if left is None else left, inner)
    result = torch.where(x > xp[-1], fp[-1] if right is None else right, result)
    return torch.where(x == xp[-1], fp[-1], result)


@expression("select")
def _select(condlist: Any, choicelist: Any, default: Any = 0) -> Tensor:
    *choices, found = promoted(*choicelist, default)
    for condition, choice in zip(reversed(condlist), reversed(choices), strict=True):
        found = torch.where(tensor(condition), choice, found)
    return found


@expression("isin")
def _isin(element: Any, test_elements: Any, assume_unique: bool = False, invert: bool = False, *, kind: Any = None) -> Any:
    element, test = promoted(element, test_elements)
    found = (element.unsqueeze(-1) == test.reshape(-1)).any(-1)
    return ~found if invert else found


@expression("lexsort")
def _lexsort(keys: Any, axis: int = -1) -> Tensor:
    order: Tensor | None = None
    for key in keys:
        key = tensor(key)
        if order is None:
            order = torch.argsort(key, dim=axis, stable=True)
        else:
            order = torch.gather(order, axis, torch.argsort(torch.gather(key, axis, order), dim=axis, stable=True))
    if order is None:
        raise Unmapped
    return order


@expression("sort")
def _sort(a: Any, axis: int | None = -1, kind: Any = None, order: None = None, *, stable: Any = None) -> Tensor:
    a = tensor(a)
    return torch.sort(a.reshape(-1)).values if axis is None else torch.sort(a, axis).values


@expression("argsort")
def _argsort(a: Any, axis: int | None = -1, kind: Any = None, order: None = None, *, stable: Any = None) -> Tensor:
    a = tensor(a)
    return torch.argsort(a.reshape(-1), stable=True) if axis is None else torch.argsort(a, dim=axis, stable=True)


@expression("partition")
def _partition(a: Any, kth: Any, axis: int | None = -1, kind: Any = None, order: None = None) -> Any:
    return _sort(a, axis)


@expression("argpartition")
def _argpartition(a: Any, kth: Any, axis: int | None = -1, kind: Any = None, order: None = None) -> Any:
    return _argsort(a, axis)


@expression("unravel_index")
def _unravel_index(indices: Any, shape: Any, order: str = "C") -> tuple[Tensor, ...]:
    if order != "C":
        raise Unmapped
    rest, parts = tensor(indices), []
    for n in reversed(shape if isinstance(shape, Sequence) else [shape]):
        parts.append(rest % n)
        rest = rest // n
    return tuple(reversed(parts))


@expression("ravel_multi_index")
def _ravel_multi_index(multi_index: Any, dims: Any, mode: str = "raise", order: str = "C") -> Tensor:
    if mode != "raise" or order != "C":
        raise Unmapped
    result = tensor(multi_index[0])
    for part, n in zip(multi_index[1:], dims[1:], strict=True):
        result = result * n + tensor(part)
    return result
