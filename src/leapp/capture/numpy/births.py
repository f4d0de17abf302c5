"""Which arrays were made while a node was open.

NumPy asks nobody before it makes an array, but every array remembers the allocator that its memory came from. While a node is
open, NumPy's own allocator goes by another name: the same functions, so nothing costs more, and an array's age can be read
off it. Nothing here knows tapes or torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
from typing import Any

import numpy as np

from leapp.capture.replacing.layout import supported

__all__ = ["Births"]

try:
    from numpy._core import multiarray
except ImportError:  # NumPy 1
    from numpy.core import multiarray  # type: ignore[no-redef]

# Of NumPy's C API since 1.22: where its table holds these functions, and what a capsule with an allocator is called.
_SET_HANDLER, _GET_HANDLER = 304, 305
_CAPSULE = b"mem_handler"
_VERSION = 1


class _Allocator(ctypes.Structure):
    """NumPy's ``PyDataMem_Handler``."""

    _fields_ = (("name", ctypes.c_char * 127), ("version", ctypes.c_uint8), ("functions", ctypes.c_void_p * 5))


class _Kept(ctypes.Structure):
    """An allocator, and the name of the capsule that it is in."""

    _fields_ = (("allocator", _Allocator), ("capsule", ctypes.c_char * 16))


_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))


@functools.cache
def _function(index: int, *arguments: Any) -> Any:
    table = ctypes.cast(_pointer(multiarray._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
    return ctypes.PYFUNCTYPE(ctypes.py_object, *arguments)(table[index] or 0)


class Births:
    """Tells the arrays made since :meth:`begin` from older ones."""

    _numbers = itertools.count()

    def __init__(self) -> None:
        self._name: str | None = None
        self._mine: Any = None
        self._before: Any = None

    def begin(self) -> None:
        """Arrays made from here on are new. They are not if this NumPy is laid out in a way that is not known."""
        if self._name is not None or not supported():
            return
        with contextlib.suppress(AttributeError, ValueError, TypeError):
            before = _function(_GET_HANDLER)()
            renamed = self._renamed(before, f"leapp {next(Births._numbers)}")
            if renamed is not None:
                _function(_SET_HANDLER, ctypes.py_object)(renamed[0])
                self._before, (self._mine, self._name) = before, renamed

    def end(self) -> None:
        """No array is new any more."""
        if self._name is None:
            return
        if _function(_GET_HANDLER)() is self._mine:  # else somebody chose another allocator meanwhile
            _function(_SET_HANDLER, ctypes.py_object)(self._before)
        self._name = self._mine = self._before = None

    def is_new(self, array: np.ndarray[Any, Any]) -> bool:
        """Whether the memory of ``array``, which must be its own, was allocated since :meth:`begin`."""
        return self._name is not None and multiarray.get_handler_name(array) == self._name

    @staticmethod
    def _renamed(before: Any, name: str) -> tuple[Any, str] | None:
        """A capsule with the same allocator under another name. Arrays use it as long as they live, so it is never freed."""
        old = _Allocator.from_address(_pointer(before, _CAPSULE))
        if old.version != _VERSION or old.name.decode() != multiarray.get_handler_name():
            return None
        allocate = ctypes.pythonapi.PyMem_RawMalloc
        allocate.restype, allocate.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        address = allocate(ctypes.sizeof(_Kept))
        ctypes.memmove(address, ctypes.addressof(old), ctypes.sizeof(_Allocator))
        kept = _Kept.from_address(address)
        kept.allocator.name, kept.capsule = name.encode(), _CAPSULE
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        return new(address, address + _Kept.capsule.offset, None), name
