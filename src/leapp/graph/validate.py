"""The rules of a pipeline: valid ports, valid wiring, and the order in which nodes run.

Every rule is written here once. Reading a bundle, planning a run and exporting apply them, and add a line, a file or a remedy
to the message.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from leapp.errors import BundleError
from leapp.graph.contract import Contract, Node, Port, Wiring, key, split_key
from leapp.graph.dtypes import DTYPES

_MAX_ELEMENTS = 2**40


class Problem(NamedTuple):
    """A rule that is broken.

    Attributes:
        path: The keys of the YAML that lead to the place.
        text: What is wrong, without a full stop.
    """

    path: tuple[str | int, ...]
    text: str


def check(contract: Contract) -> None:
    """Apply all rules.

    Raises:
        BundleError: A rule is broken. The message names the node or the port.
    """
    for name, node in contract.nodes.items():
        for side, listed in (("inputs", node.inputs), ("outputs", node.outputs)):
            for port in listed:
                if found := port_problem(port):
                    raise BundleError(f"node {name!r}, {side[:-1]} {port.name!r}: {found.text}.")
            if twice := repeated(listed):
                raise BundleError(f"node {name!r}: {twice.text}.")
    if found := wiring_problem(contract.nodes, contract.pipeline):
        raise BundleError(f"{'.'.join(str(step) for step in found.path if isinstance(step, str))}: {found.text}.")


def port_problem(port: Port) -> Problem | None:
    """What is wrong with a port by itself."""
    if port.dtype not in DTYPES:
        return Problem(("dtype",), f"unknown dtype {port.dtype!r}")
    if port.type != "tensor":
        return Problem(("type",), f"expected 'tensor', got {port.type!r}")
    if any(size < 0 for size in port.shape) or math.prod(port.shape) > _MAX_ELEMENTS:
        return Problem(("shape",), f"{list(port.shape)} is not a possible shape")
    axis = port.batch_axis
    if axis is not None and not (0 <= axis < len(port.shape) and port.shape[axis]):
        return Problem(("batch_axis",), f"the batch_axis {axis} is not an axis of the shape {list(port.shape)} that has rows")
    return None


def repeated(listed: tuple[Port, ...]) -> Problem | None:
    """The first port of a list whose name occurred before."""
    seen: set[str] = set()
    for index, port in enumerate(listed):
        if port.name in seen:
            return Problem((index, "name"), f"the port '{port.name}' is listed twice")
        seen.add(port.name)
    return None


def wiring_problem(nodes: Mapping[str, Node], pipeline: Wiring) -> Problem | None:
    """The first rule of wiring that a pipeline breaks.

    Every input is fed once: by a flow or from outside. Every output goes somewhere. The ends of a link agree. All ports
    that take any number of rows were traced with the same number.
    """
    return next(_wiring_problems(ports(nodes, "inputs"), ports(nodes, "outputs"), pipeline), None)


def ports(nodes: Mapping[str, Node], side: str) -> dict[str, Port]:
    """All ``inputs`` or ``outputs`` by their ``node/port`` keys."""
    return {key(name, port.name): port for name, node in nodes.items() for port in getattr(node, side)}


def graph_keys(pipeline: Wiring, side: str) -> tuple[str, ...]:
    """The ``node/port`` keys of the ``inputs`` or ``outputs`` of the graph, in the order of the pipeline."""
    return tuple([key(node, name) for node, names in getattr(pipeline, side).items() for name in names])


def graph_ports(contract: Contract, side: str) -> dict[str, Port]:
    """The ``inputs`` or ``outputs`` of the graph by their ``node/port`` keys, in the order of the pipeline."""
    known = ports(contract.nodes, side)
    return {where: known[where] for where in graph_keys(contract.pipeline, side) if where in known}


def feedback_ports(contract: Contract) -> dict[str, Port]:
    """The inputs that take an output of the last step, by their ``node/port`` keys: those that need an initial value."""
    known = ports(contract.nodes, "inputs")
    return {target: known[target] for _, _, target in links(contract.pipeline.feedback_flow)}


def links(flow: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, int, str]]:
    """The links of a flow: source, place in the list of its targets, target."""
    for source, targets in flow.items():
        for index, target in enumerate(targets):
            yield source, index, target


def sources(flow: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """For each input that a flow feeds, the output that feeds it."""
    return {target: source for source, _, target in links(flow)}


def misfit(source: str, given: Port, target: str, taken: Port) -> str | None:
    """Why the output ``source`` cannot feed the input ``target``; None if it can."""
    forms = [f"{port.dtype} {list(port.shape)}" for port in (given, taken)]
    if forms[0] == forms[1] and given.batch_axis != taken.batch_axis:
        forms = [f"{form} with batch_axis {port.batch_axis}" for form, port in zip(forms, (given, taken), strict=True)]
    return None if forms[0] == forms[1] else f"'{source}' gives {forms[0]}, but '{target}' takes {forms[1]}"


def _wiring_problems(inputs: Mapping[str, Port], outputs: Mapping[str, Port], pipeline: Wiring) -> Iterator[Problem]:
    fed: dict[str, str] = {}
    used: set[str] = set()
    for flow in ("data_flow", "feedback_flow"):
        for source in getattr(pipeline, flow):
            if source not in outputs:
                yield Problem(("pipeline", flow, source), _no_such("output", source, outputs))
            used.add(source)
        for source, index, target in links(getattr(pipeline, flow)):
            place = ("pipeline", flow, source, index)
            if target not in inputs:
                yield Problem(place, _no_such("input", target, inputs))
            elif difference := misfit(source, outputs[source], target, inputs[target]):
                yield Problem(place, difference)
            if target in fed:
                yield Problem(place, f"the input '{target}' is fed twice, from {fed[target]} and from '{source}'")
            fed[target] = f"'{source}'"
    for section, known in (("inputs", inputs), ("outputs", outputs)):
        for node, names in getattr(pipeline, section).items():
            for index, name in enumerate(names):
                place, where = ("pipeline", section, node, index), key(node, name)
                if where not in known:
                    yield Problem(place, _no_such(section[:-1], where, known))
                if name in names[:index]:
                    yield Problem(place, f"'{where}' is listed twice")
                if section == "inputs":
                    if where in fed:
                        yield Problem(place, f"the input '{where}' is fed twice, from {fed[where]} and from outside")
                    fed[where] = "outside"
                else:
                    used.add(where)
    for where in inputs:
        if where not in fed:
            yield Problem(("pipeline",), f"nothing feeds the input '{where}'; list it in a flow or in pipeline.inputs")
    for where in outputs:
        if where not in used:
            yield Problem(("pipeline",), f"the output '{where}' goes nowhere; list it in a flow or in pipeline.outputs")
    yield from _batches({**inputs, **outputs})


def _no_such(what: str, where: str, known: Mapping[str, Port]) -> str:
    listed = ", ".join(sorted(known)[:8]) or "none"
    return f"no {what} is called '{where}' (known: {listed})"


def _batches(ports: Mapping[str, Port]) -> Iterator[Problem]:
    first: dict[int, str] = {}
    for where, port in ports.items():
        if port.batch_axis is not None:
            first.setdefault(port.shape[port.batch_axis], where)
    if len(first) > 1:
        (rows, one), (others, other), *_ = first.items()
        yield Problem(
            ("pipeline",), f"'{one}' has a batch of {rows} rows and '{other}' of {others}, and a pipeline has one batch"
        )


def execution_order(contract: Contract) -> tuple[str, ...]:
    """The nodes in the order of their links. Nodes of one backend follow each other if the links allow it, and share an engine.

    Raises:
        BundleError: The links of one pass form a cycle.
    """
    nodes = contract.nodes
    waits: dict[str, set[str]] = {name: set() for name in nodes}
    feeds: dict[str, set[str]] = {name: set() for name in nodes}
    for source, _, target in links(contract.pipeline.data_flow):
        before, after = split_key(source)[0], split_key(target)[0]
        waits[after].add(before)
        feeds[before].add(after)
    ready = sorted(name for name, sources in waits.items() if not sources)
    order: list[str] = []
    backend: str | None = None
    while ready:
        chosen = next((name for name in ready if nodes[name].model.backend == backend), ready[0])
        backend = nodes[chosen].model.backend
        order.append(chosen)
        ready.remove(chosen)
        del waits[chosen]
        for target in feeds[chosen]:
            waits[target].remove(chosen)
            if not waits[target]:
                insort(ready, target)
    if waits:
        raise BundleError(f"data_flow has a cycle through {', '.join(repr(name) for name in _cycle(waits))}.")
    return tuple(order)


def _cycle(waits: Mapping[str, set[str]]) -> list[str]:
    """One cycle among nodes that all wait for another, along its links."""
    path = [min(waits)]
    while True:
        source = min(waits[path[-1]])
        if source in path:
            cycle = path[path.index(source) :][::-1]
            first = cycle.index(min(cycle))
            return cycle[first:] + cycle[:first]
        path.append(source)
