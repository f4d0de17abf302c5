"""Numbers that come from chance, from a clock or from raw memory while a node is open.

They are frozen in the model, and no torch mode sees them. While a session is open, the functions below note that the user's
own code called them.
"""

from __future__ import annotations

import functools
import random
import sys
import time
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, MethodType
from typing import Any

import numpy as np
import torch

from leapp.capture.recorder import Recorder
from leapp.capture.source import is_library, where
from leapp.capture.tape import Escape

__all__ = ["watched"]

_CLOCKS = ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time")


def watched(recorder: Recorder) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Owner, name and replacement of every function to watch."""
    for name in _CLOCKS:
        yield time, name, _noted(recorder, f"time.{name}", getattr(time, name))
    for name in random.__all__:
        if isinstance(getattr(random, name), MethodType | BuiltinFunctionType) and name not in ("seed", "setstate", "getstate"):
            yield random, name, _noted(recorder, f"random.{name}", getattr(random, name))
    for name in np.random.__all__:
        function = getattr(np.random, name)
        if name not in ("seed", "get_state", "set_state") and not isinstance(function, type) and callable(function):
            yield np.random, name, _noted(recorder, f"np.random.{name}", function)
    memory = torch.utils.dlpack
    yield memory, "to_dlpack", _noted(recorder, "to_dlpack", getattr(memory, "to_dlpack"))  # noqa: B009


def _noted(recorder: Recorder, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        value = function(*args, **kwargs)
        if recorder.tapes and recorder.installed and not is_library(sys._getframe(1).f_code.co_filename):
            recorder.tapes[-1].escapes.append(Escape(kind, where(), value))
        return value

    return call
