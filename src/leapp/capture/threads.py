"""Running a function in threads that exist already.

Torch's modes belong to the thread that enters them, and no thread can enter them for another. Python calls the profile function
of a thread at its next step, wherever that is; one that takes itself off again makes the thread run what it is asked to, once.
Nothing here knows tapes or torch.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import sysconfig
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["in_other_threads", "reachable"]

_asked: Callable[[], None] | None = None

_WORDS = 32
"""How much of a thread's state is looked at."""

_Profile = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)


def _step(*_: object) -> int:
    sys.setprofile(None)
    if _asked is not None:
        _asked()
    return 0


_CALLBACK = _Profile(_step)  # a thread that sleeps may call it at any later time, so it is never freed


def reachable() -> bool:
    """Whether this interpreter lets a thread be asked, and nobody profiles its threads."""
    return (
        sys.implementation.name == "cpython"
        and not sysconfig.get_config_var("Py_GIL_DISABLED")
        and hasattr(ctypes.pythonapi, "_PyEval_SetProfile")
        and threading.getprofile() is None
        and _profiler() is not None
    )


@functools.cache
def _profiler() -> int | None:
    """Which word of a thread's state is the object that profiles it. Found by being one for a moment."""

    def profile(*_: object) -> None:
        pass

    if sys.getprofile() is not None:
        return None
    sys.setprofile(profile)
    words = (ctypes.c_void_p * _WORDS).from_address(_api().PyThreadState_Get())
    found = [i for i, word in enumerate(words) if word == id(profile)]
    sys.setprofile(None)
    return found[0] if len(found) == 1 else None


@functools.cache
def _api() -> Any:
    api = ctypes.PyDLL(None)
    api.PyInterpreterState_Get.restype = api.PyThreadState_Get.restype = ctypes.c_void_p
    for name in ("PyInterpreterState_ThreadHead", "PyThreadState_Next"):
        getattr(api, name).restype, getattr(api, name).argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    api._PyEval_SetProfile.argtypes = [ctypes.c_void_p, _Profile, ctypes.c_void_p]
    return api


def in_other_threads(function: Callable[[], None]) -> None:
    """Let every other thread call ``function`` at its next step, in place of what it was asked before and has not done."""
    global _asked
    _asked = function
    profiler = _profiler()
    if not reachable() or profiler is None:
        return
    api = _api()
    mine = api.PyThreadState_Get()
    thread = api.PyInterpreterState_ThreadHead(api.PyInterpreterState_Get())
    while thread:
        # Somebody who profiles a thread must not lose it.
        if thread != mine and (ctypes.c_void_p * _WORDS).from_address(thread)[profiler] is None:
            api._PyEval_SetProfile(thread, _CALLBACK, None)
        thread = api.PyThreadState_Next(thread)
