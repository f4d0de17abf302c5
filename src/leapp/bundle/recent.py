"""Remembers what this process has read and checked, and what follows from it, for a bundle that is opened again.

Only equal content counts: a file is read each time, and its bytes are compared with those that were checked. No date and no
path is trusted. What is remembered is never handed to a caller who could change it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

V = TypeVar("V")

_ENTRY = 512
"""About how many bytes a name and its place in a dict take beside the value."""


class Recent(Generic[V]):
    """The last values that were put in, up to a number of bytes altogether.

    It has no lock: a thread that is interrupted, or a process that is forked, would leave it locked for ever. Two threads that
    put at the same moment may lose a value, which is then computed again.

    Args:
        most: The number of bytes.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[Hashable, tuple[V, int]] = {}
        self._taken = 0

    def get(self, name: Hashable) -> V | None:
        """The value with a name, if it is still there."""
        found = self._held.get(name)
        return None if found is None else found[0]

    def put(self, name: Hashable, value: V, size: int) -> None:
        """Keep a value of ``size`` bytes. If that is too much, forget the oldest ones. Values over a quarter are not kept."""
        if size > self._most // 4:
            return
        self._held.pop(name, None)
        self._held[name] = value, size + _ENTRY
        self._taken += size + _ENTRY
        if self._taken > self._most:
            self._forget()

    def _forget(self) -> None:
        """Keep the newest values, up to three quarters of the bytes. To do it at each new value would take long."""
        kept: list[tuple[Hashable, tuple[V, int]]] = []
        taken = 0
        for name, entry in reversed(list(self._held.items())):
            taken += entry[1]
            if taken > 3 * self._most // 4:
                taken -= entry[1]
                break
            kept.append((name, entry))
        self._held, self._taken = dict(reversed(kept)), taken
