"""Checks class, dtype, device, shape and strides of tensors in one call, faster than by reading Python attributes.

It uses a part of PyTorch that is not public, and tests that part once in a process. If the test fails, every guard answers
False, and callers check the tensors themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch

from leapp.compat.core import tensor_guards

_PATIENCE = 16
"""After this many unknown forms the next one is learned."""


def _never(*values: Any) -> bool:
    return False


@lru_cache(maxsize=1)
def _engine() -> Callable[..., Any] | None:
    """PyTorch's own check, if it is there and answers as expected."""
    try:
        made = tensor_guards()
        if made is None:
            return None
        with torch.enable_grad():
            check = made(torch.zeros(2, 3), dynamic_dims_sizes=[[2, 3]], dynamic_dims_strides=[[3, 1]]).check
            good = [torch.ones(2, 3)]
            bad = [torch.ones(3, 2), torch.ones(6), torch.ones(2, 3).double(), torch.ones(3, 2).t()]
            bad += [torch.ones(2, 3, requires_grad=True), torch.ones(2, 3, device="meta"), torch.nn.Parameter(good[0])]
            right = all(check(value) is True for value in good) and not any(check(value) for value in bad)
    except (AttributeError, TypeError, RuntimeError):
        return None
    return made if right else None


class Guard:
    """The forms that tensors may have at one place of a step.

    Args:
        shapes: The shape of each tensor.
        contiguous: Whether each tensor must lie contiguous in memory.

    Attributes:
        check: Whether all tensors have a form that was found right before. False means only that the form is not known.
    """

    __slots__ = ("_contiguous", "_missed", "_shapes", "check")

    def __init__(self, shapes: Sequence[Sequence[int]], contiguous: Sequence[bool]) -> None:
        self._shapes, self._contiguous = shapes, contiguous
        self._missed = 0
        self.check: Callable[..., bool] = _never

    def saw(self, values: Sequence[torch.Tensor]) -> None:
        """Note values that ``check`` did not know and that the caller found right."""
        engine = _engine()
        if engine is not None and self._missed % _PATIENCE == 0:
            sizes = [list(shape) for shape in self._shapes]
            strides = [_strides(shape, whole) for shape, whole in zip(self._shapes, self._contiguous, strict=True)]
            self.check = engine(*values, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
        self._missed += 1


def _strides(shape: Sequence[int], contiguous: bool) -> list[int | None]:
    """The strides to ask for: none where they do not matter."""
    if not contiguous or 0 in shape:
        return [None] * len(shape)
    return [math.prod(shape[axis + 1 :]) if size > 1 else None for axis, size in enumerate(shape)]
