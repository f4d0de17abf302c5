"""Explains why a node failed the proof: its file computes a call differently, a value was frozen, or the code gives NaN."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from leapp.capture.equality import same_bits
from leapp.capture.tape import Call, Constant
from leapp.capture.user_line import line_name
from leapp.check.compare import Figures, compare
from leapp.export.failures import spelled_call
from leapp.tracing.blame import first_departure, recording_departs
from leapp.tracing.log import logger
from leapp.tracing.node import NodeTrace, Sample
from leapp.tracing.node_files import FileNames, export_job
from leapp.tracing.report import Report
from leapp.tracing.rounding import last_rounding, rounding
from leapp.tracing.undeclared import as_array

SHOWN = 5
"""How many suspects a message lists."""


def cause(node: NodeTrace, names: FileNames, sample: Sample, report: Report, rtol: float, atol: float) -> str:
    """Why a file gives a wrong value: it computes a call differently, or a value was frozen."""
    drawn = node.draws()
    if drawn:
        return (
            f"cause: the node draws random numbers at {drawn[0].quoted}\nThe written model draws other numbers. "
            "If it is dropout, call .eval() before tracing; else draw outside of the node and declare with input_tensors()."
        )
    job = export_job(node, names)
    inputs = tuple(sample.inputs[n].cpu() for n in node.inputs)
    outputs = tuple(sample.outputs[n].cpu() for n in node.outputs)
    try:
        if recording_departs(job, inputs, outputs, rtol, atol):
            return _frozen(node, sample, report)
        return f"cause: {first_departure(job, inputs, rtol, atol)}"
    except Exception as error:  # the search is a courtesy: its failure must not hide the verdict
        return f"cause: the first operation that differs could not be found ({error})"


def unseen_change(node: NodeTrace, figures: Iterable[Figures]) -> str | None:
    """The reason to refuse a node if its recorded calls, run again in PyTorch, differ from the program by more than rounding.

    The tolerances of a proof are wide, because an engine may be thousands of rounding steps away from PyTorch. The recorded
    calls run in PyTorch itself, so only rounding may lie between them and the program. A larger difference means that a value
    changed which no recorded call changes.

    Args:
        node: The node.
        figures: How far each output of the file is from the program. If all are close, the calls are not run again.
    """
    furthest = max((f.largest for f in figures), default=0.0)
    outputs = [t for s in node.samples for t in s.outputs.values() if t.is_floating_point() or t.is_complex()]
    if node.replay is None or not furthest or all(furthest <= last_rounding(t) for t in outputs):
        return None
    for number, sample in enumerate(node.samples):
        inputs = [sample.inputs[n] for n in node.inputs]
        with torch.no_grad():
            again = node.replay(*inputs)
        wanted = [sample.outputs[n] for n in node.outputs]
        if all(map(same_bits, again, wanted)):
            continue
        bounds = rounding(node.replay, inputs, again)
        for port, got, want, bound in zip(node.outputs.values(), again, wanted, bounds, strict=True):
            difference = compare(as_array(got), as_array(want), 0.0, bound)
            if difference is not None:
                return (
                    f"{node.name}/{port.name} (at {port.where}), sample {number}: the recorded calls, run again, give other "
                    f"values than the program: {difference.reason}. Rounding does not explain it.\ncause: a value changed that "
                    "no recorded call changes, such as memory that compiled code or an array class of your own writes to. "
                    "Keep the value in a plain tensor or array, or replace the function with a FunctionPatch."
                )
    return None


def other_model(node: NodeTrace) -> str:
    """Why a model that the user brings gives a wrong value."""
    return (
        f"cause: {node.backend_params['model_path']} computes something else than the code of the node. Give the model_path of "
        "the model that the code computes. If the code is only a placeholder, let it return an input or a constant."
    )


def _frozen(node: NodeTrace, sample: Sample, report: Report) -> str:
    assert node.tape is not None
    if node.tape.shared_writes:
        at = node.tape.shared_writes[0]
        return (
            f"cause: inputs of the node share memory, and one of them is written to at {at.quoted}\nIn a model each input "
            "is a value of its own. Clone the tensors before they are declared."
        )
    text = (
        "cause: the file computes what the first pass recorded; in this pass the program computed other values. A value that "
        "changes between passes was frozen. Keep it a tensor, or declare it with input_tensors or state_tensors."
    )
    if node.compared and node.difference is None:
        text = (
            "cause: the first two passes were recorded and agree, call by call; in a later one (pass "
            f"{sample.passno + 1}) the program computed other values. A value that was frozen changes less often than "
            "every pass, such as a delay of several steps, a counter or a schedule. Declare it with state_tensors and "
            "update_state, or with input_tensors. Trace more passes to see in which of them it changes."
        )
    found = sorted((e for e in report.escapes if e.node == node.name), key=lambda e: not e.varies)
    escapes = [f"{e.kind} at {line_name(e.file, e.line)}: {e.source} [frozen: {e.value}]" for e in found]
    if escapes:
        return "\n    ".join([f"{text} What left the graph of this node:", *_few(escapes)])
    assert node.program is not None
    # First the constants whose tensor has changed, then those whose tensor is gone, then those whose tensor lives on.
    constants = sorted(node.program.constants.values(), key=lambda c: (not _changed(c), c.origin() is not None))
    read = {f"{c.where.quoted}{' [changed since]' if _changed(c) else ''}": None for c in constants if not c.parameter}
    return "\n    ".join([f"{text} Plain tensors this node reads:", *_few(list(read))]) if read else text


def _changed(constant: Constant) -> bool:
    """Whether the user's tensor has changed since the node read it."""
    now = constant.origin()
    return now is not None and now.shape == constant.value.shape and not same_bits(now, constant.value)


def _few(lines: list[str]) -> list[str]:
    """The first lines, and a line that says how many were left out."""
    return lines if len(lines) <= SHOWN else [*lines[:SHOWN], f"and {len(lines) - SHOWN} more"]


def nonfinite_cause(node: NodeTrace, number: int) -> str:
    """A sentence that names the call with the first NaN or infinity in the traced code."""
    text = "cause: the traced code itself gives NaN or infinity, and so does the model"
    accept = "Fix the computation, or pass compile_graph(allow_nonfinite=True) if NaN or infinity is intended."
    if node.backend is None or node.replay is None:
        return f"cause: the model {node.backend_params.get('model_path')} gives NaN or infinity. {accept}"
    inputs = [node.samples[number].inputs[n] for n in node.inputs]
    given = [n for n in node.inputs if not _is_finite(node.samples[number].inputs[n])]
    if given:
        return f"{text}; input '{given[0]}' holds NaN or infinity in sample {number}. {accept}"
    made: list[Call] = []

    def run(_: int, call: Call, args: Any, kwargs: Any) -> Any:
        result = call.func(*args, **kwargs)
        values = result if isinstance(result, (tuple, list)) else [result]
        if not made and not all(_is_finite(v) for v in values if isinstance(v, torch.Tensor)):
            made.append(call)
        return result

    try:
        with torch.no_grad():
            node.replay.run([t.clone() for t in inputs], run)
    except Exception as error:  # the search is a courtesy: its failure must not hide the verdict
        logger.info("node '%s': the first NaN could not be found: %s", node.name, error)
    return f"{text}{f', first at {spelled_call(made[0])}' if made else ''}. {accept}"


def _is_finite(t: torch.Tensor) -> bool:
    return bool(torch.isfinite(t.float() if t.is_floating_point() else t).all())
