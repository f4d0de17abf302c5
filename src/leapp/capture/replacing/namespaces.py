"""What a module holds, remembered from one session to the next: looking through all of them anew takes longer than the rest."""

from __future__ import annotations

import os
from operator import is_
from types import ModuleType

from leapp.capture.replacing.ledgers import ledger_of

__all__ = ["Namespace"]

_INSTALLED = tuple(f"{os.sep}{place}{os.sep}" for place in ("site-packages", "dist-packages"))


class Namespace:
    """The names of a module, as they were when it was looked at.

    What installed packages hold is held here too. What the user's own modules hold is not, since it may be large: it is known
    by address and type.
    """

    def __init__(self, module: ModuleType) -> None:
        self._names = names = vars(module)
        self._ledger = ledger_of(names)
        self._state = self._ledger.state()
        self._keys = list(names)
        values = list(names.values())
        file = names.get("__file__") or ""
        self._held = values if isinstance(file, str) and any(place in file for place in _INSTALLED) else None
        self._addresses = list(map(id, values))
        self._types = list(map(type, values))

    def stand(self) -> bool:
        """Whether the module holds the same under the same names."""
        now = self._ledger.state()
        if now != self._state:
            if not self._holds():
                return False
            self._state = now
        return True

    def _holds(self) -> bool:
        values = self._names.values()
        if len(values) != len(self._keys) or list(self._names) != self._keys:
            return False
        if self._held is not None:
            return all(map(is_, values, self._held))
        return list(map(id, values)) == self._addresses and all(map(is_, map(type, values), self._types))
