"""Translates NumPy's indices for torch. Knows tensors and indices, nothing of arrays or tapes."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch

from leapp.capture.indexed_views import at_numbers, is_number, spread
from leapp.capture.numpy.scalars import TracedScalar
from leapp.capture.numpy.table import Unmapped

Tensor = torch.Tensor


def _parts(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def is_basic(index: Any) -> bool:
    """Whether an index has only plain numbers, slices, ``None`` and ``...``: the result is a view, or one element."""
    return all(
        p is None or p is Ellipsis or isinstance(p, slice)
        or (isinstance(p, (int, np.integer)) and not isinstance(p, (bool, np.ndarray, TracedScalar)))
        for p in _parts(index)
    )  # fmt: skip


def runs_backwards(index: Any) -> bool:
    """Whether a basic index has a slice with a negative step."""
    return any(isinstance(p, slice) and p.step is not None and operator.index(p.step) < 0 for p in _parts(index))


def basic(index: Any, shape: tuple[int, ...], flips: tuple[int, ...]) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """A basic index for a tensor that is reversed along the axes ``flips``, and the axes along which its result is reversed."""
    parts: list[Any] = []
    backwards: list[int] = []
    source = result = 0
    for part in spread(_parts(index), len(shape)):
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
    """An index of numbers, tensors and slices for torch."""
    return tuple(_tensor(p) for p in _parts(index))


def locate(t: Tensor, index: Any) -> tuple[Tensor, Any, bool]:
    """A view of ``t``, an index with tensors into that view, and whether the result has an extra first axis."""
    parts = spread(chosen(index), t.dim())
    if any(isinstance(p, slice) and p.step is not None and p.step < 0 for p in parts):
        raise Unmapped
    if all(is_number(p) for p in parts if isinstance(p, Tensor)):
        return *at_numbers(t, parts), True
    return t, tuple(torch.tensor([p]) if isinstance(p, int) else p.reshape(1) if is_number(p) else p for p in parts), False


def leading_mask(place: Any) -> Tensor | None:
    """The mask, if an index is one mask followed by full slices; else ``None``."""
    first, *rest = place if isinstance(place, tuple) and place else (None,)
    whole = all(isinstance(p, slice) and p == slice(None) for p in rest)
    return first if whole and isinstance(first, Tensor) and first.dtype == torch.bool and first.dim() else None


def _tensor(part: Any) -> Any:
    if isinstance(part, (list, bool, np.bool_)):
        part = torch.from_numpy(np.array(part, dtype=None if np.size(part) else np.int64))
    if isinstance(part, Tensor):
        return part if part.dtype in (torch.bool, torch.int64) else part.to(torch.int64)
    return part if part is None or part is Ellipsis or isinstance(part, slice) else operator.index(part)
