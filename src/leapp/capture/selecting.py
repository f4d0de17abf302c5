"""Indexing with a tensor that holds one number, or one truth value.

Torch reads it out and selects with it, which in an exporter is a value that left the graph. These functions index
with the tensor itself.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["getitem", "is_number", "setitem"]

Tensor = torch.Tensor


def is_number(part: Any) -> bool:
    """Whether a part of an index is a tensor that holds one whole number."""
    return isinstance(part, Tensor) and part.dim() == 0 and part.dtype not in (torch.bool, torch.uint8)


def _width(part: Any) -> int:
    """How many dimensions an index takes up."""
    if part is None or part is Ellipsis or isinstance(part, bool):
        return 0
    return part.dim() if isinstance(part, Tensor) and part.dtype in (torch.bool, torch.uint8) else 1


def getitem(x: Tensor, index: Any) -> Tensor:
    """``x[index]``."""
    parts = index if isinstance(index, tuple) else (index,)
    if not any(is_number(p) for p in parts):
        return x[index]
    rest: list[Any] = []
    picks: list[tuple[int, Tensor]] = []
    dim = 0
    for i, part in enumerate(parts):
        if part is Ellipsis:
            dim = x.dim() - sum(map(_width, parts[i + 1 :]))
        if is_number(part):
            picks.append((dim, part))
        else:
            rest.append(part)
        dim += _width(part)
    for dim, number in reversed(picks):
        x = torch.ops.aten.index.Tensor(x, [None] * dim + [number])
    return x[tuple(rest)] if rest else x


def setitem(x: Tensor, index: Any, value: Any) -> None:
    """``x[index] = value``."""
    if isinstance(index, Tensor) and index.dim() == 0 and index.dtype == torch.bool:
        x.copy_(torch.where(index, value, x).reshape(x.shape))
        return
    if isinstance(value, Tensor) and value.untyped_storage()._cdata == x.untyped_storage()._cdata:
        value = value.clone()  # select() may copy from a part of the same memory, an index may not
    parts = index if isinstance(index, tuple) else (index,)
    numbers = [i for i, p in enumerate(parts) if is_number(p)]
    if not numbers or any(isinstance(p, (Tensor, list)) for i, p in enumerate(parts) if i not in numbers):
        x[index] = value
        return
    if len(numbers) > 1:
        _set_at(x, parts, value)
        return
    at = numbers[0]
    wide = (*parts[:at], parts[at].reshape(1), *parts[at + 1 :])
    if isinstance(value, Tensor) and value.dim():
        behind = x[wide].dim() - 1 - _position(x, parts, at)
        if value.dim() > behind:
            value = value.unsqueeze(value.dim() - behind)
    x[wide] = value


def _set_at(x: Tensor, parts: tuple[Any, ...], value: Any) -> None:
    """Assign to where several numbers point: their dimensions go first, and are one of size one."""
    dots = next((i for i, p in enumerate(parts) if p is Ellipsis), len(parts))
    missing = x.dim() - sum(map(_width, parts))
    spread = (*parts[:dots], *[slice(None)] * missing, *parts[dots + 1 :])
    view = x[tuple(slice(None) if is_number(p) else p for p in spread)]
    kept: list[Any] = [p for p in spread if not isinstance(p, int) or isinstance(p, bool)]
    dims = [d for d, p in enumerate(kept) if is_number(p)]
    view.movedim(dims, list(range(len(dims))))[tuple(kept[d].reshape(1) for d in dims)] = value


def _position(x: Tensor, parts: tuple[Any, ...], at: int) -> int:
    """Which dimension of the result the index at ``at`` would be, had it one."""
    if any(p is Ellipsis for p in parts[:at]):
        kept_before = x.dim() - sum(map(_width, parts[at:]))
    else:
        kept_before = sum(map(_width, parts[:at]))
    removed = sum(1 for p in parts[:at] if isinstance(p, int) and not isinstance(p, bool))
    return kept_before - removed + sum(1 for p in parts[:at] if p is None)
