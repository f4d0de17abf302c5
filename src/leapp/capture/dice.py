"""Where the global random generators of Python and NumPy stand.

Asking them takes long, since their state is 2.5 kB made into objects. It is copied out of memory where that is known to be all
there is. Nothing here knows tapes.
"""

from __future__ import annotations

import ctypes
import functools
import random
from typing import Any

import numpy as np

from leapp.capture.replacing.layout import WORD, supported

__all__ = ["generators"]

_HEADER = 2 * WORD
_WORDS = 624  # of a Mersenne twister, each of four bytes, and its position


def generators() -> tuple[Any, ...]:
    """Equal to an earlier answer if no number was drawn since."""
    return (*_of_python(), *_of_numpy())


_SIZE = 4 * (_WORDS + 1)


def _asked(function: Any) -> Any:
    """The generator that a function of a module asks. What else the module calls its generator may be another one."""
    return getattr(function, "__self__", None)


def _of_python() -> tuple[Any, ...]:
    one = _asked(random.getstate)
    plain = type(one) is random.Random
    if not plain or not _known():
        return (random.getstate(),)
    return ctypes.string_at(id(one) + _HEADER, _SIZE), one.gauss_next


@functools.cache
def _known() -> bool:
    """Whether an instance of Python's generator is a header, the position and the words. Found by looking at one."""
    made = random.Random(5)
    _, words, _ = made.getstate()
    if not supported() or random.Random.__base__.__basicsize__ < _HEADER + _SIZE:  # type: ignore[union-attr]
        return False
    found = (ctypes.c_uint32 * (_WORDS + 1)).from_address(id(made) + _HEADER)
    return bool((*found[1:], found[0]) == words)


def _of_numpy() -> tuple[Any, ...]:
    one = _asked(np.random.get_state)
    bits = one._bit_generator if type(one) is np.random.RandomState else None
    if not supported() or type(bits) is not np.random.MT19937:
        return (repr(np.random.get_state(legacy=False)),)
    # What lies in the object itself is what a distribution has left over for the next call.
    rest = ctypes.string_at(id(one) + _HEADER, type(one).__basicsize__ - _HEADER)
    return ctypes.string_at(bits.ctypes.state_address, _SIZE), rest
