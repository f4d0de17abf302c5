"""What NumPy offers no hook for: seeing a plain array being indexed with, or written with, a traced value.

``plain[i] = traced`` runs in C and asks nobody. While a session follows arrays, the subscript slots of ``np.ndarray`` point to
CPython's own dispatch to ``__getitem__`` and ``__setitem__``, and the methods listed here are ordinary Python functions. An
array that receives traced values changes its class in place, as ``__class__`` assignment would do if built-in types allowed
it, and gets its class back at the end. Nothing here knows tapes or torch.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import sysconfig
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

__all__ = ["NUMBER_TYPES", "ORIGINAL", "Hooks", "change_class", "make_type", "new_number", "supported"]

# Of CPython's PyObject, PyTypeObject and PyMappingMethods: the same in every release since 3.8, without free threading.
_WORD = ctypes.sizeof(ctypes.c_void_p)
_OB_TYPE, _TP_BASICSIZE, _TP_AS_MAPPING = 1 * _WORD, 4 * _WORD, 14 * _WORD
_SUBSCRIPT, _ASS_SUBSCRIPT = 1 * _WORD, 2 * _WORD
_TP_NEW = 39 * _WORD
_DEFAULT_FLAGS = 1 << 18 | 1 << 10  # a type others may derive from; without garbage collection, like ndarray

ORIGINAL: Mapping[str, Callable[..., Any]] = dict(np.ndarray.__dict__)
"""NumPy's own methods, whatever is hooked at the moment."""

NUMBER_TYPES = frozenset(np.dtype(c).type for c in "?bBhHiIlLqQefdFD")


class _Slot(ctypes.Structure):
    _fields_ = (("slot", ctypes.c_int), ("pfunc", ctypes.c_void_p))


class _Spec(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p), ("basicsize", ctypes.c_int), ("itemsize", ctypes.c_int), ("flags", ctypes.c_uint),
        ("slots", ctypes.POINTER(_Slot)),
    )  # fmt: skip


class _Dispatching:
    """Its slots are CPython's dispatch to Python methods."""

    def __new__(cls) -> _Dispatching:
        return super().__new__(cls)

    def __getitem__(self, index: Any) -> None: ...

    def __setitem__(self, index: Any, value: Any) -> None: ...


def _word(address: int) -> ctypes.c_void_p:
    return ctypes.c_void_p.from_address(address)


def supported() -> bool:
    """Whether this interpreter lays its objects out as this module expects."""
    return (
        sys.implementation.name == "cpython"
        and not sysconfig.get_config_var("Py_GIL_DISABLED")
        and all(_word(id(t) + _TP_BASICSIZE).value == t.__basicsize__ for t in (np.ndarray, np.float32, _Dispatching))
        and _word(id(np.ndarray) + _OB_TYPE).value == id(type)
    )


# A type's own __new__ refuses to work while its slot is replaced, so the function in the slot is called itself.
_New = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.py_object, ctypes.c_void_p)
_NEW = {t: _New(_word(id(t) + _TP_NEW).value or 0) for t in NUMBER_TYPES} if supported() else {}


def new_number(kind: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What NumPy's own constructor of a number type gives."""
    return _NEW[kind](kind, args, id(kwargs) if kwargs else None)


_specs: list[Any] = []


def make_type(name: str, bases: tuple[type, ...]) -> Any:
    """A type laid out in memory as ``np.ndarray`` is; a class statement would add a header for garbage collection."""
    create = ctypes.pythonapi.PyType_FromSpecWithBases
    create.restype, create.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object]
    spec = _Spec(name.encode(), 0, 0, _DEFAULT_FLAGS, (_Slot * 1)())
    _specs.append(spec)  # older releases keep a pointer to the name
    return create(ctypes.addressof(spec), bases)


def change_class(array: np.ndarray[Any, Any], to: type) -> None:
    """Make ``array`` an instance of ``to``, which must be ``np.ndarray`` or come from :func:`make_type`."""
    old = type(array)
    if old is to or to.__basicsize__ != old.__basicsize__:
        return
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(to))
    _word(id(array) + _OB_TYPE).value = id(to)
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(old))


class Hooks:
    """Methods of ``np.ndarray``, and the constructors of NumPy's numbers, replaced while a session follows arrays.

    Args:
        methods: The methods by name.
        make: Called as ``make(type, *args, **kwargs)`` in place of the number types.
    """

    def __init__(self, methods: Mapping[str, Callable[..., Any]], make: Callable[..., Any]) -> None:
        self._methods = methods
        self._make = make
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Replace everything, and make CPython ask for it."""
        if self._undo:
            return
        mapping, python = (_word(id(t) + _TP_AS_MAPPING).value or 0 for t in (np.ndarray, _Dispatching))
        self._attributes(np.ndarray, self._methods)
        for slot in (_SUBSCRIPT, _ASS_SUBSCRIPT):
            self._slot(mapping + slot, python + slot)
        for number in NUMBER_TYPES:
            self._attributes(number, {"__new__": staticmethod(self._make)})
            self._slot(id(number) + _TP_NEW, id(_Dispatching) + _TP_NEW)

    def remove(self) -> None:
        """Put NumPy's own back."""
        while self._undo:
            self._undo.pop()()

    def _slot(self, address: int, source: int) -> None:
        original = _word(address).value
        _word(address).value = _word(source).value
        self._undo.append(lambda: setattr(_word(address), "value", original))

    def _attributes(self, owner: type, attributes: Mapping[str, Any]) -> None:
        own = gc.get_referents(owner.__dict__)[0]
        before = {name: own.get(name) for name in attributes}
        _update(owner, own, attributes)
        self._undo.append(lambda: _update(owner, own, before))


def _update(owner: type, own: dict[str, Any], attributes: Mapping[str, Any]) -> None:
    for name, value in attributes.items():
        if value is None:
            own.pop(name, None)
        else:
            own[name] = value
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))
