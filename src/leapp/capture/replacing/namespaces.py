"""What a module holds, remembered from one session to the next: looking through all of it anew takes long."""

from __future__ import annotations

from types import ModuleType

from leapp.capture.replacing.ledgers import ledger_of

__all__ = ["Namespace"]


class Namespace:
    """The names of a module, as they were when it was looked at."""

    def __init__(self, module: ModuleType) -> None:
        self._ledger = ledger_of(vars(module))
        self._state = self._ledger.state()

    def stand(self) -> bool:
        """Whether the module holds the same under the same names."""
        return self._ledger.state() == self._state
