"""One table of NumPy functions and the expressions that stand for them, and how an expression enters it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch._numpy as tnp

__all__ = ["FUNCTIONS", "IN_PLACE", "Expression", "Unmapped", "expression", "lookup", "named"]

Expression = Callable[..., Any]


class Unmapped(Exception):
    """There is no torch expression for this form of the call."""


FUNCTIONS: dict[Any, Expression] = {}
"""NumPy functions to expressions."""

IN_PLACE: dict[Any, Expression] = {}
"""NumPy functions that write to their first argument, as expressions for its new value."""


def named(names: str, *modules: Any) -> list[Any]:
    """The functions with these names in these modules (NumPy itself by default) that the installed NumPy has."""
    return [getattr(m, n) for n in names.split() for m in modules or (np,) if hasattr(m, n)]


def expression(names: str, *modules: Any, table: dict[Any, Expression] | None = None) -> Callable[[Expression], Expression]:
    """Enters an expression for the NumPy functions with these names, by default among those that write to nothing."""

    def add(function: Expression) -> Expression:
        for f in named(names, *modules):
            (FUNCTIONS if table is None else table)[f] = function
        return function

    return add


def lookup(function: Any) -> Expression | None:
    """The expression for a NumPy function, if there is one."""
    found = FUNCTIONS.get(function)
    if found is not None:
        return found
    name = getattr(function, "__name__", "")
    module = getattr(function, "__module__", "")
    places = {"numpy": (tnp,), "numpy.linalg": (tnp.linalg, tnp), "numpy.fft": (tnp.fft,)}.get(module, ())
    candidates: list[Expression | None] = [getattr(place, name, None) for place in places]
    return next((c for c in candidates if callable(c)), None)
