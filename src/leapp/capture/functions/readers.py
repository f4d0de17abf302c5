"""Functions outside of NumPy that take real numbers only.

A traced number passes for NumPy's with ``isinstance``, and C code that looks at the type itself refuses it. While a node is
open, the functions below get NumPy's own number of the same value, as they do without leapp, and the value leaves the graph.

Types in C (``decimal.Decimal``, ``datetime.timedelta``, ``np.random.SeedSequence``) refuse a traced number too. A message that
names its type says to convert it with ``float()`` or ``int()`` first. It cannot be replaced: programs import it by name
(``from datetime import timedelta``), so another class in the module would not be called; where it is called, ``type(x) is
datetime.timedelta`` would be false, in every thread while a node is open. And a traced number that is a ``float`` to C code
would be read everywhere without being asked: by ``struct``, ``json``, a plain array, and by torch before it asks the modes.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from leapp.capture.numpy.arrays import Arrays
from leapp.capture.numpy.patches import replaces
from leapp.capture.numpy.scalars import TracedScalar, number_of

_READERS: list[tuple[Any, str, str]] = [
    *((time, name, f"time.{name}") for name in ("sleep", "localtime", "gmtime", "ctime")),
    (np.random, "default_rng", "np.random.default_rng"),
    (json.JSONEncoder, "iterencode", "json"),  # what json.dumps and json.dump call
]
"""Owner, name, and how reports call it."""


def reader_rows() -> Iterator[tuple[Any, str, Callable[[Any], Any]]]:
    """Owner, name, and what makes the replacement of the original."""
    for owner, name, called in _READERS:
        yield owner, name, replaces(functools.partial(_read, called))


def _read(name: str, arrays: Arrays, original: Any, *args: Any, **kwargs: Any) -> Any:
    return original(*_with_numbers(args, name, arrays), **_with_numbers(kwargs, name, arrays))


def _with_numbers(value: Any, name: str, arrays: Arrays) -> Any:
    """A nested argument with NumPy's numbers for those that are traced; the same object if there is none in it."""
    if isinstance(value, TracedScalar):
        number = number_of(value)
        arrays.memory.escape(arrays.memory.traced(value), name, [value], number)
        return number
    if isinstance(value, dict):
        found = {_with_numbers(k, name, arrays): _with_numbers(v, name, arrays) for k, v in value.items()}
        return value if all(map(_is, found.items(), value.items())) else found
    if type(value) is list or type(value) is tuple:
        items = [_with_numbers(v, name, arrays) for v in value]
        return value if all(a is b for a, b in zip(items, value, strict=True)) else type(value)(items)
    return value


def _is(a: tuple[Any, Any], b: tuple[Any, Any]) -> bool:
    return a[0] is b[0] and a[1] is b[1]
