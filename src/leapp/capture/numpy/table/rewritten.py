"""NumPy functions as other NumPy code. It runs on traced arrays, and its calls and assignments are recorded one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from leapp.capture.numpy.table.registry import Unmapped


def _piecewise(x: Any, condlist: Any, funclist: Any, *more: Any, **options: Any) -> Any:
    """``np.piecewise`` with each function applied to all elements. NumPy applies it to those that a condition chooses."""
    values = [f(x, *more, **options) if callable(f) else f for f in funclist]
    default = values.pop() if len(values) > len(condlist) else 0
    return np.select(list(condlist), values, default)


def _copyto(dst: Any, src: Any, casting: str = "same_kind", where: Any = True) -> None:
    dst[...] = src if where is True else np.where(where, _of_type(dst.dtype, src), dst)


def _putmask(a: Any, mask: Any, values: Any) -> None:
    values = np.ravel(_of_type(a.dtype, values))
    a[...] = np.where(mask, values if values.size == 1 else np.resize(values, a.shape), a)


def _of_type(dtype: Any, values: Any) -> Any:
    found = np.asarray(values)
    return found if found.dtype == dtype else found.astype(dtype)


def _place(arr: Any, mask: Any, vals: Any) -> None:
    if np.size(vals) != 1:
        raise Unmapped
    _putmask(arr, mask, vals)


def _put(a: Any, ind: Any, v: Any, mode: str = "raise") -> None:
    if mode != "raise":
        raise Unmapped
    a.flat[np.ravel(ind)] = v


REWRITTEN: dict[Any, Callable[..., Any]] = {np.piecewise: _piecewise}
"""Functions whose own code reads values."""

_IN_PYTHON: tuple[Any, ...] = (np.put_along_axis, np.fill_diagonal)
IN_PLACE: dict[Any, Callable[..., Any]] = {
    np.copyto: _copyto, np.putmask: _putmask, np.place: _place, np.put: _put, **{f: f._implementation for f in _IN_PYTHON},
}  # fmt: skip
"""Functions that write to their first argument. Those that NumPy has in Python run as they are."""
