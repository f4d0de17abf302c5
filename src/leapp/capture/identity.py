"""Facts about tensors and arrays, found by identity. The objects are not kept alive."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class ByIdentity(Generic[T]):
    """A fact about each of some objects. An object that took the place of another one in memory has none of its facts."""

    def __init__(self) -> None:
        self.facts: dict[int, tuple[weakref.ref[Any], T]] = {}
        """By ``id()``; objects that are gone may still be there."""
        self.clear = self.facts.clear

    def __setitem__(self, item: Any, fact: T) -> None:
        self.facts[id(item)] = weakref.ref(item), fact

    def get(self, item: Any) -> T | None:
        """The fact about an object, or ``None``."""
        found = self.facts.get(id(item))
        return found[1] if found is not None and found[0]() is item else None

    def first(self, items: Iterable[Any]) -> T | None:
        """The fact about the first of some objects that has one."""
        return next((fact for item in items if (fact := self.get(item)) is not None), None) if self.facts else None

    def __contains__(self, item: Any) -> bool:
        return self.get(item) is not None

    def living(self) -> Iterator[tuple[Any, T]]:
        """The objects that are alive, with their facts."""
        return ((item, fact) for ref, fact in list(self.facts.values()) if (item := ref()) is not None)

    def forget_dead(self) -> None:
        """Drop the facts about objects that are gone."""
        for i in [i for i, (ref, _) in self.facts.items() if ref() is None]:
            del self.facts[i]
