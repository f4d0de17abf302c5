"""A function that writes an ATen operator as other ones, in front of the one that did so before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


class Replacement:
    """Asks one function what an operator is written as, and another where that leaves the operator as it is.

    Attributes:
        dtypes: The types for which one of them may replace the operator; ``None`` if that is not a question of types.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        before: Callable[..., Any] | None,
        dtypes: frozenset[torch.dtype] | None = None,
    ) -> None:
        """Put ``function``, for calls with a value of ``dtypes`` or for all, in front of ``before``."""
        self._function = function
        self._before = before
        self._dtypes = dtypes
        self.dtypes = dtypes
        if before is not None:
            others = before.dtypes if isinstance(before, Replacement) else None
            self.dtypes = None if dtypes is None or others is None else dtypes | others

    def applies(self, args: Sequence[Any]) -> bool:
        """Whether a call with these arguments may be replaced."""
        return _has(args, self.dtypes)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """What the call is written as, or ``NotImplemented``."""
        if _has(args, self._dtypes):
            result = self._function(*args, **named)
            if result is not NotImplemented:
                return result
        return NotImplemented if self._before is None else self._before(*args, **named)


def _has(args: Sequence[Any], dtypes: frozenset[torch.dtype] | None) -> bool:
    """Whether a tensor or a complex number among ``args`` has one of some types."""
    if dtypes is None:
        return True
    for arg in args:
        if isinstance(arg, torch.Tensor):
            if arg.dtype in dtypes:
                return True
        elif isinstance(arg, complex) and torch.complex64 in dtypes:
            return True
    return False
