"""How CPython lays out objects and classes in memory, as far as others here need to know.

A class written in C keeps its functions in slots. A slot that points to CPython's own dispatch asks for the Python method of
its name, and that can be replaced. All that is known here is the same in every release since 3.8, without free threading.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import sys
import sysconfig
from types import ModuleType
from typing import Any

import numpy as np

__all__ = [
    "HEAP_TYPE", "OB_TYPE", "OPERATORS", "TP_CALL", "WORD", "Dispatching", "is_open", "modified", "own_attributes", "supported",
    "word",
]  # fmt: skip

# Of PyObject and PyTypeObject.
WORD = ctypes.sizeof(ctypes.c_void_p)
OB_TYPE, _TP_BASICSIZE, TP_CALL = (n * WORD for n in (1, 4, 16))
HEAP_TYPE, _IMMUTABLE_TYPE = 1 << 9, 1 << 8
_NAMES: Any = vars(ModuleType)["__dict__"]

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


def is_open(kind: type) -> bool:
    """Whether a class lets anybody change it."""
    return kind.__flags__ & (HEAP_TYPE | _IMMUTABLE_TYPE) == HEAP_TYPE


def own_attributes(owner: Any) -> dict[str, Any]:
    """The dictionary of a module, which is not asked for it and loads nothing if it is a lazy one, or of a class.

    That of a built-in class takes what the class refuses, but no slot follows.
    """
    own: dict[str, Any]
    own = _NAMES.__get__(owner) if isinstance(owner, ModuleType) else gc.get_referents(owner.__dict__)[0]
    return own


modified = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("PyType_Modified", ctypes.pythonapi))
"""Tells CPython that the dictionary of a class has changed."""
