"""Records the second pass of a node and compares it with the first.

A value that was frozen in the first pass and changes from call to call is the first difference between the two recordings, and
the recorded call there has the user's line.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import CodeType
from typing import Any

import numpy as np
import torch

from leapp.capture.equality import same_bits
from leapp.capture.names_in_code import may_choose
from leapp.capture.numpy.plain import owner_of
from leapp.capture.pass_diff import Difference, Kind, by_data, differences
from leapp.capture.recorder import Recorder
from leapp.capture.replay import Program, Replay, cut
from leapp.capture.tape import Constant, Draw, Tape
from leapp.capture.user_line import Where, where
from leapp.tracing.attributes import Attributes, Changed, Shown, once_for_each_line
from leapp.tracing.batching import checked_axis
from leapp.tracing.code_uses import (
    anywhere,
    by_name,
    is_memory,
    is_read_inside,
    line_that_needs,
    line_that_reads,
    line_that_uses,
    line_that_writes_into,
)
from leapp.tracing.log import logger
from leapp.tracing.node import NodeTrace, PassDifference, Sample, Topic
from leapp.tracing.undeclared import independent_of_inputs, reproduces
from leapp.tracing.value_roles import Length

Tensor = torch.Tensor


class SecondPass:
    """Records and compares the second passes of the nodes of a session."""

    def __init__(self, recorder: Recorder, attributes: Attributes, cut_again: Callable[[NodeTrace], None]) -> None:
        self._recorder, self._attributes, self._cut_again = recorder, attributes, cut_again

    def begin(self, node: NodeTrace) -> None:
        """Begin to record if this is the second pass. Drops the recording of an attempt that failed."""
        self.drop(node)
        if node.passes == 1 and node.program is not None and node.tape is not None:
            node.second = self._recorder.open(node.name, node.tape.batch is not None, again=node.tape)
            self._attributes.look_around()

    def drop(self, node: NodeTrace) -> None:
        """Stop recording, without a comparison."""
        if node.second is not None:
            self._recorder.close(node.second)
            node.aliases = {}
        node.second, node.second_slots = None, {}

    def declare(self, node: NodeTrace, name: str, t: Tensor) -> Tensor:
        """Declare an input of a second pass. Returns the tensor to go on with."""
        assert node.second is not None
        before = node.aliases.get(name)
        if before is not None and same_bits(before[1], t):
            return before[1]  # declared before in this pass: a property may declare its value at every read
        port = node.inputs.get(name)
        axis = "auto" if port is None else checked_axis(node, port, t.dim())
        alias = self._recorder.declare(node.second, t, where(), axis)
        node.second_slots[name] = node.second.inputs[-1]
        node.aliases[name] = (t, alias)
        return alias

    def buffer(self, node: NodeTrace, name: str, t: Tensor) -> None:
        """Declare a tracked buffer. The tensor itself becomes an input, without an alias."""
        if node.second is not None:
            node.second_slots[name] = node.second.declare(t, where()).slot

    def finish(self, node: NodeTrace, outputs: Mapping[str, Tensor], sample: Sample) -> None:
        """Compare the second pass, whose values are in ``sample``, with the first."""
        tape = node.second
        if tape is None:
            return
        slots: list[int] = []
        for name in node.outputs:
            ref = tape.find(outputs[name])
            slots.append((ref or self._recorder.constants.slot(tape, outputs[name])).slot)
        ports = {p.slot: node.second_slots[n] for n, p in node.inputs.items() if p.slot is not None and n in node.second_slots}
        node.changed_again = self._counters(node, tape)
        slot_of = {name: slot for name, slot in node.second_slots.items() if name in node.inputs}
        self.drop(node)
        self._freeze_repeated_draws(node, tape)
        assert node.program is not None
        program = cut(tape, slots, [slot_of[n] for n in node.inputs if n in slot_of])
        again = frozenset[int]().union(*(c.origins for c in program.constants.values()))
        node.read_again = {slot for slot, c in node.program.constants.items() if not again.isdisjoint(c.origins)}
        node.compared = True
        found = next(_relevant(node, node.program, program, ports, sample), None)
        if found is not None and self._recorder.shared:
            found = _without_thread_order(node, found, program, tape, ports, sample)
        node.difference = _carried_state(node, program) if found is None else _explained(node, found, program)

    def _freeze_repeated_draws(self, node: NodeTrace, tape: Tape) -> None:
        """Make constants of random numbers that the second pass did not draw again, or drew again from the same seed.

        Numbers that are not drawn again are kept by the program, such as a projection that is drawn at the first call. Numbers
        from the same seed come from a generator that the node itself seeds in every call.
        """
        assert node.tape is not None
        later: dict[str, list[Draw]] = {}
        for draw in tape.draws:
            later.setdefault(str(draw.call.where), []).append(draw)
        frozen = False
        for draw in node.tape.draws:
            again = later.get(str(draw.call.where))
            if again:
                repeated = again.pop(0)
                if not _same_draw(draw, repeated):
                    continue
                tape.freeze(repeated)
            node.tape.freeze(draw)
            frozen = True
        if frozen:
            self._cut_again(node)

    def _counters(self, node: NodeTrace, tape: Tape) -> list[Changed]:
        """The places in the user's objects that this pass changed and some code reads, each with the line that reads it.

        Also arrays older than the node that the node reads and its code writes to, each with the line that writes.
        """
        attributes = self._attributes
        found = attributes.changes({(id(b.module), b.name) for b in node.buffers}, tape.owns)[1]
        follows = self._recorder.arrays.memory.follows
        written = {id(c.after) for c in found if isinstance(c.after, np.ndarray) and not follows(tape, c.after)}
        changed = [c for c in found if c.before is not None and not isinstance(c.after, np.ndarray)]
        changed = [c for c in changed if _is_carried(node, c)]
        arrays = list(attributes.arrays())
        told = {*node.lengths, *map(str, (*node.changed, *found))}
        moved = [c for c in attributes.moved(node.opening) if str(c) not in told]
        node.opening = {}
        codes, inside = attributes.codes(tape) if changed or arrays or moved else [], attributes.inside()
        assert node.tape is not None
        lenders = [c.lender() for c in node.tape.constants.values() if c.lender is not None]
        memory = [c for c in changed if is_memory(c, codes)]
        counters = [c._replace(where=at) for c in memory if (at := line_that_uses(c, attributes.holding, codes, inside))]
        named = by_name(codes)
        for c in arrays:
            at = line_that_writes_into(c, named, inside)
            if at is None and id(c.after) in written:  # written to by a function that got the array as an argument
                at = line_that_reads(c, codes, inside)
            if at is not None and (
                any(lender is owner_of(c.after) for lender in lenders)
                or any(is_read_inside(place, codes, inside) for place in (c, *attributes.tensors_over(c.after)))
            ):
                counters.append(c._replace(where=at))
        counters += self._set_outside(node, tape, moved, codes, inside)
        if len(self._recorder.tapes) == 1:
            attributes.forget()
        return once_for_each_line(counters)

    def _set_outside(
        self, node: NodeTrace, tape: Tape, moved: list[Changed], codes: list[CodeType], inside: Callable[[Where], bool]
    ) -> list[Changed]:
        """Those numbers and arrays that the program changed between the first two passes, and that the node's code reads."""
        follows = self._recorder.arrays.memory.follows
        markers = {str(port.where) for port in node.inputs.values()}

        def reads(at: Where) -> bool:
            return inside(at) and str(at) not in markers

        found = []
        for c in moved:
            is_array = isinstance(c.after, np.ndarray)
            if is_array and follows(tape, c.after):
                continue
            # What is computed with an array is recorded, and compared between the passes.
            at = line_that_needs(c, codes, reads, may_choose if is_array else anywhere)
            if at is not None:
                found.append(c._replace(where=at, after=c.before if is_array else c.after))
        return found


def _is_carried(node: NodeTrace, changed: Changed) -> bool:
    """Whether a pass began with what the pass before left. A list or tensor that is made anew in every pass is not state."""
    if isinstance(changed.after, Tensor):
        written = node.written.get(str(changed))
        return written is not None and written() is changed.after
    return not isinstance(changed.after, Length) or node.lengths.get(str(changed)) == changed.before


def _same_draw(a: Draw, b: Draw) -> bool:
    """Whether two draws began with the same state of the generator and gave the same numbers."""
    same_form = len(a.values) == len(b.values)
    return same_form and torch.equal(a.state, b.state) and all(map(same_bits, a.values, b.values))


def _carried_state(node: NodeTrace, program: Program) -> PassDifference | None:
    """State that is equal in both passes but differs for other inputs, such as an integrator at rest."""
    read = [c for c in program.constants.values() if c.earlier_slot is not None]
    same = independent_of_inputs(node, {c.earlier_slot for c in read if c.earlier_slot is not None}) if read else set()
    found = next((c for c in read if c.earlier_slot not in same), None)
    if found is None:
        return None
    return PassDifference(Topic.STATE, _read_again(found), found.where, found.value, found.value, STATE)


def _explained(node: NodeTrace, found: Difference, program: Program) -> PassDifference:
    """A difference described for the report, with advice."""
    assert node.program is not None
    found = _first_element(found)
    elsewhere = f" (in the second pass at {found.again})" if str(found.again) != str(found.where) else ""

    def difference(topic: Topic, what: str, cure: str) -> PassDifference:
        return PassDifference(topic, what, found.where, found.first, found.second, cure)

    left = next((c for c in program.constants.values() if c.earlier_pass is not None), None)
    if found.kind is Kind.NUMBER and not (elsewhere and left is not None):
        return difference(Topic.NUMBER, f"a number that differs between the passes{elsewhere}", _NUMBER)
    if found.kind is not Kind.CONSTANT and left is not None:
        missing = Shown("what the first pass did without it")
        return PassDifference(Topic.STATE, _read_again(left), left.where, missing, left.value, STATE)
    if found.kind is Kind.CALL:
        what = f"the two passes run different calls from here on{elsewhere}"
        return PassDifference(Topic.OTHER, what, found.where, Shown(found.first), Shown(found.second), _CALL)
    ours, theirs = node.program.constants.get(found.slots[0]), program.constants.get(found.slots[1])
    if theirs is not None and theirs.earlier_pass is not None:
        return difference(Topic.STATE, _read_again(theirs), STATE)
    if found.kind is Kind.VALUE or ours is None or theirs is None:
        return difference(Topic.OTHER, f"a call that reads different values in the two passes{elsewhere}", _CALL)
    name = node.names.get(found.slots[0], "")
    drawn = ours.drawn or theirs.drawn
    if drawn is not None:
        what = "random numbers, drawn once and frozen"
        return PassDifference(Topic.OTHER, what, drawn, found.first, found.second, _RANDOM)
    if ours.parameter:
        return difference(Topic.WEIGHT, f"the weight '{name}' changed between the passes", _WEIGHT)
    if _same_object(ours.lender, theirs.lender) and ours.start != theirs.start:
        return difference(Topic.OTHER, f"a part of an array that differs between the passes{elsewhere}", _PART)
    if _same_object(ours.origin, theirs.origin) or _same_object(ours.lender, theirs.lender):
        return difference(Topic.STATE, f"undeclared state: the tensor '{name}' changed between the passes", _BUFFER)
    return difference(Topic.TENSOR, f"a tensor that differs between the passes{elsewhere}", _NUMBER)


def _read_again(constant: Constant) -> str:
    return f"undeclared state: the value that the pass before made at {constant.earlier_pass} is read"


def _same_object(a: weakref.ref[Any] | None, b: weakref.ref[Any] | None) -> bool:
    return a is not None and b is not None and a() is not None and a() is b()


def _first_element(found: Difference) -> Difference:
    """A difference between two tensors, reduced to the first element that differs."""
    a, b = found.first, found.second
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)) or a.shape != b.shape or a.dtype != b.dtype or not a.dim():
        return found
    unlike = (a != b) & ~((a != a) & (b != b))
    if a.layout != torch.strided or not unlike.any():
        return found
    place = unlike.nonzero()[0].tolist()
    values = (f"{t[tuple(place)].item():g} at {place}" if t.is_floating_point() else f"{t[tuple(place)].item()} at {place}"
              for t in (a, b))  # fmt: skip
    return replace(found, first=Shown(next(values)), second=Shown(next(values)))


_NUMBER = "keep it a tensor, or declare it: with input_tensors(), or state_tensors() and update_state() if the node keeps it"
_CALL = "keep the choice in tensors, as torch.where() does, declare what it depends on, and call .eval() on modules"
_PART = "keep the index a tensor: table[index] of a tensor, or np.take(table, index), is followed"
STATE = "declare it with state_tensors() and update_state()"
"""The advice for a value that one call leaves and a later one reads."""
_RANDOM = "declare them with input_tensors(), so that the caller draws them, or draw them with torch.rand() or torch.randn()"
_WEIGHT = "trace without training in between"
_BUFFER = "declare it with register_buffer() or module(), or call .eval() if it is a statistic of a module in training mode"


def _relevant(
    node: NodeTrace, first: Program, second: Program, ports: Mapping[int, int], sample: Sample
) -> Iterator[Difference]:
    """The differences that change what the node computes."""
    for found in differences(first, second, ports):
        if found.kind is Kind.CONSTANT and found.slots[0] in first.copied and not _is_read(node, found):
            continue  # memory that is overwritten before anything reads it, such as that of torch.empty()
        if found.kind in (Kind.CALL, Kind.VALUE) and _exchangeable(node, second, sample):
            return
        yield found


def _without_thread_order(
    node: NodeTrace, found: Difference, program: Program, tape: Tape, ports: Mapping[int, int], sample: Sample
) -> Difference | None:
    """The difference that remains when calls are compared by their data, not in the order in which threads recorded them."""
    assert node.program is not None
    assert node.tape is not None
    first, second = by_data(node.program, node.tape.memory_of), by_data(program, tape.memory_of)
    remaining = list(_relevant(node, first, second, ports, sample))
    same_place = [other for other in remaining if str(other.where) == str(found.where)]
    return next(iter(same_place + remaining), None)


def _is_read(node: NodeTrace, found: Difference) -> bool:
    """Whether the first content of memory that the node writes to reaches an output, where the passes differ in it."""
    assert node.replay is not None
    slot, value, other = found.slots[0], found.first, found.second
    if value.shape != other.shape or value.dtype != other.dtype or value.layout != torch.strided:
        return True
    unlike = value != other
    fills = (0.0, float("nan")) if value.is_floating_point() else (0, 1)
    contents = [value, other, *(value.masked_fill(unlike, fill) for fill in fills)]
    inputs = [node.samples[0].inputs[n] for n in node.inputs]
    made: list[Any] = []
    for content in contents:
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=()), node.replay.holding({slot: content.clone()}):
                torch.manual_seed(0)
                made.append(node.replay(*inputs))
        except Exception as error:  # torch raises many types: the calls do not run with another content, so they read it
            logger.debug("node '%s': the recorded calls need the first content of slot %d: %s", node.name, slot, error)
            return True
    return not all(same_bits(a, b) for outputs in made for a, b in zip(made[0], outputs, strict=True))


def _exchangeable(node: NodeTrace, program: Program, sample: Sample) -> bool:
    """Whether each recording reproduces the outputs of both passes, as if a cache was filled in the first pass only."""
    assert node.replay is not None
    if len(program.inputs) != len(node.inputs):
        return False
    other = Replay(program, {slot: f"c{slot}" for slot in program.constants})
    first = node.samples[0]
    try:
        with torch.no_grad():
            made = node.replay(*(sample.inputs[n] for n in node.inputs)), other(*(first.inputs[n] for n in node.inputs))
    except Exception as error:  # torch raises many types: one recording does not take the inputs of the other pass
        logger.debug("node '%s': the passes differ, and their inputs cannot be exchanged: %s", node.name, error)
        return False
    wanted = [[s.outputs[n] for n in node.outputs] for s in (sample, first)]
    return all(reproduces(a, b) for got, want in zip(made, wanted, strict=True) for a, b in zip(got, want, strict=True))
