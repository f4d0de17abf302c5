"""What a session replaces in NumPy and torch to see values cross between them: a handful of functions, nothing else.

Whoever installs the replacements must put the originals back.
"""

from __future__ import annotations

import functools
import json
import statistics
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
import torch

from leapp.capture.arrays import Arrays
from leapp.capture.calls import ATOMS
from leapp.capture.compiled import reading, running
from leapp.capture.noticing import notice
from leapp.capture.numpy_table import SEQUENCES
from leapp.capture.plain import arrays_in, bare_view
from leapp.capture.traced import TracedNpArray, listening

__all__ = ["list_replacements", "replacements"]

_MAKERS = "array asarray asanyarray ascontiguousarray asfortranarray".split()


def replacements(arrays: Arrays) -> list[tuple[Any, str, Any]]:
    """Where, under which name, and what to put there."""
    found: list[tuple[Any, str, Any]] = [(np, name, _maker(arrays, getattr(np, name))) for name in _MAKERS]
    found.append((np, "full", _full(arrays, np.full)))
    found.append((np, "nditer", reading(np.nditer, "np.nditer")))
    found.append((np, "broadcast", reading(np.broadcast, "np.broadcast")))
    found += [
        (np.rec, name, reading(value, f"np.rec.{name}"))
        for name, value in vars(np.rec).items()
        if isinstance(value, FunctionType)
    ]
    found.append((np.vectorize, "__call__", reading(np.vectorize.__call__, "np.vectorize")))
    found.append((np.lib.stride_tricks, "as_strided", _as_strided(arrays)))
    found += _readers_of_numbers()
    found.append((torch, "from_numpy", _from_numpy(arrays)))
    found.append((torch.Tensor, "__array_wrap__", _array_wrap(arrays)))
    found.append((torch.Tensor, "__array_function__", _array_function(arrays)))
    return found


@functools.cache
def _readers_of_numbers() -> list[tuple[Any, str, Any]]:
    """They look at the types of numbers, and a traced number only passes for one."""
    functions = [(m, f) for m in (json, statistics) for f in map(vars(m).get, m.__all__) if isinstance(f, FunctionType)]
    return [(module, f.__name__, running(f, f"{module.__name__}.{f.__name__}")) for module, f in functions]


def _maker(arrays: Arrays, original: Callable[..., Any]) -> Callable[..., Any]:
    name = original.__name__
    names = {name}

    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        if args and type(args[0]) is np.ndarray:
            notice(args[0])
        elif args and arrays.listening:
            args = (_arrays_of(args[0]), *args[1:])
        if args and type(args[0]) is not np.ndarray and arrays.listening and arrays_in(args[0]):
            caller = sys._getframe(1)
            if not names.isdisjoint(caller.f_code.co_names):
                return arrays.make(original, *args, **kwargs)
            # Whoever calls is compiled code: it will read the memory of what it gets.
            package = caller.f_globals.get("__name__", "").partition(".")[0]
            return arrays.read_out(f"compiled code calling np.{name}", original, args, kwargs, package)
        return original(*args, **kwargs)

    make.names = names  # type: ignore[attr-defined]
    return make


def _full(arrays: Arrays, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def full(shape: Any, fill_value: Any, dtype: Any = None, **options: Any) -> Any:
        if not arrays.listening or not arrays.concerned(arrays_in(fill_value)):
            return original(shape, fill_value, dtype, **options)
        filled = np.empty(shape, fill_value.dtype if dtype is None else dtype, **options)
        filled[...] = fill_value
        return filled

    return full


def _as_strided(arrays: Arrays) -> Callable[..., Any]:
    original = np.lib.stride_tricks.as_strided

    @functools.wraps(original)
    def as_strided(x: Any, *args: Any, **kwargs: Any) -> Any:
        if not arrays.listening or not isinstance(x, np.ndarray) or not arrays.concerned([x]):
            return original(x, *args, **kwargs)
        return arrays.wrap(arrays.quietly(lambda: original(bare_view(x), *args, **kwargs)))

    return as_strided


def _from_numpy(arrays: Arrays) -> Callable[..., Any]:
    original = torch.from_numpy

    @functools.wraps(original)
    def from_numpy(ndarray: Any) -> Any:
        if arrays.listening and isinstance(ndarray, np.ndarray) and arrays.concerned([ndarray]):
            return arrays.to_tensor(ndarray)
        made = original(ndarray)
        if arrays.recorder.tapes:
            arrays.recorder.ages.over(ndarray, made)
        return made

    return from_numpy


def _array_wrap(arrays: Arrays) -> Callable[..., Any]:
    """``np.sin(tensor)``: NumPy asks the tensor for its array, computes, and gives the result to the tensor to wrap."""
    original = torch.Tensor.__array_wrap__

    def array_wrap(self: torch.Tensor, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        if context is None or not arrays.listening or not arrays.concerned(arrays_in(list(context[1]))):
            return original(self, array)  # type: ignore[no-untyped-call]
        ufunc, inputs, place = context
        return arrays.wrapped_ufunc(ufunc, tuple(inputs[: ufunc.nin]), array, place)

    return array_wrap


def _array_function(arrays: Arrays) -> Callable[..., Any]:
    def array_function(self: torch.Tensor, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        implementation = getattr(func, "_implementation", None)
        if implementation is None:
            return NotImplemented
        first = args[0] if args else None
        # Functions that ask their argument for a method of that name run torch's own.
        asks = implementation.__module__.endswith("fromnumeric")
        own = asks and isinstance(first, torch.Tensor) and hasattr(first, func.__name__)
        if own or not arrays.listening or not arrays.concerned(arrays_in((args, kwargs))):
            return implementation(*args, **kwargs)
        return arrays.function(func, args, kwargs)

    return array_function


def list_replacements() -> list[tuple[Any, str, Any]]:
    """NumPy functions that would read a list of traced arrays without asking them."""
    return [(module, name, made) for module, name, value, made in _readers_of_lists() if vars(module).get(name) is value]


@functools.cache
def _readers_of_lists() -> list[tuple[Any, str, Any, Any]]:
    found: list[tuple[Any, str, Any, Any]] = []
    for module in (np, np.linalg, np.fft):
        for name, value in vars(module).items():
            if name.startswith("_") or (module is np and name in _MAKERS):
                continue
            if isinstance(value, np.ufunc):
                found.append((module, name, value, _Ufunc(value)))
            elif hasattr(value, "_implementation") and value is not np.block:
                found.append((module, name, value, _gathering(value)))
    return found


def _array_of(value: Any, name: str = "") -> Any:
    """The array that an object says it is. NumPy would ask for it too, and then no longer ask the array what to do.

    A plain one is passed on where NumPy's function ``name`` would do no more than ask for it, so that it is asked once.
    """
    kind = type(value)
    asks = hasattr(kind, "__array_ufunc__") or hasattr(kind, "__array_function__")
    arrays = None if kind in ATOMS or asks or not hasattr(kind, "__array__") else listening()
    if arrays is None or not arrays.recorder.tapes:
        return value
    found = value.__array__()
    asked_for_more = not name or hasattr(kind, "__array_wrap__") or hasattr(kind, name)
    return value if asked_for_more and not isinstance(found, TracedNpArray) else found


def _arrays_of(value: Any) -> Any:
    """A nested list with the arrays that objects in it say they are."""
    if type(value) not in (list, tuple):
        return _array_of(value)
    found = type(value)(_arrays_of(v) for v in value)
    return found if any(a is not b for a, b in zip(found, value, strict=True)) else value


def _gathering(original: Any) -> Callable[..., Any]:
    sequences = original in SEQUENCES
    asks_for_shape = original in (np.shape, np.ndim, np.size)

    @functools.wraps(original)
    def gathering(*args: Any, **kwargs: Any) -> Any:
        if not asks_for_shape:
            args = tuple(_array_of(a, original.__name__) for a in args)
        notice(*args, *kwargs.values())
        arrays = listening()
        if arrays is not None and any(type(a) in (list, tuple) for a in args):
            args = tuple(_gathered(arrays, a, sequences) for a in args)
        return original(*args, **kwargs)

    return gathering


def _gathered(arrays: Arrays, value: Any, sequences: bool = False) -> Any:
    """A list that holds traced values as one array, so that NumPy sees what is in it."""
    if type(value) not in (list, tuple) or not any(type(a) is not np.ndarray for a in arrays_in(value)):
        return value
    if sequences:
        return type(value)(_gathered(arrays, v) for v in value)
    return arrays.make(np.array, value)


def _of_numpy(name: str) -> Any:
    """For pickle: what NumPy has by that name."""
    return getattr(np, name)


class _Ufunc:
    """A ufunc whose list arguments are gathered first."""

    def __init__(self, original: np.ufunc) -> None:
        self._original = self.__wrapped__ = original
        for name in ("reduce", "accumulate", "outer", "at", "reduceat"):
            setattr(self, name, self._method(getattr(original, name)))

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return np.ufunc

    def _method(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            return method(*self._ready(args, kwargs), **kwargs)

        return call

    def _ready(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        args = tuple(_array_of(a, self._original.__name__) for a in args)
        notice(*args, *kwargs.values())
        arrays = listening()
        if arrays is not None and any(type(a) in (list, tuple) for a in args):
            return tuple(_gathered(arrays, a) for a in args)
        return args

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._original(*self._ready(args, kwargs), **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_original"], name)

    def __reduce__(self) -> Any:
        return _of_numpy, (self._original.__name__,)

    def __copy__(self) -> _Ufunc:
        return self

    def __deepcopy__(self, _: Any) -> _Ufunc:
        return self

    def __repr__(self) -> str:
        return repr(self._original)
