"""The engines of a bundle's nodes: models read and loaded. Knows no state and nothing of what callers give."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from leapp.bundle.packages import check_package
from leapp.bundle.reading import Bundle, read_external, read_model
from leapp.runtime.engines import EngineOptions, External, Unit, load_units
from leapp.runtime.memfd import Unnamed
from leapp.runtime.plan import Plan

__all__ = ["open_units"]


def open_units(bundle: Bundle, plan: Plan, nodes: Sequence[str], options: EngineOptions) -> list[Unit]:
    """The engines of some nodes.

    Args:
        bundle: Where the models are.
        plan: The wiring.
        nodes: Which nodes, in execution order.
        options: How engines run.
    """

    def model(node: str) -> bytes | Path | External:
        found = _model(bundle, node)
        return unnamed.hold(found) if isinstance(found, bytes) else found

    with Unnamed() as unnamed:
        return load_units(plan, nodes, model, options)


def _model(bundle: Bundle, node: str) -> bytes | External:
    data = read_model(bundle, node)
    backend = bundle.contract.nodes[node].model.backend
    if backend == "onnx":
        beside = read_external(bundle, node, data)
        return External(data, beside) if beside else data
    assert backend is not None
    check_package(data, backend, f"The {backend} model of node {node!r}")
    return data
