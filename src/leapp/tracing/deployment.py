"""What a deployer would have to guess: a list for the compile report, never an error."""

from __future__ import annotations

import re

from leapp.graph.contract import Contract, Port, key

__all__ = ["missing_for_deployment"]

_JOINTS = re.compile(r"joint|dof|motor|actuator|torque|\b(kp|kd)\b", re.IGNORECASE)


def missing_for_deployment(contract: Contract) -> list[str]:
    """One sentence for each fact about the graph's own inputs and outputs that nothing in the bundle tells."""
    found = []
    if (contract.pipeline.configs or {}).get("frequency") is None:
        found.append("the graph has no frequency: pass graph_configs=GraphConfigs(frequency=...) to compile_graph().")
    for what, flows, side in (
        ("input", contract.pipeline.inputs, "inputs"), ("output", contract.pipeline.outputs, "outputs")
    ):  # fmt: skip
        for node, names in flows.items():
            ports: dict[str, Port] = {p.name: p for p in getattr(contract.nodes[node], side)}
            found += [text for name in names for text in _lacking(what, key(node, name), ports[name])]
    return found


def _lacking(what: str, where: str, port: Port) -> list[str]:
    found = []
    if port.kind is None:
        found.append(f"{what} '{where}' has no kind: declare it with TensorSemantics(kind=...).")
    if port.element_names is None and _JOINTS.search(port.kind or port.name) and port.shape:
        found.append(f"{what} '{where}' does not name its joints: declare it with TensorSemantics(element_names=[...]).")
    return found
