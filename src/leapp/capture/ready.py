"""The table of functions of other packages for which leapp has torch forms.

While a node is open, these functions accept traced arrays and numbers: the original computes the value, the torch form is
recorded, and the results are compared as those of NumPy calls are. A module that is not loaded when a node opens is left out.
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
"""Torch forms by module and name. A form takes the arguments of the function, with tensors for arrays and NumPy numbers, and
may raise :class:`~leapp.capture.numpy.table.Unmapped` for calls that it does not cover."""
