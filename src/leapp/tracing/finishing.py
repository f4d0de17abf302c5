"""Ends the first pass of a node: the tape becomes a program with fixed ports."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from types import CodeType
from typing import Any

import numpy as np
import torch

from leapp.capture.functions.standin import unfollowed
from leapp.capture.numpy.plain import owner_of
from leapp.capture.recorder import Recorder
from leapp.capture.replay import cut
from leapp.capture.user_line import Where
from leapp.errors import AnnotationError, AnnotationTypeError, TraceError
from leapp.export import is_onnx
from leapp.export.failures import spelled_call
from leapp.semantics import TensorSemantics
from leapp.tracing import tracked_buffers
from leapp.tracing.attributes import Attributes, Changed
from leapp.tracing.code_uses import is_memory, line_that_reads, line_that_writes
from leapp.tracing.log import logger
from leapp.tracing.modules import constant_names
from leapp.tracing.node import InputPort, NodeTrace, OutputPort, dtype_name, refuse_form
from leapp.tracing.undeclared import contradicts, rewritten_constants
from leapp.tracing.value_roles import Length

Tensor = torch.Tensor
Given = dict[str, tuple[Tensor, TensorSemantics | None]]
"""Tensors by port name, with their semantics."""


def unread(node: NodeTrace) -> str:
    """The recorded results that no recorded call reads, or else such inputs, as lines of a message: there the trace ends."""
    tape = node.require_traced()
    read = {slot for call in tape.calls for slot in call.reads}
    ends = dict.fromkeys(spelled_call(c) for c in tape.calls if c.outs and read.isdisjoint(c.outs))
    lines = [f"\n  no recorded call reads the result of {end}" for end in ends] or [
        f"\n  no recorded call reads the input '{name}', declared at {port.where}: declare it before the computation and use "
        "what input_tensors() returns"
        for name, port in node.inputs.items()
        if port.slot not in read
    ]
    advice = (
        "\nCode outside of PyTorch and NumPy (numba, MuJoCo), np.float32(array), table[index] of a plain array and writes into "
        "arrays that were made before the node are not recorded: write it with PyTorch or NumPy (array.astype(np.float32), "
        "np.take(table, index)), or end the node before it."
    )
    return "".join(lines[:5]) + advice if lines else ""


class Finisher:
    """Finishes the nodes of a session.

    Args:
        recorder: What captures the session.
        attributes: Compares the user's objects before and after a pass.
        modules: The modules that ran inside open nodes, outermost first.
        escapes: The policy for values that left the graph: ``"warn"``, ``"error"`` or ``"ignore"``.
    """

    def __init__(
        self, recorder: Recorder, attributes: Attributes, modules: Mapping[int, weakref.ref[torch.nn.Module]], escapes: str
    ) -> None:
        self._recorder, self._attributes, self._modules, self._escapes = recorder, attributes, modules, escapes

    def finish(self, node: NodeTrace, ports: Given, static: Given, at: Where) -> dict[str, Tensor]:
        """Fix the outputs of an open node and end its recording. Returns the tensors that are its outputs."""
        tensors: dict[str, Tensor] = {}
        node.outputs = {}
        for name, (t, _) in (ports | static).items():
            refuse_form(node, name, t, at)
        for name, (t, semantics) in ports.items():
            slot = self._slot(node, t, name, at)
            node.outputs[name] = OutputPort(name, dtype_name(t), tuple(t.shape), "output", slot, at, semantics)
            tensors[name] = t
        node.updates.update(tracked_buffers.resolve(node, self._recorder))
        for name in [n for n in node.inputs if n in node.updates]:
            self._state_output(node, name, at)
            tensors[name] = node.updates[name][0]
        for name, (t, semantics) in static.items():
            self._static(node, name, t, semantics, at)
            tensors[name] = t
        if not node.outputs:
            raise AnnotationError(
                f"node '{node.name}' (at {at}) declares no output. Name a tensor or an array; y.item() is a number."
            )
        if node.tape is not None:
            self._close(node)
        if is_onnx(node.backend):
            _refuse_complex(node)
        return tensors

    def settle(self, node: NodeTrace) -> None:
        """Decide what only all passes together show. Call it when the last pass is over.

        Registered tensors that carry no value from pass to pass become constants. Random numbers of a node with one pass are
        frozen. Of the passes that were not kept as samples, the first that the recorded calls do not reproduce becomes one.
        """
        scratch = [b for b in node.buffers if b.module is None and tracked_buffers.is_scratch(node, b)]
        for buffer in scratch:
            node.buffers.remove(buffer)
            tracked_buffers.freeze(node, buffer, node.samples[0].inputs[buffer.port])
            del node.outputs[buffer.port]
            for sample in (*node.samples, *node.compared_later):
                sample.inputs.pop(buffer.port, None)
                sample.outputs.pop(buffer.port, None)
        if scratch and node.tape is not None:
            self.cut(node)
        if node.tape is not None and node.program is not None and node.tape.draws and not node.compared:
            for draw in node.tape.draws:  # whether the next call draws other numbers is not known
                node.tape.freeze(draw)
            node.tape.draws.clear()
            self.cut(node)
        if node.program is not None and not (node.tape is not None and node.tape.random):
            node.samples += [s for s in node.compared_later if contradicts(node, s)][:1]
        node.compared_later.clear()

    def _state_output(self, node: NodeTrace, name: str, at: Where) -> None:
        t, place = node.updates[name]
        port = node.inputs[name]
        if name in node.outputs:
            raise AnnotationError(
                f"node '{node.name}': '{name}' is both a state (declared at {port.where}) and an output (at {at}). "
                "Rename one of them."
            )
        refuse_form(node, name, t, place)
        node.check(port, t, "state", place)
        slot = self._slot(node, t, name, place)
        node.outputs[name] = OutputPort(name, port.dtype, port.shape, "state", slot, place, port.semantics)

    def _slot(self, node: NodeTrace, t: Tensor, name: str, at: Where) -> int | None:
        """The slot of an output value, which must be computed from the node's inputs."""
        if node.tape is None:
            return None
        owner = self._recorder.owner([t])
        ref = node.tape.find(t) if owner is node.tape else None
        if ref is None and name in node.inputs and node.inputs[name].role == "state":
            return node.tape.constant(t).slot  # a buffer that was re-assigned to a constant
        if ref is not None:
            return ref.slot
        if node.backend is None:
            return None
        whose = f" It belongs to node '{owner.node}'." if owner is not None else ""
        born = self._recorder.plain_calls.made_inside.get(t)
        made = f" It was made at {born}: {born.text!r}." if born is not None else ""
        noted = dict.fromkeys(f"\n  {e.kind} at {e.where.quoted}" for e in node.tape.escapes)
        escapes = "".join(list(noted)[:5]) or self._lost_in(node) or unread(node)
        raise TraceError(
            f"node '{node.name}', output '{name}' (at {at}) is a {type(t).__name__} that is not computed from the node's "
            f"inputs.{whose}{made} Pass a constant as static_outputs=. Declare a value that an earlier call left with "
            "state_tensors() and update_state(). If it should depend on the inputs, their values left the graph on the "
            f"way:{escapes or ' declare them with input_tensors() before the computation.'}{unfollowed()}"
        )

    def _lost_in(self, node: NodeTrace) -> str:
        """The arrays older than the node that values of the node were written to, with the lines that did."""
        tape = node.require_traced()
        changed = [c for c in self._attributes.changes(set(), tape.owns)[1] if isinstance(c.after, np.ndarray)]
        codes = self._attributes.codes(tape) if changed else []
        lines = {str(at): (c, at) for c in changed if (at := line_that_writes(c, codes)) is not None}
        return "".join(
            f"\n  written to the array {c.spelled}, which was made before the node: give it to the node with {c.spelled} = "
            f"annotate.register_buffer('{node.name}', {{name: {c.spelled}}}) at {at.quoted}"
            for c, at in list(lines.values())[:5]
        )

    def _static(self, node: NodeTrace, name: str, t: Tensor, semantics: TensorSemantics | None, at: Where) -> None:
        if name in node.outputs:
            raise AnnotationError(f"node '{node.name}' (at {at}) has two outputs called '{name}'. Rename one of them.")
        if self._recorder.owner([t]) is not None:
            raise TraceError(
                f"node '{node.name}', static output '{name}' (at {at}) is computed from the inputs of a node. "
                "Declare it among the regular outputs."
            )
        slot = None if node.tape is None else node.tape.constant(t).slot
        node.outputs[name] = OutputPort(name, dtype_name(t), tuple(t.shape), "static", slot, at, semantics)

    def _close(self, node: NodeTrace) -> None:
        """Stop recording, drop the inputs that reach no output, and cut the program out of the tape."""
        tape = node.require_traced()
        old_memory = self._recorder.old_memory
        carried = {s: True for s, c in tape.constants.items() if old_memory.carried(c.origins)}
        received = {s: False for s, c in tape.constants.items() if old_memory.received(c.origins)}
        replaced, codes = self._replaced(node)
        self._recorder.close(tape)
        if node.backend is None and any(p.slot is None for p in node.outputs.values()):
            node.tape = None
            return
        changed = tape.changed_behind()
        if changed is not None:
            raise TraceError(
                f"node '{node.name}': a tensor of shape {list(changed.value.shape)} that it reads at {changed.where} was "
                "changed in place afterwards, by code that leapp does not see. Clone it before the node reads it, or declare "
                "it as an input."
            )
        self.cut(node)
        node.changed = [found for c in node.changed if (found := _located(node, c, codes)) is not None]
        node.suspects = received | carried | dict.fromkeys(rewritten_constants(node) | replaced, True)

    def _replaced(self, node: NodeTrace) -> tuple[set[int], list[CodeType]]:
        """The slots of constants whose memory, older than the node, the program freed or replaced by other memory.

        Also returns the code that ran in the node if something else in the user's objects changed, else an empty list.
        """
        tape, old_memory = node.require_traced(), self._recorder.old_memory
        tracked = {(id(b.module), b.name) for b in node.buffers}
        replaced, changed = self._attributes.changes(tracked, tape.owns)
        node.lengths = {str(c): c.after for c in changed if isinstance(c.after, Length)}
        node.written = {str(c): weakref.ref(c.after) for c in changed if isinstance(c.after, Tensor)}
        changed = [c for c in changed if not isinstance(c.after, (Length, Tensor))]
        follows = self._recorder.arrays.memory.follows
        node.changed = [c for c in changed if not (isinstance(c.after, np.ndarray) and follows(tape, c.after))]
        codes = self._attributes.codes(tape) if node.changed else []
        gone = frozenset[int]().union(*map(old_memory.origins, replaced))
        node.opening = self._attributes.opening()
        if len(self._recorder.tapes) == 1:
            self._attributes.forget()
        return {s for s, c in tape.constants.items() if not gone.isdisjoint(c.origins) or old_memory.gone(c.origins)}, codes

    def cut(self, node: NodeTrace) -> None:
        """Make the program of the node from the tape of its first pass."""
        tape = node.require_traced()
        program = cut(tape, [p.slot for p in node.outputs.values() if p.slot is not None])
        if node.backend is not None:
            self._prune(node, program.reads() & set(tape.inputs))
        program.inputs = [p.slot for p in node.inputs.values() if p.slot is not None]
        node.take(program, constant_names(program, self._modules.values()))

    def _prune(self, node: NodeTrace, live: set[int]) -> None:
        tape = node.require_traced()
        escaped = {s for e in tape.escapes for s in e.reads}
        dropped = []
        for port in list(node.inputs.values()):
            if port.slot in live or (port.name in node.outputs and node.outputs[port.name].role == "state"):
                continue
            led = _leads_to(tape, port.slot, escaped) if port.slot is not None else None
            if led is not None and self._escapes != "ignore":
                raise TraceError(
                    f"node '{node.name}': input '{port.name}' reaches no output, because its value left the graph at "
                    f"{led.where.quoted} ({led.kind}).\nKeep it a tensor up to the output."
                )
            dropped.append(port.name)
            del node.inputs[port.name]
            for sample in (node.current, *node.samples, *node.compared_later):
                sample.inputs.pop(port.name, None)
        if dropped:
            node.pruned += dropped
            logger.warning(
                "node '%s': no output depends on %s; left out of the model.",
                node.name, ", ".join(f"'{n}'" for n in dropped),
            )  # fmt: skip


def _refuse_complex(node: NodeTrace) -> None:
    ports: list[InputPort | OutputPort] = [*node.inputs.values(), *node.outputs.values()]
    for port in ports:
        if port.dtype.startswith("complex"):
            raise AnnotationTypeError(
                f"node '{node.name}', port '{port.name}' (at {port.where}) is {port.dtype}, and ONNX engines have no complex "
                "ports. Declare torch.view_as_real() of it, and use torch.view_as_complex() inside the node, or export the "
                "node with export_with='jit' or 'pt2'."
            )


def _located(node: NodeTrace, changed: Changed, codes: list[CodeType]) -> Changed | None:
    """A change with the line that made it, or ``None`` if the node has no part in it.

    A changed array gets the line that reads it, because that is where its content is frozen.
    """
    if not is_memory(changed, codes):
        return None
    if not isinstance(changed.after, np.ndarray):
        at = line_that_writes(changed, codes) or line_that_reads(changed, codes)
        return changed if at is None else changed._replace(where=at)
    assert node.program is not None
    array = owner_of(changed.after)
    lent = (c.where for c in node.program.constants.values() if c.lender is not None and c.lender() is array)
    at = next(lent, None) or line_that_reads(changed, codes)
    return None if at is None else changed._replace(where=at)


def _leads_to(tape: Any, slot: int, escaped: set[int]) -> Any:
    """The first escape that a slot's value reaches."""
    reached = {slot}
    for call in tape.calls:
        if not reached.isdisjoint(call.reads):
            reached.update(call.outs)
    return next((e for e in tape.escapes if not reached.isdisjoint(e.reads)), None) if reached & escaped else None
