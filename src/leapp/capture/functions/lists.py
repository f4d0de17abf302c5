"""Replacements for NumPy functions that get traced values inside lists.

NumPy calls ``__array_function__`` of an array argument, but not of arrays and numbers inside a list: it reads their values.
While a node is open, the functions below first make an array of such a list, which is recorded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from leapp.capture.numpy.arrays import Arrays
from leapp.capture.numpy.patches import gathered, replaces
from leapp.capture.numpy.plain import arrays_in
from leapp.capture.numpy.table import Unmapped
from leapp.capture.numpy.table.tensors import promoted
from leapp.capture.numpy.traced import listening
from leapp.compat.python import getframe

_FUNCTIONS = (
    "sum prod mean std var median min max amin amax any all ptp argmin argmax cumsum diff sort argsort round around clip cross "
    "dot outer inner append where reshape ravel atleast_1d atleast_2d atleast_3d diag average interp polyval flip roll isclose "
    "allclose einsum convolve trapezoid linspace tile repeat"
)
_LINALG = "norm solve inv pinv det"
_MANY = 1 << 20
"""Longer sequences are not searched for traced values: a copy may not fit into memory."""
_OF_SEQUENCES = "concatenate stack vstack hstack dstack column_stack"


def list_rows() -> Iterator[tuple[Any, str, Callable[[Any], Any]]]:
    """Rows of owner, name, and a function from the original to its replacement."""
    for owner, names, make in ((np, _FUNCTIONS, _of_lists), (np.linalg, _LINALG, _of_lists), (np, _OF_SEQUENCES, _of_items)):
        for name in names.split():
            if hasattr(owner, name):
                yield owner, name, make
    yield np, "take", _of_indices
    yield np.vectorize, "__call__", _elementwise
    yield type(np.r_).__mro__[1], "__getitem__", _joined


@replaces
def _of_lists(arrays: Arrays, original: Any, *args: Any, **kwargs: Any) -> Any:
    return original(*[gathered(arrays, a) for a in args], **{name: gathered(arrays, value) for name, value in kwargs.items()})


@replaces
def _of_items(arrays: Arrays, original: Any, *args: Any, **kwargs: Any) -> Any:
    if args and type(args[0]) in (list, tuple) and len(args[0]) < _MANY:
        args = (type(args[0])([gathered(arrays, a) for a in args[0]]), *args[1:])
    return original(*args, **kwargs)


@replaces
def _of_indices(arrays: Arrays, original: Any, a: Any, indices: Any, *args: Any, **kwargs: Any) -> Any:
    """``np.take``. NumPy calls ``__array_function__`` of the table only, not of the indices."""
    if not arrays.memory.concerned(arrays_in(indices)):
        return original(a, indices, *args, **kwargs)
    return arrays.function(original, (a, indices, *args), kwargs)


@replaces
def _elementwise(arrays: Arrays, original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """A call of ``np.vectorize``, which hands plain numbers to the function, unless it has a signature."""
    operands, made = arrays_in((args, kwargs)), original(self, *args, **kwargs)
    if self.signature is None and arrays.memory.concerned(operands):
        arrays.memory.escape(arrays.memory.traced_by(operands), "np.vectorize", operands, made)
    return made


def _joined(original: Any) -> Any:
    """``np.r_[...]`` and ``np.c_[...]``."""

    @functools.wraps(original)
    def getitem(self: Any, key: Any) -> Any:
        if isinstance(key, str):  # the text names variables of the caller; NumPy would look for them in this function
            caller = getframe(1)
            return np.bmat(key, caller.f_locals, caller.f_globals)

        def torch_form(self: Any, key: Any) -> Any:
            items = key if isinstance(key, tuple) else (key,)
            if self.axis not in (0, -1) or any(isinstance(item, str) for item in items):
                raise Unmapped
            parts = promoted(*(original(self, item) if isinstance(item, slice) else item for item in items))
            # At least ``ndmin`` axes. New axes are added at the end.
            return torch.cat([p.reshape(*p.shape, *[1] * (self.ndmin - p.dim())) for p in parts], self.axis)

        arrays = listening()
        if arrays is None:
            return original(self, key)
        return arrays.both("np.r_" if self.axis == 0 else "np.c_", original, torch_form, (self, key), {})

    return getitem
