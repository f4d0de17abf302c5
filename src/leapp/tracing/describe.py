"""Facts about a traced pipeline that its contract does not hold: details for the page, and what a deployer would have to guess.

Nothing here changes from one export of the same program to the next: no times, no addresses, no paths above the working
directory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from leapp.capture.user_line import cell
from leapp.compat.core import OpOverload
from leapp.export import is_onnx
from leapp.graph.contract import Contract, Port, key
from leapp.tracing.node import NodeTrace
from leapp.tracing.report import Report

_JOINTS = re.compile(r"joint|dof|motor|actuator|torque|\b(kp|kd)\b", re.IGNORECASE)
_MOST = 500
"""The most ops and constants of a node that the page lists."""


def page_details(
    nodes: Sequence[NodeTrace], report: Report, figures: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """The ``details`` of :func:`leapp.view.page`.

    Args:
        nodes: The traced nodes.
        report: What the session found.
        figures: For an output ``node/port`` how far the written model is from the traced values.
    """
    return {
        "static_outputs": [key(n.name, p.name) for n in nodes for p in n.outputs.values() if p.role == "static"],
        "glue": [{"node": g.node, "source": g.source, "ops": [_shorten(op) for op in g.ops], **_place(g)} for g in report.glue],
        "validation": dict(figures or {}),
        "nodes": {node.name: _node(node, report) for node in nodes},
    }


def _node(node: NodeTrace, report: Report) -> dict[str, Any]:
    name = node.name
    facts: dict[str, Any] = {
        "pruned": report.pruned.get(name, []),
        "random": [_shorten(text) for text in report.random.get(name, [])],
        "escapes": [
            {"kind": e.kind, "text": e.source, "value": e.value, "varies": e.varies, **_place(e)}
            for e in report.escapes
            if e.node == name
        ],
        "constants": [
            {"name": c.name, "shape": list(c.shape), "dtype": c.dtype, "bytes": c.bytes, **_place(c)}
            for c in report.constants
            if c.node == name
        ][:_MOST],
    }
    if node.replay is not None:
        facts["parameters"] = sum(p.numel() for p in node.replay.parameters())
        if not is_onnx(node.backend):
            # The page reads the weights of ONNX models from their files.
            facts["weights"] = _weights(node.replay)
    if node.program is not None:
        calls = node.program.calls
        facts["op_count"] = len(calls)
        facts["ops"] = [{"op": _op(c.func), "text": c.where.text, **_place(c.where)} for c in calls[:_MOST]]
    if name in report.validation:
        passed = report.validation[name]
        facts["passed"] = passed if isinstance(passed, bool) else str(passed)
    return facts


def _weights(module: Any) -> dict[str, Any]:
    from leapp.view.model_facts import MAX_VALUES, spaced, weight_facts, weights_facts

    found = list(module.named_parameters())
    listed = []
    for name, value in found[:_MOST]:
        plain = str(value.layout) == "torch.strided" and value.is_floating_point()
        shown = spaced(value.detach().reshape(-1), MAX_VALUES).float().cpu().numpy() if plain else None
        listed.append(weight_facts(name, value.shape, str(value.dtype).removeprefix("torch."), shown))
    return weights_facts(listed, len(found))


def _place(at: Any) -> dict[str, Any]:
    return {"file": _relative(at.file), "line": at.line}


def _relative(file: str) -> str:
    """A path relative to the working directory, or the file's name if it lies elsewhere. A bundle holds no absolute path."""
    if (number := cell(file)) is not None:
        return f"cell {number}"
    relative = os.path.relpath(file) if os.path.isabs(file) else file
    return os.path.basename(file) if relative.startswith(os.pardir) else relative


def _shorten(text: str) -> str:
    """A finding that ends in ``file:line``, with the path shortened by ``_relative``."""
    head, separator, path = text.rpartition(" at ")
    file, colon, line = path.rpartition(":")
    return f"{head}{separator}{_relative(file)}:{line}" if colon and line.isdigit() else text


def _op(func: Any) -> str:
    """How a recorded call is written: ``torch.tanh``, ``Tensor.__getitem__``, ``aten.mul.Tensor``."""
    if isinstance(func, OpOverload):
        return str(func).removesuffix(".default")
    owner = getattr(func, "__objclass__", None)
    name = getattr(func, "__name__", None) or str(func)
    if owner is not None:
        return f"{owner.__name__.removesuffix('Base').lstrip('_')}.{name}"
    module = (getattr(func, "__module__", None) or "").split(".")[0]
    return f"{module}.{name}" if module not in ("", "leapp") else name


def missing_for_deployment(contract: Contract) -> list[str]:
    """One sentence for each fact about the inputs and outputs of the graph that is missing in the bundle."""
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
