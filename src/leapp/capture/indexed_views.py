"""Indexing with a tensor that holds one number: ``x[i]``, ``x[i] = v``.

torch reads the number out of the tensor and selects with it, so an exporter would freeze the number. The tape holds functions
that index with the tensor itself.

``row = x[i]`` is a view whose position depends on a traced number. No exporter has such views, so the tape holds the row as a
copy. After each write to the row, a recorded call copies the row into ``x``; after each write to ``x``, a recorded call reads
the row again. Knows tapes and slots, nothing of modes.
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
    """How many dimensions of the tensor a part of an index uses."""
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
        value = value.clone()  # select() may copy within one memory, an assignment by index may not
    parts = index if isinstance(index, tuple) else (index,)
    kinds = {is_number(p) for p in parts if isinstance(p, (Tensor, list))}
    if kinds == {True}:
        x, index = at_numbers(x, spread(parts, x.dim()))
    x[index] = value


def spread(parts: Sequence[Any], dims: int) -> list[Any]:
    """An index with full slices in place of ``...`` and for the dimensions that it does not mention."""
    dots = next((i for i, p in enumerate(parts) if p is Ellipsis), len(parts))
    missing = [slice(None)] * (dims - sum(map(_width, parts)))
    return [*parts[:dots], *missing, *parts[dots + 1 :]]


def _part(x: Tensor, parts: Sequence[Any]) -> Tensor:
    return x if all(isinstance(p, slice) and p == slice(None) for p in parts) else x[tuple(parts)]


def at_numbers(x: Tensor, parts: Sequence[Any]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """A view of ``x`` whose first dimensions are those that tensors with one number index, and the index into that view.

    The result of the index has one dimension of size one in place of these dimensions.
    """
    view = _part(x, [slice(None) if is_number(p) else p for p in parts])
    kept: list[Any] = [p for p in parts if not isinstance(p, int) or isinstance(p, bool)]
    dims = [d for d, p in enumerate(kept) if is_number(p)]
    first = list(range(len(dims)))
    return view if dims == first else view.movedim(dims, first), tuple(kept[d].reshape(1) for d in dims)


@dataclass(slots=True, eq=False)
class _Row:
    """A row ``base[index]``, and the program's tensors over it."""

    base: Ref
    """The slot of the tensor that was indexed."""
    geometry: Geometry
    """Where that tensor lies in its storage."""
    ref: Ref
    """The slot of the row."""
    given: Any
    """The index as the program wrote it, with slots for tensors."""
    versions: list[int | None]
    """Torch's count of the writes to the tensors of the index."""
    index: Any
    """The index with copies of its tensors: the program may write another number into the same tensor."""
    reads: tuple[int, ...]
    """The slots of these copies."""
    held: list[Callable[[], Tensor | None]]
    """Weak references to the program's tensors over the row."""

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
        tape = self._owner()  # a weak reference: a reference cycle with the tape would keep the weights of the model alive
        assert tape is not None
        return tape

    def __bool__(self) -> bool:
        if self.rows:
            self.rows = {slot: row for slot, row in self.rows.items() if row.tensor() is not None}
        return bool(self.rows)

    def note(self, base: Tensor, index: Any, out: Any, refs: dict[int, Ref]) -> None:
        """Note that ``out`` is ``base[index]``, if the index has a traced number and ``out`` is a view of ``base``."""
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
        """Note results of a call that are views of a row among its arguments."""
        for t in results:
            ref = self._tape.known.get(id(t))
            if ref is None or ref.slot in self.rows:
                continue
            for other in refs.values():
                row, source = self.rows.get(other.slot), other.tensor()
                if row is not None and source is not None and same_storage(source, t):
                    self.rows[ref.slot] = row
                    # On the tape the row is a copy with memory of its own, and so is a view of the row.
                    self._tape.memory_of[ref.slot] = self._tape.memory_of[row.ref.slot]
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
        """Whether ``base[index] = value`` assigns a row to itself, as ``x[i] += 1`` does last: it need not be recorded."""
        base, index, value = args
        ref = refs.get(id(value))
        row = None if ref is None else self.rows.get(ref.slot)
        if row is None or row.ref is not ref or row.base is not refs.get(id(base)):
            return False
        return bool(refer(index, refs) == row.given) and None not in row.versions and _versions(index) == row.versions

    def written(self, targets: Sequence[Ref]) -> None:
        """Record the calls that follow a write to ``targets``: written rows into their base, then other rows read again."""
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
        """The slot of the tensor that a row was taken from. A constant gets a new slot once traced values are in its memory."""
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
    """Torch's count of the writes to each tensor of an index."""
    return [version_of(p) for p in (index if isinstance(index, tuple) else (index,)) if isinstance(p, Tensor)]
