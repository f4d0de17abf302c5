"""Changing what CPython lets nobody change in classes written in C: their constructors and the access to their memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import MethodType
from typing import Any

from leapp.capture.replacing.layout import WORD, Dispatching, supported, word
from leapp.capture.replacing.owners import names_of
from leapp.capture.replacing.standins import StandIn

__all__ = ["NEW", "Constructor", "WatchedBuffer", "standing_in"]

_TP_DEALLOC, _TP_INIT, _TP_NEW = (n * WORD for n in (6, 37, 39))
_TP_AS_NUMBER, _TP_AS_BUFFER, _BOOL = 12 * WORD, 20 * WORD, 9 * WORD

# A type's own __new__ refuses to work while its slot is replaced, so the function in the slot is called itself.
NEW = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.py_object, ctypes.c_void_p)
_Init = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.py_object, ctypes.c_void_p)
_CONSTRUCTORS: dict[str, tuple[int, Any]] = {"__new__": (_TP_NEW, NEW), "__init__": (_TP_INIT, _Init)}


class Constructor:
    """``__new__`` or ``__init__`` of a class written in C, and what ``make`` makes of it."""

    def __init__(self, kind: type, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        offset, prototype = _CONSTRUCTORS[name]
        self._slot = word(id(kind) + offset)
        original = prototype(self._slot.value or 0)

        def construct(first: Any, *args: Any, **kwargs: Any) -> Any:
            made = original(first, args, id(kwargs) if kwargs else None)
            return made if name == "__new__" else None

        self._name = names_of(kind, {name: standing_in(kind, name, make(construct))})
        self._original, self._python = self._slot.value, word(id(Dispatching) + offset).value

    def install(self) -> None:
        """Replace it."""
        self._name.install()
        self._slot.value = self._python

    def put_back(self) -> None:
        """Put the original back."""
        self._slot.value = self._original
        self._name.put_back()


class _Method(StandIn):
    """Stands in for a method."""

    def __get__(self, instance: Any, kind: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)


def standing_in(kind: type, name: str, made: Callable[..., Any]) -> Any:
    """``made`` as the ``__new__`` or ``__init__`` of a class."""
    place = vars(kind)[name], kind.__module__, f"{kind.__name__}.{name}"
    return staticmethod(StandIn(made, *place)) if name == "__new__" else _Method(made, *place)


_GetBuffer = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p, ctypes.c_int)


class WatchedBuffer:
    """Calls ``tell`` whenever the memory of an instance of ``kind`` is asked for through the buffer protocol."""

    def __init__(self, kind: type, tell: Callable[[Any], None]) -> None:
        self._slot = word(word(id(kind) + _TP_AS_BUFFER).value or 0)
        self._original = self._slot.value
        self._telling = _telling(self._original or 0, tell)
        self._address = ctypes.cast(self._telling, ctypes.c_void_p).value

    def install(self) -> None:
        """Begin to call it."""
        self._slot.value = self._address

    def put_back(self) -> None:
        """Call it no more."""
        self._slot.value = self._original


def _telling(address: int, tell: Callable[[Any], None]) -> Any:
    original = _GetBuffer(address)

    def get_buffer(instance: Any, view: int, flags: int) -> int:
        try:
            tell(instance)
            return int(original(instance, view, flags))
        except BaseException as error:  # an interrupt too: whatever ctypes swallows leaves a view of anything
            return _Failure(error)

    return _GetBuffer(get_buffer)


class _Failure(int):
    """What a callback of ctypes returns to fail with an error of its own.

    Ctypes lets no error out of a callback, but the last thing it does is to let go of the result. Here that means to ask for
    the truth of it, which raises the error where C code expects it.
    """

    def __new__(cls, error: BaseException) -> _Failure:
        made = super().__new__(cls, -1)
        vars(made)["error"] = error.with_traceback(None)
        return made

    def __bool__(self) -> bool:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))  # it is about to be freed, and has nobody else who could do that
        raise vars(self).pop("error")


if supported():
    word(id(_Failure) + _TP_DEALLOC).value = word((word(id(Dispatching) + _TP_AS_NUMBER).value or 0) + _BOOL).value
