"""Finds the first difference between two recorded passes of a node.

A value that left the graph is a number, a constant or a branch in the recording. One recording does not show that it was
frozen; two recordings on different inputs differ there. So the calls that reach the outputs are compared one by one: functions,
numbers, constants, and the values that they read. Knows programs only.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import torch

from leapp.capture.batch.symbolic_size import Measure
from leapp.capture.equality import same_value
from leapp.capture.replay import Program
from leapp.capture.tape import Constant, Memory, Ref
from leapp.capture.user_line import Where

Tensor = torch.Tensor


class Kind(enum.Enum):
    """What differs between two passes."""

    NUMBER = "number"
    """A number among the arguments of a call."""
    CONSTANT = "constant"
    """The content of a constant."""
    CALL = "call"
    """The function that is called."""
    VALUE = "value"
    """Which value a call reads: an input, a constant, or the result of another call."""


@dataclass(frozen=True, slots=True, eq=False)
class Difference:
    """One difference between two passes, with the value in each."""

    kind: Kind
    where: Where
    first: Any
    second: Any
    again: Where
    """The line of the second pass. It is another line than ``where`` if the passes took different branches."""
    slots: tuple[int, int] = (-1, -1)
    """For a constant: its slot in each program."""


def differences(first: Program, second: Program, ports: Mapping[int, int]) -> Iterator[Difference]:
    """All differences up to the first call that is not the same in both passes, in the order of the calls.

    Args:
        first: The program of the first pass.
        second: The program of the second pass.
        ports: For each input slot of the first program the slot of the same port in the second.
    """
    return _Walk(first, second, ports).run()


def by_data(program: Program, memory_of: Sequence[Memory]) -> Program:
    """The same program with its calls in an order that depends on the data only: from each output back, argument by argument.

    Threads record their calls in another order in every pass. Calls that write to a memory keep their order, and stay between
    the same reads of it.

    Args:
        program: The program of a pass.
        memory_of: For each slot of its tape the memory that it lies in.
    """
    calls = program.calls
    made: dict[int, int] = {}
    writer: dict[Memory, int] = {}
    readers: dict[Memory, list[int]] = {}
    before: list[list[int]] = []
    for index, call in enumerate(calls):
        touched = {memory_of[slot]: None for slot in call.reads}
        needed = [made[slot] for slot in call.reads if slot in made]
        needed += [writer[memory] for memory in (*touched, *call.writes) if memory in writer]
        needed += [reader for memory in call.writes for reader in readers.get(memory, ())]
        before.append(needed)
        made.update(dict.fromkeys(call.outs, index))  # a call may return the slot that it wrote to
        for memory in touched:
            readers.setdefault(memory, []).append(index)
        for memory in call.writes:
            writer[memory], readers[memory] = index, []
    ends = [made[slot] for slot in program.outputs if slot in made]
    ends += [writer[memory] for memory in (memory_of[slot] for slot in program.outputs) if memory in writer]
    ordered: dict[int, None] = {}
    for end in (*ends, *range(len(calls))):
        pending = [end]
        while pending:
            index = pending[-1]
            missing = [] if index in ordered else [i for i in before[index] if i not in ordered]
            if missing:
                pending.extend(reversed(missing))
            else:
                ordered[pending.pop()] = None
    return replace(program, calls=[calls[index] for index in ordered])


class _Walk:
    def __init__(self, first: Program, second: Program, ports: Mapping[int, int]) -> None:
        self.first, self.second = first, second
        self.slots = dict(ports)
        self.found: list[Difference] = []

    def run(self) -> Iterator[Difference]:
        ends: list[Where | None] = [None, None]
        for a, b in zip_longest(self.first.calls, self.second.calls):
            if a is None or b is None or not _same_function(a.func, b.func):
                names = [_name(c.func) if c is not None else "nothing more" for c in (a, b)]
                at = [c.where if c is not None else end for c, end in zip((a, b), ends, strict=True)]
                place = at[0] or at[1]
                assert place is not None
                yield Difference(Kind.CALL, place, names[0], names[1], at[1] or place)
                return
            parted = not self._same((a.args, a.kwargs), (b.args, b.kwargs), a.where, b.where) or len(a.outs) != len(b.outs)
            yield from self.found
            self.found.clear()
            if parted:
                return
            self.slots.update(zip(a.outs, b.outs, strict=True))
            ends = [a.where, b.where]
        for ours, theirs in zip(self.first.outputs, self.second.outputs, strict=True):
            self._same_slot(ours, theirs, ends[0], ends[0])
        yield from self.found

    def _note(self, kind: Kind, one: Where, two: Where, first: Any, second: Any, slots: tuple[int, int] = (-1, -1)) -> bool:
        self.found.append(Difference(kind, one, first, second, two, slots))
        return False

    def _same(self, a: Any, b: Any, one: Where, two: Where) -> bool:
        """Whether two arguments have the same structure, so that the comparison can continue. Other differences are noted."""
        if type(a) is Ref and type(b) is Ref:
            return self._same_slot(a.slot, b.slot, one, two)
        if type(a) is Ref or type(b) is Ref:
            return self._note(Kind.VALUE, one, two, _shown(a), _shown(b))
        if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
            if len(a) != len(b):
                return self._note(Kind.NUMBER, one, two, f"{len(a)} values", f"{len(b)} values")
            return all(self._same(x, y, one, two) for x, y in zip(a, b, strict=True))
        if isinstance(a, dict) and isinstance(b, dict):
            if a.keys() != b.keys():
                return self._note(Kind.CALL, one, two, sorted(a), sorted(b))
            return all(self._same(v, b[k], one, two) for k, v in a.items())
        if isinstance(a, slice) and isinstance(b, slice):
            return self._same((a.start, a.stop, a.step), (b.start, b.stop, b.step), one, two)
        if not same_value(a, b):
            self._note(Kind.NUMBER, one, two, a, b)
        return True

    def _same_slot(self, a: int, b: int, one: Where | None, two: Where | None) -> bool:
        if self.slots.get(a) == b:
            return True
        ours, theirs = self.first.constants.get(a), self.second.constants.get(b)
        if ours is not None and theirs is not None:
            # A constant that was written to between two reads has two slots.
            self.slots.setdefault(a, b)
            if not _same_constant(ours, theirs):
                self._note(Kind.CONSTANT, one or ours.where, two or theirs.where, ours.value, theirs.value, (a, b))
            return True
        place = one or (ours.where if ours is not None else theirs.where if theirs is not None else None)
        if place is None:
            return False
        what = [_described(c, s, p) for c, s, p in ((ours, a, self.first), (theirs, b, self.second))]
        if what[0] == what[1]:
            what = ["one value", "another value"]
        return self._note(Kind.VALUE, place, two or place, what[0], what[1], (a, b))


def _described(constant: Constant | None, slot: int, program: Program) -> str:
    if constant is not None:
        return f"a constant {_shown(constant.value)}"
    return "an input" if slot in program.inputs else "a computed value"


def _same_constant(a: Constant, b: Constant) -> bool:
    if a.version is not None and b.version is not None and a.value.data_ptr() == b.value.data_ptr():
        return a.version == b.version
    return same_value(a.value, b.value)


def _same_function(a: Callable[..., Any], b: Callable[..., Any]) -> bool:
    if a is b or a == b:
        return True
    if isinstance(a, Measure) and isinstance(b, Measure):
        return a.function is b.function
    return type(a) is type(b) and _name(a) == _name(b)


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", None) or func)


def _shown(value: Any) -> str:
    if type(value) is Ref:
        return "a tensor"
    return f"tensor {list(value.shape)}" if isinstance(value, Tensor) and value.dim() else repr(value)
