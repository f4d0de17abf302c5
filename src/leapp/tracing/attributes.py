"""Attributes of the user's objects that a pass leaves changed: a counter, a history, a tensor assigned anew.

What an object keeps from one call to the next is state. Torch sees how tensors change, not that ``self.h`` names another one
or that ``self.count`` is a larger number now, so the objects that run inside an open node are looked at before and after.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from leapp.capture.source import Where, where

__all__ = ["Attributes", "Changed"]

Tensor = torch.Tensor
_HELD = (Tensor, int, float)
_OWN = frozenset({"training", "dump_patches", "call_super_init"})


class Changed(NamedTuple):
    """A number that a pass changed, or a place that it filled."""

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
        if id(owner) not in self._seen and not _keeps_nothing(owner):
            self._seen[id(owner)] = (owner, _parts(owner), where())

    def changes(
        self, tracked: set[tuple[int, str]], traced: Callable[[Tensor], bool]
    ) -> tuple[list[Tensor], list[Changed]]:
        """The tensors that are not where they were, and the numbers that are not what they were.

        With the numbers come the places that held nothing and hold a value of the node now: its next call may begin with it.

        Args:
            tracked: Owners and names of tensors that need no watching.
            traced: Whether a tensor holds a value of the node.
        """
        tensors: list[Tensor] = []
        numbers: list[Changed] = []
        for owner, before, at in self._seen.values():
            now = _parts(owner)
            for name, value in before.items():
                found = now.get(name)
                if found is value:
                    continue
                if isinstance(value, Tensor):
                    if (id(owner), name) not in tracked:
                        tensors.append(value)
                elif isinstance(found, (int, float)) and found != value:
                    numbers.append(Changed(type(owner).__name__, name, value, found, at))
            for name, found in now.items():
                new = name not in before and (id(owner), name) not in tracked
                if new and isinstance(found, Tensor) and traced(found):
                    numbers.append(Changed(type(owner).__name__, name, None, "a tensor", at))
        return tensors, numbers

    def forget(self) -> None:
        """No node is open any more."""
        self._seen.clear()


def _keeps_nothing(owner: Any) -> bool:
    """Whether an object is one of torch's own layers, without buffers."""
    return type(owner).__module__.startswith("torch.nn.") and not owner._buffers


def _parts(owner: Any) -> dict[str, Any]:
    """The tensors and numbers an object holds, by name; those in containers by name and place."""
    held = getattr(owner, "__dict__", None)
    if not held:
        return {}
    parts: dict[str, Any] = {}
    is_module = isinstance(owner, torch.nn.Module)
    for source in (held, held.get("_buffers")):
        for name, value in list(source.items()) if source else ():
            if (is_module and name[:1] == "_") or name in _OWN:
                continue
            if isinstance(value, _HELD):
                parts[name] = value
            elif isinstance(value, (list, tuple, deque)):
                # Counted from the end: a history grows there, and what is read is the newest.
                parts.update((f"{name}[-{i + 1}]", v) for i, v in enumerate(reversed(value)) if isinstance(v, _HELD))
            elif isinstance(value, Mapping):
                parts.update((f"{name}[{k!r}]", v) for k, v in value.items() if isinstance(v, _HELD))
    return parts
