"""Views whose place in memory a traced number decides: ``row = x[i]``.

The tape holds such a row as a copy, because no exporter has a view at a place that is known only when the model runs. So that
a write through the row reaches what it was taken from, and the other way round, the two are brought together after each write
to their memory. Knows tapes and slots, nothing of modes.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from leapp.capture import selecting
from leapp.capture.aliasing import Geometry, geometry
from leapp.capture.tape import Call, Memory, Ref, Tape, refer
from leapp.capture.user_line import where

__all__ = ["Picks"]

Tensor = torch.Tensor


class _Pick:
    """A row: what it was taken from, by which index, and the tensors over it that the program has."""

    __slots__ = ("base", "geometry", "given", "held", "index", "reads", "row", "versions")

    def __init__(self, base: Ref, geometry: Geometry, row: Ref) -> None:
        self.base, self.geometry, self.row = base, geometry, row
        self.held: list[weakref.ref[Tensor]] = [row.tensor]
        self.given: Any = None
        """The index as the program wrote it."""
        self.index: Any = None
        """The same with the values it had: the program may count on in the same tensor."""
        self.reads: tuple[int, ...] = ()
        self.versions: list[int] | None = None

    def tensor(self) -> Tensor | None:
        """A tensor that lies over the row."""
        return next((t for ref in self.held if (t := ref()) is not None), None)


class Picks:
    """The rows of one tape."""

    def __init__(self, tape: Tape) -> None:
        self._owner = weakref.ref(tape)
        self.rows: dict[int, _Pick] = {}

    @property
    def _tape(self) -> Tape:
        tape = self._owner()  # which has these rows: a cycle would keep the weights of the model alive
        assert tape is not None
        return tape

    def __bool__(self) -> bool:
        if self.rows:
            self.rows = {slot: pick for slot, pick in self.rows.items() if pick.tensor() is not None}
        return bool(self.rows)

    def note(self, base: Tensor, index: Any, out: Any, refs: dict[int, Ref]) -> None:
        """``out`` is ``base[index]``. If it lies in the memory of ``base``, the two have to be kept together."""
        parts = index if isinstance(index, tuple) else (index,)
        if not any(selecting.is_number(p) for p in parts) or not _shared(base, out):
            return
        pick = _Pick(refs[id(base)], geometry(base), self._tape.known[id(out)])
        pick.given, pick.versions = refer(index, refs), _versions(index)
        kept = {id(p): self._tape.remember(refs[id(p)]) for p in parts if isinstance(p, Tensor)}
        pick.index, pick.reads = refer(index, {**refs, **kept}), tuple(ref.slot for ref in kept.values())
        self.rows[pick.row.slot] = pick

    def follow(self, refs: dict[int, Ref], results: Sequence[Tensor]) -> None:
        """A call made ``results``; those that lie over a row it was given are views of that."""
        for t in results:
            ref = self._tape.known.get(id(t))
            if ref is None or ref.slot in self.rows:
                continue
            for other in refs.values():
                pick, source = self.rows.get(other.slot), other.tensor()
                if pick is not None and source is not None and _shared(source, t):
                    self.rows[ref.slot] = pick
                    self._tape.memory_of[ref.slot] = self._tape.memory_of[pick.row.slot]  # the memory of the copy
                    pick.held.append(ref.tensor)
                    break

    def concern(self, t: Tensor) -> bool:
        """Whether ``t`` is a row, or a view of one."""
        ref = self._tape.known.get(id(t))
        return ref is not None and ref.tensor() is t and ref.slot in self.rows

    def lie_in(self, t: Tensor) -> bool:
        """Whether a row was taken from the memory of ``t``."""
        return any((row := pick.tensor()) is not None and _shared(row, t) for pick in self.rows.values())

    def settled(self, args: tuple[Any, ...], refs: dict[int, Ref]) -> bool:
        """Whether ``base[index] = value`` gives a row to its own place, as ``x[i] += 1`` ends: its writes have reached it."""
        base, index, value = args
        ref = refs.get(id(value))
        pick = None if ref is None else self.rows.get(ref.slot)
        if pick is None or pick.row is not ref or pick.base is not refs.get(id(base)):
            return False
        return bool(refer(index, refs) == pick.given) and _versions(index) == pick.versions is not None

    def written(self, targets: Sequence[Ref]) -> None:
        """The last call on the tape wrote to ``targets``."""
        rows = {self.rows[t.slot]: None for t in targets if t.slot in self.rows}
        memories = {self._tape.memory_of[t.slot] for t in targets}
        for pick in rows:
            memory = self._tape.memory_of[self._base(pick).slot]
            self._call(selecting.setitem, pick, memory)
            memories.add(memory)
        for pick in dict.fromkeys(self.rows.values()):
            if (pick not in rows or len(rows) > 1) and self._tape.memory_of[self._base(pick).slot] in memories:
                self._call(_read_again, pick, self._tape.memory_of[pick.row.slot])

    def _base(self, pick: _Pick) -> Ref:
        """What a row was taken from. If that was a constant, values of the node may have got into its memory since."""
        t = pick.tensor()
        if pick.base.slot in self._tape.constants and t is not None and self._tape.owns(t):
            kind, shape, stride, offset = pick.geometry
            base = torch.empty(0, dtype=kind, device=t.device).set_(t.untyped_storage(), offset, shape, stride)
            pick.base = self._tape.alias(base)
        return pick.base

    def _call(self, func: Any, pick: _Pick, memory: Memory) -> None:
        reads = (pick.base.slot, pick.row.slot, *pick.reads)
        self._tape.calls.append(Call(func, (pick.base, pick.index, pick.row), {}, (), reads, (memory,), where()))


def _read_again(base: Tensor, index: Any, row: Tensor) -> None:
    row.copy_(selecting.getitem(base, index))


def _versions(index: Any) -> list[int] | None:
    """How often the tensors of an index were written to; nobody counts in inference mode."""
    parts = [p for p in (index if isinstance(index, tuple) else (index,)) if isinstance(p, Tensor)]
    return None if any(p.is_inference() for p in parts) else [p._version for p in parts]


def _shared(a: Tensor, b: Tensor) -> bool:
    return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)
