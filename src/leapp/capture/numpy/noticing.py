"""What plain arrays and NumPy's number types do while a session follows arrays.

A plain array may be given a traced value, or lie over memory that has become traced since the array was made. Either is noticed
at the next thing done with it: the array is then followed, and the call goes to the class of traced arrays.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import torch
from numpy import ndarray

from leapp.capture.numpy.hooks import NUMBER_TYPES, ORIGINAL, new_number
from leapp.capture.numpy.indexing import is_basic
from leapp.capture.numpy.plain import arrays_in
from leapp.capture.numpy.scalars import TracedScalar
from leapp.capture.numpy.traced import ArrayMethods, TracedNpArray, listening
from leapp.capture.replacing.layout import OPERATORS
from leapp.capture.source import where
from leapp.errors import TraceError

__all__ = ["PLAIN_METHODS", "make_number", "notice", "tell_memory"]


_ENTRANCES = frozenset({__name__, *(f"leapp.capture.{m}" for m in ("numpy.crossings", "numpy.hooks", "replacing.classes"))})
_LIBRARIES = frozenset({"leapp", "numpy", "torch"})


def notice(*values: Any) -> bool:
    """Follow every plain array in ``values`` that lies over traced memory; whether there was one."""
    found = False
    for value in values:
        if type(value) is ndarray:
            arrays = listening()
            if arrays is None:
                continue
            if arrays.knows_memory(value):
                if _is_users_call() and arrays.concerned([value]):
                    arrays.follow(value)
                    found = True
            elif arrays.is_partly_over(value) and _is_users_call():
                raise TraceError(
                    f"at {where()} an array of shape {list(value.shape)} shares only part of its memory with traced values. "
                    "Use the part by itself, or a copy of it."
                )
        elif type(value) in (list, tuple):
            found = notice(*value) or found
        elif isinstance(value, ndarray) and not isinstance(value, TracedNpArray):
            _tell_of(value)
    return found


def _tell_of(value: Any) -> None:
    """An array of another class over traced memory goes its own ways: its values leave the graph."""
    _tell(value, f"an array of class {type(value).__name__}")


def tell_memory(array: Any) -> None:
    """The memory of an array is asked for, or read through a ``memoryview`` that may be older than what is in it."""
    if type(array) is memoryview and isinstance(array.obj, ndarray):
        _tell(array.obj, "memoryview")
    elif type(array) is ndarray:
        _tell(array, "memoryview")


def _tell(array: Any, kind: str) -> None:
    arrays = listening()
    if arrays is not None and arrays.knows_memory(array) and _is_users_call() and arrays.concerned([array]):
        arrays.escape(arrays.traced(array), kind, [array], array)


def _is_users_call() -> bool:
    """Whether the call came from outside leapp and the libraries: what they do inside is none of the program's steps."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") in _ENTRANCES:
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] not in _LIBRARIES


def _seen(value: Any) -> bool:
    """Whether an argument could hold a traced value."""
    if isinstance(value, ndarray):
        return type(value) is not ndarray
    if isinstance(value, (tuple, list, deque)):
        return any(_seen(v) for v in value)
    return isinstance(value, (torch.Tensor, TracedScalar))


def _part(array: Any, index: Any) -> Any:
    """``array[index]`` as an array, if ``array`` as a whole is more than what is traced."""
    arrays = listening()
    if arrays is None or not is_basic(index) or not arrays.is_partly_over(array):
        return None
    whole = index if isinstance(index, tuple) else (index,)
    return ORIGINAL["__getitem__"](array, whole if Ellipsis in whole else (*whole, ...))


def _getitem(self: Any, index: Any) -> Any:
    part = _part(self, index)
    if part is not None:
        return part if isinstance(ORIGINAL["__getitem__"](self, index), ndarray) else _getitem(part, ())
    if notice(self) or _seen(index):
        arrays = listening()
        if arrays is not None:
            return arrays.getitem(self, index)
    return ORIGINAL["__getitem__"](self, index)


def _setitem(self: Any, index: Any, value: Any) -> None:
    part = _part(self, index)
    if part is not None:
        self, index = part, ...
    if notice(self, value) or _seen(index) or _seen(value):
        arrays = listening()
        if arrays is not None:
            arrays.setitem(self, index, value)
            return
    ORIGINAL["__setitem__"](self, index, value)


def _fill(self: Any, value: Any) -> None:
    self[...] = value


def _noticing(name: str) -> Any:
    """A method or property that asks for the memory first, its own and that of the arguments."""
    original: Any = ORIGINAL[name]
    if not callable(original):
        return property(
            lambda self: getattr(self, name) if notice(self) else original.__get__(self),
            lambda self, value: original.__set__(self, value),
        )

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if notice(self):
            return getattr(self, name)(*args, **kwargs)
        notice(*args)
        return original(self, *args, **kwargs)

    method.__name__ = name
    return method


def _given(name: str) -> Callable[..., Any]:
    """A method that may be given traced values."""
    function = getattr(np, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        arrays = listening() if notice(self, *args) or _seen(args) else None
        if arrays is None:
            return ORIGINAL[name](self, *args, **kwargs)
        return arrays.function(function, (args[0], self, *args[1:]) if name == "compress" else (self, *args), kwargs)

    return method


_METADATA = frozenset("shape size nbytes __hash__ __len__ __array_ufunc__ __array_function__ __reduce__".split())

PLAIN_METHODS: dict[str, Any] = {
    **{n: _noticing(n) for n in [*vars(ArrayMethods), *OPERATORS] if n in vars(ndarray) and n not in _METADATA},
    **{name: _given(name) for name in "dot take put searchsorted choose compress repeat".split()},
    "__getitem__": _getitem,
    "__setitem__": _setitem,
    "fill": _fill,
}
"""For :class:`~leapp.capture.numpy.hooks.Hooks`."""


def make_number(kind: Any, *args: Any, **kwargs: Any) -> Any:
    """A number type of NumPy called on a traced value."""
    if args and (notice(args[0]) or _seen(args[0])):
        arrays = listening()
        if kind not in NUMBER_TYPES:
            return new_number(kind, (args[0].item(), *args[1:]), kwargs)  # a class of the user's own has no dtype
        if arrays is not None and arrays.concerned(arrays_in(args[0])):
            made = np.array(args[0]).astype(np.dtype(kind))
            return made if made.ndim else made[()]
    return new_number(kind, args, kwargs)
