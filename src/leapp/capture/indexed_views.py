"""Indexing with a tensor that holds one number: ``x[i]``, ``x[i] = v``.

Torch reads the number out and selects with it, which in an exporter is a value that left the graph. The tape holds functions
that index with the tensor itself.

``row = x[i]`` is a view whose place in memory a traced number decides. The tape holds it as a copy, because no exporter has
a view at a place that is known only when the model runs. So that a write through the row reaches what it was taken from, and
the other way round, the two are brought together after each write to their memory. Knows tapes and slots, nothing of modes.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from leapp.capture.aliasing import Geometry, geometry, same_storage, version_of
from leapp.capture.tape import Call, Memory, Ref, Tape, refer
from leapp.capture.user_line import where

Tensor = torch.Tensor


def is_number(part: Any) -> bool:
    """Whether a part of an index is a tensor that holds one whole number."""
    return isinstance(part, Tensor) and part.dim() == 0 and part.dtype not in (torch.bool, torch.uint8)


def _width(part: Any) -> int:
    """How many dimensions an index takes up."""
    if part is None or part is Ellipsis or isinstance(part, bool):
        return 0
    return part.dim() if isinstance(part, Tensor) and part.dtype in (torch.bool, torch.uint8) else 1


def getitem(x: Tensor, index: Any) -> Tensor:
    """``x[index]``."""
    parts = index if isinstance(index, tuple) else (index,)
    if not any(is_number(p) for p in parts):
        return x[index]
    whole = spread(parts, x.dim())
    dims = itertools.accumulate(map(_width, whole), initial=0)
    for dim, number in reversed([(d, p) for d, p in zip(dims, whole, strict=False) if is_number(p)]):
        x = torch.ops.aten.index.Tensor(x, [None] * dim + [number])
    return _part(x, [p for p in whole if not is_number(p)])


def setitem(x: Tensor, index: Any, value: Any) -> None:
    """``x[index] = value``."""
    if isinstance(index, Tensor) and index.dim() == 0 and index.dtype == torch.bool:
        x.copy_(torch.where(index, value, x).reshape(x.shape))
        return
    if isinstance(value, Tensor) and same_storage(value, x):
        value = value.clone()  # select() may copy from a part of the same memory, an index may not
    parts = index if isinstance(index, tuple) else (index,)
    kinds = {is_number(p) for p in parts if isinstance(p, (Tensor, list))}
    if kinds == {True}:
        x, index = at_numbers(x, spread(parts, x.dim()))
    x[index] = value


def spread(parts: Sequence[Any], dims: int) -> list[Any]:
    """An index with ``...`` written out, and with full slices for what it leaves off."""
    dots = next((i for i, p in enumerate(parts) if p is Ellipsis), len(parts))
    missing = [slice(None)] * (dims - sum(map(_width, parts)))
    return [*parts[:dots], *missing, *parts[dots + 1 :]]


def _part(x: Tensor, parts: Sequence[Any]) -> Tensor:
    return x if all(isinstance(p, slice) and p == slice(None) for p in parts) else x[tuple(parts)]


def at_numbers(x: Tensor, parts: Sequence[Any]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """What an index with such numbers chooses from: a view whose first dimensions are theirs, and an index into it.

    The index keeps one dimension of size one in their place.
    """
    view = _part(x, [slice(None) if is_number(p) else p for p in parts])
    kept: list[Any] = [p for p in parts if not isinstance(p, int) or isinstance(p, bool)]
    dims = [d for d, p in enumerate(kept) if is_number(p)]
    first = list(range(len(dims)))
    return view if dims == first else view.movedim(dims, first), tuple(kept[d].reshape(1) for d in dims)


@dataclass(slots=True, eq=False)
class _Row:
    """A row: what it was taken from, by which index, and the tensors over it that the program has."""

    base: Ref
    geometry: Geometry
    ref: Ref
    given: Any
    """The index as the program wrote it."""
    versions: list[int | None]
    """How often its tensors had been written to."""
    index: Any
    """The same with the values it had: the program may count on in the same tensor."""
    reads: tuple[int, ...]
    held: list[Callable[[], Tensor | None]]

    def tensor(self) -> Tensor | None:
        """A tensor that lies over the row."""
        return next((t for ref in self.held if (t := ref()) is not None), None)


class IndexedRows:
    """The rows of one tape."""

    def __init__(self, tape: Tape) -> None:
        self._owner = weakref.ref(tape)
        self.rows: dict[int, _Row] = {}

    @property
    def _tape(self) -> Tape:
        tape = self._owner()  # which has these rows: a cycle would keep the weights of the model alive
        assert tape is not None
        return tape

    def __bool__(self) -> bool:
        if self.rows:
            self.rows = {slot: row for slot, row in self.rows.items() if row.tensor() is not None}
        return bool(self.rows)

    def note(self, base: Tensor, index: Any, out: Any, refs: dict[int, Ref]) -> None:
        """``out`` is ``base[index]``. If it lies in the memory of ``base``, the two have to be kept together."""
        parts = index if isinstance(index, tuple) else (index,)
        if not any(is_number(p) for p in parts) or not same_storage(base, out):
            return
        ref = self._tape.known[id(out)]
        kept = {id(p): self._tape.remember(refs[id(p)]) for p in parts if isinstance(p, Tensor)}
        self.rows[ref.slot] = _Row(
            refs[id(base)], geometry(base), ref, refer(index, refs), _versions(index), refer(index, {**refs, **kept}),
            tuple(r.slot for r in kept.values()), [ref.tensor],
        )  # fmt: skip

    def follow(self, refs: dict[int, Ref], results: Sequence[Tensor]) -> None:
        """A call made ``results``; those that lie over a row it was given are views of that."""
        for t in results:
            ref = self._tape.known.get(id(t))
            if ref is None or ref.slot in self.rows:
                continue
            for other in refs.values():
                row, source = self.rows.get(other.slot), other.tensor()
                if row is not None and source is not None and same_storage(source, t):
                    self.rows[ref.slot] = row
                    self._tape.memory_of[ref.slot] = self._tape.memory_of[row.ref.slot]  # the memory of the copy
                    row.held.append(ref.tensor)
                    break

    def concern(self, t: Tensor) -> bool:
        """Whether ``t`` is a row, or a view of one."""
        ref = self._tape.known.get(id(t))
        return ref is not None and ref.tensor() is t and ref.slot in self.rows

    def lie_in(self, t: Tensor) -> bool:
        """Whether a row was taken from the memory of ``t``."""
        return any((lying := row.tensor()) is not None and same_storage(lying, t) for row in self.rows.values())

    def settled(self, args: tuple[Any, ...], refs: dict[int, Ref]) -> bool:
        """Whether ``base[index] = value`` gives a row to its own place, as ``x[i] += 1`` ends: its writes have reached it."""
        base, index, value = args
        ref = refs.get(id(value))
        row = None if ref is None else self.rows.get(ref.slot)
        if row is None or row.ref is not ref or row.base is not refs.get(id(base)):
            return False
        return bool(refer(index, refs) == row.given) and None not in row.versions and _versions(index) == row.versions

    def written(self, targets: Sequence[Ref]) -> None:
        """The last call on the tape wrote to ``targets``."""
        written = {self.rows[t.slot]: None for t in targets if t.slot in self.rows}
        memories = {self._tape.memory_of[t.slot] for t in targets}
        for row in written:
            memory = self._tape.memory_of[self._base(row).slot]
            self._call(setitem, row, memory)
            memories.add(memory)
        for row in dict.fromkeys(self.rows.values()):
            if (row not in written or len(written) > 1) and self._tape.memory_of[self._base(row).slot] in memories:
                self._call(_read_again, row, self._tape.memory_of[row.ref.slot])

    def _base(self, row: _Row) -> Ref:
        """What a row was taken from. If that was a constant, values of the node may have got into its memory since."""
        t = row.tensor()
        if row.base.slot in self._tape.constants and t is not None and self._tape.owns(t):
            kind, shape, stride, offset = row.geometry
            base = torch.empty(0, dtype=kind, device=t.device).set_(t.untyped_storage(), offset, shape, stride)
            row.base = self._tape.alias(base)
        return row.base

    def _call(self, func: Any, row: _Row, memory: Memory) -> None:
        reads = (row.base.slot, row.ref.slot, *row.reads)
        self._tape.calls.append(Call(func, (row.base, row.index, row.ref), {}, (), reads, (memory,), where()))


def _read_again(base: Tensor, index: Any, row: Tensor) -> None:
    row.copy_(getitem(base, index))


def _versions(index: Any) -> list[int | None]:
    """How often the tensors of an index were written to."""
    return [version_of(p) for p in (index if isinstance(index, tuple) else (index,)) if isinstance(p, Tensor)]
