"""Replacements for functions of NumPy and torch while a node is open: those that make arrays, and those that convert.

Each row is an owner, a name in it, and a function from the original to its replacement. The caller sets the replacements and
puts the originals back. In a thread that is not recorded, a replacement calls the original.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections import deque
from collections.abc import Callable, Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Any

import numpy as np
import torch
from numpy import ndarray

from leapp.capture.numpy.arrays import Arrays
from leapp.capture.numpy.plain import arrays_in, bare_view
from leapp.capture.numpy.scalars import TracedScalar
from leapp.capture.numpy.traced import TracedNpArray, listening
from leapp.capture.user_line import is_library, package_of
from leapp.compat.python import getframe

Row = tuple[Any, str, Callable[[Any], Any]]

_MAKERS = "array asarray asanyarray ascontiguousarray asfortranarray asarray_chkfinite"
_CREATORS = (
    "zeros ones empty eye identity tri arange linspace logspace geomspace zeros_like ones_like empty_like copy concatenate "
    "stack vstack hstack dstack column_stack tile repeat diag meshgrid"
)
_TRACED = (TracedScalar, ndarray, torch.Tensor)


def replaces(call: Callable[..., Any]) -> Callable[[Any], Any]:
    """A function that makes replacements: they call ``call(arrays, original, ...)`` in recorded threads, else the original."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            arrays = listening()
            if arrays is None or not arrays.memory.recorder.tapes:
                return original(*args, **kwargs)
            return call(arrays, original, *args, **kwargs)

        return replacement

    return make


def array_rows() -> Iterator[Row]:
    """Rows of owner, name, and a function from the original to its replacement."""
    for names, make in ((_MAKERS, _maker), (_CREATORS, _creator), ("full full_like", _filler)):
        for name in names.split():
            yield np, name, make
    yield np.lib.stride_tricks, "as_strided", _as_strided
    yield np, "from_dlpack", _array_from_dlpack
    yield torch, "from_dlpack", _tensor_from_dlpack
    yield torch.utils.dlpack, "from_dlpack", _tensor_from_dlpack
    yield torch, "from_numpy", _from_numpy
    yield torch.Tensor, "__array_wrap__", _array_wrap
    yield torch.Tensor, "__array_function__", _array_function


# -- whose arrays are followed ---------------------------------------------------------------------------------------------


_AROUND = frozenset({__name__, "leapp.capture.functions.lists", "leapp.tracing.patches"})
"""Modules whose frames lie between a constructor and the code that called it."""


@functools.cache
def _makes_plain_arrays(file: str, module: str) -> bool:
    """Whether code of a file gets plain arrays, because it may pass their memory to compiled code of its package."""
    return is_library(file) or _has_compiled_modules(package_of(file) or module.partition(".")[0])


@functools.cache
def _has_compiled_modules(package: str) -> bool:
    return any(_is_compiled(m) for n, m in list(sys.modules.items()) if n == package or n.startswith(f"{package}."))


def _is_compiled(module: Any) -> bool:
    origin = getattr(getattr(module, "__spec__", None), "origin", None)
    return isinstance(origin, str) and origin.endswith(tuple(EXTENSION_SUFFIXES))


def _new(arrays: Arrays, made: Any, given: Any = None) -> Any:
    """The result of a constructor: a traced array, unless the calling code gets plain arrays.

    If ``given``, the argument, is a traced array and NumPy returns it as it is, so does this.
    """
    frame = getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") in _AROUND:
        frame = frame.f_back
    if _makes_plain_arrays(frame.f_code.co_filename, frame.f_globals.get("__name__", "")):
        return made
    if type(given) is TracedNpArray and made.__array_interface__ == bare_view(given).__array_interface__:
        return given
    return arrays.memory.follow(made, arrays_in(given))


# -- NumPy's constructors --------------------------------------------------------------------------------------------------


@replaces
def _maker(arrays: Arrays, original: Any, *args: Any, **kwargs: Any) -> Any:
    """``np.array``, ``np.asarray`` and similar functions. If values are traced, alone or in lists, the call is recorded."""
    if not args:
        return original(**kwargs)
    try:
        data = _converted(args[0])
        traced = type(data) is not ndarray and any(type(a) is not ndarray for a in arrays_in(data))
    except RecursionError:  # a list that contains itself
        return original(*args, **kwargs)
    if traced:
        made = arrays.runs.make(original, data, *args[1:], **kwargs)
        return made if type(made) is not ndarray or isinstance(data, torch.Tensor) else _new(arrays, made, data)
    made = original(data, *args[1:], **kwargs)
    return made if made is data else _new(arrays, made)


def _converted(value: Any) -> Any:
    """A value with traced arrays in place of objects whose ``__array__`` returns one, and with lists for deques around them."""
    if isinstance(value, _TRACED):
        return value
    if isinstance(value, (deque, list, tuple)):
        found = [_converted(v) for v in value]
        # NumPy gets the program's own sequence class, unless something in it is traced.
        known = type(value) in (list, tuple) or not any(isinstance(v, _TRACED) for v in found)
        same = known and all(map(operator.is_, found, value))
        return value if same else found
    made = value.__array__() if hasattr(type(value), "__array__") and not _shows_memory(value) else None
    return made if isinstance(made, TracedNpArray) else value


def _shows_memory(value: Any) -> bool:
    """Whether NumPy takes a number, or the memory of an object, and does not call its ``__array__``."""
    if isinstance(value, np.generic) or hasattr(value, "__array_struct__") or hasattr(value, "__array_interface__"):
        return True
    try:
        memoryview(value).release()
    except TypeError:
        return False
    return True


@replaces
def _creator(arrays: Arrays, original: Any, *args: Any, **kwargs: Any) -> Any:
    """A function that returns an array in new memory."""
    return _new(arrays, original(*args, **kwargs))


def gathered(arrays: Arrays, value: Any) -> Any:
    """One array made of a list that contains traced values; any other value as it is."""
    if not isinstance(value, (list, tuple, deque)):
        return value
    converted = _converted(value)
    traced = converted is not value or any(type(a) is not ndarray for a in arrays_in(value))
    return arrays.runs.gathered(converted) if traced else value


@replaces
def _filler(arrays: Arrays, original: Any, *args: Any, **kwargs: Any) -> Any:
    """``np.full`` and ``np.full_like``."""
    value = args[1] if len(args) > 1 else kwargs.get("fill_value")
    if not arrays.memory.concerned(arrays_in(value)):
        return _new(arrays, original(*args, **kwargs))
    value = gathered(arrays, value)
    if len(args) < 3 and "dtype" not in kwargs and original.__name__ != "full_like":
        kwargs["dtype"] = getattr(value, "array", value).dtype
    if len(args) > 1:
        args = (args[0], 0, *args[2:])
    else:
        kwargs["fill_value"] = 0
    filled = arrays.memory.follow(original(*args, **kwargs))
    filled[...] = value
    return filled


@replaces
def _as_strided(arrays: Arrays, original: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    if not isinstance(x, ndarray) or not arrays.memory.concerned([x]):
        return original(x, *args, **kwargs)
    return arrays.memory.wrap(arrays.memory.quietly(lambda: original(bare_view(x), *args, **kwargs)))


# -- between the libraries -------------------------------------------------------------------------------------------------


@replaces
def _from_numpy(arrays: Arrays, original: Any, ndarray: Any) -> Any:
    if isinstance(ndarray, np.ndarray) and arrays.memory.concerned([ndarray]):
        return arrays.ufuncs.to_tensor(ndarray)
    made = original(ndarray)
    with arrays.memory.recorder.lock:
        arrays.memory.recorder.old_memory.over(ndarray, made)
    return made


@replaces
def _tensor_from_dlpack(arrays: Arrays, original: Any, ext_tensor: Any, *args: Any, **kwargs: Any) -> Any:
    if not isinstance(ext_tensor, _TRACED) or not arrays.memory.concerned([ext_tensor]):
        return original(ext_tensor, *args, **kwargs)
    return ext_tensor.detach() if isinstance(ext_tensor, torch.Tensor) else arrays.ufuncs.to_tensor(ext_tensor)


@replaces
def _array_from_dlpack(arrays: Arrays, original: Any, x: Any, /, **kwargs: Any) -> Any:
    if not isinstance(x, _TRACED) or not arrays.memory.concerned([x]):
        return original(x, **kwargs)
    return x.detach().numpy() if isinstance(x, torch.Tensor) else np.asarray(x)[...]


@replaces
def _array_wrap(arrays: Arrays, original: Any, self: torch.Tensor, array: Any, context: Any = None, *scalar: Any) -> Any:
    """``np.sin(tensor)``: NumPy calls ``__array__`` of the tensor, computes, and passes the result to ``__array_wrap__``."""
    if context is None or not arrays.memory.concerned(arrays_in(list(context[1]))):
        return original(self, array)
    ufunc, inputs, place = context
    return arrays.ufuncs.wrapped_ufunc(ufunc, tuple(inputs[: ufunc.nin]), array, place)


def _array_function(_: Any) -> Any:
    """``np.clip(tensor, 0, 1)``: tensors have no ``__array_function__``, so NumPy would read their values by ``__array__``."""

    def array_function(self: torch.Tensor, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        implementation = getattr(func, "_implementation", None)
        if implementation is None:
            return NotImplemented
        first = args[0] if args else None
        # Functions that call a method of the same name of their argument run torch's method.
        asks = implementation.__module__.endswith("fromnumeric")
        own = asks and isinstance(first, torch.Tensor) and hasattr(first, func.__name__)
        arrays = None if own else listening()
        if arrays is None or not arrays.memory.concerned(arrays_in((args, kwargs))):
            return implementation(*args, **kwargs)
        return arrays.function(func, args, kwargs)

    return array_function
