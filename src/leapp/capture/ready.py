"""Torch forms of functions of other packages, used inside a node without being asked for.

While a node is open, a function of the list below takes traced arrays and numbers: the original computes the value, the torch
form is recorded, and the two are compared as NumPy's are. A function whose module is not loaded when a node opens is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from leapp.capture.functions import math, scipy_linalg, scipy_signal

READY: dict[str, dict[str, Callable[..., Any]]] = {
    "math": math.FUNCTIONS,
    "scipy.linalg": scipy_linalg.FUNCTIONS,
    "scipy.signal": scipy_signal.FUNCTIONS,
}
"""By module and name. A form takes the arguments of the function with tensors in the places of arrays and of NumPy numbers, and
may raise :class:`~leapp.capture.numpy.table.Unmapped` for calls that it does not cover."""
