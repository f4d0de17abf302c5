"""Walks nested arguments: lists, tuples, named tuples, deques, dicts and slices."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterator
from typing import Any

import torch

ATOMS: frozenset[type] = frozenset(
    {int, float, bool, complex, str, bytes, type(None), type(...), torch.dtype, torch.device, torch.layout,
     torch.memory_format, torch.Size}
)  # fmt: skip
"""Types of plain arguments."""
ATOMS_BUT_SIZES = ATOMS - {torch.Size}
"""``ATOMS`` without ``torch.Size``, which may hold numbers that depend on the batch."""
_SEQUENCES = (list, tuple, deque)


def leaves(value: Any, kinds: Any, skip: Container[type] = ATOMS, slices: bool = True) -> Iterator[Any]:
    """Every object of some types in a nested value.

    Args:
        value: The value.
        kinds: The types, as ``isinstance`` takes them.
        skip: Types whose objects are passed over without a look inside.
        slices: Whether to look into slices.
    """
    if type(value) in skip:
        return
    if isinstance(value, kinds):
        yield value
    elif isinstance(value, _SEQUENCES):
        for item in value:
            if type(item) not in skip:  # asked here too, because a call takes ten times as long
                yield from leaves(item, kinds, skip, slices)
    elif isinstance(value, dict):
        for item in value.values():
            if type(item) not in skip:
                yield from leaves(item, kinds, skip, slices)
    elif slices and isinstance(value, slice):
        yield from leaves((value.start, value.stop, value.step), kinds, skip, slices)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in a nested value."""
    return leaves(value, torch.Tensor)


def mapped(value: Any, change: Callable[[Any], Any], skip: Container[type] = ATOMS, slices: bool = True) -> Any:
    """A copy of a nested value with ``change`` applied to everything that is not a container. A deque becomes a list.

    Args:
        value: The value.
        change: Gets a leaf and returns its replacement.
        skip: Types whose objects stay as they are.
        slices: Whether a slice is a container, or a leaf.
    """
    kind = type(value)
    if kind in skip:
        return value
    if kind is tuple or kind is list:
        return kind([item if type(item) in skip else mapped(item, change, skip, slices) for item in value])
    if kind is slice and slices:
        parts = (value.start, value.stop, value.step)
        plain = type(parts[0]) in skip and type(parts[1]) in skip and type(parts[2]) in skip
        return value if plain else slice(*mapped(parts, change, skip, slices))
    if isinstance(value, dict):
        return {k: v if type(v) in skip else mapped(v, change, skip, slices) for k, v in value.items()}
    if isinstance(value, _SEQUENCES):
        items = [mapped(item, change, skip, slices) for item in value]
        if hasattr(value, "_fields"):
            return kind(*items)
        return kind(items) if kind is torch.Size else tuple(items) if isinstance(value, tuple) else items
    return change(value)
