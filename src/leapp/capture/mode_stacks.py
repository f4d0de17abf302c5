"""The stacks on which torch keeps the modes of a thread, and a context in which no mode is active."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from leapp.compat.modes import (
    DisableTorchFunction,
    Unseen,
    dispatch_modes,
    function_modes,
    pop_dispatch_mode,
    pop_function_mode,
    push_dispatch_mode,
    push_function_mode,
)


class Silence:
    """A context in which no mode sees the calls of this thread.

    It is entered and left by functions written in C, which an interrupt cannot break into. Otherwise a Ctrl-C could leave the
    thread without modes, and nothing would be recorded any more.
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
    # Without dispatch modes, which is the common case, the cheaper context is enough.
    return Silence() if dispatch_modes() else DisableTorchFunction()


class Modes(NamedTuple):
    """A stack of modes that the thread has entered. torch gives access to its top only."""

    length: Callable[[], int]
    pop: Callable[[], Any]
    push: Callable[[Any], None]

    def insert(self, mode: Any) -> None:
        """Put a mode below all others."""
        self._put([*self._taken(), mode])

    def discard(self, mode: Any) -> None:
        """Take a mode out, if it is there."""
        above = []
        for _ in range(self.length()):
            top = self.pop()
            if top is mode:
                break
            above.append(top)
        self._put(above)

    def keep(self, wanted: Callable[[Any], bool]) -> None:
        """Take out the modes that are not wanted."""
        self._put([mode for mode in self._taken() if wanted(mode)])

    def _taken(self) -> list[Any]:
        """Remove and return all modes, the top first."""
        return [self.pop() for _ in range(self.length())]

    def _put(self, modes: list[Any]) -> None:
        for mode in reversed(modes):
            self.push(mode)


FUNCTION_MODES = Modes(function_modes, pop_function_mode, push_function_mode)
DISPATCH_MODES = Modes(dispatch_modes, pop_dispatch_mode, push_dispatch_mode)
