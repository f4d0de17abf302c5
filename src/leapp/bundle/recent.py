"""Remembers what this process has read and checked, and what follows from it, for a bundle that is opened again.

Only equal content counts: a file is read each time, and its bytes are compared with those that were checked. No date and no
path is trusted. What is remembered cannot be changed, or every caller gets a copy.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Generic, TypeVar

V = TypeVar("V")

_ENTRY = 512
"""About how many bytes a name and its place in a dict take beside the value."""


class Recent(Generic[V]):
    """The last values that were put in, up to a number of bytes altogether.

    Args:
        most: The number of bytes.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[Hashable, tuple[V, int]] = {}
        self._lock = threading.Lock()

    def get(self, name: Hashable) -> V | None:
        """The value with a name, if it is still there."""
        found = self._held.get(name)
        return None if found is None else found[0]

    def put(self, name: Hashable, value: V, size: int) -> None:
        """Keep a value of ``size`` bytes and forget the oldest ones. A value that would fill a quarter is not kept.

        Nothing is kept while another thread keeps a value. To wait for the lock could last for ever: after a fork, and in a
        signal handler.
        """
        if size > self._most // 4 or not self._lock.acquire(blocking=False):
            return
        try:
            self._held.pop(name, None)
            self._held[name] = value, size + _ENTRY
            excess = sum(taken for _, taken in self._held.values()) - self._most
            while excess > 0:
                excess -= self._held.pop(next(iter(self._held)))[1]
        finally:
            self._lock.release()
