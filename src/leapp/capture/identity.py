"""A dict from tensors and arrays to facts about them, by identity. It does not keep the objects alive."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class ByIdentity(Generic[T]):
    """A dict with objects as keys, compared by identity. A new object with the ``id()`` of a freed one has no entry."""

    def __init__(self) -> None:
        self.facts: dict[int, tuple[weakref.ref[Any], T]] = {}
        """Weak reference and fact by ``id()``. Entries of freed objects may still be there."""
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
        """Drop the entries of freed objects."""
        for i in [i for i, (ref, _) in self.facts.items() if ref() is None]:
            del self.facts[i]
