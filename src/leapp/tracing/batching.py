"""Nodes that take any number of rows: finds the axis of each port that is the batch, or why a node has its batch size fixed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from leapp.capture.batch.shape_worlds import Baked, Entry, Forms
from leapp.capture.user_line import where
from leapp.errors import AnnotationError, TraceError
from leapp.tracing.node import InputPort, NodeTrace, OutputPort

ROWS = (1, 2, 7)
"""The batch sizes at which a written model is run, beside the traced one."""


def check_batch_axis(axis: Any) -> None:
    """Refuse a ``batch_axis`` other than a whole number, ``None`` or ``"auto"``."""
    if axis is None or axis == "auto" or (isinstance(axis, int) and not isinstance(axis, bool)):
        return
    raise AnnotationError(f"batch_axis={axis!r} (at {where()}): give the number of an axis, None, or 'auto'.")


def checked_axis(node: NodeTrace, port: InputPort, dims: int) -> int | str | None:
    """The ``batch_axis=`` of an input, with a negative axis counted from the front. Others are refused."""
    axis = port.batch
    if not isinstance(axis, int):
        return axis
    if not -dims <= axis < dims:
        raise AnnotationError(
            f"node '{node.name}', port '{port.name}' (at {port.where}): batch_axis={axis}, but its shape is "
            f"{list(port.shape)}. Give an axis of that shape, or None."
        )
    return axis % dims


def follow_batch(nodes: Iterable[NodeTrace]) -> None:
    """Decide for every port which axis is the batch, and make the nodes' modules take any number of rows.

    Raises:
        TraceError: The traced batch size is baked into a node. The message lists the user's lines.
    """
    problems: list[str] = []
    sizes: dict[int, str] = {}
    nodes, brought = list(nodes), []
    for node in nodes:
        if node.tape is None or node.tape.batch is None or node.program is None or node.backend is None:
            brought.append(node)
            continue
        rows = node.tape.batch.rows
        if rows is None or rows < 2:
            why = "no input has a batch axis" if rows is None else f"a batch of {rows} cannot be told from other sizes"
            raise TraceError(
                f"node '{node.name}': dynamic_batch=True needs inputs with two or more rows: {why}. Trace with more rows."
            )
        sizes.setdefault(rows, node.name)
        problems += [f"  node '{node.name}', {baked}" for baked in _Resolution(node, rows).run()]
    if len(sizes) > 1:
        listed = ", ".join(f"{rows} in '{name}'" for rows, name in sizes.items())
        raise TraceError(
            f"dynamic_batch=True needs one batch size in all nodes; it is {listed}. Give batch_axis= where leapp took another "
            "axis for the batch."
        )
    if problems:
        found = "\n".join(dict.fromkeys(problems))
        raise TraceError(f"dynamic_batch=True, but the batch size {next(iter(sizes))} is baked into the code:\n{found}")
    if sizes:
        _describe(brought, {n.name: n for n in nodes}, next(iter(sizes)))


def _describe(brought: Iterable[NodeTrace], nodes: Mapping[str, NodeTrace], rows: int) -> None:
    """Set the batch axes of nodes that leapp does not export: those the user gave, or those of the outputs that feed them."""
    for node in brought:
        for port in node.inputs.values():
            if isinstance(port.batch, int):
                port.axis = port.batch % len(port.shape)
            elif port.batch == "auto" and port.source is not None:
                port.axis = nodes[port.source.node].outputs[port.source.port].axis
        if any(p.axis is not None for p in node.inputs.values()):
            for out in node.outputs.values():
                out.axis = next((d for d, n in enumerate(out.shape) if n == rows), None)


class _Resolution:
    """Finds the batch axes of one node."""

    def __init__(self, node: NodeTrace, rows: int) -> None:
        assert node.program is not None
        assert node.tape is not None
        assert node.tape.batch is not None
        self.node, self.rows, self.batch, self.program = node, rows, node.tape.batch, node.program
        entries = {s: e for s, e in self.batch.entries.items() if s in self.program.inputs}
        known = self.batch.forms
        spread = set() if known is None else known.spread & self.program.constants.keys()
        self.forms = Forms(rows, node.tape, self.program.calls, self.program.constants, entries, spread)

    def run(self) -> list[Baked]:
        problems = list(self.batch.baked)
        whole = self.batch.forms
        assert whole is not None
        failed = whole.advance()
        problems += whole.changing_views() if failed is None else [failed]
        failed = self.forms.advance()
        if failed is not None:
            return [*problems, failed]
        self._agree_on_states()
        for port in self.node.outputs.values():
            found = self._axis(port)
            if isinstance(found, Baked):
                problems.append(found)
            else:
                port.axis = found
        for entering in self.node.inputs.values():
            entering.axis = self._entry(entering).axis
        problems += self.forms.suspects()
        problems += self._unequal_states() or ([] if problems else self._no_batch())
        if not problems:
            self._rebuild()
        return problems

    def _entry(self, port: InputPort) -> Entry:
        assert port.slot is not None
        return self.forms.entries[port.slot]

    def _agree_on_states(self) -> None:
        """Let a state follow the batch if its next value does and its own axis is not decided yet."""
        for port in self.node.inputs.values():
            after = self.node.outputs.get(port.name)
            if after is None or after.role != "state" or self._entry(port).kind == "told":
                continue
            if self._entry(port).axis is None and isinstance(self._axis(after), int):
                assert port.slot is not None
                self.forms.flip([port.slot])
                if self.forms.advance() is not None:
                    self.forms.failed = None
                    self.forms.flip([port.slot])
                    self.forms.advance()

    def _axis(self, port: OutputPort) -> int | Baked | None:
        """The batch axis of an output, or the reason why it has none."""
        assert port.slot is not None
        shapes = self.forms.shapes(port.slot)
        first = shapes[0]
        if all(s == first for s in shapes):
            return None
        if all(len(s) == len(first) for s in shapes):
            moving = [d for d in range(len(first)) if any(s[d] != first[d] for s in shapes)]
            worlds = [w.rows for w in self.forms.worlds]
            if len(moving) == 1 and [s[moving[0]] for s in shapes] == worlds:
                return moving[0]
        other = next((s, w.rows) for s, w in zip(shapes, self.forms.worlds, strict=True) if s != first)
        maker = next((c for c in reversed(self.program.calls) if port.slot in c.outs), None)
        return Baked(
            port.where if maker is None else self._culprit(maker).where,
            f"output '{port.name}' has the shape {list(first)} with {self.rows} rows and {list(other[0])} with {other[1]}; "
            "one axis, and only that, must be the batch",
        )

    def _culprit(self, maker: Any) -> Any:
        """The first call on the way to an output whose result changes its number of dimensions with the batch size."""
        wanted = set(maker.outs)
        for call in reversed(self.program.calls):
            if not wanted.isdisjoint(call.outs):
                wanted.update(call.reads)
        for call in self.program.calls:
            for slot in call.outs:
                value = self.forms.worlds[0].env[slot]
                if slot in wanted and isinstance(value, torch.Tensor) and len({len(s) for s in self.forms.shapes(slot)}) > 1:
                    return call
        return maker

    def _unequal_states(self) -> list[Baked]:
        return [
            Baked(
                port.where,
                f"state '{port.name}' has the batch at axis {port.axis}, its next value at axis "
                f"{self.node.outputs[port.name].axis}; give batch_axis= for it",
            )
            for port in self.node.inputs.values()
            if (after := self.node.outputs.get(port.name)) is not None and after.role == "state" and after.axis != port.axis
        ]

    def _no_batch(self) -> list[Baked]:
        if any(p.axis is not None for p in self.node.inputs.values()):
            return []
        port = next(iter(self.node.inputs.values()))
        return [Baked(port.where, f"no input that the outputs depend on has an axis of size {self.rows}, the batch")]

    def _rebuild(self) -> None:
        program = self.program
        first = next(p for p in self.node.inputs.values() if p.axis is not None)
        assert first.slot is not None
        assert first.axis is not None
        program.batch = (first.slot, first.axis)
        program.spread = frozenset(self.forms.spread & program.constants.keys())
        self.node.take(program, self.node.names)


def resized(node: NodeTrace, name: str, rows: int) -> torch.Tensor:
    """The first recorded value of an input with another number of rows: the recorded ones, over and over."""
    port, value = node.inputs[name], node.samples[0].inputs[name]
    if port.axis is None:
        return value
    return value.index_select(port.axis, torch.arange(rows, device=value.device) % value.shape[port.axis])

