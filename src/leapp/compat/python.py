"""Private names of CPython."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType

__all__ = ["forget_thread", "getframe"]

getframe: Callable[[int], FrameType] = sys._getframe
"""The frame at a depth. The public ``inspect.stack`` reads the source of every caller, too slow for each recorded call."""


def forget_thread() -> None:
    """Take the running thread out of ``threading.enumerate()``, if ``threading`` did not start it. Call it as the thread ends.

    ``threading.current_thread()``, which logging calls, puts it there. Before Python 3.13 it stays there for ever, and a
    program that joins all its threads fails.
    """
    threading._active.pop(threading.get_ident(), None)  # type: ignore[attr-defined]
