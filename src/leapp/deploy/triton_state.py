"""Where state is kept when a pipeline runs on a server: by the server for one model, or by a model above all of them.

The server can hold a state for one model. What goes from one node to another in the next step, and the states that this
mechanism cannot express, are held above. Knows the plan only.
"""

from __future__ import annotations

from dataclasses import dataclass

from leapp.graph.contract import key, split_key
from leapp.runtime.plan import Plan

__all__ = ["Division", "divide"]


@dataclass(frozen=True, slots=True)
class Division:
    """Where feedback is kept.

    Attributes:
        inside: For each node, the state inputs the server keeps for its model, with the outputs they take next.
        above: Every other fed-back input, with the output it takes next.
        guarded: Whether a model must stand above the ensemble, to hold feedback or to keep the states in step.
    """

    inside: dict[str, dict[str, str]]
    above: dict[str, str]
    guarded: bool

    @property
    def stateful(self) -> bool:
        """Whether anything is kept between steps."""
        return bool(self.above) or any(self.inside.values())


def divide(plan: Plan) -> Division:
    """Decide where each feedback of a plan is kept."""
    inside: dict[str, dict[str, str]] = {node: {} for node in plan.order}
    for target, source in plan.feedback.items():
        node = split_key(target)[0]
        # The server finds a state by its output, so an output can be one state only; and it cannot reshape a state.
        if node == split_key(source)[0] and plan.input_ports[target].shape and source not in inside[node].values():
            inside[node][target] = source
    above = {t: s for t, s in plan.feedback.items() if t not in inside[split_key(t)[0]]}
    shown = {*plan.outputs, *plan.edges.values(), *above.values()}
    for node, states in inside.items():
        # A step of an ensemble needs a tensor that goes in and one that comes out.
        if not set(plan.input_keys(node)) - states.keys() or not shown.intersection(plan.output_keys(node)):
            above |= states
            states.clear()
    stateful = [node for node, states in inside.items() if states]
    return Division(
        inside, {t: above[t] for t in plan.feedback if t in above}, bool(above) or not _steps_as_one(plan, stateful)
    )


def _steps_as_one(plan: Plan, stateful: list[str]) -> bool:
    """Whether the states in an ensemble take a step together with the whole pipeline, or not at all.

    An ensemble skips nodes that the outputs a client chose do not need, and it stops in the middle when a node fails or
    the client gives up. So a state is safe only in the one node that comes last and gives all outputs.
    """
    if len(stateful) != 1:
        return not stateful
    (last,) = stateful
    return _upstream(plan, last) == set(plan.order) and all(split_key(output)[0] == last for output in plan.outputs)


def _upstream(plan: Plan, node: str) -> set[str]:
    """A node and all it depends on within a step."""
    found: set[str] = set()
    waiting = [node]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            ports = plan.contract.nodes[name].inputs
            waiting += [split_key(plan.edges[k])[0] for k in (key(name, p.name) for p in ports) if k in plan.edges]
    return found
