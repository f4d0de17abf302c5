"""NumPy's subscripts as torch understands them. Knows tensors and indices, nothing of arrays or tapes."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch

from leapp.capture.numpy.scalars import TracedScalar
from leapp.capture.numpy.table import Unmapped

__all__ = ["basic", "chosen", "is_basic", "leading_mask", "locate", "runs_backwards"]

Tensor = torch.Tensor


def _parts(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def is_basic(index: Any) -> bool:
    """Whether an index has only whole numbers, slices, ``None`` and ``...``: its result is a view, or one element."""
    return all(
        p is None or p is Ellipsis or isinstance(p, slice)
        or (isinstance(p, (int, np.integer)) and not isinstance(p, (bool, np.ndarray, TracedScalar)))
        for p in _parts(index)
    )  # fmt: skip


def runs_backwards(index: Any) -> bool:
    """Whether a basic index has a slice with a negative step."""
    return any(isinstance(p, slice) and p.step is not None and operator.index(p.step) < 0 for p in _parts(index))


def _spread(index: Any, dims: int) -> list[Any]:
    """The index with ``...`` written out and full slices for what it leaves off."""
    parts = list(_parts(index))
    used = sum(_axes_taken(p) for p in parts)
    missing = [slice(None)] * (dims - used)
    at = next((i for i, p in enumerate(parts) if p is Ellipsis), None)
    return parts + missing if at is None else parts[:at] + missing + parts[at + 1 :]


def _axes_taken(part: Any) -> int:
    if isinstance(part, Tensor) and part.dtype == torch.bool:
        return part.dim()
    return int(part is not None and part is not Ellipsis)


def basic(index: Any, shape: tuple[int, ...], flips: tuple[int, ...]) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """A basic index for a tensor that runs backwards along ``flips``, and the axes along which its result does."""
    parts: list[Any] = []
    backwards: list[int] = []
    source = result = 0
    for part in _spread(index, len(shape)):
        if part is None:
            parts.append(None)
            result += 1
            continue
        n, flipped = shape[source], source in flips
        source += 1
        if not isinstance(part, slice):
            place = operator.index(part) % n if n else 0
            parts.append(n - 1 - place if flipped else place)
            continue
        steps = range(n)[part]
        first, step = (n - 1 - steps.start, -steps.step) if flipped else (steps.start, steps.step)
        if not len(steps):
            parts.append(slice(0, 0))
        elif len(steps) == n and step == 1:
            parts.append(slice(None))
        elif step < 0:
            parts.append(slice(first + (len(steps) - 1) * step, first + 1, -step))
            backwards.append(result)
        else:
            parts.append(slice(first, first + (len(steps) - 1) * step + 1, step))
        result += 1
    return tuple(parts), tuple(backwards)


def chosen(index: Any) -> tuple[Any, ...]:
    """An index of numbers and slices as torch takes it."""
    return tuple(_tensor(p) for p in _parts(index))


def locate(t: Tensor, index: Any) -> tuple[Tensor, Any, bool]:
    """The elements that an index with tensors means: a view of ``t``, an index into it, and whether that adds an axis."""
    parts = _spread(tuple(_tensor(p) for p in _parts(index)), t.dim())
    if any(isinstance(p, slice) and p.step is not None and p.step < 0 for p in parts):
        raise Unmapped
    advanced = [p for p in parts if isinstance(p, Tensor)]
    if all(_point(p) for p in advanced):
        return _at_points(t, parts)
    spread = [torch.tensor([p]) if isinstance(p, int) else p.reshape(1) if _point(p) else p for p in parts]
    return t, tuple(spread), False


def leading_mask(place: Any) -> Tensor | None:
    """The mask of an index that is one mask and full slices."""
    first, *rest = place if isinstance(place, tuple) and place else (None,)
    whole = all(isinstance(p, slice) and p == slice(None) for p in rest)
    return first if whole and isinstance(first, Tensor) and first.dtype == torch.bool and first.dim() else None


def _point(part: Any) -> bool:
    return isinstance(part, Tensor) and part.dim() == 0 and part.dtype != torch.bool


def _at_points(t: Tensor, parts: list[Any]) -> tuple[Tensor, Any, bool]:
    """Single elements of some axes, chosen by values: those axes go first."""
    view = t[tuple(slice(None) if isinstance(p, Tensor) else p for p in parts)]
    kept = [p for p in parts if not isinstance(p, int)]
    axes = [d for d, p in enumerate(kept) if isinstance(p, Tensor)]
    view = view.movedim(axes, list(range(len(axes))))
    return view, tuple(p.reshape(1) for p in parts if isinstance(p, Tensor)), True


def _tensor(part: Any) -> Any:
    if isinstance(part, (list, bool, np.bool_)):
        part = torch.from_numpy(np.array(part, dtype=None if np.size(part) else np.int64))
    if isinstance(part, Tensor):
        return part if part.dtype in (torch.bool, torch.int64) else part.to(torch.int64)
    return part if part is None or part is Ellipsis or isinstance(part, slice) else operator.index(part)
