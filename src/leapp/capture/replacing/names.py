"""Names that are replaced for a while, many at a time: in modules and in classes, built-in ones too.

What takes their place is made once for the process, and anew only when an original is another than it was. Nothing here knows
what the replacements do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import is_
from types import FunctionType, ModuleType
from typing import Any

from leapp.capture.replacing.classes import set_attributes
from leapp.capture.replacing.namespaces import Namespace
from leapp.capture.replacing.standins import Recoded, StandIn, pickle_by_name

__all__ = ["Replacements", "Undo", "made_once", "set_names"]

Undo = Callable[[], None]
Build = Callable[[], Iterable[tuple[Any, str, Any]]]


class Replacements:
    """Functions, and what to put in their place.

    Args:
        found: Owner, name, replacement.
        chosen_from: The modules whose names were looked through to choose them.
    """

    def __init__(self, found: Iterable[tuple[Any, str, Any]], chosen_from: Iterable[ModuleType] = ()) -> None:
        self._owners: dict[int, tuple[Any, dict[str, Any], dict[str, Any]]] = {}
        self.by_identity: dict[int, Any] = {}
        """The replacements of functions of modules, by the identity of what they replace and by their own."""
        self._recoded: list[Recoded] = []
        self._stand_ins: list[Any] = []
        for owner, name, made in found:
            _, new, old = self._owners.setdefault(id(owner), (owner, {}, {}))
            original = old[name] = vars(owner).get(name)
            if not isinstance(owner, ModuleType):
                new[name] = made
            elif type(original) is FunctionType:
                self._recoded.append(Recoded(original, made))
            else:
                made = made if hasattr(made, "__place__") else StandIn(made, original, owner.__name__, name)
                self._stand_ins.append(made)
                new[name] = self.by_identity[id(original)] = self.by_identity[id(made)] = made
        # All of their names: one that was of no interest may be so when it means something else.
        self._modules = [Namespace(module) for module in chosen_from]

    def stand(self) -> bool:
        """Whether the originals are where they were, and what they were."""
        there = (all(map(is_, map(vars(owner).get, old), old.values())) for owner, _, old in self._owners.values())
        modules = (module.stand() for module in self._modules)
        return all(there) and all(modules) and all(recoded.stands() for recoded in self._recoded)

    def install(self) -> list[Undo]:
        """Put them in place, and give what puts the originals back."""
        undo = [set_names(owner, new) for owner, new, _ in self._owners.values()]
        undo += [recoded.install() for recoded in self._recoded]
        return [*undo, pickle_by_name(self._stand_ins)]


def made_once(*chosen_from: ModuleType) -> Callable[[Build], Callable[[], Replacements]]:
    """A decorator: a function that gives replacements remembers what it gave the last time.

    Args:
        *chosen_from: The modules whose names it looks through.
    """

    def decorate(build: Build) -> Callable[[], Replacements]:
        made: list[Replacements] = []

        def standing() -> Replacements:
            if not made or not made[0].stand():
                made[:] = [Replacements(build(), chosen_from)]
            return made[0]

        return standing

    return decorate


def set_names(owner: Any, new: Mapping[str, Any]) -> Undo:
    """Set names of a module or a class, and give what puts the old ones back, but for those that were set since."""
    if isinstance(owner, type):
        return set_attributes(owner, new)
    names = vars(owner)
    before = {name: names[name] for name in new if name in names}
    names.update(new)

    def undo() -> None:
        mine = [n for n, made in new.items() if names.get(n) is made]
        names.update((n, before[n]) for n in mine if n in before)
        for name in mine:
            if name not in before:
                del names[name]

    return undo
