"""Reads the state of opaque objects: iterators, suspended generators, random generators, queues, files that are read.

Such objects are of types of Python and NumPy. Their state lies in C, or in attributes that the user's code does not name. What
is read here serves only to see whether it changed.
"""

from __future__ import annotations

import gc
import io
import itertools
import operator
import queue
import sys
from collections.abc import Callable
from contextvars import ContextVar
from inspect import isroutine
from typing import Any

import numpy as np

from leapp.tracing.value_roles import CONTAINERS, NUMBERS, SuspendedAt, is_iterator, module_name, suspended_frame

WHOLE = object()
"""The key of what is known about a container or an iterator as a whole: its length, or its position."""
_ENDED = -1
"""The position of a generator that has ended."""
_new_numbers = itertools.count()
_LARGEST_VIEW = 1 << 16
"""The contents of a ``memoryview`` with more bytes are not read."""

_READERS: dict[int, Callable[[Any], Any]] = {
    id(ContextVar): lambda variable: variable.get(None),
    id(bytearray): bytes,
    id(memoryview): lambda view: view.tobytes() if view.nbytes < _LARGEST_VIEW else None,
    id(np.flatiter): operator.attrgetter("index"),
    id(np.nditer): operator.attrgetter("iterindex"),
    id(np.ndenumerate): operator.attrgetter("iter.index"),
    **{id(kind): operator.attrgetter("queue") for kind in (queue.Queue, queue.LifoQueue, queue.PriorityQueue)},
}
"""For types that pickle cannot describe, or describes slowly: the function that reads their state, by identity of the type."""


def state_of(thing: Any) -> dict[Any, Any]:
    """The values that together are the state of an opaque object."""
    kind = type(thing)
    if kind is SuspendedAt:
        return _state_of_generator(thing.generator)
    if is_iterator(kind):
        return _state_of_iterator(thing)
    if thing is sys.stdout or thing is sys.stderr:
        return {}  # what is printed, also by leapp, goes into it
    if id(kind) in _READERS:
        return {WHOLE: _read(thing)}
    try:
        pickled = thing.__reduce_ex__(2)  # the method that pickle calls first
    except Exception:  # a type that cannot be pickled may raise anything here
        if issubclass(kind, io.IOBase):
            return {WHOLE: _read(thing)}
        return dict(getattr(thing, "__dict__", None) or enumerate(filter(_is_data, gc.get_referents(thing))))
    found: dict[Any, Any] = {}
    for number, part in enumerate(pickled[1:3] if isinstance(pickled, tuple) else ()):
        values = part if type(part) is dict else {number: part}
        found.update((name, value) for name, value in values.items() if _is_data(value))
    return found


def _state_of_generator(generator: Any) -> dict[Any, Any]:
    frame = suspended_frame(generator)
    if frame is None:
        return {WHOLE: _ENDED}
    # The iterators of its running loops are on its stack. Python 3.10 keeps that in the frame, later versions in the generator.
    referents = (*gc.get_referents(generator), *gc.get_referents(frame))
    iterators = [value for value in referents if is_iterator(type(value))]
    return {WHOLE: frame.f_lasti, **dict(enumerate(iterators))}


def _state_of_iterator(iterator: Any) -> dict[Any, Any]:
    kind = type(iterator)
    below = gc.get_referents(iterator)
    if kind is itertools.cycle and not any(is_iterator(type(value)) for value in below):
        # A cycle in its second round does not tell its position, so each look at it counts as a change.
        return {WHOLE: next(_new_numbers)}
    return {WHOLE: repr(iterator) if kind is itertools.count else _remaining(iterator), **dict(enumerate(below))}


def _read(thing: Any) -> Any:
    """The state of an object that has a reader, or the position in a file. ``tell()`` would flush a file open for writing."""
    read = _READERS.get(id(type(thing)))
    try:
        if read is not None:
            return read(thing)
        return thing.tell() if thing.readable() and not thing.writable() and thing.seekable() else None
    except Exception:  # a closed file and an iterator at its end raise errors of several types
        return None


def _remaining(iterator: Any) -> int:
    """How many items an iterator has left, -1 if it does not know."""
    try:
        return operator.length_hint(iterator, -1)
    except Exception:  # __len__ of the user's sequence below it may raise anything
        return -1


def _is_data(value: Any) -> bool:
    """Whether a value is data. The locks and threads of a pool are not: they change by themselves."""
    kinds = (type, np.ndarray, *NUMBERS, *CONTAINERS)
    if type(value) is set or type(value) is tuple:
        return all(map(_is_data, value))
    known = value is None or issubclass(type(value), kinds) or isroutine(value)
    return known or module_name(type(value)).startswith("numpy.")
