"""Follows plain memory that is older than the open nodes, to find state that was not declared.

A node may read and change tensors that existed before it, such as a history or a counter in an attribute. While a node is open,
this module follows plain memory through calls on plain tensors: from which old memories each memory was computed, and whether
a write kept a part of the old content.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from leapp.capture.aliasing import storage_id, storage_of
from leapp.capture.call_kinds import Kind
from leapp.capture.identity import ByIdentity
from leapp.compat.core import storage_expired
from leapp.compat.modes import free_weak_storage

Tensor = torch.Tensor
_NONE: frozenset[int] = frozenset()
_FILLS = frozenset({"fill_", "zero_"})
_COPIES = frozenset({"copy_", "__setitem__"})


class OldMemory:
    """What the open nodes of a session do to plain memory. A memory is identified by the address of its storage."""

    def __init__(self) -> None:
        self._made_of: dict[int, frozenset[int]] = {}
        """For memory that an open node filled: the old memories that its content was computed from."""
        self._carried: set[int] = set()
        """Memories that a plain call changed and that kept a part of their old content."""
        self._received: set[int] = set()
        """Memories to which a traced value was written."""
        self._lent: dict[int, tuple[int, weakref.ref[Any]]] = {}
        """For memory of an array: the first storage over that array, and the array."""
        self._old: dict[int, int] = {}
        """torch's weak references to old memories that were read. They keep the addresses from being used again."""
        self._unsure: set[int] = set()
        """Old memories that the last plain call read for the first time: they may be temporary."""
        self._passing: set[int] = set()
        """Temporary memories: made by code that no mode sees, for one plain call, and freed after it."""
        self._made: ByIdentity[bool] = ByIdentity()
        """Arrays made in an open node."""

    def made(self, array: np.ndarray[Any, Any]) -> None:
        """Note that ``array`` was made in an open node."""
        self._made[array] = True

    def end(self) -> None:
        """Free the weak references. Call it when no node is open."""
        while self._old:
            free_weak_storage(self._old.popitem()[1])

    def over(self, array: np.ndarray[Any, Any], t: Tensor) -> None:
        """Note that ``t`` lies over the memory of ``array``, and is as old as the array."""
        while isinstance(array.base, np.ndarray):
            array = array.base
        cdata = int(t.untyped_storage()._cdata)
        self._lent.pop(cdata, None)
        if array in self._made:
            self._made_of[cdata] = _NONE
            return
        first = next((c for c, (_, ref) in self._lent.items() if ref() is array), cdata)
        self._lent[cdata] = (first, weakref.ref(array))
        if first == cdata:
            self._made_of.pop(cdata, None)

    def origins_and_lender(self, t: Tensor) -> tuple[frozenset[int], weakref.ref[Any] | None]:
        """The old memories that the content of ``t`` was computed from, and the array that shares its memory, if any."""
        if self._unsure:
            self._passing.update(m for m in self._unsure if storage_expired(self._old[m]))
            self._unsure.clear()
        storage = storage_of(t)
        cdata = 0 if storage is None else int(storage._cdata)
        memory, lender = self._lent.get(cdata, (cdata, None))
        made_of = self._made_of.get(memory)
        if made_of is not None:
            return made_of, lender
        if storage is not None and lender is None and memory not in self._old:
            self._old[memory] = storage._weak_ref()  # type: ignore[assignment]
        return frozenset({memory}), lender

    def origins(self, t: Tensor) -> frozenset[int]:
        """The old memories that the content of ``t`` was computed from."""
        return self.origins_and_lender(t)[0]

    def is_fresh(self, t: Tensor) -> bool:
        """Whether the content of ``t`` was made in the open nodes, without old memory."""
        return not self.origins(t)

    def carried(self, origins: frozenset[int]) -> bool:
        """Whether a plain call changed one of these memories and kept a part of its old content."""
        return not self._carried.isdisjoint(origins)

    def received(self, origins: frozenset[int]) -> bool:
        """Whether a traced value was written to one of these memories."""
        return not self._received.isdisjoint(origins)

    def gone(self, origins: frozenset[int]) -> bool:
        """Whether one of these memories was freed, because the program replaced it."""
        return any(m in self._old and m not in self._passing and storage_expired(self._old[m]) for m in origins)

    def written(self, t: Tensor) -> None:
        """Note that a traced value is written to plain memory."""
        if not self.is_fresh(t):
            self._received.add(self._memory(t))

    def read_in(self, results: Iterable[Tensor]) -> None:
        """Note tensors that were made of numbers or read from a file: their memory is new."""
        self._made_of.update((self._memory(t), _NONE) for t in results)

    def plain_call(self, kind: Kind, targets: list[Tensor], leaves: list[Tensor], results: list[Tensor]) -> None:
        """Note a call without traced values that has run and wrote to ``targets``."""
        if targets:
            self._plain_write(kind, targets[0], [t for t in leaves if t is not targets[0]])
            return
        if kind.name.startswith("lift"):  # torch calls it on every tensor that it makes of numbers
            self.read_in(results)
            return
        known = len(self._old)
        into = frozenset[int]().union(*map(self.origins, leaves)) if leaves else _NONE
        if len(self._old) > known:
            self._unsure.update(list(self._old)[known:])
        shared = {self._memory(t) for t in leaves}
        for o in results:
            cdata = self._memory(o)
            if cdata not in shared:
                self._made_of[cdata] = into

    def _plain_write(self, kind: Kind, target: Tensor, others: list[Tensor]) -> None:
        if kind.name.partition(".")[0] == "set_":
            return  # set_() gives the tensor other memory, and changes no content
        cdata = self._memory(target)
        into = frozenset[int]().union(*map(self.origins, others)) if others else _NONE
        storage = storage_of(target)
        size = -1 if storage is None else storage.nbytes()
        whole = target.numel() * target.element_size() == size and kind.name != "__setitem__"
        if whole and kind.name in _FILLS | _COPIES:
            self._made_of[cdata] = into
        elif kind.name in _FILLS | _COPIES and cdata not in into:
            self._made_of[cdata] = self.origins(target) | into
        elif not self.is_fresh(target):
            self._carried.add(cdata)

    def _memory(self, t: Tensor) -> int:
        """The storage of ``t``, or the first one over the same array."""
        cdata = storage_id(t) or 0
        found = self._lent.get(cdata)
        return cdata if found is None else found[0]
