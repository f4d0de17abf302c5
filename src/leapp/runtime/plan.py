"""The order and the wiring of a pipeline, decided once from its contract.

A plan is immutable and knows no file, no engine and no array library. Whatever makes the wiring ambiguous or impossible
is refused here by name, so the parts that run never have to ask again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from leapp.errors import BundleError, InputError, InputTypeError, UnknownPortError
from leapp.graph.contract import DTYPES, Contract, Node, Port, key, split_key

__all__ = ["BACKENDS", "Plan", "make_plan"]

BACKENDS = ("onnx", "jit", "pt2")


@dataclass(frozen=True, slots=True)
class Plan:
    """How one step runs.

    Attributes:
        contract: What the bundle says.
        order: Node names in execution order.
        inputs: Keys the caller gives, in the contract's order.
        outputs: Keys the caller receives, in the contract's order.
        input_ports: Every input port of every node.
        output_ports: Every output port of every node.
        edges: Input key to the output key that feeds it within a step.
        feedback: Input key to the output key whose value of the step before it reads.
        missing: Nodes without a model. A plan with such nodes can be looked at, not run.
        batch: The number of rows it is made for, in a pipeline that takes any; ``None`` if all sizes are fixed.
    """

    contract: Contract
    order: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    input_ports: Mapping[str, Port]
    output_ports: Mapping[str, Port]
    edges: Mapping[str, str]
    feedback: Mapping[str, str]
    missing: tuple[str, ...]
    batch: int | None = None

    def at(self, rows: int) -> Plan:
        """The same plan for that many rows."""
        inputs = {k: port.at(rows) for k, port in self.input_ports.items()}
        return replace(self, input_ports=inputs, output_ports={k: p.at(rows) for k, p in self.output_ports.items()}, batch=rows)

    def input_key(self, where: object) -> str:
        """The key of the input that a caller names. ``h`` stands for ``h_in`` when an export renamed the port so.

        Raises:
            InputError: It is no key at all.
            UnknownPortError: There is no such input.
        """
        if not isinstance(where, str):
            raise InputTypeError(f"Inputs are named 'node/port', got {where!r}.")
        if where in self.input_ports:
            return where
        if f"{where}_in" in self.input_ports:
            return f"{where}_in"
        node, port = split_key(where)
        if not node or not port:
            raise InputError(f"Inputs are named 'node/port', got {where!r}.")
        known = self.contract.nodes.get(node)
        if known is None:
            raise UnknownPortError(f"Input {where!r}: there is no node {node!r}; there are {list(self.order)}.")
        there = [self._callers_name(node, p.name) for p in known.inputs]
        raise UnknownPortError(f"Input {where!r}: node {node!r} has no input {port!r}; it has {there}.")

    def _callers_name(self, node: str, port: str) -> str:
        """The name by which a caller knows an input: the one that it was declared with."""
        name = port.removesuffix("_in")
        renamed = port != name and self.feedback.get(key(node, port)) == key(node, f"{name}_out")
        return name if renamed else port

    def input_keys(self, node: str) -> tuple[str, ...]:
        """The keys of a node's inputs, in the order its model takes them."""
        return tuple(key(node, port.name) for port in self.contract.nodes[node].inputs)

    def output_keys(self, node: str) -> tuple[str, ...]:
        """The keys of a node's outputs, in the order its model returns them."""
        return tuple(key(node, port.name) for port in self.contract.nodes[node].outputs)


def make_plan(contract: Contract) -> Plan:
    """Check the wiring of a contract and decide the execution order.

    Raises:
        BundleError: The contract cannot be run as written. The message names the node or the port.
    """
    input_ports = _ports(contract, "input")
    output_ports = _ports(contract, "output")
    edges = _targets(contract.pipeline.data_flow, "data_flow", input_ports, output_ports)
    feedback = _targets(contract.pipeline.feedback_flow, "feedback_flow", input_ports, output_ports)
    inputs = _listed(contract.pipeline.inputs, "inputs", input_ports)
    outputs = _listed(contract.pipeline.outputs, "outputs", output_ports)
    _check_fed_once(input_ports, inputs, edges, feedback)
    _check_used(output_ports, outputs, edges, feedback)
    return Plan(
        contract=contract,
        order=_order(contract.nodes, edges),
        inputs=inputs,
        outputs=outputs,
        input_ports=input_ports,
        output_ports=output_ports,
        edges=edges,
        feedback=feedback,
        missing=tuple(name for name, node in contract.nodes.items() if not _has_model(name, node)),
        batch=_batch({**input_ports, **output_ports}),
    )


def _batch(ports: Mapping[str, Port]) -> int | None:
    """The traced number of rows, if the pipeline takes any."""
    found: dict[int, str] = {}
    for where, port in ports.items():
        if port.batch_axis is not None:
            if not 0 <= port.batch_axis < len(port.shape):
                raise BundleError(f"{where!r} has the batch_axis {port.batch_axis}, but its shape is {list(port.shape)}.")
            found.setdefault(port.shape[port.batch_axis], where)
    if len(found) > 1:
        (rows, one), (others, other), *_ = found.items()
        raise BundleError(f"{one!r} has a batch of {rows} rows and {other!r} of {others}: a pipeline has one batch.")
    return next(iter(found), None)


def _ports(contract: Contract, side: str) -> dict[str, Port]:
    found: dict[str, Port] = {}
    for name, node in contract.nodes.items():
        for port in node.inputs if side == "input" else node.outputs:
            where = key(name, port.name)
            if where in found:
                raise BundleError(f"Node {name!r} has two {side}s named {port.name!r}.")
            if port.dtype not in DTYPES:
                raise BundleError(f"{side} {where!r} has the unknown dtype {port.dtype!r}.")
            if any(size < 0 for size in port.shape):
                raise BundleError(f"{side} {where!r} has a negative size in its shape {list(port.shape)}.")
            found[where] = port
    return found


def _has_model(name: str, node: Node) -> bool:
    backend = node.model.backend
    if node.model.model_path is None:
        return False
    if backend not in BACKENDS:
        raise BundleError(f"Node {name!r} has the backend {backend!r}; this runtime runs {', '.join(BACKENDS)}.")
    return True


def _links(flow: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, str]]:
    for source, targets in flow.items():
        for target in targets:
            yield source, target


def _targets(
    flow: Mapping[str, tuple[str, ...]],
    name: str,
    input_ports: Mapping[str, Port],
    output_ports: Mapping[str, Port],
) -> dict[str, str]:
    fed: dict[str, str] = {}
    for source, target in _links(flow):
        if source not in output_ports:
            raise BundleError(f"{name} starts at {source!r}, which is no output of any node.")
        if target not in input_ports:
            raise BundleError(f"{name} leads from {source!r} to {target!r}, which is no input of any node.")
        if target in fed:
            raise BundleError(f"Input {target!r} is fed twice in {name}: by {fed[target]!r} and by {source!r}.")
        given, taken = output_ports[source], input_ports[target]
        if (given.dtype, given.shape, given.batch_axis) != (taken.dtype, taken.shape, taken.batch_axis):
            raise BundleError(
                f"{name} leads from {source!r} ({_form(given)}) to {target!r} ({_form(taken)}): both ends must agree."
            )
        fed[target] = source
    return fed


def _form(port: Port) -> str:
    batch = "" if port.batch_axis is None else f", batch_axis {port.batch_axis}"
    return f"{port.dtype} {list(port.shape)}{batch}"


def _listed(names: Mapping[str, tuple[str, ...]], side: str, ports: Mapping[str, Port]) -> tuple[str, ...]:
    keys: list[str] = []
    for node, port_names in names.items():
        for port_name in port_names:
            where = key(node, port_name)
            if where not in ports:
                raise BundleError(f"pipeline.{side} lists {where!r}, which is no {side[:-1]} of any node.")
            if where in keys:
                raise BundleError(f"pipeline.{side} lists {where!r} twice.")
            keys.append(where)
    return tuple(keys)


def _check_fed_once(
    ports: Mapping[str, Port], inputs: tuple[str, ...], edges: Mapping[str, str], feedback: Mapping[str, str]
) -> None:
    for where in ports:
        feeders = []
        if where in inputs:
            feeders.append("the caller (pipeline.inputs)")
        if where in edges:
            feeders.append(f"{edges[where]!r} (data_flow)")
        if where in feedback:
            feeders.append(f"{feedback[where]!r} (feedback_flow)")
        if not feeders:
            raise BundleError(f"Input {where!r} is fed by nothing: list it in pipeline.inputs or in a flow.")
        if len(feeders) > 1:
            raise BundleError(f"Input {where!r} is fed twice: by {' and by '.join(feeders)}.")


def _check_used(
    ports: Mapping[str, Port], outputs: tuple[str, ...], edges: Mapping[str, str], feedback: Mapping[str, str]
) -> None:
    used = {*outputs, *edges.values(), *feedback.values()}
    for where in ports:
        if where not in used:
            raise BundleError(f"Output {where!r} goes nowhere: list it in pipeline.outputs or in a flow.")


def _order(nodes: Mapping[str, Node], edges: Mapping[str, str]) -> tuple[str, ...]:
    """Order the nodes by their edges, keeping nodes of one backend together so that they can share an engine."""
    waits = {name: {split_key(source)[0] for target, source in edges.items() if split_key(target)[0] == name}
             for name in nodes}  # fmt: skip
    order: list[str] = []
    backend: str | None = None
    while waits:
        ready = sorted(name for name, sources in waits.items() if not sources)
        if not ready:
            raise BundleError(f"data_flow has a cycle through {', '.join(repr(n) for n in _cycle(waits))}.")
        chosen = next((name for name in ready if nodes[name].model.backend == backend), ready[0])
        backend = nodes[chosen].model.backend
        order.append(chosen)
        del waits[chosen]
        for sources in waits.values():
            sources.discard(chosen)
    return tuple(order)


def _cycle(waits: Mapping[str, set[str]]) -> list[str]:
    """One cycle among nodes that all wait for another, along its edges."""
    path = [min(waits)]
    while True:
        source = min(waits[path[-1]])
        if source in path:
            cycle = path[path.index(source) :][::-1]
            first = cycle.index(min(cycle))
            return cycle[first:] + cycle[:first]
        path.append(source)
