"""Collects the values that left the graph of each node, and refuses those that the recorded passes prove wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leapp.capture.functions.standin import unfollowed
from leapp.errors import TraceError
from leapp.tracing.escapes import SharedFacts, escapes
from leapp.tracing.likely_mistakes import likely_mistakes
from leapp.tracing.log import logger
from leapp.tracing.report import ConstantInfo, EscapeInfo, GlueInfo, Report

if TYPE_CHECKING:
    from leapp.tracing.node import NodeTrace
    from leapp.tracing.session import Session


def examine(session: Session) -> Report:
    """Collect the findings of all nodes."""
    session.settle()
    report = Report()
    shared = SharedFacts(arrays=session.recorder.arrays.memory.seen)
    for node in session.nodes.values():
        if node.pruned:
            report.pruned[node.name] = list(node.pruned)
        if node.tape is not None and node.program is not None and node.backend is not None:
            report.escapes += escapes(node, shared)
            report.constants += _constants(node)
            drawn = node.draws()
            if drawn:
                report.random[node.name] = [str(w) for w in drawn]
    report.training, report.notes = list(session.modules.training.lines()), list(likely_mistakes(session))
    for consumer, source, ops, at in session.sources.glue:
        report.glue.append(GlueInfo(consumer, source, tuple(f"{op} at {w}" for op, w in ops), at.file, at.line))
    return report


def enforce(report: Report, policy: str, strict: bool) -> None:
    """Warn of escapes or refuse them, as ``start(escapes=...)`` asked."""
    if policy == "ignore" or not report.escapes:
        return
    varying = [e for e in report.escapes if e.varies] if strict else []
    if policy == "error":
        raise TraceError(_table(report.escapes))
    told = [e for e in report.escapes if e not in varying]  # the error lists those that vary
    if told:
        logger.warning("%s", _table(told))
    if varying:
        shown = "\n".join(f"  {e}" for e in varying)
        trained = "".join(f"\n{line}" for line in report.training if line.partition(":")[0] in {e.node for e in varying})
        raise TraceError(
            f"{len(varying)} frozen value(s) are not the same in every call, so the models would be wrong:\n{shown}\n"
            f"Keep these values as tensors, and declare what the node keeps for its next call.{trained}{unfollowed()}"
        )


def _table(found: list[EscapeInfo]) -> str:
    lines = "\n".join(f"  {e}" for e in found)
    return f"{len(found)} value(s) left the graph and are frozen in the models:\n{lines}"


def _constants(node: NodeTrace) -> list[ConstantInfo]:
    assert node.program is not None
    assert node.replay is not None
    names = node.replay.names
    return [
        ConstantInfo(
            node.name, names[slot], tuple(c.value.shape), str(c.value.dtype).removeprefix("torch."),
            c.value.numel() * c.value.element_size(), c.where.file, c.where.line,
        )
        for slot, c in node.program.constants.items()
    ]  # fmt: skip
