"""Warns of legal code that is rarely intended: states that nothing updates or reads, one tensor given to two nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from leapp.graph.contract import key
from leapp.graph.suggest import close
from leapp.semantics import InputKindEnum, OutputKindEnum

if TYPE_CHECKING:
    from leapp.tracing.node import InputPort, NodeTrace, OutputPort
    from leapp.tracing.session import Session


def likely_mistakes(session: Session) -> Iterator[str]:
    """One sentence for each likely mistake."""
    for node in session.nodes.values():
        yield from _states(node)
        yield from _kinds(node)
        yield from _rates(session, node)
    for ours, first, theirs, second in session.sources.shared:
        if _enters(session, first, ours) and _enters(session, second, theirs):
            a, b = key(first, ours.name), key(second, theirs.name)
            yield (
                f"'{a}' (at {ours.where}) and '{b}' (at {theirs.where}) were given the same tensor, which no node published, "
                "so they are two graph inputs and the caller gives it twice. To share one, publish it with "
                f"output_tensors('{first}', ...) and declare that value for '{second}'."
            )


def _states(node: NodeTrace) -> Iterator[str]:
    for port in node.inputs.values():
        output = node.outputs.get(port.name)
        if port.role != "state" or not node.finished:
            continue
        if port.name in node.late:
            assert output is not None
            yield (
                f"node '{node.name}': state '{port.name}' is updated at {output.where}, and no state_tensors() declares it, so "
                "nothing reads it. Declare it; if your program does so from its second pass on, trace that pass too."
            )
        elif output is None or output.role != "state":
            yield (
                f"node '{node.name}': state '{port.name}' (declared at {port.where}) is never updated, so it became a constant "
                f"input. Give its next value to annotate.update_state('{node.name}', {{'{port.name}': ...}}) before "
                "output_tensors()."
            )


def _rates(session: Session, node: NodeTrace) -> Iterator[str]:
    """Warn of a node that ran less often than the node that feeds it, such as a policy at a lower rate than its estimator.

    A node with state that ran less often than others is as bad: its state changes in every step of the bundle.
    """
    cure = (
        "but a bundle runs every node in every step. Trace the slower node in a graph of its own, or run it in every pass and "
        "choose between its last and its new output with torch.where()."
    )
    for port in node.inputs.values():
        source = session.nodes.get(port.source.node) if port.source is not None and not port.source.delayed else None
        if source is not None and source.passes > node.passes > 0:
            yield (
                f"node '{node.name}' ran {node.passes} time(s) and '{source.name}', which feeds its input '{port.name}' (at "
                f"{port.where}), {source.passes} times, {cure}"
            )
            return
    fed = next((port for port in node.inputs.values() if port.role in ("state", "buffer") and port.name in node.outputs), None)
    if fed is not None and node.missed:
        yield (
            f"node '{node.name}', which keeps '{fed.name}' (at {fed.where}), did not run in every pass between its first and "
            f"its last, {cure}"
        )


_KINDS = [str(k.value) for kinds in (InputKindEnum, OutputKindEnum) for k in kinds]


def _kinds(node: NodeTrace) -> Iterator[str]:
    """Warn of kinds that are spelled almost like a known one. Other unknown kinds are the user's own."""
    ports: list[InputPort | OutputPort] = [*node.inputs.values(), *node.outputs.values()]
    for port in ports:
        kind = port.semantics.kind if port.semantics is not None else None
        text = str(getattr(kind, "value", kind)) if kind is not None else ""
        hint = close(text, _KINDS, 0.9) if text and text not in _KINDS else ""
        if hint:
            yield f"'{key(node.name, port.name)}' (at {port.where}) has the kind '{text}', which is not a known one.{hint}"


def _enters(session: Session, node: str, port: InputPort) -> bool:
    """Whether a node still has a port, and the port is fed from outside of the graph."""
    found = session.nodes.get(node)
    return found is not None and found.inputs.get(port.name) is port and port.source is None
