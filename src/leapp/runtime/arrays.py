"""Port dtypes as NumPy and ONNX know them, and host memory for them.

Knows nothing of wiring. The dtypes that NumPy lacks come from ``ml_dtypes``, imported when one is met.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from leapp.errors import BundleError, MissingDependencyError
from leapp.graph.contract import Port

__all__ = ["ONNX_CODES", "ONNX_TYPES", "Array", "allocate", "check_sum", "form", "is_float", "numpy_dtype", "random_array"]

Array = np.ndarray[Any, np.dtype[Any]]

ONNX_CODES = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9, "float16": 10,
    "float64": 11, "uint32": 12, "uint64": 13, "complex64": 14, "complex128": 15, "bfloat16": 16, "float8_e4m3fn": 17,
    "float8_e4m3fnuz": 18, "float8_e5m2": 19, "float8_e5m2fnuz": 20, "float8_e8m0fnu": 24,
}  # fmt: skip
"""The element type of each dtype, as ``TensorProto.DataType`` numbers it."""

ONNX_TYPES = {
    name: f"tensor({ {'float32': 'float', 'float64': 'double'}.get(name, name).replace('float8_', 'float8') })"
    for name in ONNX_CODES
}
"""The type string of each dtype, as an engine reports it."""


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a port dtype."""
    try:
        return np.dtype(name)
    except TypeError:
        pass
    try:
        import ml_dtypes
    except ImportError as error:
        raise MissingDependencyError(f"Ports of dtype {name} need the package ml_dtypes: pip install ml_dtypes.") from error
    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return found


def is_float(port: Port) -> bool:
    """Whether values of the port can be infinite or NaN."""
    return "float" in port.dtype or "complex" in port.dtype


LARGEST = 1 << 30
"""The most bytes one value may have. A bundle can write any shape, a robot has no memory for it."""


LARGEST_SUM = 4 << 30
"""The most bytes that one value of every port of a pipeline may have together."""


def check_sum(ports: Iterable[Port]) -> None:
    """Refuse a description whose ports are more than a machine that runs policies has memory for.

    Raises:
        BundleError: With the size.
    """
    size = sum(math.prod(port.shape) * _bytes(port.dtype) for port in ports)
    if size > LARGEST_SUM:
        raise BundleError(f"One value of each port needs {size} bytes in all; this runtime stops at {LARGEST_SUM}.")


def _bytes(dtype: str) -> int:
    bits = re.search(r"\d+", dtype)
    return int(bits.group()) // 8 if bits else 1


def allocate(port: Port) -> Array:
    """Zeroed host memory for one value of a port.

    Raises:
        BundleError: The value would be larger than any that is run.
    """
    dtype = numpy_dtype(port.dtype)
    size = math.prod(port.shape) * dtype.itemsize
    if size > LARGEST:
        raise BundleError(f"Port {port.name!r} needs {size} bytes for one value; this runtime stops at {LARGEST}.")
    return np.zeros(port.shape, dtype)


def random_array(port: Port) -> Array:
    """A random value of a port: normal floats, integers from 0 to 255 (127 for int8), random truth values."""
    generator = np.random.default_rng()
    if is_float(port):
        return generator.standard_normal(port.shape).astype(numpy_dtype(port.dtype))
    top = {"bool": 2, "int8": 128}.get(port.dtype, 256)
    return generator.integers(0, top, port.shape).astype(numpy_dtype(port.dtype))


def form(dtype: object, shape: tuple[int, ...]) -> str:
    """How messages write a dtype with a shape."""
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"
