"""Declares what a node keeps for its next call: states with ``update_state``, and tensors that it writes to in place."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Sequence
from typing import Any

import torch

from leapp.capture.devices import require_device
from leapp.capture.recorder import Recorder
from leapp.capture.tape import snapshot
from leapp.capture.user_line import Where, where
from leapp.errors import AnnotationError, AnnotationTypeError, SessionError, TraceError
from leapp.graph.suggest import nearest
from leapp.semantics import TensorSemantics
from leapp.tracing.declaring import Declaring
from leapp.tracing.finishing import unread
from leapp.tracing.later_passes import Passes
from leapp.tracing.node import InputPort, NodeTrace, TrackedBuffer
from leapp.tracing.opening import Opening
from leapp.tracing.payload import Entry, leaf_names, map_leaves, unpack
from leapp.tracing.second_pass import SecondPass
from leapp.tracing.tracked_buffers import registered_again, track, tracked

Tensor = torch.Tensor


class StateUpdates:
    """Takes the new values of the states of a session's nodes."""

    def __init__(self, recorder: Recorder, declaring: Declaring, passes: Passes) -> None:
        self._recorder, self._declaring, self._passes = recorder, declaring, passes

    def update(self, node: NodeTrace, items: Sequence[Entry]) -> None:
        """Take the new values of some states. Call it inside ``silence()``."""
        given = [(name, self._declaring.tensor(value, node, name), semantics) for name, value, semantics in items]
        if node.finished:
            self._passes.update(node, {name: t for name, t, _ in given})
        else:
            at, names = where(), [name for name, _, _ in given]
            for name, t, semantics in given:
                self._first(node, name, t, semantics, at, names)
        for name, _, semantics in given:
            port = node.inputs[name]
            port.semantics = port.semantics or semantics

    def _first(
        self, node: NodeTrace, name: str, t: Tensor, semantics: TensorSemantics | None, at: Where, together: list[str]
    ) -> None:
        """The update of a state in the first pass."""
        port = node.inputs.get(name)
        if port is None or port.role not in ("state", "buffer"):
            port = self._declare_late(node, name, t, semantics, at, together)
        node.check(port, t, "state", at)
        require_device(node.name, name, node.current.inputs.get(name), t, at)
        if node.tape is not None:
            self._require_computed(node, name, t, at)
        node.updates[name] = (t, at)

    def _require_computed(self, node: NodeTrace, name: str, t: Tensor, at: Where) -> None:
        owner = self._recorder.owner([t])
        if owner is None and name in node.late:
            # The first value of a state may be a constant, such as the zeros of an empty history.
            self._recorder.constants.slot(node.require_traced(), t)
        elif owner is not node.tape:
            whose, ends = "is not computed from the node's inputs or states", unread(node)
            if owner is not None:
                whose, ends = f"belongs to node '{owner.node}'", ""
            raise TraceError(
                f"node '{node.name}': the update of state '{name}' at {at} {whose}. Compute it from values that "
                f"input_tensors() or state_tensors() returned.{ends}"
            )

    def _declare_late(
        self, node: NodeTrace, name: str, t: Tensor, semantics: TensorSemantics | None, at: Where, together: list[str]
    ) -> InputPort:
        """Declare a state that is updated without having been declared. It starts from zeros, unless a later pass declares it.

        A name that looks like a misspelt state is refused. ``together`` are the names updated by the same call: a state that is
        updated anyway cannot have been meant.
        """
        if name in node.inputs:
            raise AnnotationError(
                f"node '{node.name}' has no state '{name}' (update_state() at {at}): '{name}' is an input, declared at "
                f"{node.inputs[name].where}. Declare it with annotate.state_tensors() instead of input_tensors()."
            )
        updated = {*node.updates, *together}
        meant = _misspelt(name, [n for n, p in node.inputs.items() if p.role == "state" and n not in updated])
        if meant:
            raise AnnotationError(
                f"node '{node.name}' has no state '{name}' (update_state() at {at}). Did you mean '{meant}', declared at "
                f"{node.inputs[meant].where}?"
            )
        self._declaring.leaf(node, name, torch.zeros_like(t), "state", semantics, at=at)
        node.late.add(name)
        return node.inputs[name]


class Buffers:
    """Declares the tensors given to ``register_buffer()``, and the buffers of modules given to ``module()``."""

    def __init__(
        self, recorder: Recorder, opening: Opening, declaring: Declaring, passes: Passes, second: SecondPass
    ) -> None:
        self._recorder, self._opening, self._declaring = recorder, opening, declaring
        self._passes, self._second = passes, second

    def register(self, node: NodeTrace, payload: Any) -> Any:
        """Track the tensors and arrays of a payload. Returns the values to go on with."""
        at = where()
        if not node.in_pass:
            raise SessionError(
                f"register_buffer() for node '{node.name}' at {at} comes after output_tensors(): the node is finished. "
                "Register buffers before declaring the outputs."
            )
        if isinstance(payload, dict):
            items = list(payload.items())
        else:
            values = payload if isinstance(payload, (list, tuple)) else [payload]
            items = [(f"buffer_{node.registered + i}", t) for i, t in enumerate(values)]
            node.registered += len(values)
        leaf_names([(name, value, None) for name, value in items])

        def visit(port: str, leaf: Any) -> Any:
            t = self._register(node, port, self._declaring.tensor(leaf, node, port), at)
            return t if isinstance(leaf, Tensor) else self._recorder.arrays.memory.buffer(leaf, t)

        def other(port: str, value: Any) -> None:
            if port in dict(items):
                self._declaring.tensor(value, node, port)  # raises: a buffer by itself must be a tensor or an array
            self._declaring.tell_constant(node, "buffer")(port, value)

        with self._recorder.silence():
            return unpack([map_leaves(name, value, visit, other) for name, value in items])

    def _register(self, node: NodeTrace, name: str, t: Tensor, at: Where) -> Tensor:
        if node.finished:
            if registered_again(node, name, t, at):
                self._second.buffer(node, name, t)
            return t
        if node.tape is None or any(b.tensor is t and b.port == name for b in node.buffers):
            return t
        if self._recorder.owner([t]) is not None:
            raise TraceError(
                f"node '{node.name}': register_buffer() for '{name}' at {at} got a traced value. Register plain tensors, "
                "before anything traced is written to them."
            )
        if name in node.inputs:
            raise AnnotationError(
                f"node '{node.name}' already has an input '{name}', declared at {node.inputs[name].where}; register_buffer() "
                f"at {at} needs another name."
            )
        track(node, name, TrackedBuffer(name, t, fresh=self._recorder.old_memory.is_fresh(t)), at)
        return t

    def module(self, node: NodeTrace, model: torch.nn.Module, buffer_names: list[str] | None) -> None:
        """Track the buffers of a module."""
        at = where()
        if not isinstance(model, torch.nn.Module):
            raise AnnotationTypeError(
                f"annotate.module('{node.name}') at {at}: expected an nn.Module, not a value of type {type(model).__name__}."
            )
        known = dict(model.named_buffers())
        unknown = [n for n in buffer_names or () if n not in known]
        if unknown:
            raise AnnotationError(
                f"annotate.module('{node.name}') at {at}: the module has no buffer '{unknown[0]}'."
                f"{nearest(unknown[0], known)}"
            )
        with self._recorder.silence():
            for name in known if buffer_names is None else buffer_names:
                self._of_module(node, model, name, known[name], at)

    def _of_module(self, node: NodeTrace, model: torch.nn.Module, name: str, t: Tensor, at: Where) -> None:
        path, _, leaf = name.rpartition(".")
        owner = functools.reduce(getattr, path.split("."), model) if path else model
        port_name = name.replace(".", "_")
        if node.finished:
            buffer = tracked(node, owner, leaf, port_name)
            if buffer is not None:
                node.check(node.inputs[buffer.port], t, "buffer", at)
                node.current.inputs[buffer.port] = snapshot(t) if self._passes.is_looked_at(node) else t
                buffer.module, buffer.name, buffer.tensor = owner, leaf, t
                self._second.buffer(node, buffer.port, t)
            return
        mine = next((b for b in node.buffers if b.module is owner and b.name == leaf), None)
        if mine is not None and mine.tensor is not t:
            self._opening.restart(node)
        elif any(b.tensor is t for b in node.buffers):
            return
        free, number = port_name, 2
        while free in node.inputs:
            free, number = f"{port_name} {number}", number + 1
        track(node, free, TrackedBuffer(free, t, owner, leaf), at)


def _misspelt(name: str, waiting: Sequence[str]) -> str | None:
    """The state whose name was most likely meant. Names that differ only in a number, as ``h1`` and ``h2``, do not count."""
    lowered = {candidate.lower(): candidate for candidate in waiting}
    match = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.8)
    numbered = match and re.sub(r"\d+", "", match[0]) == re.sub(r"\d+", "", name.lower()) and match[0] != name.lower()
    return lowered[match[0]] if match and not numbered else None
