"""Looking through many modules for something, and later only through those that somebody has changed meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Generic, TypeVar

from leapp.capture.replacing.layout import is_open, own_attributes
from leapp.capture.replacing.ledgers import Ledger, ledger_of

__all__ = ["Survey"]

T = TypeVar("T")
Look = Callable[[ModuleType], tuple[T | None, Iterable[type]]]


@dataclass(slots=True, eq=False)
class _Found(Generic[T]):
    """What was found in a module, and the changes of what was looked at."""

    module: ModuleType
    what: T | None
    ledgers: list[Ledger]
    states: list[tuple[Any, ...]]

    def stands(self) -> bool:
        return [ledger.state() for ledger in self.ledgers] == self.states


class Survey(Generic[T]):
    """What ``look`` finds in modules.

    Args:
        look: Gives what it finds in a module, if anything, and the classes that it looked at besides.
    """

    def __init__(self, look: Look[T]) -> None:
        self._look = look
        self._modules: list[ModuleType] = []
        self._entries: list[_Found[T]] = []
        self._found: list[T] = []
        # For each dictionary that was looked at: the number of its last change, and whose it is.
        self._numbers: list[Any] = []
        self._seen: list[int | None] = []
        self._ledgers: list[Ledger] = []
        self._places: dict[Ledger, int] = {}
        self._states: list[tuple[Any, ...]] = []
        self._owners: list[list[int]] = []

    def of(self, modules: Sequence[ModuleType]) -> list[T]:
        """What is found in these modules, which are mostly the same ones as the last time."""
        last, self._modules = self._modules, []  # should this be interrupted: then each one is asked the next time
        if modules != last:
            known = {id(entry.module): entry for entry in self._entries}
            self._entries = [self._looked_at(m, known.get(id(m))) for m in modules]
            self._count()
        elif again := self._changed():
            before = [self._entries[i].ledgers for i in again]
            for i in again:
                self._entries[i] = self._looked_at(modules[i], None)
            if [self._entries[i].ledgers for i in again] != before:
                self._count()
            else:
                self._take_states(again)
        self._modules = list(modules)
        return self._found

    def within(self, modules: Iterable[ModuleType]) -> list[T]:
        """What is found in other modules, this once."""
        return [what for module in modules if (what := self._look(module)[0]) is not None]

    def _looked_at(self, module: ModuleType, known: _Found[T] | None) -> _Found[T]:
        if known is not None and known.stands():
            return known
        what, classes = self._look(module)
        # A class that lets nobody change it has been changed by nobody.
        ledgers = [ledger_of(own_attributes(owner)) for owner in (module, *filter(is_open, classes))]
        return _Found(module, what, ledgers, [ledger.state() for ledger in ledgers])

    def _count(self) -> None:
        places: dict[Ledger, list[int]] = {}
        for i, entry in enumerate(self._entries):
            for ledger in entry.ledgers:
                places.setdefault(ledger, []).append(i)
        self._ledgers, self._owners = list(places), list(places.values())
        self._places = {ledger: i for i, ledger in enumerate(self._ledgers)}
        self._numbers = [ledger.number for ledger in self._ledgers]
        self._states = [ledger.state() for ledger in self._ledgers]
        self._seen = [number.value for number in self._numbers]
        self._found = [entry.what for entry in self._entries if entry.what is not None]

    def _take_states(self, again: list[int]) -> None:
        for ledger in {ledger for i in again for ledger in self._entries[i].ledgers}:
            self._states[self._places[ledger]] = ledger.state()
        self._found = [entry.what for entry in self._entries if entry.what is not None]

    def _changed(self) -> list[int]:
        """The places of modules that somebody else has changed."""
        now = [number.value for number in self._numbers]
        if now == self._seen:
            return []
        differing = [i for i, (a, b) in enumerate(zip(now, self._seen, strict=True)) if a != b]
        self._seen = now
        foreign = [i for i in differing if self._ledgers[i].state() != self._states[i]]
        return sorted({place for i in foreign for place in self._owners[i]})
