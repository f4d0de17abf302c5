"""What a session replaces in NumPy and torch to see values cross between them: a handful of functions, nothing else.

Whoever installs the replacements must put the originals back.
"""

from __future__ import annotations

import datetime
import decimal
import functools
import json
import pkgutil
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import torch

from leapp.capture.calls import ATOMS
from leapp.capture.chance import CLOCKS
from leapp.capture.numpy.arrays import Arrays
from leapp.capture.numpy.compiled import insisting, insisting_classes, reading, running
from leapp.capture.numpy.noticing import notice
from leapp.capture.numpy.plain import arrays_in, bare_view
from leapp.capture.numpy.table import SEQUENCES
from leapp.capture.numpy.traced import TracedNpArray, current, listening
from leapp.capture.replacing.classes import Constructor
from leapp.capture.replacing.layout import supported
from leapp.capture.replacing.names import made_once
from leapp.capture.replacing.owners import Part, names_of
from leapp.capture.replacing.standins import caller, twin

__all__ = ["constructors", "crossings", "readers_of_lists"]

_MAKERS = "array asarray asanyarray ascontiguousarray asfortranarray".split()


@made_once(np.rec, json, statistics, time)
def crossings() -> Iterator[tuple[Any, str, Any]]:
    """Where, under which name, and what to put there."""
    for name in _MAKERS:
        yield np, name, _maker(twin(getattr(np, name)), name)
    yield np, "full", _full(twin(np.full))
    yield np, "nested_iters", reading(twin(np.nested_iters), "np.nested_iters")
    for name, value in vars(np.rec).items():
        if isinstance(value, FunctionType):
            yield np.rec, name, reading(twin(value), f"np.rec.{name}")
    yield np.vectorize, "__call__", reading(np.vectorize.__call__, "np.vectorize")
    yield np.lib.stride_tricks, "as_strided", _as_strided(twin(np.lib.stride_tricks.as_strided))
    yield from _readers_of_numbers()
    yield torch, "from_numpy", _from_numpy(twin(torch.from_numpy))
    yield torch.Tensor, "__array_wrap__", _array_wrap(torch.Tensor.__array_wrap__)
    yield torch.Tensor, "__array_function__", _array_function


def _readers_of_numbers() -> Iterator[tuple[Any, str, Any]]:
    """They look at the types of numbers, and a traced number only passes for one."""
    for module in (json, statistics):
        for name in module.__all__:
            function = vars(module).get(name)
            if isinstance(function, FunctionType):
                yield module, name, running(twin(function), f"{module.__name__}.{name}")
    for name, function in vars(time).items():
        if isinstance(function, BuiltinFunctionType) and name not in CLOCKS:
            yield time, name, insisting(function, f"time.{name}")


@functools.cache
def constructors() -> list[Part]:
    """What to put into classes written in C, to follow what they read when an instance is made."""
    if not supported():
        return []
    classes = list(insisting_classes((datetime, decimal)))
    made = [Constructor(kind, "__new__", functools.partial(insisting, name=kind.__name__)) for kind, _ in classes]
    made.append(Constructor(np.nditer, "__init__", lambda init: reading(init, "np.nditer")))
    made.append(Constructor(np.broadcast, "__new__", lambda new: reading(new, "np.broadcast")))
    return [*(names_of(kind, methods) for kind, methods in classes if methods), *made]


def _maker(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    names = {name}

    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        arrays = listening() if args else None
        if args and type(args[0]) is np.ndarray:
            notice(args[0])
        elif arrays is not None:
            args = (_arrays_of(_listed(args[0])), *args[1:])
        if arrays is not None and type(args[0]) is not np.ndarray and arrays_in(args[0]):
            frame = caller()
            if not names.isdisjoint(frame.f_code.co_names):
                return arrays.make(original, *args, **kwargs)
            # Whoever calls is compiled code: it will read the memory of what it gets.
            package = frame.f_globals.get("__name__", "").partition(".")[0]
            return arrays.read_out(f"compiled code calling np.{name}", original, args, kwargs, package)
        return original(*args, **kwargs)

    make.names = names  # type: ignore[attr-defined]
    return make


def _full(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def full(shape: Any, fill_value: Any, dtype: Any = None, order: Any = "C", **options: Any) -> Any:
        arrays = listening()
        if arrays is None or not arrays.concerned(arrays_in(fill_value)):
            return original(shape, fill_value, dtype, order, **options)
        filled = np.empty(shape, fill_value.dtype if dtype is None else dtype, order, **options)
        filled[...] = fill_value
        return filled

    return full


def _as_strided(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def as_strided(x: Any, *args: Any, **kwargs: Any) -> Any:
        arrays = listening()
        if arrays is None or not isinstance(x, np.ndarray) or not arrays.concerned([x]):
            return original(x, *args, **kwargs)
        return arrays.wrap(arrays.quietly(lambda: original(bare_view(x), *args, **kwargs)))

    return as_strided


def _from_numpy(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def from_numpy(ndarray: Any) -> Any:
        arrays = current()
        if arrays is not None and arrays.listening and isinstance(ndarray, np.ndarray) and arrays.concerned([ndarray]):
            return arrays.to_tensor(ndarray)
        made = original(ndarray)
        if arrays is not None and arrays.recorder.tapes:
            arrays.recorder.ages.over(ndarray, made)
        return made

    return from_numpy


def _array_wrap(original: Callable[..., Any]) -> Callable[..., Any]:
    """``np.sin(tensor)``: NumPy asks the tensor for its array, computes, and gives the result to the tensor to wrap."""

    def array_wrap(self: torch.Tensor, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        arrays = None if context is None else listening()
        if arrays is None or not arrays.concerned(arrays_in(list(context[1]))):
            return original(self, array)
        ufunc, inputs, place = context
        return arrays.wrapped_ufunc(ufunc, tuple(inputs[: ufunc.nin]), array, place)

    return array_wrap


def _array_function(self: torch.Tensor, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    implementation = getattr(func, "_implementation", None)
    if implementation is None:
        return NotImplemented
    first = args[0] if args else None
    # Functions that ask their argument for a method of that name run torch's own.
    asks = implementation.__module__.endswith("fromnumeric")
    own = asks and isinstance(first, torch.Tensor) and hasattr(first, func.__name__)
    arrays = None if own else listening()
    if arrays is None or not arrays.concerned(arrays_in((args, kwargs))):
        return implementation(*args, **kwargs)
    return arrays.function(func, args, kwargs)


@made_once(np, np.linalg, np.fft, asked=True)
def readers_of_lists() -> Iterator[tuple[Any, str, Any]]:
    """NumPy functions that would read a list of traced arrays without asking them."""
    for module in (np, np.linalg, np.fft):
        for name, value in vars(module).items():
            if name.startswith("_") or (module is np and name in _MAKERS):
                continue
            if isinstance(value, np.ufunc):
                yield module, name, _Ufunc(value, name)
            elif hasattr(value, "_implementation") and value is not np.block:
                yield module, name, _gathering(twin(value))


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


def _listed(value: Any) -> Any:
    """What NumPy takes for a sequence, as a list: a queue, a tuple with names."""
    return list(value) if isinstance(value, (deque, tuple)) and type(value) is not tuple else value


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
            args = tuple(_array_of(_listed(a), original.__name__) for a in args)
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


class _Ufunc:
    """A ufunc whose list arguments are gathered first."""

    def __init__(self, original: np.ufunc, name: str) -> None:
        self._original = self.__wrapped__ = original
        self.__place__ = f"numpy:{name}"
        self.__module__, self.__doc__ = "numpy", original.__doc__
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
        args = tuple(_array_of(_listed(a), self._original.__name__) for a in args)
        notice(*args, *kwargs.values())
        arrays = listening()
        if arrays is not None and any(type(a) in (list, tuple) for a in args):
            return tuple(_gathered(arrays, a) for a in args)
        return args

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._original(*self._ready(args, kwargs), **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_original"], name)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._original or (type(other) is _Ufunc and other._original is self._original)

    def __hash__(self) -> int:
        return hash(self._original)

    def __reduce__(self) -> Any:
        return pkgutil.resolve_name, (self.__place__,)

    def __copy__(self) -> _Ufunc:
        return self

    def __deepcopy__(self, _: Any) -> _Ufunc:
        return self

    def __repr__(self) -> str:
        return repr(self._original)
