"""From links between ports to the pipeline section of a contract.

A link says that an input takes the value of an output, in the same pass or (feedback) in the next one. Everything else
follows: what is a graph input, what is a graph output, and whether the ends of a link fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from leapp.errors import AnnotationError
from leapp.graph.contract import Node, Pipeline, key, split_key

__all__ = ["Link", "wire"]


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
) -> Pipeline:
    """Build the flow maps and the graph's inputs and outputs.

    A graph input is an input that nothing feeds. A graph output is an output that feeds nothing, or one that is
    ``wanted``. If a graph would have none, the fed-back outputs are its outputs (``states`` only if there is nothing else):
    a loop on the previous action returns its action.

    Args:
        nodes: The nodes in completion order.
        links: All links.
        wanted: Output keys that are graph outputs whatever they feed.
        states: Output keys that exist for feedback inside their node only.

    Raises:
        AnnotationError: If the two ends of a link differ in shape or dtype.
    """
    links = list(links)
    _check(nodes, links)
    flows: tuple[dict[str, list[str]], dict[str, list[str]]] = ({}, {})
    for link in links:
        flows[link.feedback].setdefault(link.source, []).append(link.target)
    fed = {link.target for link in links}
    feeding = {link.source for link in links}
    wanted, hidden = set(wanted), set(states)
    all_outputs = [key(n, p.name) for n, node in nodes.items() for p in node.outputs]
    outputs = [k for k in all_outputs if k not in feeding or k in wanted]
    if not outputs:
        outputs = [k for k in flows[True] if k not in hidden] or list(flows[True])
        outputs = [k for k in all_outputs if k in outputs]
    inputs = [key(n, p.name) for n, node in nodes.items() for p in node.inputs if key(n, p.name) not in fed]
    return Pipeline(
        data_flow={k: tuple(v) for k, v in flows[False].items()},
        feedback_flow={k: tuple(v) for k, v in flows[True].items()},
        inputs=_by_node(inputs),
        outputs=_by_node(outputs),
    )


def _by_node(keys: Iterable[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for text in keys:
        node, port = split_key(text)
        found[node] = (*found.get(node, ()), port)
    return found


def _check(nodes: Mapping[str, Node], links: Iterable[Link]) -> None:
    outputs = {key(n, p.name): p for n, node in nodes.items() for p in node.outputs}
    inputs = {key(n, p.name): p for n, node in nodes.items() for p in node.inputs}
    for link in links:
        source, target = outputs[link.source], inputs[link.target]
        if (source.shape, source.dtype) != (target.shape, target.dtype):
            raise AnnotationError(
                f"'{link.source}' is {source.dtype} {list(source.shape)} but '{link.target}', which it feeds, is "
                f"{target.dtype} {list(target.shape)}. Both ends must agree."
            )
