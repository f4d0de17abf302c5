"""The table from NumPy functions to expressions, and the decorator that adds to it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from leapp.capture.numpy.table.tensors import tensor
from leapp.compat.numpy import torch_numpy as tnp

Expression = Callable[..., Any]


class Unmapped(Exception):
    """There is no torch expression for this form of the call."""


FUNCTIONS: dict[Any, Expression] = {}
"""NumPy functions to expressions."""


def named(names: str, *modules: Any) -> list[Any]:
    """The functions with these names in these modules (NumPy itself by default) that the installed NumPy has."""
    return [getattr(m, n) for n in names.split() for m in modules or (np,) if hasattr(m, n)]


def expression(names: str, *modules: Any) -> Callable[[Expression], Expression]:
    """A decorator that adds an expression for the NumPy functions with these names."""

    def add(function: Expression) -> Expression:
        FUNCTIONS.update(dict.fromkeys(named(names, *modules), function))
        return function

    return add


@functools.cache
def lookup(function: Any) -> Expression | None:
    """The expression for a NumPy function, if there is one."""
    found = FUNCTIONS.get(function)
    if found is not None:
        return found
    name = getattr(function, "__name__", "")
    module = getattr(function, "__module__", "")
    places = {"numpy": (tnp,), "numpy.linalg": (tnp.linalg, tnp), "numpy.fft": (tnp.fft,)}.get(module, ())
    candidates: list[Expression | None] = [getattr(place, name, None) for place in places]
    return next((of_torch(c) for c in candidates if callable(c)), None)


@functools.cache
def of_torch(function: Expression) -> Expression:
    """A function of ``torch._numpy`` whose array arguments are converted to tensors here.

    Its own conversion sets torch's default dtype for a moment, which every thread of the process sees.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return function
    takes = {name: str(p.annotation) for name, p in parameters.items()}
    several = next((takes[n] for n, p in parameters.items() if p.kind is p.VAR_POSITIONAL), "")

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        places = [*takes.values()] if not several else []
        places += [several] * (len(args) - len(places))
        given = [_as_taken(a, place) for a, place in zip(args, places, strict=False)]
        return function(*given, **{n: _as_taken(v, takes.get(n, "")) for n, v in kwargs.items()})

    return call


def _as_taken(value: Any, annotation: str) -> Any:
    if "ArrayLike" not in annotation or value is None or isinstance(value, torch.Tensor):
        return value
    if "Sequence" in annotation:
        return [tensor(v) for v in value]
    number = isinstance(value, (bool, int, float, complex))
    return value if number and "OrScalar" in annotation else tensor(value)
