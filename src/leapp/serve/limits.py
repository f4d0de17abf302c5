"""Limits how many requests a client may send."""

from __future__ import annotations

import time
from collections.abc import Callable


class Allowance:
    """A token bucket: it holds the requests of one second and fills up at a steady rate.

    Args:
        rate: Requests a second.
        clock: Gives the time in seconds.
    """

    __slots__ = ("_clock", "_last", "_left", "_rate", "_room")

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._clock = rate, clock
        self._room = max(rate, 1.0)
        self._left, self._last = self._room, clock()

    def wait(self) -> float:
        """Take one request. Returns 0 if it may run, else after how many seconds to try again."""
        now = self._clock()
        self._left = min(self._room, self._left + (now - self._last) * self._rate)
        self._last = now
        if self._left >= 1.0:
            self._left -= 1.0
            return 0.0
        return (1.0 - self._left) / self._rate


class Allowances:
    """One allowance for each of the latest clients. At most ``most`` clients are remembered.

    Args:
        rate: Requests a second of one client.
        most: How many clients are remembered.
    """

    def __init__(self, rate: float, most: int = 4096) -> None:
        self._rate, self._most = rate, most
        # In the order of their last requests.
        self._table: dict[str, Allowance] = {}

    def wait(self, client: str) -> float:
        """Take one request of a client. Returns 0 if it may run, else after how many seconds to try again."""
        found = self._table.pop(client) if client in self._table else Allowance(self._rate)
        self._table[client] = found
        if len(self._table) > self._most:
            del self._table[next(iter(self._table))]
        return found.wait()
