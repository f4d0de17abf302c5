"""Finds which sizes of an open node depend on the batch size.

A size that the user's code reads and that depends on the batch is recorded as a call, so that the exported node reads it again.
Whether it depends on the batch is read from the shapes for other numbers of rows (``shape_worlds.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from leapp.capture.batch.shape_worlds import Baked, Entry, Forms, first_axis
from leapp.capture.batch.symbolic_size import Followed, Measure, number
from leapp.capture.tape import Ref, Tape
from leapp.capture.user_line import asked_by_leapp, where

Tensor = torch.Tensor


@dataclass(slots=True, eq=False)
class Follower:
    """What is known about the batch of an open node. ``hint`` is the batch size of the nodes before it."""

    tape: Tape
    hint: int | None = None
    entries: dict[int, Entry] = field(default_factory=dict)
    baked: list[Baked] = field(default_factory=list)
    _rows: int | None = None
    _forms: Forms | None = None
    _sizes: dict[tuple[int, int | None], Any] = field(default_factory=dict)

    def declare(self, slot: int, t: Tensor, axis: int | str | None) -> None:
        """Note an input. ``axis`` is the user's ``batch_axis=``, or ``"open"`` for a buffer, which may have a batch or not."""
        kind = {"auto": "input", "open": "buffer"}.get(str(axis), "told")
        chosen = first_axis(t.shape, self._rows) if isinstance(axis, str) else axis
        self.entries[slot] = Entry(tuple(t.shape), t.dtype, t.device, chosen, kind)

    @property
    def rows(self) -> int | None:
        """The traced batch size, decided from the inputs when it is first needed."""
        if self._rows is None:
            self._rows = self._find_rows()
            for entry in self.entries.values():
                if entry.kind != "told":
                    entry.axis = first_axis(entry.shape, self._rows)
        return self._rows

    def _find_rows(self) -> int | None:
        """The first known of: the size of an axis that the user gave, the batch of other nodes, the first size of an input.

        Inputs with two or more axes come before vectors.
        """
        told = [e.shape[e.axis] for e in self.entries.values() if e.kind == "told" and e.axis is not None]
        shapes = [e.shape for e in self.entries.values() if e.kind == "input" and e.shape]
        if not told and any(self.hint in shape for shape in shapes):
            return self.hint
        return next(iter([*told, *(s[0] for s in shapes if len(s) > 1), *(s[0] for s in shapes)]), None)

    @property
    def forms(self) -> Forms | None:
        """The shapes of all values so far; ``None`` while there is no batch."""
        if self._forms is None and self.rows is not None:
            self._forms = Forms(self.rows, self.tape, self.tape.calls, self.tape.constants, self.entries)
        return self._forms

    # -- what the user's code asks ---------------------------------------------------------------------------------------

    def asked(self, name: str, t: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        """The result of reading the size of a traced tensor: ``out``, with sizes that depend on the batch as traced numbers."""
        ref, forms = None if asked_by_leapp() else self.tape.find(t), self.forms
        if ref is None or forms is None:
            return out
        failed = forms.advance()
        if failed is not None:
            # The sizes after this call are unknown for other batches, even if its result reaches no output.
            self.baked.append(failed)
            return out
        shapes = forms.shapes(ref.slot)
        if any(len(s) != len(shapes[0]) for s in shapes):
            self.bake("the size is asked of a tensor whose number of dimensions depends on the batch")
            return out
        if all(s == shapes[0] for s in shapes):
            return out
        if name in ("shape", "size", "sym_size") and len(args) == 1 and not kwargs:
            return torch.Size([self._size(ref, d, shapes) for d in range(len(shapes[0]))])
        if name in ("size", "sym_size"):
            return self._size(ref, int(args[1] if len(args) > 1 else kwargs["dim"]), shapes)
        if name in ("numel", "nelement", "sym_numel"):
            return self._measured(ref, None, torch.Tensor.numel, (), tuple(math.prod(s) for s in shapes))
        if name != "__len__" or any(s[0] != shapes[0][0] for s in shapes):
            self.bake(f"{name.strip('_')}() gives the batch size as a plain number; take x.shape[0]")
        return out

    def _size(self, ref: Ref, dim: int, shapes: list[tuple[int, ...]]) -> Any:
        dim %= len(shapes[0])
        values = tuple(s[dim] for s in shapes)
        return self._measured(ref, dim, torch.Tensor.size, (dim,), values)

    def _measured(
        self, ref: Ref, dim: int | None, function: Callable[..., Any], args: tuple[Any, ...], values: tuple[int, ...]
    ) -> Any:
        if (ref.slot, dim) not in self._sizes:
            self._sizes[ref.slot, dim] = self._recorded(function, (ref, *args), values)
        return self._sizes[ref.slot, dim]

    def derived(self, function: Callable[..., Any], args: tuple[Any, ...], values: tuple[Any, ...]) -> Any:
        """Record ``function(*args)``, whose values in all worlds are known, and return its result as a traced number."""
        return self._recorded(function, tuple(a.ref if isinstance(a, Followed) else a for a in args), values)

    def _recorded(self, function: Callable[..., Any], args: tuple[Any, ...], values: tuple[Any, ...]) -> Any:
        if all(v == values[0] for v in values):
            return values[0]
        slot = self.tape.new_slot()
        self.tape.add(Measure(function), args, slot)
        return number(values, self, Ref(slot))

    def bake(self, what: str) -> None:
        """Note that a traced number became a plain one at the user's present line."""
        self.baked.append(Baked(where(), what))
