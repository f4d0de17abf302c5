"""The stacks on which torch keeps the modes of a thread, and how to be unseen by all of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch._C import (
    DisableTorchFunction,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
    _pop_torch_function_stack,
    _push_on_torch_function_stack,
)
from torch.utils import _python_dispatch

__all__ = ["DISPATCH_MODES", "FUNCTION_MODES", "Modes", "Silence", "Unseen", "silence"]

Unseen: Callable[[], Any] = torch._C._DisableTorchDispatch
"""As long as an instance lives, no dispatch mode sees what this thread does."""


class Silence:
    """No mode sees what this thread does inside.

    What begins and ends it is written in C, where no interrupt comes in between: a thread that was left in silence would record
    nothing any more.
    """

    __slots__ = ("_function",)

    def __init__(self) -> None:
        self._function = DisableTorchFunction()

    @property
    def __enter__(self) -> Any:
        return self._function.__enter__

    @property
    def __exit__(self) -> Any:
        leave: Any = functools.partial(self._function.__exit__)
        leave.dispatch = Unseen()
        return leave


def silence() -> Any:
    """A context in which no mode sees what this thread does."""
    # Most of the time there is no dispatch mode, and the guard against them is the dearer part.
    return Silence() if _len_torch_dispatch_stack() else DisableTorchFunction()


class Modes(NamedTuple):
    """A stack of modes that the thread has entered; torch offers its top only."""

    length: Callable[[], int]
    pop: Callable[[], Any]
    push: Callable[[Any], None]

    def insert(self, mode: Any) -> None:
        """Put a mode below all others."""
        above = []
        while self.length():
            above.append(self.pop())
        self.push(mode)
        if above:
            self._put_back(above)

    def discard(self, mode: Any) -> None:
        """Take a mode out, if it is there."""
        above = []
        while self.length() and (top := self.pop()) is not mode:
            above.append(top)
        if above:
            self._put_back(above)

    def keep(self, wanted: Callable[[Any], bool]) -> None:
        """Take out the modes that are not wanted."""
        self._put_back([mode for mode in [self.pop() for _ in range(self.length())] if wanted(mode)])

    def _put_back(self, modes: list[Any]) -> None:
        for mode in reversed(modes):
            self.push(mode)


FUNCTION_MODES = Modes(_len_torch_function_stack, _pop_torch_function_stack, _push_on_torch_function_stack)
DISPATCH_MODES = Modes(_len_torch_dispatch_stack, _python_dispatch._pop_mode, _python_dispatch._push_mode)
