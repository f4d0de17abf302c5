"""Replacements that are made once for the process, and anew only when an original is another than it was.

Nothing here knows what the replacements do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import FunctionType, ModuleType
from typing import Any

from leapp.capture.replacing.layout import own_attributes
from leapp.capture.replacing.ledgers import ledger_of
from leapp.capture.replacing.owners import Asked, Names, Part, names_of
from leapp.capture.replacing.standins import PickledByName, Recoded, StandIn
from leapp.capture.replacing.surveys import Survey

__all__ = ["Replacements", "made_once"]

Build = Callable[[], Iterable[tuple[Any, str, Any]]]


class Replacements:
    """Functions, and what to put in their place.

    Args:
        found: Owner, name, replacement.
        chosen_from: The modules whose names were looked through to choose them.
        asked: These modules answer with the replacements themselves, because there are so many.
    """

    def __init__(
        self, found: Iterable[tuple[Any, str, Any]], chosen_from: Sequence[ModuleType] = (), asked: bool = False
    ) -> None:
        self.by_identity: dict[int, Any] = {}
        """The replacements of functions of modules, by the identity of what they replace and by their own."""
        owners: dict[int, tuple[Any, dict[str, Any], dict[str, Any]]] = {}
        recoded: list[tuple[Any, Any]] = []
        stand_ins: list[Any] = []
        for owner, name, made in found:
            _, new, old = owners.setdefault(id(owner), (owner, {}, {}))
            original = old[name] = vars(owner).get(name)
            if not isinstance(owner, ModuleType):
                new[name] = made
            elif type(original) is FunctionType:
                recoded.append((original, made))
            else:
                made = made if hasattr(made, "__place__") else StandIn(made, original, owner.__name__, name)
                stand_ins.append(made)
                new[name] = self.by_identity[id(original)] = self.by_identity[id(made)] = made
        # All of their names: one that was of no interest may be so when it means something else.
        modules = {id(module): ledger_of(vars(module)) for module in chosen_from}
        self._chosen_from = [(ledger, ledger.state()) for ledger in modules.values()]
        self._recoded = Recoded(recoded)
        self._originals = [names_of(owner, old) for i, (owner, _, old) in owners.items() if i not in modules]
        answering = [Asked(module, self.by_identity) for module in chosen_from if asked]
        names = [names_of(owner, new) for owner, new, _ in owners.values() if new and not asked]
        self._parts: list[Part] = [*answering, *names, self._recoded, PickledByName(stand_ins)]
        self._imports = Survey(self._imported)

    def imported(self, modules: Sequence[ModuleType], new: bool = False) -> list[Names]:
        """The names under which ``modules`` have imported the functions; ``new`` ones are looked at only this once."""
        return self._imports.within(modules) if new else self._imports.of(modules)

    def _imported(self, module: ModuleType) -> tuple[Names | None, tuple[()]]:
        standing, names = self.by_identity, own_attributes(module)
        if standing.keys().isdisjoint(map(id, names.values())):
            return None, ()
        new: dict[str, Any] = {}
        for name, value in list(names.items()):
            found = standing.get(id(value))
            if found is None or (found is not value and found.__wrapped__ is not value):
                continue
            if found is not value:
                new[name] = found
            if hasattr(found, "names"):
                found.names.add(name)
        return names_of(module, new), ()

    def stand(self) -> bool:
        """Whether the originals are where they were, and what they were."""
        return (
            all(ledger.state() == state for ledger, state in self._chosen_from)
            and all(names.stand() for names in self._originals)
            and self._recoded.stand()
        )

    def install(self) -> None:
        """Put them in place."""
        for part in self._parts:
            part.install()

    def put_back(self) -> None:
        """Put the originals back."""
        for part in reversed(self._parts):
            part.put_back()


def made_once(*chosen_from: ModuleType, asked: bool = False) -> Callable[[Build], Callable[[], Replacements]]:
    """A decorator: a function that gives replacements remembers what it gave the last time.

    Args:
        *chosen_from: The modules whose names it looks through.
        asked: As for :class:`Replacements`.
    """

    def decorate(build: Build) -> Callable[[], Replacements]:
        made: list[Replacements] = []

        def standing() -> Replacements:
            if not made or not made[0].stand():
                made[:] = [Replacements(build(), chosen_from, asked)]
            return made[0]

        return standing

    return decorate
