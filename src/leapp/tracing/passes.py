"""Passes of a node that is finished: checked against the first one, kept as samples, compared with the record.

They are as many as the user's program makes, so what a pass costs here is paid over and over: tensors are looked at in one
go, copied in one go, and nothing is computed that only a message would need. All of it runs unseen by the modes. What a first
pass records is not known here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

import torch

from leapp.capture.recorder import Recorder
from leapp.capture.source import where
from leapp.capture.tape import snapshot
from leapp.errors import AnnotationError, AnnotationTypeError, SessionError
from leapp.graph.words import nearest
from leapp.semantics import TensorSemantics
from leapp.tracing import buffers
from leapp.tracing.node import InputPort, NodeTrace, Role, Sample, spelled
from leapp.tracing.sources import Sources
from leapp.tracing.undeclared import contradicts

__all__ = ["Passes", "refuse_form"]

Tensor = torch.Tensor
Given = tuple[str, Tensor, TensorSemantics | None]
_CHECKED = 100
_DENSE, _CONTIGUOUS = torch.strided, torch.contiguous_format


class Passes:
    """The later passes of the nodes of a session."""

    def __init__(self, recorder: Recorder, sources: Sources, samples_kept: int) -> None:
        self._recorder = recorder
        self._sources = sources
        self._samples_kept = samples_kept

    def declare(self, node: NodeTrace, given: Iterable[Given], role: Role) -> list[Tensor]:
        """Inputs or states of a later pass; the tensors to go on with."""
        recorder = self._recorder
        ports, known, former = node.inputs, recorder.published.known, recorder.former
        kept: dict[str, Tensor] = {}
        inside = []
        for name, t, _ in given:
            plain = type(t) is Tensor
            if not plain or t.layout is not _DENSE or t.is_nested or t.is_meta:
                refuse_form(node, name, t)
            port = ports.get(name)
            if port is None or port.role != role:
                if name in node.pruned:
                    inside.append(t)
                    continue
                _refuse_port(node, name, port, role)
            if t.shape != port.shape or spelled(t.dtype) != port.dtype:
                node.check(port, t, _called(role))
            if role == "input" and (id(t) in known or port.source is not None or recorder.tapes or id(t) in former):
                self._sources.check(node, port, self._sources.find(node, name, t), t)
            kept[name] = t
            # As in the first pass, the value inside the node is not the one between the nodes.
            inside.append(t[...] if plain else t)
        if self.is_looked_at(node):
            kept = _copies(kept)
        node.current.inputs.update(kept)
        return inside

    def update(self, node: NodeTrace, given: Iterable[Given]) -> None:
        """New values of states."""
        for name, t, semantics in given:
            if not node.in_pass:
                raise SessionError(
                    f"update_state() for '{node.name}/{name}' at {where()} comes after output_tensors(): the node is "
                    "finished. Update states before declaring the outputs."
                )
            port = node.inputs.get(name)
            if port is None or (port.role != "state" and port.role != "buffer"):
                raise AnnotationError(
                    f"node '{node.name}' has no state '{name}' (update_state() at {where()}).{nearest(name, node.inputs)} "
                    "Declare it with annotate.state_tensors() first."
                )
            if t.shape != port.shape or spelled(t.dtype) != port.dtype:
                node.check(port, t, "state")
            if port.semantics is None:
                port.semantics = semantics
            node.updates[name] = (t, port.where)

    def finish(self, node: NodeTrace, tensors: dict[str, Tensor]) -> None:
        """The outputs of a later pass."""
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
        if not tensors.keys() <= outputs.keys():
            name = next(n for n in tensors if n not in outputs)
            raise AnnotationError(
                f"node '{node.name}' (at {where()}): '{name}' was no output in the first pass.{nearest(name, outputs)} "
                "Declare the same ports in every pass."
            )
        node.refuse_missing(node.current.inputs, node.inputs, "input")
        node.refuse_missing(tensors, outputs, "output")
        for name, t in tensors.items():
            port = outputs[name]
            if t.shape != port.shape or spelled(t.dtype) != port.dtype:
                node.check(port, t, "output")
        self.end(node, tensors)

    def end(self, node: NodeTrace, tensors: dict[str, Tensor]) -> None:
        """Keep the sample of a pass, let go of the pass, and publish the outputs."""
        outputs, current = node.outputs, node.current
        if self.is_looked_at(node):
            current.outputs = _copies({n: tensors[n] for n in outputs})
            current.inputs = {n: current.inputs[n] for n in node.inputs}
            if len(node.samples) < self._samples_kept or contradicts(node, current):
                node.samples.append(current)
        buffers.left_by_pass(node)
        node.left = {n: tensors[n] for n, p in outputs.items() if p.role == "state"}
        published = self._recorder.published
        published.sweep()
        for name, port in outputs.items():
            published.publish(tensors[name], node.name, name, node.entered, port.role == "static")
        node.current = Sample(node.entered)
        node.in_pass = False
        node.passes += 1
        node.updates, node.aliases, node.again = {}, {}, []

    def is_looked_at(self, node: NodeTrace) -> bool:
        """Whether the values of the present pass are looked at when it ends: it is kept as a sample, or compared.

        All up to a hundred are compared with the record, then every tenth. One that contradicts the record is kept after
        all, so that the compilation fails on it.
        """
        if len(node.samples) < self._samples_kept:
            return True
        random = node.tape is not None and bool(node.tape.random)
        often = node.passes < _CHECKED or node.passes % 10 == 0
        return len(node.samples) == self._samples_kept and node.program is not None and not random and often


def _copies(given: dict[str, Tensor]) -> dict[str, Tensor]:
    """As :func:`~leapp.capture.tape.snapshot` makes them, of several tensors at once."""
    if torch.is_grad_enabled() or torch.is_inference_mode_enabled():
        return {n: snapshot(t) for n, t in given.items()}
    return {n: t.clone(memory_format=_CONTIGUOUS) if t.layout is _DENSE else t.clone() for n, t in given.items()}


def refuse_form(node: NodeTrace, name: str, t: Tensor) -> None:
    """Raise for a tensor that has no dense memory of its own."""
    wrapper = type(t).__torch_dispatch__ is not Tensor.__torch_dispatch__
    if wrapper or t.is_nested or t.layout != torch.strided or t.is_meta:
        form = type(t).__name__ if wrapper else "nested" if t.is_nested else "meta" if t.is_meta else "sparse"
        raise AnnotationTypeError(
            f"node '{node.name}', port '{name}' (at {where()}): a {form} tensor cannot be a port. Pass a dense tensor."
        )


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


def _called(role: Role) -> str:
    return "an input" if role == "input" else f"a {role}"
