"""Makes the pipeline section of a contract from the links between ports.

A link means that an input takes the value of an output, in the same pass or (feedback) in the next one. From the links follow
the inputs and outputs of the graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from leapp.errors import AnnotationError
from leapp.graph.contract import Node, Wiring, split_key
from leapp.graph.validate import misfit, ports


@dataclass(frozen=True, slots=True)
class Link:
    """``source`` feeds ``target``; both are ``node/port`` keys."""

    source: str
    target: str
    feedback: bool


def wire(
    nodes: Mapping[str, Node],
    links: Iterable[Link],
    *,
    wanted: Iterable[str] = (),
    states: Iterable[str] = (),
    static: Iterable[str] = (),
) -> Wiring:
    """Build the flow maps and the graph's inputs and outputs.

    A graph input is an input that nothing feeds. A graph output is an output that feeds nothing, or one that is ``wanted``. A
    group of linked nodes without such an output (constants do not count) gets its feedback outputs as graph outputs: a loop on
    the previous action returns the action. ``states`` are taken only if the group has no other feedback.

    Args:
        nodes: The nodes in completion order.
        links: All links.
        wanted: Output keys that are graph outputs even if they feed other nodes.
        states: Output keys that exist for feedback inside their node only.
        static: Output keys that are constants.

    Raises:
        AnnotationError: If the two ends of a link differ in shape, dtype or batch axis.
    """
    links = list(links)
    _check(nodes, links)
    flows: tuple[dict[str, list[str]], dict[str, list[str]]] = ({}, {})
    for link in links:
        flows[link.feedback].setdefault(link.source, []).append(link.target)
    fed = {link.target for link in links}
    feeding = {link.source for link in links}
    wanted, hidden, constant = set(wanted), set(states), set(static)
    all_outputs = list(ports(nodes, "outputs"))
    chosen = {k for k in all_outputs if k not in feeding or k in wanted}
    for group in components(list(nodes), [(split_key(link.source)[0], split_key(link.target)[0]) for link in links]):
        if not any(k in chosen - constant for k in all_outputs if split_key(k)[0] in group):
            fed_back = [k for k in flows[True] if split_key(k)[0] in group]
            chosen.update([k for k in fed_back if k not in hidden] or fed_back)
    outputs = [k for k in all_outputs if k in chosen]
    inputs = [k for k in ports(nodes, "inputs") if k not in fed]
    return Wiring(
        data_flow={k: tuple(v) for k, v in flows[False].items()},
        feedback_flow={k: tuple(v) for k, v in flows[True].items()},
        inputs=_by_node(inputs),
        outputs=_by_node(outputs),
    )


def components(nodes: Sequence[str], pairs: Iterable[tuple[str, str]]) -> list[list[str]]:
    """The groups of nodes that are connected in any direction, in the given order."""
    root = {node: node for node in nodes}

    def find(node: str) -> str:
        while root[node] != node:
            root[node] = root[root[node]]
            node = root[node]
        return node

    for a, b in pairs:
        root[find(a)] = find(b)
    groups: dict[str, list[str]] = {}
    for node in nodes:
        groups.setdefault(find(node), []).append(node)
    return list(groups.values())


def _by_node(keys: Iterable[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for text in keys:
        node, port = split_key(text)
        found[node] = (*found.get(node, ()), port)
    return found


def _check(nodes: Mapping[str, Node], links: Iterable[Link]) -> None:
    outputs, inputs = ports(nodes, "outputs"), ports(nodes, "inputs")
    for link in links:
        given, taken = outputs[link.source], inputs[link.target]
        if difference := misfit(link.source, given, link.target, taken):
            remedy = ": give batch_axis= for the input" if given.shape == taken.shape and given.dtype == taken.dtype else ""
            raise AnnotationError(f"{difference}. Both ends of a link must agree{remedy}.")
