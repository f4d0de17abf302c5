"""Private names of CPython."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

__all__ = ["getframe"]

getframe: Callable[[int], FrameType] = sys._getframe
"""The frame at a depth. The public ``inspect.stack`` reads the source of every caller, too slow for each recorded call."""
