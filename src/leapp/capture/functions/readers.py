"""Replacements for functions outside of NumPy that accept real numbers only.

A traced number passes ``isinstance`` for NumPy's number, but C code that checks the exact type refuses it. While a node is
open, the functions below get NumPy's own number of the same value, and the value is reported as an escape.

Types written in C (``decimal.Decimal``, ``datetime.timedelta``, ``np.random.SeedSequence``) refuse a traced number too. Their
error message contains the name of the traced type, which says to convert the number with ``float()`` or ``int()`` first. These
types cannot be replaced: programs import them by name (``from datetime import timedelta``) and compare with ``type(x) is
timedelta``. Nor can a traced number be a real ``float``: C code would then read it unseen, such as ``struct``, ``json``, a
plain array, and torch before it calls the modes.
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
    (json.JSONEncoder, "iterencode", "json"),  # json.dumps and json.dump call it
]
"""Owner, name, and the name that reports show."""


def reader_rows() -> Iterator[tuple[Any, str, Callable[[Any], Any]]]:
    """Rows of owner, name, and a function from the original to its replacement."""
    for owner, name, called in _READERS:
        yield owner, name, replaces(functools.partial(_read, called))


def _read(name: str, arrays: Arrays, original: Any, *args: Any, **kwargs: Any) -> Any:
    return original(*_with_numbers(args, name, arrays), **_with_numbers(kwargs, name, arrays))


def _with_numbers(value: Any, name: str, arrays: Arrays) -> Any:
    """A nested argument with NumPy's own numbers in place of traced ones; the same object if it holds none."""
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
