"""The default tolerances when floats are compared, and what a tolerance may be."""

from __future__ import annotations

import math
from typing import Any

from leapp.errors import InputError

RTOL = 1e-3
"""The relative tolerance."""

ATOL = 1e-5
"""The absolute tolerance, which is added to the relative one."""


def check_tolerances(rtol: Any, atol: Any) -> None:
    """Refuse tolerances with which a comparison would say nothing.

    Raises:
        InputError: One is negative, infinite, NaN or not a number.
    """
    for name, value in (("rtol", rtol), ("atol", atol)):
        try:
            fits = 0 <= value < math.inf
        except TypeError:
            fits = False
        if not fits:
            raise InputError(f"{name}={value!r}: a tolerance is a finite number of at least 0.")
