"""Numbers that come from chance, from a clock or from raw memory while a node is open.

They are frozen in the model, and no torch mode sees them. While a session is open, the functions below note that the user's
own code called them.
"""

from __future__ import annotations

import datetime
import functools
import inspect
import os
import random
import time
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, FrameType, MethodType
from typing import Any

import numpy as np
import torch

from leapp.capture.numpy.compiled import insisting
from leapp.capture.recorder import Recorder
from leapp.capture.replacing.names import made_once
from leapp.capture.replacing.standins import caller, twin
from leapp.capture.source import is_library, where
from leapp.capture.tape import Escape

__all__ = ["CLOCKS", "watched"]

_SETTING = frozenset({"seed", "setstate", "getstate", "get_state", "set_state", "spawn", "bit_generator"})
CLOCKS = ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time")


@made_once(random, np.random)
def watched() -> Iterator[tuple[Any, str, Any]]:
    """Owner, name and replacement of every function to watch, and of the methods of generators and of the calendar."""
    yield from _functions()
    yield from _methods()


def _functions() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    for name in CLOCKS:
        yield time, name, _noted(f"time.{name}", twin(getattr(time, name)), clock=True)
    for name in random.__all__:
        if isinstance(getattr(random, name), MethodType | BuiltinFunctionType) and name not in _SETTING:
            yield random, name, _noted(f"random.{name}", getattr(random, name))
    for name in np.random.__all__:
        function = getattr(np.random, name)
        if name not in _SETTING and not isinstance(function, type) and callable(function):
            yield np.random, name, _noted(f"np.random.{name}", insisting(twin(function), f"np.random.{name}"))
    memory = torch.utils.dlpack
    yield memory, "to_dlpack", _noted("to_dlpack", twin(getattr(memory, "to_dlpack")))  # noqa: B009


def _methods() -> Iterator[tuple[type, str, Any]]:
    for kind in (np.random.Generator, np.random.RandomState, random.Random):
        for name in dir(kind):
            if not name.startswith("_") and callable(getattr(kind, name)) and name not in _SETTING:
                yield kind, name, _noted(f"{kind.__name__}.{name} (random)", getattr(kind, name))
    for calendar in (datetime.datetime, datetime.date):
        for name in ("now", "utcnow", "today"):
            if name in vars(calendar):
                yield calendar, name, _noted_of_class(calendar, name)


def _noted_of_class(kind: type, name: str) -> Any:
    original = vars(kind)[name]

    def call(cls: type, *args: Any, **kwargs: Any) -> Any:
        return original.__get__(None, cls)(*args, **kwargs)

    return classmethod(_noted(f"{kind.__name__}.{name}", call, clock=True))


def _noted(kind: str, function: Callable[..., Any], clock: bool = False) -> Callable[..., Any]:
    @functools.wraps(inspect.unwrap(function))
    def call(*args: Any, **kwargs: Any) -> Any:
        value = function(*args, **kwargs)
        recorder = Recorder.current
        listening = recorder is not None and recorder.tapes and recorder.installed and not recorder.guest
        if listening and _is_a_step(caller(), clock):
            recorder.tapes[-1].escapes.append(Escape(kind, where(), value))  # type: ignore[union-attr]
        return value

    return call


def _is_a_step(frame: FrameType | None, clock: bool) -> bool:
    """Whether a call belongs to the program: packages look at the clock for reasons of their own, and draw while loading."""
    assert frame is not None
    file = frame.f_code.co_filename
    if is_library(file) or (clock and f"{os.sep}site-packages{os.sep}" in file):
        return False
    while frame is not None:
        if frame.f_globals.get("__name__") == "importlib._bootstrap":
            return False
        frame = frame.f_back
    return True
