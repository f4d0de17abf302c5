"""The order and the wiring of a pipeline, decided once from its contract.

A plan is immutable and knows no file, no engine and no array library. Ambiguous or impossible wiring is refused here with an
error that names the port, so the code that runs steps need not check it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from leapp.errors import BundleError, InputError, InputTypeError, UnknownPortError
from leapp.graph.contract import Contract, Node, Port, key, split_key
from leapp.graph.formats import RUNNABLE
from leapp.graph.suggest import close
from leapp.graph.validate import check, execution_order, graph_keys, ports, sources


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
        feedback: Input key to the output key whose value from the step before it reads.
        missing: Nodes without a model. A plan with such nodes can be inspected, not run.
        batch: The number of rows of this plan, in a pipeline that takes any; ``None`` if all sizes are fixed.
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
            InputError: It is not of the form ``node/port``.
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
            raise InputError(f"Inputs are named 'node/port', got {where!r}.{self._meant(where)}")
        known = self.contract.nodes.get(node)
        if known is None:
            raise UnknownPortError(
                f"Input {where!r}: there is no node {node!r}; there are {list(self.order)}.{self._meant(where)}"
            )
        there = [self._callers_name(node, p.name) for p in known.inputs]
        raise UnknownPortError(f"Input {where!r}: node {node!r} has no input {port!r}; it has {there}.{self._meant(where)}")

    def _meant(self, where: str) -> str:
        """A hint at the input that was most likely meant: one with the same port name, or with a similar name."""
        named = [key(node, self._callers_name(node, p.name)) for node, n in self.contract.nodes.items() for p in n.inputs]
        by_port = [name for name in named if split_key(name)[1] == where]
        return f" Did you mean '{by_port[0]}'?" if len(by_port) == 1 else close(where, named)

    def _callers_name(self, node: str, port: str) -> str:
        """The name that the input was declared with, which callers use."""
        name = port.removesuffix("_in")
        renamed = port != name and self.feedback.get(key(node, port)) == key(node, f"{name}_out")
        return name if renamed else port

    def input_keys(self, node: str) -> tuple[str, ...]:
        """The keys of a node's inputs, in the order its model takes them."""
        return tuple(key(node, port.name) for port in self.contract.nodes[node].inputs)

    def output_keys(self, node: str) -> tuple[str, ...]:
        """The keys of a node's outputs, in the order its model returns them."""
        return tuple(key(node, port.name) for port in self.contract.nodes[node].outputs)


def make_plan(contract: Contract, *, checked: bool = False) -> Plan:
    """Check the wiring of a contract and decide the execution order.

    Args:
        contract: What the bundle says.
        checked: Whether its rules were checked before. Reading a bundle checks them.

    Raises:
        BundleError: The contract cannot be run as written. The message names the node or the port.
    """
    if not checked:
        check(contract)
    pipeline = contract.pipeline
    input_ports, output_ports = ports(contract.nodes, "inputs"), ports(contract.nodes, "outputs")
    every = (*input_ports.values(), *output_ports.values())
    batches = {port.shape[port.batch_axis] for port in every if port.batch_axis is not None}
    return Plan(
        contract=contract,
        order=execution_order(contract),
        inputs=graph_keys(pipeline, "inputs"),
        outputs=graph_keys(pipeline, "outputs"),
        input_ports=input_ports,
        output_ports=output_ports,
        edges=sources(pipeline.data_flow),
        feedback=sources(pipeline.feedback_flow),
        missing=tuple(name for name, node in contract.nodes.items() if not _has_model(name, node)),
        batch=next(iter(batches), None),
    )


def _has_model(name: str, node: Node) -> bool:
    backend = node.model.backend
    if node.model.model_path is None:
        return False
    if backend not in RUNNABLE:
        raise BundleError(f"Node {name!r} has the backend {backend!r}; this runtime runs {', '.join(RUNNABLE)}.")
    return True
