"""Converts values of callers to the dtype and shape of a port, or refuses them with an error that names the port.

A conversion that could change a value is done only if the caller asked for it.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from leapp.bundle.safetensors import RawTensor
from leapp.errors import InputError, InputTypeError
from leapp.graph.contract import Port
from leapp.runtime.arrays import Array, form, numpy_dtype


def from_raw(raw: RawTensor) -> Array:
    """An array with the value of a raw tensor, on memory of its own."""
    return np.frombuffer(bytearray(raw.data), numpy_dtype(raw.dtype)).reshape(raw.shape)


def rows_of(value: Any, port: Port) -> int | None:
    """How many rows a value for a port has; ``None`` if it has no such axis."""
    if port.batch_axis is None or (is_tensor(value) and value.is_nested):
        return None
    try:
        shape = value.shape if hasattr(value, "shape") else np.shape(value)
    except ValueError:  # a list whose rows differ in length; to_array() refuses it with the name of the port
        return None
    return int(shape[port.batch_axis]) if len(shape) == len(port.shape) else None


def spread(key: str, initial: Array, port: Port) -> Array:
    """The initial value of a state for the number of rows of its port.

    Raises:
        InputError: Its rows differ, so the value of a further row is not known.
    """
    if initial.shape == port.shape or port.batch_axis is None:
        return initial
    first = initial.take([0], port.batch_axis)
    if np.broadcast_to(first, initial.shape).tobytes() != initial.tobytes():
        raise InputError(
            f"State {key!r} begins with a different value in each of {initial.shape[port.batch_axis]} rows, so a batch of "
            f"{port.shape[port.batch_axis]} rows is not possible."
        )
    return np.ascontiguousarray(np.broadcast_to(first, port.shape))


def is_tensor(value: object) -> bool:
    """Whether the value is a torch tensor. Does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def misfit(key: str, port: Port, got: str, advice: str = "") -> InputError:
    """The error for a value that does not fit its port."""
    return InputError(f"Input {key!r}: expected {form(port.dtype, port.shape)}, got {got}.{advice and ' ' + advice}")


def to_array(key: str, port: Port, value: Any, cast: bool) -> Array:
    """The value as an array of the port's dtype and shape. It may share memory with the value.

    Numbers and nested lists have no dtype of their own and take the port's, if it can hold them.

    Raises:
        InputError: The shape or the dtype does not fit.
        InputTypeError: The value is not an array, tensor, number or list of numbers.
    """
    dtype = numpy_dtype(port.dtype)
    if is_tensor(value):
        value = _tensor_to_array(key, port, value)
    literal = not isinstance(value, (np.ndarray, np.generic))
    array = _literal(key, port, value) if literal else np.asarray(value)
    if array.shape == port.shape and array.dtype == dtype:
        return array
    got = form(array.dtype, array.shape)
    if array.shape != port.shape:
        raise misfit(key, port, got)
    possible = castable(array.dtype, dtype)
    if not possible or not (cast or literal):
        raise misfit(key, port, got, "Convert it, or pass cast=True." if possible else "")
    with np.errstate(over="ignore"):
        fitted: Array = array.astype(dtype)
    if dtype.kind in "iu" and not np.array_equal(fitted, array):
        raise misfit(key, port, f"values outside the range of {port.dtype}")
    return fitted


def castable(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether values of one dtype may become those of another when a caller asks for it."""
    if wanted.type.__module__ == "ml_dtypes":
        return given.kind in "fiub"
    if given.kind in "iu" and wanted.kind in "iu":
        return True  # possible if the values fit, which is checked later
    return bool(np.can_cast(given, wanted, "same_kind"))


def _literal(key: str, port: Port, value: Any) -> Array:
    try:
        array = np.asarray(value)
    except ValueError:
        raise misfit(key, port, "a list whose rows differ in length") from None
    if array.dtype.kind not in "fiubc":
        raise InputTypeError(f"Input {key!r}: expected {form(port.dtype, port.shape)}, got {type(value).__name__}.")
    return array


def require_plain(key: str, port: Port, tensor: Any) -> None:
    """Refuse tensors that are not dense.

    Raises:
        InputError: The tensor is sparse, nested or otherwise not dense.
    """
    import torch

    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        kind = "nested" if tensor.is_nested else "quantized" if tensor.is_quantized else "sparse"
        cure = {"nested": "to_padded_tensor()", "quantized": "dequantize()", "sparse": "to_dense()"}[kind]
        raise InputError(f"Input {key!r}: expected {form(port.dtype, port.shape)}, got a {kind} tensor. Call {cure} on it.")


def _tensor_to_array(key: str, port: Port, tensor: Any) -> Array:
    require_plain(key, port, tensor)
    if tensor.device.type != "cpu":
        raise misfit(key, port, f"a tensor on {tensor.device}", "Move it to the CPU.")
    from leapp.runtime.torch_engines import array_over

    return array_over(tensor.detach())
