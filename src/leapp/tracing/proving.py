"""The proof of a bundle before it is put in place: every file on every sample, then the pipeline in closed loop.

Says what differs, where, and what in the user's code is behind it. Writes nothing but the log.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace as changed

from leapp.bundle import Bundle, RawTensor
from leapp.bundle import Sample as RawSample
from leapp.check import Outcome, Verdict, check_fused, check_nodes, check_pipeline
from leapp.check.blame import first_departure, recording_departs, why_not_run
from leapp.errors import ValidationError
from leapp.graph.contract import key
from leapp.tracing.jobs import FileNames, export_job, in_step, raw_samples
from leapp.tracing.log import SECTION, logger
from leapp.tracing.node import NodeTrace, Sample
from leapp.tracing.progress import Progress
from leapp.tracing.report import Report

__all__ = ["Failure", "Proof", "prove"]

_LOOSER = 10
"""How much wider than for a recorded sample the tolerance is where rounding differences multiply: feedback, moved inputs."""

_SHOWN = 5
"""How many suspects a message lists."""


class Failure(ValidationError):
    """What went wrong with one node. False, so that ``all(results.values())`` means that everything passed."""

    def __bool__(self) -> bool:
        return False


@dataclass(slots=True)
class Proof:
    """What running a bundle showed.

    Attributes:
        rtol: Relative tolerance for floats.
        atol: Absolute tolerance for floats.
        thorough: Whether ONNX models run at every level of graph optimisation.
        log: Where the details are.
        results: Node to ``True``, ``False`` or the error.
        reasons: What is wrong with nodes that failed, in sentences.
        figures: For an output ``node/port`` how close the file came to the traced values.
    """

    rtol: float
    atol: float
    thorough: bool
    log: Path
    results: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, list[str]] = field(default_factory=dict)
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)

    def fail(self, node: str, reason: str) -> None:
        """Note and log why a node fails."""
        self.reasons.setdefault(node, []).append(reason)
        logger.error("%s", reason)

    def require(self) -> None:
        """Raise if a node failed."""
        failed = [n for n, v in self.results.items() if v is not True]
        if not failed:
            return
        cause = next((v for v in self.results.values() if isinstance(v, Exception)), None)
        lines = [f"  {reason}" for n in failed for reason in self.reasons.get(n, [])]
        raise ValidationError(
            "\n".join(
                [
                    f"validation failed for {', '.join(failed)}: the written models do not reproduce the traced values, so "
                    "the bundle on disk was left as it was.",
                    *lines,
                    f"Details are in {self.log}.",
                ]
            )
        ) from cause


def prove(
    proof: Proof,
    bundle: Bundle,
    nodes: list[NodeTrace],
    names: dict[str, FileNames],
    report: Report,
    fused: Path | None,
    progress: Progress,
) -> None:
    """Run the files of ``bundle`` and fill in the results of ``proof``.

    Args:
        proof: The tolerances; gets the results.
        bundle: The bundle in its staging directory.
        nodes: What was traced.
        names: The names of ports in files.
        report: What the session found, in search of causes.
        fused: The model of the whole pipeline, if there is one.
        progress: Shown to the user.
    """
    samples = raw_samples(nodes, names)
    own = {n.name for n in nodes if n.backend is not None and bundle.contract.nodes[n.name].model.model_path is not None}
    for node in nodes:
        if node.name not in own:
            logger.warning("node '%s' has no model of leapp's to validate; skipped.", node.name)
            proof.results[node.name] = True
        else:
            with progress.step(node.name, "validate"):
                proof.results[node.name] = _prove_node(proof, bundle, node, names[node.name], samples[node.name], report)
        progress.finish(node.name, ok=proof.results[node.name] is True)
    if all(v is True for v in proof.results.values()) and len(own) == len(nodes):
        _prove_loop(proof, bundle, nodes, raw_samples(nodes, names, in_step(nodes)), fused)
    _log_summary(proof.results)


def _prove_loop(proof: Proof, bundle: Bundle, nodes: list[NodeTrace], samples: Any, fused: Path | None) -> None:
    random = {n.name for n in nodes if _is_random(n)}
    tolerance = _LOOSER * proof.rtol, _LOOSER * proof.atol
    verdicts = check_pipeline(bundle, samples, *tolerance, random)
    if fused is not None:
        verdicts += check_fused(fused, bundle, samples, *tolerance, random)
    for verdict in verdicts:
        _log_details(verdict)
        if proof.results[verdict.node]:
            proof.fail(
                verdict.node,
                f"in closed loop, {verdict}. Each model is right on its own: what differs is what one pass hands to the next.",
            )
        proof.results[verdict.node] = False


def _prove_node(
    proof: Proof, bundle: Bundle, node: NodeTrace, names: FileNames, samples: list[RawSample], report: Report
) -> bool | Failure:
    alone = Bundle(
        bundle.path, changed(bundle.contract, nodes={node.name: bundle.contract.nodes[node.name]}), None, {}, allow_outside=True
    )
    sample: Sample | None = None
    outcome = _run(proof, alone, node, samples, 1)
    if isinstance(outcome, Outcome):
        proof.figures |= {key(node.name, port): found.as_dict() for port, found in outcome.figures.items()}
    if isinstance(outcome, Outcome) and not outcome.verdicts and not _is_random(node):
        sample = _moved_sample(node)
        again = _run_moved(proof, alone, node, names, sample) if sample is not None else None
        outcome = again or outcome
    if isinstance(outcome, Exception):
        reason = f"node '{node.name}': the written model cannot be run: {why_not_run(alone, node.name, outcome)}"
        proof.fail(node.name, reason)
        failure = Failure(reason)
        failure.__cause__ = outcome
        return failure
    if outcome.random:
        ports = ", ".join(sorted(outcome.random))
        logger.info("node '%s' draws random numbers: %s compared by shape and dtype only.", node.name, ports)
    if not outcome.verdicts:
        return True
    first, *others = outcome.verdicts
    sample = node.samples[first.sample] if not first.engine.startswith(_MOVED) else sample
    proof.fail(node.name, f"{first} (rtol {proof.rtol:g}, atol {proof.atol:g})")
    _log_details(first)
    for verdict in others:
        logger.error("%s", verdict)
        _log_details(verdict)
    assert sample is not None
    proof.fail(node.name, _cause(proof, node, names, sample, report))
    return False


def _is_random(node: NodeTrace) -> bool:
    return node.tape is not None and bool(node.tape.random)


def _run(proof: Proof, bundle: Bundle, node: NodeTrace, samples: list[RawSample], looser: int) -> Outcome | Exception:
    random = {node.name} if _is_random(node) else set()
    coarse = {node.name: node.tape.precision} if node.tape is not None and node.tape.precision else {}
    thorough = proof.thorough and looser == 1
    tolerance = looser * proof.rtol, looser * proof.atol
    return check_nodes(bundle, {node.name: samples}, *tolerance, random, coarse, thorough=thorough)[node.name]


# Recorded samples may be special (a robot at rest, zeros, an identity) and hide what an engine gets wrong. So each file is
# also compared with the recorded calls on inputs near the first sample.

_MOVED = "inputs moved a little"


def _run_moved(proof: Proof, bundle: Bundle, node: NodeTrace, names: FileNames, sample: Sample) -> Outcome | None:
    raw = RawSample(
        {names.inputs[n]: RawTensor.of(t) for n, t in sample.inputs.items()},
        {names.outputs[n]: RawTensor.of(t) for n, t in sample.outputs.items()},
    )
    outcome = _run(proof, bundle, node, [raw], _LOOSER)
    if isinstance(outcome, Exception):
        logger.info("node '%s' cannot run on inputs near its first sample: %s", node.name, outcome)
        return None
    outcome.verdicts = [replace(verdict, engine=_MOVED) for verdict in outcome.verdicts]
    return outcome if outcome.verdicts else None


def _moved_sample(node: NodeTrace) -> Sample | None:
    """The first sample with its float inputs moved a little, and what the recorded calls make of it."""
    if node.replay is None:
        return None
    generator = torch.Generator().manual_seed(0)
    first = node.samples[0]
    inputs = {n: _moved(first.inputs[n], generator) for n in node.inputs}
    try:
        with torch.no_grad():
            outputs = node.replay(*(t.clone() for t in inputs.values()))
    except Exception as error:  # such inputs may be outside of what the user's code accepts
        logger.info("node '%s': its calls refuse inputs near its first sample: %s", node.name, error)
        return None
    return replace(first, inputs=inputs, outputs=dict(zip(node.outputs, outputs, strict=True)))


def _moved(t: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if not t.is_floating_point() or not t.numel():
        return t
    scale = float(t.float().abs().nan_to_num(0.0, 0.0, 0.0).mean()) or 1.0
    return t + (0.1 * scale * torch.randn(t.shape, generator=generator)).to(t.dtype)


# -- why it failed -----------------------------------------------------------------------------------------------------


def _cause(proof: Proof, node: NodeTrace, names: FileNames, sample: Sample, report: Report) -> str:
    """What is behind a wrong value: a call that the file computes otherwise, or something that was frozen."""
    job = export_job(node, names)
    inputs = tuple(sample.inputs[n] for n in node.inputs)
    outputs = tuple(sample.outputs[n] for n in node.outputs)
    try:
        if recording_departs(job, inputs, outputs, proof.rtol, proof.atol):
            return _frozen(node, report)
        return f"cause: {first_departure(job, inputs, proof.rtol, proof.atol)}"
    except Exception as error:  # the search is a courtesy: its failure must not hide the verdict
        return f"cause: the first operation that departs could not be found ({error})"


def _frozen(node: NodeTrace, report: Report) -> str:
    text = (
        "cause: the file does what was recorded in the first pass; in this pass the program computed something else. A value "
        "that changes between passes was frozen. Keep it a tensor, or declare it with input_tensors or state_tensors."
    )
    escapes = [f"{e.kind} at {e.file}:{e.line}: {e.source} [frozen: {e.value}]" for e in report.escapes if e.node == node.name]
    if escapes:
        return "\n    ".join([f"{text} What left the graph of this node:", *_few(escapes)])
    assert node.program is not None
    # Tensors made for one pass come before those that live on: they are made anew from something that may change.
    constants = sorted(node.program.constants.values(), key=lambda c: c.origin() is not None)
    read = {f"{c.where}: {c.where.text}": None for c in constants if not isinstance(c.origin(), torch.nn.Parameter)}
    return "\n    ".join([f"{text} Plain tensors this node reads:", *_few(list(read))]) if read else text


def _few(lines: list[str]) -> list[str]:
    return lines if len(lines) <= _SHOWN else [*lines[:_SHOWN], f"and {len(lines) - _SHOWN} more"]


# -- the log -----------------------------------------------------------------------------------------------------------


def _log_details(verdict: Verdict) -> None:
    for line in verdict.difference.details:
        logger.info("  %s", line)


def _log_summary(results: dict[str, Any]) -> None:
    logger.log(SECTION, "Validation Summary")
    logger.info("Passed: %d/%d", sum(v is True for v in results.values()), len(results))
    failed = [n for n, v in results.items() if v is False]
    errors = [n for n, v in results.items() if isinstance(v, Exception)]
    if failed:
        logger.warning("Failed: %s", ", ".join(failed))
    if errors:
        logger.error("Errors: %s", ", ".join(errors))
