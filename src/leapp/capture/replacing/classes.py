"""Changing classes that CPython lets nobody change: their attributes, constructors and access to memory.

A class written in C keeps its functions in slots. A slot that points to CPython's own dispatch asks for the Python method of
its name, and that can be replaced. All that is known here of CPython's layout is the same in every release since 3.8, without
free threading. Nothing here knows arrays or tapes.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import sys
import sysconfig
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

import numpy as np

from leapp.capture.replacing.standins import StandIn

__all__ = [
    "HEAP_TYPE", "NEW", "OB_TYPE", "OPERATORS", "WORD", "Constructor", "Dispatching", "modified", "own_attributes",
    "set_attributes", "standing_in", "supported", "watch_buffer", "word",
]  # fmt: skip

# Of PyObject and PyTypeObject.
WORD = ctypes.sizeof(ctypes.c_void_p)
OB_TYPE, _TP_BASICSIZE, _TP_DEALLOC, _TP_CALL, _TP_INIT, _TP_NEW = (n * WORD for n in (1, 4, 6, 16, 37, 39))
_TP_AS_NUMBER, _TP_AS_BUFFER, _BOOL = 12 * WORD, 20 * WORD, 9 * WORD
HEAP_TYPE, _IMMUTABLE_TYPE = 1 << 9, 1 << 8

_BINARY = "add sub mul truediv floordiv mod divmod pow matmul and or xor lshift rshift".split()
OPERATORS = [
    *(f"__{p}{n}__" for n in _BINARY for p in ("", "r", "i") if (p, n) != ("i", "divmod")),
    *(f"__{n}__" for n in "neg pos abs invert bool int float index lt le eq ne gt ge iter contains".split()),
]
"""What CPython reaches through slots, apart from subscripts."""


class Dispatching:
    """Its slots are CPython's dispatch to Python methods."""

    def __new__(cls) -> Dispatching:
        """In the slot for constructors."""
        return super().__new__(cls)

    def __init__(self) -> None:
        """In the slot for initialisation."""

    for _name in (*OPERATORS, "__getitem__", "__setitem__", "__call__", "__repr__", "__str__"):
        vars()[_name] = lambda self, *args: None
    del _name


def word(address: int) -> ctypes.c_void_p:
    """What lies at an address."""
    return ctypes.c_void_p.from_address(address)


@functools.cache
def supported() -> bool:
    """Whether this interpreter lays its objects out as this module expects."""
    return (
        sys.implementation.name == "cpython"
        and not sysconfig.get_config_var("Py_GIL_DISABLED")
        and all(word(id(t) + _TP_BASICSIZE).value == t.__basicsize__ for t in (np.ndarray, np.float32, Dispatching))
        and word(id(np.ndarray) + OB_TYPE).value == id(type)
    )


# A type's own __new__ refuses to work while its slot is replaced, so the function in the slot is called itself.
NEW = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.py_object, ctypes.c_void_p)
_Init = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.py_object, ctypes.c_void_p)
_CONSTRUCTORS: dict[str, tuple[int, Any]] = {"__new__": (_TP_NEW, NEW), "__init__": (_TP_INIT, _Init)}
class Constructor:
    """``__new__`` or ``__init__`` of a class written in C, and what ``make`` makes of it."""

    def __init__(self, kind: type, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        offset, prototype = _CONSTRUCTORS[name]
        self._kind, self._slot = kind, word(id(kind) + offset)
        original = prototype(self._slot.value or 0)

        def construct(first: Any, *args: Any, **kwargs: Any) -> Any:
            made = original(first, args, id(kwargs) if kwargs else None)
            return made if name == "__new__" else None

        self._attributes = {name: standing_in(kind, name, make(construct))}
        self._python = word(id(Dispatching) + offset).value

    def install(self) -> Callable[[], None]:
        """Replace it; give what undoes it."""
        slot, before = self._slot, self._slot.value
        undo = set_attributes(self._kind, self._attributes)
        slot.value = self._python

        def put_back() -> None:
            slot.value = before
            undo()

        return put_back


class _Method(StandIn):
    """Stands in for a method."""

    def __get__(self, instance: Any, kind: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)


def standing_in(kind: type, name: str, made: Callable[..., Any]) -> Any:
    """``made`` as the ``__new__`` or ``__init__`` of a class."""
    place = vars(kind)[name], kind.__module__, f"{kind.__name__}.{name}"
    return staticmethod(StandIn(made, *place)) if name == "__new__" else _Method(made, *place)


_GetBuffer = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p, ctypes.c_int)


def watch_buffer(kind: type, tell: Callable[[Any], None]) -> Callable[[], None]:
    """Call ``tell`` whenever the memory of an instance of ``kind`` is asked for through the buffer protocol, until undone."""
    place = word(word(id(kind) + _TP_AS_BUFFER).value or 0)
    before = place.value
    place.value = ctypes.cast(_telling(before or 0, tell), ctypes.c_void_p).value
    return lambda: setattr(place, "value", before)


@functools.cache
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


def set_attributes(owner: type, attributes: Mapping[str, Any]) -> Callable[[], None]:
    """Set attributes of a class, maybe a built-in one, and give what puts the old ones back, but for those set since."""
    own = vars(owner)
    before = {name: own.get(name) for name in attributes}
    _update(owner, attributes)

    def put_back() -> None:
        _update(owner, {name: before[name] for name, made in attributes.items() if own.get(name) is made})

    if "__call__" not in attributes or owner.__flags__ & HEAP_TYPE:
        return put_back
    slot = word(id(owner) + _TP_CALL)
    original, slot.value = slot.value, word(id(Dispatching) + _TP_CALL).value

    def undo() -> None:
        slot.value = original
        put_back()

    return undo


def _update(owner: type, attributes: Mapping[str, Any]) -> None:
    if owner.__flags__ & (HEAP_TYPE | _IMMUTABLE_TYPE) == HEAP_TYPE:
        for name, value in attributes.items():
            delattr(owner, name) if value is None else setattr(owner, name, value)
        return
    own = own_attributes(owner)
    own.update(attributes)
    for name, value in attributes.items():
        if value is None:
            del own[name]
    modified(owner)


def own_attributes(owner: type) -> dict[str, Any]:
    """The dictionary of a built-in class: it takes what the class refuses, but no slot follows."""
    own: dict[str, Any] = gc.get_referents(owner.__dict__)[0]
    return own


modified = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("PyType_Modified", ctypes.pythonapi))
"""Tells CPython that the dictionary of a class has changed."""
