"""Lists the facts that are missing in the description of a pipeline for deployment."""

from __future__ import annotations

from leapp.graph.contract import Contract, Port
from leapp.graph.validate import graph_ports
from leapp.semantics import TEMPORAL_AXIS


def deployment_gaps(contract: Contract) -> list[str]:
    """The missing facts, one line for each kind."""
    outside = [item for side in ("inputs", "outputs") for item in graph_ports(contract, side).items()]
    gaps = []
    if contract.pipeline.frequency is None:
        gaps.append("no frequency: pass graph_configs=GraphConfigs(frequency=...) to compile_graph()")
    absent = {
        "no kind": [where for where, port in outside if port.kind is None],
        "no units": [where for where, port in outside if port.units is None],
        "no element names": [where for where, port in outside if _needs_names(port)],
        "no model": [name for name, node in contract.nodes.items() if node.model.model_path is None],
    }
    gaps += [f"{what}: {', '.join(names)}" for what, names in absent.items() if names]
    if contract.pipeline.feedback_flow and contract.pipeline.initial_values is None:
        gaps.append("no initial values: every state starts at zero")
    return gaps


def _needs_names(port: Port) -> bool:
    named = any(axis and axis != TEMPORAL_AXIS for axis in port.element_names or ())
    # Only vectors need element names, images and grids do not.
    return not named and sum(size != 1 for size in port.shape) == 1
