"""Looking values up: by place, by condition, by order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from leapp.capture.numpy.table.table import Unmapped, expression
from leapp.capture.numpy.table.tensors import promoted, tensor

Tensor = torch.Tensor


def _rank(edges: Tensor, values: Tensor, strict: bool) -> Tensor:
    """How many edges lie below each value (or at it, if not ``strict``). Compared one by one: every backend can do that."""
    edges, values = promoted(edges, values)
    values = values.unsqueeze(-1)
    return ((edges < values) if strict else (edges <= values)).sum(-1)


@expression("searchsorted")
def _searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None) -> Tensor:
    a = tensor(a)
    return _rank(a if sorter is None else a[tensor(sorter)], tensor(v), strict=side == "left")


@expression("digitize")
def _digitize(x: Any, bins: Any, right: bool = False) -> Any:
    x, bins = tensor(x), tensor(bins)
    if bool(bins[0] <= bins[-1]):
        return _rank(bins, x, strict=right)
    return bins.numel() - _rank(bins, x, strict=not right)


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


@expression("isin")
def _isin(element: Any, test_elements: Any, assume_unique: bool = False, invert: bool = False, *, kind: Any = None) -> Any:
    element, test = promoted(element, test_elements)
    found = (element.unsqueeze(-1) == test.reshape(-1)).any(-1)
    return ~found if invert else found


@expression("nonzero")
def _nonzero(a: Any) -> tuple[Tensor, ...]:
    return torch.nonzero(tensor(a), as_tuple=True)


@expression("select")
def _select(condlist: Any, choicelist: Any, default: Any = 0) -> Tensor:
    *choices, result = promoted(*choicelist, default)
    for condition, choice in reversed(list(zip(condlist, choices, strict=True))):
        result = torch.where(tensor(condition), choice, result)
    return result


@expression("piecewise")
def _piecewise(x: Any, condlist: Any, funclist: Any) -> Tensor:
    x = tensor(x)
    conditions = [tensor(c).to(torch.bool) for c in (condlist if isinstance(condlist, (list, tuple)) else [condlist])]
    functions = list(funclist)
    if any(callable(f) for f in functions):
        raise Unmapped
    result = torch.zeros_like(x)
    if len(functions) == len(conditions) + 1:
        result = torch.full_like(x, functions.pop())
    for condition, value in zip(conditions, functions, strict=True):
        result = torch.where(condition, tensor(value, x), result)
    return result


@expression("choose")
def _choose(a: Any, choices: Any, mode: str = "raise") -> Tensor:
    if mode != "raise":
        raise Unmapped
    stacked = torch.stack(torch.broadcast_tensors(*promoted(*choices)))  # type: ignore[no-untyped-call]
    a = tensor(a)
    shape = torch.broadcast_shapes(a.shape, stacked.shape[1:])  # type: ignore[no-untyped-call]
    index = a.to(torch.int64).expand(shape).unsqueeze(0)
    return torch.gather(stacked.expand(stacked.shape[0], *shape), 0, index).squeeze(0)


@expression("take")
def _take(a: Any, indices: Any, axis: int | None = None, mode: str = "raise") -> Tensor:
    if mode != "raise":
        raise Unmapped
    a, i = tensor(a), tensor(indices)
    a, axis = (a.reshape(-1), 0) if axis is None else (a, axis % a.dim())
    n = a.shape[axis]
    i = torch.where(i < 0, i + n, i).to(torch.int64)
    found = torch.index_select(a, axis, i.reshape(-1))
    return found.reshape([*a.shape[:axis], *i.shape, *a.shape[axis + 1 :]])


@expression("extract")
def _extract(condition: Any, arr: Any) -> Tensor:
    return tensor(arr).reshape(-1)[tensor(condition).to(torch.bool).reshape(-1)]


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
