"""Finds arrays that a traced value may have chosen without leapp seeing it.

``table[index]`` of a plain array is C code that reads a traced index without a call that could be recorded. Two facts remain:
no recorded call reads the index, and the node reads a temporary array after it that no recorded call made. If both passes chose
the same elements, they do not show that the choice is frozen.
"""

from __future__ import annotations

from collections.abc import Iterator

from leapp.capture.replay import Program, cut
from leapp.capture.tape import Call, Constant, Tape
from leapp.capture.user_line import is_installed


def lost_choices(tape: Tape, program: Program) -> Iterator[tuple[Call, Constant]]:
    """The temporary arrays that a node reads, each with the last call before it whose result may have chosen its elements."""
    temporary = {s: c for s, c in program.constants.items() if c.lender is not None and c.lender() is None}
    if not temporary:
        return
    told = cut(tape, sorted({slot for e in tape.escapes for slot in e.reads}))
    used = {slot for call in (*program.calls, *told.calls) for slot in (*call.outs, *call.reads)}
    unread = [call for call in tape.calls if call.outs and used.isdisjoint(call.outs)]
    for slot, constant in temporary.items():
        before = [c for c in unread if c.outs[0] < slot and _may_choose(tape, c, slot, constant)]
        if before:
            yield before[-1], constant


def _may_choose(tape: Tape, call: Call, slot: int, constant: Constant) -> bool:
    """Whether the result of a call is an index or mask, in the function that reads the array or in an installed package.

    Or it is the last value that an installed package recorded before the program, outside of it, reads the array.
    """
    out, is_of_package = call.outs[0], is_installed(call.where.file)
    if call.where.code is not constant.where.code and not is_of_package:
        return False
    shapes = [shape for ref, shape in tape.memory_of[out].roots if ref.slot == out and shape is not None]
    if any(shape.size and not (shape.dtype.is_floating_point or shape.dtype.is_complex) for shape in shapes):
        return True
    return is_of_package and out == slot - 1 and not is_installed(constant.where.file)
