"""Constants: gives slots to plain tensors that a node reads, with their origin, or refuses them."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch

from leapp.capture.aliasing import geometry, lent_memory
from leapp.capture.tape import Ref, Tape
from leapp.capture.user_line import where
from leapp.errors import TraceError

if TYPE_CHECKING:
    from leapp.capture.recorder import Recorder

Tensor = torch.Tensor


class Constants:
    """The constants of the open nodes of one session."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def slot(self, tape: Tape, t: Tensor) -> Ref:
        """The slot of a plain tensor. Refuses a value of another node."""
        recorder = self.recorder
        self.refuse_other_storage(tape, t)
        known = tape.known_constant(t) or recorder.plain_calls.record_draw(tape, t)
        if known is not None:
            return known
        former, source = recorder.former_values.get(t), recorder.source(t)
        if source is not None and source.static:
            source = None
        owner = former.node if former is not None else source.node if source is not None and not source.glue else None
        if owner is not None and owner != tape.node:
            name = f" ('{source.port}')" if source is not None else ""
            raise TraceError(
                f"node '{tape.node}' uses a value of the finished node '{owner}'{name} at {where()} without declaring it. "
                f"Pass it through annotate.input_tensors('{tape.node}', {{...}}) first."
            )
        ref = tape.constant(t)
        constant = tape.constants[ref.slot]
        constant.origins, constant.lender = recorder.old_memory.origins_and_lender(t)
        if not constant.parameter:
            constant.drawn = recorder.plain_calls.random_tensors.get(t)
        if owner is not None:
            constant.earlier_pass = former.where if former is not None else constant.where
            constant.earlier_slot = former.slot if former is not None else None
        elif source is not None:
            constant.undeclared = f"{source.node}/{source.port}"
        elif not tape.first:
            left = recorder.former_memory.get(tape.node, {})
            found = next((left[memory] for memory in constant.origins if memory in left), None)
            constant.earlier_pass, constant.earlier_slot = found or (None, None)
        given = recorder.declared_tensors.get(t)
        if given is not None and given != tape.node:
            constant.undeclared = f"an input of node '{given}'"
        return ref

    def refuse_other_storage(self, tape: Tape, t: Tensor) -> None:
        """Refuse a tensor that shares an array's memory with another, traced tensor.

        Each of the two has a storage object of its own, so only the addresses of the memory show that they share it.
        """
        mine = lent_memory(t)
        if mine is None or self.recorder.arrays.memory.is_own(mine[0]):
            return
        for other in [*(ref.tensor() for ref in list(tape.known.values())), *self.recorder.arrays.memory.held()]:
            theirs = None if other is None else lent_memory(other, lent=False)
            if theirs is None or theirs[0] == mine[0] or theirs[1] >= mine[2] or mine[1] >= theirs[2]:
                continue
            memory = tape.memories.get(theirs[0])
            if memory is not None and memory.traced and memory.roots:
                raise TraceError(
                    f"node '{tape.node}': at {where()} a tensor of shape {list(t.shape)} shares memory with traced values "
                    "through an array or DLPack, and leapp cannot see through it what was written there. Make the tensor anew "
                    "where it is used, as in torch.from_numpy(array)."
                )

    def adopt_after(self, tape: Tape, t: Tensor, ref: Ref) -> None:
        """Make a plain tensor traced after a call wrote to it. The copy taken before the call is its former value."""
        constant = tape.constants[ref.slot]
        if constant.version is not None:
            raise TraceError(
                f"node '{tape.node}': the call at {where()} changes a tensor of shape {list(t.shape)} in place in a way that "
                "cannot be recorded. Register it with annotate.register_buffer() or annotate.module() first."
            )
        memory = tape._memory(t)
        if memory is not None:
            memory.traced = True
            memory.clear()
            memory.roots = ((ref, geometry(t)),)
            tape.memory_of[ref.slot] = memory
        tape.constant_ids.pop(id(t), None)
        tape.known[id(t)] = Ref(ref.slot, weakref.ref(t))
        self.recorder.arrays.memory.exposed(t)
