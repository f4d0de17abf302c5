"""Remembers what this process has read and checked, so that a bundle that is opened again is not checked byte by byte again.

Only equal content counts: a file is read each time, and its bytes are compared with those that were checked. No date and no
path is trusted.
"""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

V = TypeVar("V")


class Recent(Generic[V]):
    """The last values that were put in, up to a number of bytes altogether.

    Args:
        most: The number of bytes.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[str, tuple[V, int]] = {}
        self._size = 0
        self._lock = threading.Lock()

    def get(self, name: str) -> V | None:
        """The value with a name, if it is still there."""
        found = self._held.get(name)
        return None if found is None else found[0]

    def put(self, name: str, value: V, size: int) -> None:
        """Keep a value of ``size`` bytes and forget the oldest ones. A value that would fill a quarter is not kept."""
        if size > self._most // 4:
            return
        with self._lock:
            self._size += size - self._held.pop(name, (None, 0))[1]
            self._held[name] = value, size
            while self._size > self._most:
                self._size -= self._held.pop(next(iter(self._held)))[1]
