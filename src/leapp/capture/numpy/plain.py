"""Plain arrays: conversion from traced values, addresses, comparison. The modes see nothing of it. Knows nothing of tapes."""

from __future__ import annotations

import functools
import inspect
import operator
from typing import Any

import numpy as np
import torch
from numpy import generic, ndarray

from leapp.capture.batch.symbolic_size import Followed
from leapp.capture.mode_stacks import silence
from leapp.capture.numpy.scalars import TracedScalar, number_of
from leapp.capture.numpy.traced import TracedNpArray
from leapp.capture.trees import ATOMS_BUT_SIZES, leaves, mapped

Array = ndarray[Any, Any]
Tensor = torch.Tensor

_TRACED: Any = (TracedScalar, ndarray, Tensor)  # TracedScalar first: isinstance(traced number, ndarray) is slow

# As they are before a session replaces them.
from_numpy, asarray = torch.from_numpy, np.asarray
_array_equal, _allclose, _abs, _isfinite, _max = np.array_equal, np.allclose, np.abs, np.isfinite, np.max

_STRIDED = type(np.lib.stride_tricks.as_strided(np.empty(1)).base)
_interface = vars(ndarray)["__array_interface__"].__get__
_DTYPES: dict[np.dtype[Any], torch.dtype] = {
    np.dtype(name): getattr(torch, name)
    for name in (
        "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128".split()
    )
}


def address(array: Array) -> int:
    """Where the first element of a plain array lies."""
    return int(_interface(array)["data"][0])


def bounds(array: Array) -> tuple[int, int]:
    """The addresses between which the elements of an array lie."""
    array = bare_view(array)
    low = high = address(array)
    for n, stride in zip(array.shape, array.strides, strict=True):
        if n == 0:
            return low, low
        low, high = low + min(0, stride * (n - 1)), high + max(0, stride * (n - 1))
    return low, high + array.itemsize


def torch_dtype(dtype: Any) -> torch.dtype | None:
    """The torch dtype of a NumPy dtype, or ``None``."""
    return _DTYPES.get(np.dtype(dtype))


def unwrapped(value: Any) -> Any:
    """A nested argument with plain arrays and numbers in place of traced ones, and arrays in place of tensors."""
    return mapped(value, _unwrapped, ATOMS_BUT_SIZES, slices=False)


def _unwrapped(value: Any) -> Any:
    if isinstance(value, TracedScalar):
        return number_of(value)
    if isinstance(value, ndarray):
        return bare_view(value) if type(value) is TracedNpArray else value
    if isinstance(value, Tensor):
        with silence():
            return value.numpy()
    if isinstance(value, Followed):
        return value.values[0]
    if isinstance(value, slice):
        # A traced bound leaves the graph: its __index__ reports the escape.
        parts: tuple[Any, ...] = (value.start, value.stop, value.step)
        return slice(*(operator.index(v) if isinstance(v, _TRACED) else v for v in parts))
    return value


def silent_numpy(t: Tensor) -> Array:
    """The array over the memory of a tensor. No mode sees the call."""
    with silence():
        return t.detach().resolve_conj().resolve_neg().numpy()


def ordinary(t: Tensor) -> Tensor:
    """``t``, or a tensor over its memory if it was made in inference mode.

    Torch refuses to write to a tensor that was made in inference mode once the mode is over. NumPy writes to an array over it.
    """
    with silence():
        if not t.is_inference():
            return t
        with torch.inference_mode(False):
            return torch.empty(0, dtype=t.dtype).set_(t.untyped_storage(), t.storage_offset(), t.shape, t.stride())


def bare_view(array: Array) -> Array:
    """A plain array over the same memory."""
    return ndarray.view(array, ndarray)


def owner_of(array: Array) -> Array:
    """The array at the end of the chain of ``base``. ``as_strided`` puts an object into the chain that is not an array."""
    base: Any = array.base
    while base is not None:
        if isinstance(base, ndarray):
            array = base
        elif not isinstance(base, _STRIDED):
            break
        base = base.base
    return array


def arrays_in(value: Any) -> list[Any]:
    """Every array and tensor in a nested argument."""
    return [a.array if isinstance(a, TracedScalar) else a for a in leaves(value, _TRACED, slices=False)]


def agree(a: Array, b: Array, tolerance: float) -> bool:
    """Whether two arrays have the same shape, dtype and values up to rounding; NaN equals NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.tobytes() == b.tobytes():
        return True
    if tolerance == 0.0:
        return bool(_array_equal(a, b))
    scale = float(_max(_abs(a), initial=1.0, where=_isfinite(a)))
    return bool(_allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True))


def is_number(value: Any) -> bool:
    """Whether a value is a number of Python or NumPy, and not a traced number."""
    return isinstance(value, (bool, int, float, complex, generic)) and not isinstance(value, TracedScalar)


def given(result: Any, outs: tuple[Any, ...]) -> Any:
    """NumPy's result, with the caller's ``out`` arrays in place of the arrays that NumPy returned for them."""
    if not outs:
        return result
    if len(outs) == 1:
        return outs[0]
    return tuple(r if o is None else o for r, o in zip(result, outs, strict=True))


def as_tensor(value: Any) -> Any:
    """NumPy's result as the tensor that ``Tensor.__array_wrap__`` returns."""
    if isinstance(value, tuple):
        return tuple(as_tensor(v) for v in value)
    value = asarray(value)
    return from_numpy(value.astype(np.uint8) if value.dtype == np.bool_ else value)


_signature = functools.cache(inspect.signature)


def by_name(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by the names of the function's parameters, without those that have their default value."""
    signature = _signature(function)
    given = signature.bind(*args, **kwargs).arguments
    return {name: value for name, value in given.items() if value is not signature.parameters[name].default}


def without_out(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], tuple[Any, ...]]:
    """The arguments and keywords of a call without ``out``, and the arrays of ``out``."""
    try:
        signature = _signature(function)
        bound = signature.bind(*args, **kwargs)
    except (TypeError, ValueError):
        return args, kwargs, ()
    if "out" not in bound.arguments:
        return args, kwargs, ()
    out = bound.arguments.pop("out")
    names = list(signature.parameters)
    after = names[names.index("out") + 1 :]
    moved = {n: bound.arguments.pop(n) for n in after if n in bound.arguments and n != "kwargs"}
    return bound.args, {**bound.kwargs, **moved}, out if isinstance(out, tuple) else () if out is None else (out,)


def frozen(value: Any) -> Any:
    """A frozen value for the report: a number, or a plain copy of an array."""
    value = value.array if isinstance(value, TracedScalar) else value
    if isinstance(value, ndarray):
        plain = bare_view(value)
        return plain.item() if plain.ndim == 0 and plain.dtype != object else plain.copy()
    return value


def digits(value: Any) -> Any:
    """A float rounded to four digits, to which NumPy and torch agree; any other value as it is."""
    return float(f"{value:.4g}") if isinstance(value, float) else value
