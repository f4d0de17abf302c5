"""The facts that a picture shows about a contract: nodes, ports with their role and details, links, a title. No coordinates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, Literal

import msgspec

from leapp.errors import BundleError
from leapp.graph.contract import Contract, Node, Port, key, split_key
from leapp.graph.validate import links

Side = Literal["in", "out"]
LinkKind = Literal["data", "feedback", "state"]
TagKind = Literal["input", "output", "static", "static output"]

Spot = tuple[str, Side, str]
"""A port of the picture: node, side, port. A state may have the same name on both sides."""


class PortFacts(msgspec.Struct, frozen=True):
    """One port: ``details`` are the lines under its name, ``wiring`` the kinds of link that touch it."""

    spot: Spot
    details: tuple[tuple[str, str], ...]
    tag: TagKind | None
    wiring: frozenset[LinkKind]

    @property
    def name(self) -> str:
        """The name of the port within its node."""
        return self.spot[2]


class NodeFacts(msgspec.Struct, frozen=True):
    """One node, ready to be measured."""

    name: str
    subtitle: str
    has_model: bool
    inputs: tuple[PortFacts, ...]
    outputs: tuple[PortFacts, ...]


class LinkFacts(msgspec.Struct, frozen=True):
    """One wire. A *state* is feedback that stays inside its node."""

    kind: LinkKind
    source: Spot
    target: Spot


class Subject(msgspec.Struct, frozen=True):
    """Everything a picture shows."""

    title: str
    summary: str
    nodes: tuple[NodeFacts, ...]
    links: tuple[LinkFacts, ...]


def describe(
    contract: Contract,
    name: str,
    *,
    static_outputs: Collection[str] = (),
    parameter_counts: Mapping[str, int] | None = None,
) -> Subject:
    """Collect what the picture of ``contract`` shows.

    Raises:
        BundleError: If the wiring names a port that no node has.
    """
    wires = (*_links(contract, "data"), *_links(contract, "feedback"))
    wiring: dict[Spot, set[LinkKind]] = {}
    for link in wires:
        wiring.setdefault(link.source, set()).add(link.kind)
        wiring.setdefault(link.target, set()).add(link.kind)
    tags = _tags(contract, static_outputs)
    counts = parameter_counts or {}

    def ports(node: str, side: Side, declared: tuple[Port, ...]) -> tuple[PortFacts, ...]:
        return tuple(
            PortFacts(spot := (node, side, port.name), _details(port), tags.get(spot), frozenset(wiring.get(spot, ())))
            for port in declared
        )

    nodes = tuple(
        NodeFacts(
            name=node_name,
            subtitle=_subtitle(node, counts.get(node_name)),
            has_model=node.model.backend is not None,
            inputs=ports(node_name, "in", node.inputs),
            outputs=ports(node_name, "out", node.outputs),
        )
        for node_name, node in contract.nodes.items()
    )
    return Subject(name, _summary(contract, wires, counts), nodes, wires)


def _links(contract: Contract, flow: Literal["data", "feedback"]) -> list[LinkFacts]:
    found = []
    for source, _, target in links(getattr(contract.pipeline, f"{flow}_flow")):
        start, end = _spot(contract, source, "out"), _spot(contract, target, "in")
        own = flow == "feedback" and start[0] == end[0]
        found.append(LinkFacts("state" if own else flow, start, end))
    return found


def _spot(contract: Contract, text: str, side: Side) -> Spot:
    name, port = split_key(text)
    node = contract.nodes.get(name)
    if node is None or port not in {p.name for p in (node.inputs if side == "in" else node.outputs)}:
        what = "input" if side == "in" else "output"
        raise BundleError(f"The wiring names '{text}', but no node has this {what}. Correct the pipeline section.")
    return (name, side, port)


def _tags(contract: Contract, static_outputs: Collection[str]) -> dict[Spot, TagKind]:
    tags: dict[Spot, TagKind] = {}
    for node, ports in contract.pipeline.inputs.items():
        tags |= {_spot(contract, key(node, port), "in"): "input" for port in ports}
    for node, ports in contract.pipeline.outputs.items():
        tags |= {_spot(contract, key(node, port), "out"): "output" for port in ports}
    for text in static_outputs:
        spot = _spot(contract, text, "out")
        tags[spot] = "static output" if spot in tags else "static"
    return tags


def _details(port: Port) -> tuple[tuple[str, str], ...]:
    """The lines under a port's name, each with the style it is drawn in."""
    first = [f"[{', '.join(map(str, port.shape))}] {port.dtype}"]
    names = _element_count(port.element_names)
    if names:
        first.append(names)
    if port.temporal_period_ms is not None:
        first.append(f"{port.temporal_period_ms} ms apart")
    meaning = [] if port.kind is None else [str(port.kind)]
    if port.units is not None:
        meaning.append(f"in {port.units}" if meaning else f"unit {port.units}")
    return (("shape", " · ".join(first)), *([("kind", " ".join(meaning))] if meaning else []))


def _element_count(axes: list[Any] | None) -> str:
    """How many element names each named axis has."""
    counts = [len(axis) for axis in axes or () if isinstance(axis, list) and axis]
    return " × ".join(map(str, counts)) + (" name" if counts == [1] else " names") if counts else ""


def _subtitle(node: Node, parameters: int | None) -> str:
    parts = [node.model.backend or "no model"]
    if parameters is not None:
        parts.append(_count(parameters, "parameter"))
    return " · ".join(parts)


def _summary(contract: Contract, wires: tuple[LinkFacts, ...], counts: Mapping[str, int]) -> str:
    number = Counter(wire.kind for wire in wires)
    parts = [_count(len(contract.nodes), "node"), _count(number["data"], "edge")]
    if number["feedback"]:
        parts.append(f"{number['feedback']} feedback")
    if number["state"]:
        parts.append(_count(number["state"], "state"))
    known = [counts[name] for name in contract.nodes if name in counts]
    if known:
        partial = "" if len(known) == len(contract.nodes) else f" in {len(known)} of {len(contract.nodes)} nodes"
        parts.append(_count(sum(known), "parameter") + partial)
    frequency = contract.pipeline.frequency
    if frequency is not None:
        parts.append(f"{frequency} Hz")
    return "  ·  ".join(parts)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
