"""Which changes of a dictionary are our own.

CPython numbers the changes of every dictionary. What was found in one is known to be there still, without looking, if only
changes of our own came after, and those are undone.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import weakref
from typing import Any

from leapp.capture.replacing.layout import WORD, supported

__all__ = ["Ledger", "ledger_of"]

_MA_VERSION = 3 * WORD


def _number(names: dict[str, Any]) -> ctypes.c_uint64:
    return ctypes.c_uint64.from_address(id(names) + _MA_VERSION)


@functools.cache
def _numbered() -> bool:
    """Whether this interpreter numbers the changes. Found by making some."""
    if not supported():
        return False
    names, seen = dict.fromkeys("ab", 0), set()
    for value in range(1, 4):
        seen.add(_number(names).value)
        names["a"] = value
    return len(seen) == 3


class _Unknown:
    """Stands for the number of an interpreter that has none: another one each time."""

    _all = itertools.count()

    @property
    def value(self) -> int:
        """The number now."""
        return next(_Unknown._all)


class Ledger:
    """The changes of one dictionary. There is one for each, as long as anybody has it."""

    __slots__ = ("__weakref__", "_changes", "_expected", "_foreign", "names", "number")

    _others = itertools.count()

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names
        self.number = _number(names) if _numbered() else _Unknown()
        """Its ``value`` is the number of the last change."""
        self._expected: int | None = None
        self._foreign = 0
        self._changes: list[Any] = []

    def state(self) -> tuple[Any, ...]:
        """Equal to an earlier one if the dictionary holds what it held then."""
        now = self.number.value
        if now != self._expected:
            self._foreign = next(Ledger._others)  # first, should this be interrupted
            self._expected = now
        return (self._foreign, *self._changes)

    def made(self, change: Any) -> tuple[Any, ...]:
        """A change of our own was made since the state was asked for; the state now."""
        self._changes.append(change)
        self._expected = self.number.value
        return self.state()

    def undone(self, change: Any) -> None:
        """A change of our own was undone since the state was asked for."""
        if change in self._changes:
            self._changes.remove(change)
        self._expected = self.number.value


def ledger_of(names: dict[str, Any]) -> Ledger:
    """The ledger of a dictionary."""
    found = _ledgers.get(id(names))
    if found is None:
        found = _ledgers[id(names)] = Ledger(names)
    return found


_ledgers: weakref.WeakValueDictionary[int, Ledger] = weakref.WeakValueDictionary()
