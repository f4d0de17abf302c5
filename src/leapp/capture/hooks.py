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

__all__ = ["Hooks", "ORIGINAL", "change_class", "make_type", "supported"]

# Of CPython's PyObject, PyTypeObject and PyMappingMethods: the same in every release since 3.8, without free threading.
_WORD = ctypes.sizeof(ctypes.c_void_p)
_OB_TYPE, _TP_BASICSIZE, _TP_AS_MAPPING = 1 * _WORD, 4 * _WORD, 14 * _WORD
_SUBSCRIPT, _ASS_SUBSCRIPT = 1 * _WORD, 2 * _WORD
_DEFAULT_FLAGS = 1 << 18 | 1 << 10  # a type others may derive from; without garbage collection, like ndarray

ORIGINAL: Mapping[str, Callable[..., Any]] = dict(np.ndarray.__dict__)
"""NumPy's own methods, whatever is hooked at the moment."""


class _Slot(ctypes.Structure):
    _fields_ = (("slot", ctypes.c_int), ("pfunc", ctypes.c_void_p))


class _Spec(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p), ("basicsize", ctypes.c_int), ("itemsize", ctypes.c_int), ("flags", ctypes.c_uint),
        ("slots", ctypes.POINTER(_Slot)),
    )  # fmt: skip


class _Subscripted:
    """Its slots are CPython's dispatch to Python methods."""

    def __getitem__(self, index: Any) -> None: ...

    def __setitem__(self, index: Any, value: Any) -> None: ...


def _word(address: int) -> ctypes.c_void_p:
    return ctypes.c_void_p.from_address(address)


def supported() -> bool:
    """Whether this interpreter lays its objects out as this module expects."""
    return (
        sys.implementation.name == "cpython"
        and not sysconfig.get_config_var("Py_GIL_DISABLED")
        and all(_word(id(t) + _TP_BASICSIZE).value == t.__basicsize__ for t in (np.ndarray, _Subscripted))
        and _word(id(np.ndarray) + _OB_TYPE).value == id(type)
    )


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
    """Methods of ``np.ndarray`` replaced while a session follows arrays."""

    def __init__(self, methods: Mapping[str, Callable[..., Any]]) -> None:
        self._methods = methods
        self._slots: list[tuple[int, int | None]] = []

    def install(self) -> None:
        """Replace the methods, and make subscription ask for them."""
        if self._slots:
            return
        mapping, python = (_word(id(t) + _TP_AS_MAPPING).value or 0 for t in (np.ndarray, _Subscripted))
        self._set(self._methods)
        for slot in (_SUBSCRIPT, _ASS_SUBSCRIPT):
            self._slots.append((mapping + slot, _word(mapping + slot).value))
            _word(mapping + slot).value = _word(python + slot).value

    def remove(self) -> None:
        """Put NumPy's own back."""
        while self._slots:
            address, original = self._slots.pop()
            _word(address).value = original
        self._set({name: ORIGINAL[name] for name in self._methods})

    @staticmethod
    def _set(methods: Mapping[str, Callable[..., Any]]) -> None:
        gc.get_referents(np.ndarray.__dict__)[0].update(methods)
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(np.ndarray))
