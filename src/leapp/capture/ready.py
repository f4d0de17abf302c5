"""Torch forms of functions of other packages, used inside a node without being asked for.

While a node is open, a function of the list below takes traced arrays and numbers: the original computes the value, the torch
form is recorded, and the two are compared as NumPy's are. A function whose module is not loaded when a node opens is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from leapp.capture.functions import math, scipy_linalg, scipy_signal

__all__ = ["READY", "Ready"]


class Ready(NamedTuple):
    """A function ``module.function_name``, and the same over tensors.

    ``replacement`` takes the arguments of the function with tensors in the places of arrays and of NumPy numbers, and may raise
    :class:`~leapp.capture.numpy.table.Unmapped` for forms of the call that it does not cover.
    """

    module: str
    function_name: str
    replacement: Callable[..., Any]


_FORMS = {"math": math.FUNCTIONS, "scipy.linalg": scipy_linalg.FUNCTIONS, "scipy.signal": scipy_signal.FUNCTIONS}
READY: list[Ready] = [Ready(module, name, form) for module, forms in _FORMS.items() for name, form in forms.items()]
"""Every ready function."""
