"""Finds where a declared value comes from: an output of another node, an output of the pass before, or outside the graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from leapp.capture.aliasing import geometry
from leapp.capture.equality import same_bits
from leapp.capture.identity import ByIdentity
from leapp.capture.provenance import Glue, Published
from leapp.capture.recorder import Recorder
from leapp.capture.tape import Tape
from leapp.capture.user_line import Where, where
from leapp.errors import TraceError
from leapp.tracing.log import logger
from leapp.tracing.node import InputPort, NodeTrace, Source

Tensor = torch.Tensor


class Sources:
    """Finds and checks the edges of a session."""

    def __init__(self, recorder: Recorder, nodes: Mapping[str, NodeTrace]) -> None:
        self._recorder = recorder
        self._nodes = nodes
        self.glue: list[tuple[str, str, Glue, Where]] = []
        """Published outputs that were changed between nodes: consumer, source, ops, place."""
        self.shared: list[tuple[InputPort, str, InputPort, str]] = []
        """Ports of two nodes that were given the same tensor from outside: port and node of each."""
        self._outside: ByIdentity[tuple[InputPort, str]] = ByIdentity()

    def find(self, node: NodeTrace, port: str, t: Tensor) -> Source | None:
        """The published output that a declared value is, if it is one."""
        recorder = self._recorder
        if recorder.tapes:
            self._refuse_unfinished(node, port, t)
        found = recorder.published.source(t) or recorder.arrays.memory.published(t)
        if found is None:
            former = recorder.former_values.get(t)
            if former is not None:
                logger.error(
                    "node '%s', input '%s' (at %s) is a value of node '%s' that output_tensors() did not publish; it becomes "
                    "an input of the graph.", node.name, port, where(), former.node,
                )  # fmt: skip
            return None
        if found.glue:
            # Between passes the value may go through a simulator, with many ops. Up to three ops are taken for the user's own.
            if not node.finished or (len(found.glue) <= 3 and not self._reported(node, found)):
                self._report_glue(node, port, found)
            return None
        if found.static:
            return self._static(node, port, found)
        return self._edge(node, port, found)

    def note(self, node: NodeTrace, port: InputPort, t: Tensor, alias: Tensor) -> None:
        """Remember a value from outside that an open node was given, to notice if another node is given the same one."""
        known = self._outside.get(t)
        if known is not None and known[1] != node.name:
            self.shared.append((*known, port, node.name))
        else:
            self._outside[t] = port, node.name
        self._outside[alias] = port, node.name

    def _refuse_unfinished(self, node: NodeTrace, port: str, t: Tensor) -> None:
        owner = self._recorder.owner([t])
        if owner is None or _is_untouched_input(owner, t):
            return
        if node.finished and owner is node.recording:
            return
        if owner is not node.tape:
            raise TraceError(
                f"node '{node.name}', input '{port}' (at {where()}) is a value of node '{owner.node}', which is not finished. "
                f"Call annotate.output_tensors('{owner.node}', ...) first."
            )
        logger.warning(
            "node '%s', input '%s' (at %s) was computed by the node itself, so the model begins after that computation. "
            "Declare the inputs before they are used.", node.name, port, where(),
        )  # fmt: skip

    def _static(self, node: NodeTrace, port: str, found: Published) -> Source | None:
        """The edge from a static output. A constant is the same in every pass, so only the first pass of the node decides."""
        source = Source(found.node, found.port, delayed=False)
        if not node.finished:
            return source
        declared = node.inputs.get(port)
        return source if declared is not None and declared.source == source else None

    def _edge(self, node: NodeTrace, port: str, found: Published) -> Source:
        age = max(0, node.entered - found.passno)
        producer = self._nodes.get(found.node)
        again = producer is not None and producer.entered > found.passno
        if age > 1 or (age == 1 and again and not node.passes and not node.dropped_passes):
            raise TraceError(
                f"node '{node.name}', input '{port}' (at {where()}) is '{found.node}/{found.port}' of an earlier run: node "
                f"'{found.node}' has been entered {age} more time(s) since. An input takes the value of the same pass or of "
                "the pass before. Give each call of a function that runs several times in a pass a node_name of its own; keep "
                "older values as state."
            )
        return Source(found.node, found.port, delayed=age == 1)

    def check(self, node: NodeTrace, port: InputPort, source: Source | None, t: Tensor) -> None:
        """Refuse a second source of an input. The second pass may show feedback, and a reset may give the first value again."""
        if node.passes == 1 and port.source is None:
            port.source = source or self._copied(node, port, t)
        elif port.source == source or (source is None and port.source is not None and self._fits(node, port, port.source, t)):
            return
        else:
            cure = "An input has one source: declare a second port, or reset to the value of the first pass."
            if port.source and source and (port.source.node, port.source.port) == (source.node, source.port):
                cure = (
                    f"A bundle runs every node once in every step, in one order: run '{source.node}' and '{node.name}' once in "
                    "every pass, always one before the other, or keep what stays the same for several passes as state."
                )
            raise TraceError(
                f"node '{node.name}', input '{port.name}' (at {where()}) was first fed by "
                f"{port.source or 'a value from outside'} and is fed by {source or 'a value from outside'} now. {cure}"
            )

    def _copied(self, node: NodeTrace, port: InputPort, t: Tensor) -> Source | None:
        """The source of another input of which this one is a copy made inside the node: the values of both passes are equal."""
        if node.recording is None or self._recorder.owner([t]) is not node.recording:
            return None
        first, now = node.samples[0].inputs, node.current.inputs
        for other in node.inputs.values():
            if other.source is None or other.name not in now or (other.shape, other.dtype) != (port.shape, port.dtype):
                continue
            if same_bits(first[other.name], first[port.name]) and same_bits(now[other.name], t):
                return other.source
        return None

    def _fits(self, node: NodeTrace, port: InputPort, source: Source, t: Tensor) -> bool:
        """Whether a value of unknown origin equals what the source published, as a copy that no mode saw, or is a reset."""
        if source.delayed and _is_first_value(node, port, t):
            return True
        if node.passes < 2:
            return False  # copies are seen up to the second pass
        value = self._recorder.published.latest(source.node, source.port, node.entered - source.delayed)
        producer = self._nodes.get(source.node)
        if value is None and producer is not None:
            kept = (s for s in producer.samples if s.passno == node.entered - source.delayed)
            value = next((s.outputs.get(source.port) for s in kept), None)
        return value is None or same_bits(value, t)

    def _reported(self, node: NodeTrace, found: Published) -> bool:
        return any(entry[:2] == (node.name, f"{found.node}/{found.port}") for entry in self.glue)

    def _report_glue(self, node: NodeTrace, port: str, found: Published) -> None:
        at = where()
        ops = ", ".join(f"{op} ({place})" for op, place in found.glue)
        logger.warning(
            "node '%s', input '%s' (at %s) is '%s/%s' after it was changed between the nodes by %s. These ops are in no model: "
            "move them into a node. The input is an input of the graph.", node.name, port, at, found.node, found.port, ops,
        )  # fmt: skip
        self.glue.append((node.name, f"{found.node}/{found.port}", found.glue, at))


def _is_first_value(node: NodeTrace, port: InputPort, t: Tensor) -> bool:
    return bool(node.samples) and same_bits(node.samples[0].inputs[port.name], t)


def _is_untouched_input(tape: Tape, t: Tensor) -> bool:
    """Whether ``t`` is a declared input as it was: the same memory, to which no recorded call wrote."""
    memory: Any = tape.memories.get(t.untyped_storage()._cdata) if t.layout == torch.strided else None
    if memory is None:
        return False
    mine, inputs = geometry(t), set(tape.inputs)
    return any(shape == mine and ref.slot in inputs for ref, shape in memory.roots) and not any(
        memory in call.writes for call in tape.calls
    )
