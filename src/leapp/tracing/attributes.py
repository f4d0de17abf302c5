"""Attributes of the user's objects that a pass leaves changed: a counter, a history, a tensor assigned anew.

What an object keeps from one call to the next is state. Torch sees how tensors change, not that ``self.h`` names another one
or that ``self.count`` is a larger number now, so the objects that run inside an open node are looked at before and after.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from leapp.capture.source import Where, where

__all__ = ["Attributes", "ChangedNumber"]

Tensor = torch.Tensor
_HELD = (Tensor, int, float)
_OWN = frozenset({"training", "dump_patches", "call_super_init"})


class ChangedNumber(NamedTuple):
    """A number that a pass changed."""

    owner: str
    name: str
    before: Any
    after: Any
    where: Where


class Attributes:
    """What the objects seen since a node was opened held at first."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[Any, dict[str, Any], Where]] = {}

    def look(self, owner: Any) -> None:
        """Remember what an object holds, unless it was seen before."""
        if id(owner) not in self._seen:
            self._seen[id(owner)] = (owner, dict(_parts(owner)), where())

    def replaced(self, tracked: set[tuple[int, str]]) -> list[Tensor]:
        """The tensors that are not where they were; ``tracked`` are owners and names that need no watching."""
        found: list[Tensor] = []
        for owner, before, _ in self._seen.values():
            now = dict(_parts(owner))
            for name, value in before.items():
                if isinstance(value, Tensor) and now.get(name) is not value and (id(owner), name) not in tracked:
                    found.append(value)
        return found

    def numbers(self) -> list[ChangedNumber]:
        """The numbers that are not what they were."""
        found = []
        for owner, before, at in self._seen.values():
            now = dict(_parts(owner))
            for name, value in before.items():
                if isinstance(value, (int, float)) and isinstance(now.get(name), (int, float)) and now[name] != value:
                    found.append(ChangedNumber(type(owner).__name__, name, value, now[name], at))
        return found

    def forget(self) -> None:
        """No node is open any more."""
        self._seen.clear()


def _parts(owner: Any) -> Iterator[tuple[str, Any]]:
    """The tensors and numbers an object holds, by name; those in containers by name and place."""
    held = getattr(owner, "__dict__", {})
    is_module = isinstance(owner, torch.nn.Module)
    for source in (held, held.get("_buffers") or {}):
        for name, value in list(source.items()):
            if (is_module and name[:1] == "_") or name in _OWN:
                continue
            if isinstance(value, _HELD):
                yield name, value
            elif isinstance(value, (list, tuple, deque)):
                # Counted from the end: a history grows there, and what is read is the newest.
                yield from ((f"{name}[-{i + 1}]", v) for i, v in enumerate(reversed(value)) if isinstance(v, _HELD))
            elif isinstance(value, Mapping):
                yield from ((f"{name}[{k!r}]", v) for k, v in value.items() if isinstance(v, _HELD))
