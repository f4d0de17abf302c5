"""What is private in CPython."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

__all__ = ["getframe"]

getframe: Callable[[int], FrameType] = sys._getframe
"""The caller at a depth. ``inspect.stack`` reads the source of every caller; a line is asked for at each recorded call."""
