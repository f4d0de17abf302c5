"""The passes of a node after its first: their ports are checked against the first pass, and their values kept as samples.

The second pass is recorded too, and compared with the first. From the third on the user's program runs at full speed, and the
inputs and outputs of some passes are compared with the recorded calls when the session is compiled.

A program may make thousands of passes, so this code must be fast: it visits each tensor once, and computes nothing that only an
error message needs. The modes do not see what it does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

import torch

from leapp.capture.recorder import Recorder
from leapp.capture.tape import snapshot
from leapp.capture.user_line import where
from leapp.errors import AnnotationError, SessionError
from leapp.graph.suggest import nearest
from leapp.tracing import tracked_buffers
from leapp.tracing.edges import Sources
from leapp.tracing.node import InputPort, NodeTrace, Role, Sample, Stage, refuse_form, spelled
from leapp.tracing.second_pass import SecondPass

Tensor = torch.Tensor
_DENSE = torch.strided
_DTYPES = {spelled(d): d for d in vars(torch).values() if isinstance(d, torch.dtype)}


class Passes:
    """The later passes of the nodes of a session."""

    def __init__(self, recorder: Recorder, sources: Sources, second: SecondPass, samples_kept: int) -> None:
        self._recorder = recorder
        self._sources = sources
        self._second = second
        self._samples_kept = samples_kept

    def declare(self, node: NodeTrace, given: Mapping[str, Tensor], role: Role) -> list[Tensor]:
        """Declare inputs or states of a later pass. Returns the tensors to go on with."""
        recorder, ports = self._recorder, node.inputs
        known, former = recorder.published.known, recorder.former_values.facts
        unfinished = bool(recorder.tapes)
        kept = given
        for name, t in given.items():
            if type(t) is not Tensor or t.layout is not _DENSE or t.is_nested or t.is_meta:
                refuse_form(node, name, t)
            port = ports.get(name)
            if port is None or port.role != role:
                if name not in node.pruned:
                    _refuse_port(node, name, port, role)
                kept = {n: v for n, v in kept.items() if n != name}
                continue
            if t.shape != port.shape or t.dtype is not _DTYPES[port.dtype]:
                node.check(port, t, _called(role))
            if role == "input" and (unfinished or port.source is not None or id(t) in known or id(t) in former):
                self._sources.check(node, port, self._sources.find(node, name, t), t)
        node.current.inputs.update(_copies(kept) if self.is_looked_at(node) else kept)
        if node.second is not None:
            return [self._second.declare(node, n, t) for n, t in given.items()]
        # As in the first pass, the node gets an alias and not the caller's own tensor object.
        return [t[...] if type(t) is Tensor and n in kept else t for n, t in given.items()]

    def update(self, node: NodeTrace, given: Mapping[str, Tensor]) -> None:
        """Take the new values of states in a later pass."""
        if not node.in_pass and given:
            raise SessionError(
                f"update_state() for '{node.name}/{next(iter(given))}' at {where()} comes after output_tensors(): the node is "
                "finished. Update states before declaring the outputs."
            )
        for name, t in given.items():
            port = node.inputs.get(name)
            if port is None or (port.role != "state" and port.role != "buffer"):
                raise AnnotationError(
                    f"node '{node.name}' has no state '{name}' (update_state() at {where()}).{nearest(name, node.inputs)} "
                    "Declare it with annotate.state_tensors() first."
                )
            if t.shape != port.shape or t.dtype is not _DTYPES[port.dtype]:
                node.check(port, t, "state")
            node.updates[name] = (t, port.where)

    def finish(self, node: NodeTrace, tensors: dict[str, Tensor]) -> None:
        """Check the outputs of a later pass and end it."""
        if not node.in_pass:
            raise SessionError(
                f"output_tensors('{node.name}') at {where()}: the node is finished and no new inputs were declared since. "
                "Each pass declares its inputs, then its outputs."
            )
        for buffer in node.buffers:
            now = buffer.tensor if buffer.module is None else getattr(buffer.module, buffer.name, None)
            if now is not None and buffer.port in node.current.inputs:
                tensors[buffer.port] = now
        for name, (t, _) in node.updates.items():
            tensors[name] = t
        outputs = node.outputs
        if len(tensors) < len(outputs) or len(node.current.inputs) < len(node.inputs):
            _refuse_other_ports(node, tensors)
        for name, t in tensors.items():
            port = outputs.get(name)
            if port is None:
                _refuse_other_ports(node, tensors)
            if t.layout is not _DENSE or t.is_meta:
                refuse_form(node, name, t)
            if t.shape != port.shape or t.dtype is not _DTYPES[port.dtype]:
                node.check(port, t, "output")
        self.end(node, tensors)

    def end(self, node: NodeTrace, tensors: dict[str, Tensor]) -> None:
        """End a pass: keep its sample, publish its outputs, and forget the rest."""
        current, given = node.current, {}
        left, static = {}, set()
        for name, port in node.outputs.items():
            given[name] = t = tensors[name]
            if port.role == "state":
                left[name] = t
            elif port.role == "static":
                static.add(name)
        if self.is_looked_at(node):
            current.outputs = _copies(given)
            if list(current.inputs) != list(node.inputs):
                current.inputs = {n: current.inputs[n] for n in node.inputs}
            (node.samples if len(node.samples) < self._samples_kept else node.compared_later).append(current)
            self._second.finish(node, given, current)
        if node.buffers:
            tracked_buffers.left_by_pass(node)
        node.left = left
        self._recorder.published.publish(node.name, node.entered, given, static)
        node.current = Sample(node.entered)
        node.stage = Stage.BETWEEN_PASSES
        node.passes += 1
        node.updates, node.aliases, node.again = {}, {}, []

    def is_looked_at(self, node: NodeTrace) -> bool:
        """Whether the values of the present pass are kept, as a sample or for a comparison when the session is compiled.

        When all samples are taken, the second pass and every pass whose number is a power of two are kept for comparison. So a
        value that changes seldom is found in a long run too, at almost no cost.
        """
        if len(node.samples) < self._samples_kept or node.second is not None:
            return True
        return node.program is not None and not (node.passes + 1) & node.passes


def _copies(given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of several tensors, as :func:`~leapp.capture.tape.snapshot` makes them but faster."""
    if torch.is_grad_enabled() or torch.is_inference_mode_enabled():
        return {n: snapshot(t) for n, t in given.items()}
    return {n: t.clone() if t.layout is _DENSE and t.is_contiguous() else snapshot(t) for n, t in given.items()}



def _refuse_port(node: NodeTrace, name: str, port: InputPort | None, role: Role) -> NoReturn:
    if port is None:
        raise AnnotationError(
            f"node '{node.name}' has no input '{name}' (at {where()}); its first pass declared: "
            f"{', '.join(node.inputs) or 'none'}. Declare the same ports in every pass."
        )
    raise AnnotationError(
        f"node '{node.name}': '{name}' was declared as {_called(port.role)} at {port.where} and is declared as "
        f"{_called(role)} at {where()}. Declare it in the same way in every pass."
    )


def _refuse_other_ports(node: NodeTrace, tensors: Mapping[str, Tensor]) -> NoReturn:
    for name in tensors:
        if name not in node.outputs:
            raise AnnotationError(
                f"node '{node.name}' (at {where()}): '{name}' was not an output in the first pass."
                f"{nearest(name, node.outputs)} Declare the same ports in every pass."
            )
    absent = [n for n in node.inputs if n not in node.current.inputs]
    what, names = ("input", absent) if absent else ("output", [n for n in node.outputs if n not in tensors])
    raise AnnotationError(
        f"node '{node.name}' (at {where()}): this pass did not declare the {what} {', '.join(map(repr, names))} that the first "
        "pass declared. Declare the same ports in every pass."
    )


def _called(role: Role) -> str:
    return "an input" if role == "input" else f"a {role}"
