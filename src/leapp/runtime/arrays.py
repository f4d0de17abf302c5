"""Converts port dtypes to those of NumPy and ONNX Runtime, and allocates host memory for them.

Knows nothing of wiring. The dtypes that NumPy lacks come from ``ml_dtypes``, imported when one is met.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np

from leapp.errors import BundleError, MissingDependencyError
from leapp.graph.contract import Port
from leapp.graph.dtypes import DTYPES

Array = np.ndarray[Any, np.dtype[Any]]

ONNX_TYPES = {
    name: f"tensor({ {'float32': 'float', 'float64': 'double'}.get(name, name).replace('float8_', 'float8') })"
    for name in DTYPES
}
"""The type string of each dtype, as an engine reports it."""


@functools.cache
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
"""The most bytes of one value. A bundle can declare any shape, and a robot may not have the memory for it."""

LARGEST_SUM = 4 << 30
"""The most bytes that one value of every port of a pipeline may have together."""


def check_sum(ports: Iterable[Port]) -> None:
    """Refuse a description whose ports together need more memory than ``LARGEST_SUM``.

    Raises:
        BundleError: With the size.
    """
    size = sum(port.nbytes for port in ports)
    if size > LARGEST_SUM:
        raise BundleError(f"One value of each port needs {size} bytes in all; this runtime stops at {LARGEST_SUM}.")


def allocate(port: Port) -> Array:
    """Zeroed host memory for one value of a port.

    Raises:
        BundleError: The value is larger than ``LARGEST``.
    """
    if port.nbytes > LARGEST:
        raise BundleError(f"Port {port.name!r} needs {port.nbytes} bytes for one value; this runtime stops at {LARGEST}.")
    return np.zeros(port.shape, numpy_dtype(port.dtype))


def random_array(port: Port) -> Array:
    """A random value of a port: normal floats, integers from 0 to 255 (127 for int8), random truth values."""
    generator = np.random.default_rng()
    if is_float(port):
        return generator.standard_normal(port.shape).astype(numpy_dtype(port.dtype))
    top = {"bool": 2, "int8": 128}.get(port.dtype, 256)
    return generator.integers(0, top, port.shape).astype(numpy_dtype(port.dtype))


def form(dtype: object, shape: tuple[int, ...]) -> str:
    """A dtype and a shape as text for messages."""
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"
