"""The proof of a bundle before it is put in place: every file on every sample, then the pipeline in closed loop.

Each failure says what differs, where, and which code of the user's causes it. Writes only to the log.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from leapp.bundle import Bundle
from leapp.bundle import Sample as RawSample
from leapp.check.engine_process import EngineProcess, EngineProcessError, is_large
from leapp.check.engines import Engine, Place, engines, here, open_pipeline
from leapp.check.samples import Outcome, Verdict, check_node, check_pipeline
from leapp.check.torch_file import check_torch_file
from leapp.deploy.fuse_check import check_fused
from leapp.errors import ValidationError
from leapp.graph.contract import key
from leapp.graph.formats import RUNNABLE
from leapp.tracing.batching import ROWS
from leapp.tracing.blame import why_not_run
from leapp.tracing.brought import placeholders
from leapp.tracing.causes import SHOWN, cause, nonfinite_cause, other_model, unseen_change
from leapp.tracing.log import RAISED, logger
from leapp.tracing.node import NodeTrace, Sample
from leapp.tracing.node_files import FileNames, in_step, raw_sample
from leapp.tracing.progress import Progress
from leapp.tracing.prove_batch import batch_loops, moved_sample, repeated_sample
from leapp.tracing.report import Report

_LOOSER = 10
"""The tolerance is this many times wider where rounding differences multiply: in feedback, and on moved inputs."""


class Failure(ValidationError):
    """What went wrong with one node. False, so that ``all(results.values())`` means that everything passed."""

    def __bool__(self) -> bool:
        return False


class Unproven(Failure):
    """A node that draws random numbers and passed what can be checked. Counts as false, but does not stop an export."""


@dataclass(slots=True)
class Proof:
    """What running a bundle showed.

    Attributes:
        rtol: Relative tolerance for floats.
        atol: Absolute tolerance for floats.
        thorough: Whether ONNX models run at every level of graph optimisation.
        log: Where the details are.
        engine_process: The process that runs large models.
        allow_nonfinite: Whether NaN and infinity pass if the program and the file both have them.
        allow_random: Whether nodes that draw random numbers pass.
        strict: Whether failures are raised at the end, and unproven nodes count as false.
        results: Node to ``True``, ``False`` or the error.
        reasons: What is wrong with nodes that failed, in sentences.
        figures: For an output ``node/port`` how close the file came to the traced values.
        samples: On how many traced passes a node's file was run.
        large: Whether the models of all nodes together are large. If they are not, none is.
    """

    rtol: float
    atol: float
    thorough: bool
    log: Path
    engine_process: EngineProcess
    allow_nonfinite: bool = False
    allow_random: bool = False
    strict: bool = True
    results: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, list[str]] = field(default_factory=dict)
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)
    large: bool = True

    def places(self, bundle: Bundle, nodes: Iterable[str]) -> Iterator[Place]:
        """Where to run the models of some nodes, first choice first. Large models run in another process if possible."""
        if self.large and is_large(bundle, nodes):
            yield self.engine_process.open
        yield here

    def fail(self, node: str, reason: str) -> None:
        """Note and log why a node fails. If ``require`` will raise it, the console does not show it now."""
        self.reasons.setdefault(node, []).append(reason)
        logger.error("%s", reason, extra=RAISED if self.strict else None)

    def summary(self) -> tuple[list[str], str]:
        """The nodes that did not pass, and how many passed, failed and raised an error."""
        errored = [n for n, v in self.results.items() if isinstance(v, Failure) and not isinstance(v, Unproven)]
        failed = [n for n, v in self.results.items() if v is False]
        counts = f"{len(self.results) - len(failed) - len(errored)} passed, {len(failed)} failed, {len(errored)} errored"
        return [n for n in self.results if n in failed or n in errored], f"{counts} of {len(self.results)} node(s)"

    def require(self) -> None:
        """Raise if a node failed."""
        failed, counts = self.summary()
        if not failed:
            return
        cause = next((v for v in self.results.values() if isinstance(v, Exception)), None)
        lines = [f"  {reason}" for n in failed for reason in self.reasons.get(n, [])]
        raise ValidationError(
            "\n".join(
                [
                    f"validation failed for {', '.join(failed)}: the written models do not reproduce the traced values, so "
                    f"the bundle on disk was left as it was. {counts}.",
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
    samples: Mapping[str, list[RawSample]],
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
        samples: The recorded passes of each node, with the port names of files.
        report: What the session found, to explain failures.
        fused: The model of the whole pipeline, if there is one.
        progress: Shows the steps to the user.
    """
    compared = True
    proof.large = is_large(bundle, bundle.contract.nodes)
    for node in nodes:
        model = bundle.contract.nodes[node.name].model
        stand_in = placeholders(node) if node.backend is None else set[str]()
        if model.model_path is None:
            logger.warning("node '%s' has no model to validate; skipped.", node.name)
            proof.results[node.name] = True
        elif model.backend not in RUNNABLE:
            logger.warning(
                "node '%s': leapp cannot run %s models, so %s was neither opened nor run: values not compared.",
                node.name, model.backend, node.backend_params["model_path"],
            )  # fmt: skip
            proof.results[node.name] = True
        else:
            with progress.step(node.name, "validate"):
                found = _prove_node(proof, bundle, node, names[node.name], samples[node.name], report, stand_in)
                proof.results[node.name] = found
        compared = compared and model.model_path is not None and model.backend in RUNNABLE and not stand_in
        progress.finish(node.name, ok=proof.results[node.name] is True)
    if all(v is True for v in proof.results.values()) and compared and not _is_lone(bundle, nodes, fused):
        recorded = {name: [samples[name][number] for number in numbers] for name, numbers in in_step(nodes).items()}
        _prove_loop(proof, bundle, nodes, recorded, fused)
        passes = min((len(s) for s in recorded.values()), default=0)
        for drawn in batch_loops(bundle, nodes, names, passes) if not any(map(_is_random, nodes)) else ():
            _prove_loop(proof, bundle, nodes, drawn, fused)
    failed, counts = proof.summary()
    logger.log(logging.WARNING if failed else logging.INFO, "Validation: %s%s.", counts,
               f": {', '.join(failed)}" if failed else "", extra=RAISED if proof.strict else None)  # fmt: skip
    if not proof.allow_random:
        for node in nodes:
            unproven = _unproven(node)
            if unproven is not None and proof.results[node.name] is True:
                logger.warning("%s", unproven)
                proof.results[node.name] = unproven if proof.strict else True


def _is_lone(bundle: Bundle, nodes: list[NodeTrace], fused: Path | None) -> bool:
    """Whether the pipeline is one node without feedback: a closed loop would only repeat the proof of the node."""
    program = nodes[0].program
    batch = program is not None and program.batch is not None
    return len(nodes) == 1 and not bundle.contract.pipeline.feedback_flow and fused is None and not batch


def _unproven(node: NodeTrace) -> Unproven | None:
    """A result for a node that draws random numbers, or has random numbers frozen in its model; else ``None``."""
    if node.backend is None or node.program is None:
        return None
    meant = "If it is dropout, call .eval() before tracing; if it is meant, pass compile_graph(allow_random=True)."
    drawn = node.draws()
    if drawn:
        lines = "; ".join(w.quoted for w in drawn[:SHOWN])
        return Unproven(
            f"node '{node.name}' draws random numbers whenever it runs, at {lines}. Its outputs differ from call to call, so "
            f"only their shape and dtype were compared. {meant}"
        )
    # A tensor that is older than the node may be a constant on purpose, such as a random projection.
    frozen = next((c.drawn for c in node.program.constants.values() if c.drawn is not None and not c.origins), None)
    if frozen is None or node.compared:
        return None
    return Unproven(
        f"node '{node.name}' has random numbers frozen in it that were drawn at {frozen.quoted}. Its model gives the "
        "same ones in every call. Draw them outside and declare them with input_tensors(), or use torch.rand_like() of a "
        "traced tensor; if they are meant to stay, pass compile_graph(allow_random=True)."
    )


def _prove_loop(proof: Proof, bundle: Bundle, nodes: list[NodeTrace], samples: Any, fused: Path | None) -> None:
    for verdict in _run_loop(proof, bundle, nodes, samples, fused):
        _log_details(verdict)
        if proof.results[verdict.node]:
            proof.fail(
                verdict.node,
                f"in closed loop, {_compact(verdict)}\n    Each model is right on its own: what differs is what one pass hands "
                "to the next.",
            )
        proof.results[verdict.node] = False


def _run_loop(
    proof: Proof, bundle: Bundle, nodes: list[NodeTrace], samples: Any, fused: Path | None
) -> list[Verdict]:
    random = {n.name for n in nodes if _is_random(n)}
    tolerance = _tolerance(proof, nodes, _LOOSER)
    for place in proof.places(bundle, bundle.contract.nodes):
        try:
            verdicts = check_pipeline(bundle, samples, *tolerance, random, partial(place, open_pipeline))
            if fused is not None:
                verdicts += check_fused(fused, bundle, samples, *tolerance, random, place)
            return verdicts
        except EngineProcessError as error:
            logger.info("the closed loop is run in this process: %s", error)
        except ValidationError as error:
            raise ValidationError(f"the pipeline in closed loop cannot be run: {error}") from error
    raise AssertionError


def _prove_node(
    proof: Proof,
    bundle: Bundle,
    node: NodeTrace,
    names: FileNames,
    samples: list[RawSample],
    report: Report,
    stand_in: Collection[str],
) -> bool | Failure:
    sample: Sample | None = None
    opened, outcome = _run_samples(proof, bundle, node, samples, stand_in)
    if isinstance(outcome, Outcome) and outcome.nonfinite and not _accepts(proof, outcome) and not outcome.verdicts:
        proof.fail(node.name, nonfinite_cause(node, outcome.nonfinite[0].sample))
        return False
    if isinstance(outcome, Outcome):
        proof.samples[node.name] = outcome.passes
        proof.figures |= {key(node.name, port): found.as_dict() for port, found in outcome.figures.items()}
    if isinstance(outcome, Outcome) and not outcome.verdicts and not _is_random(node) and not stand_in:
        unseen = unseen_change(node, outcome.figures.values())
        if unseen is not None:
            proof.fail(node.name, unseen)
            return False
        sample = moved_sample(node)
        again = _run_moved(proof, bundle, node, names, sample, opened) if sample is not None else None
        outcome = again or outcome
        if again is None and node.program is not None and node.program.batch is not None:
            sample, outcome = _run_batches(proof, bundle, node, names, outcome, opened)
    if isinstance(outcome, Exception):
        logger.info("node '%s': %s: %s", node.name, type(outcome).__name__, outcome)
        reason = f"node '{node.name}': the written model cannot be run: {_brief(why_not_run(bundle, node, outcome))}"
        if node.backend is None:
            reason = f"node '{node.name}': the model {node.backend_params['model_path']} fails: {_brief(str(outcome))}"
        proof.fail(node.name, reason)
        failure = Failure(reason)
        failure.__cause__ = outcome
        return failure
    if outcome.random:
        ports = ", ".join(sorted(outcome.random))
        level = logging.INFO if node.backend is not None else logging.WARNING
        logger.log(
            level, "node '%s': another run on the same inputs changes %s: compared by shape and dtype only.", node.name, ports
        )
    if not outcome.verdicts:
        if stand_in:
            logger.warning(
                "node '%s': %s ran on %d sample(s); values not compared for %s, for which the code of the node only stands in "
                "(an input, a constant or random numbers).",
                node.name, node.backend_params["model_path"], outcome.passes, ", ".join(f"'{n}'" for n in sorted(stand_in)),
            )  # fmt: skip
        return True
    first, *others = outcome.verdicts
    sample = node.samples[first.sample] if not first.engine.startswith(_MOVED) else sample
    proof.fail(node.name, f"{_compact(first)}; rtol {proof.rtol:g}, atol {proof.atol:g}")
    _log_details(first)
    shown = {first.port}
    for verdict in others:
        if verdict.port not in shown and len(shown) < SHOWN:
            shown.add(verdict.port)
            proof.fail(node.name, _compact(verdict))
        else:
            logger.info("%s", verdict)
        _log_details(verdict)
    if len(others) >= len(shown):
        proof.fail(node.name, f"and {len(others) + 1 - len(shown)} more difference(s) of this node, which the log lists")
    assert sample is not None
    own = node.backend is None
    proof.fail(node.name, other_model(node) if own else cause(node, names, sample, report, proof.rtol, proof.atol))
    return False


def _accepts(proof: Proof, outcome: Outcome) -> bool:
    """Whether NaN and infinity that the program and the file both have are accepted. They are reported in any case."""
    told: set[str] = set()
    for verdict in outcome.nonfinite:
        level = logging.INFO if verdict.port in told else logging.WARNING
        told.add(verdict.port)
        if proof.allow_nonfinite:
            logger.log(level, "%s. Accepted, because of allow_nonfinite=True.", verdict)
        elif level == logging.WARNING:
            proof.fail(verdict.node, _compact(verdict))
        _log_details(verdict)
    return proof.allow_nonfinite


def _run_samples(
    proof: Proof, bundle: Bundle, node: NodeTrace, samples: list[RawSample], stand_in: Collection[str]
) -> tuple[list[tuple[str, Engine]], Outcome | Exception]:
    """The first engine of a node, and the outcome of running its samples in all engines."""
    own = node.backend is None
    for place in proof.places(bundle, [node.name]):
        opened: list[tuple[str, Engine]] = []
        try:
            found = engines(bundle, node.name, proof.thorough, place)
            opened.append(next(found))
            outcome = _run(proof, bundle, node, samples, 1, chain(opened, found), stand_in)
            if own:
                check_torch_file(bundle, node.name, samples, place)
            return opened, outcome
        except EngineProcessError as error:
            logger.info("node '%s' is run in this process: %s", node.name, error)
        except Exception as error:  # an engine may raise any type; the error becomes the result of the node
            return opened, error
    raise AssertionError


def _is_random(node: NodeTrace) -> bool:
    return bool(node.draws())


def _run(
    proof: Proof,
    bundle: Bundle,
    node: NodeTrace,
    samples: list[RawSample],
    looser: int,
    opened: Iterable[tuple[str, Engine]],
    stand_in: Collection[str] = (),
) -> Outcome:
    random = _is_random(node) if node.backend is not None else None
    tolerance, recorded = _tolerance(proof, [node], looser), looser == 1  # the report shows figures of recorded samples only
    return check_node(bundle, node.name, samples, *tolerance, opened, random, stand_in, measured=recorded)


def _tolerance(proof: Proof, nodes: list[NodeTrace], looser: int) -> tuple[float, float]:
    """Relative and absolute tolerance, each at least two rounding steps of the coarsest float type below float32 in use."""
    step = 2 * max((node.tape.precision for node in nodes if node.tape is not None), default=0.0)
    return max(looser * proof.rtol, step), max(looser * proof.atol, step)


_MOVED = "inputs moved a little"


def _run_moved(
    proof: Proof, bundle: Bundle, node: NodeTrace, names: FileNames, sample: Sample, opened: list[tuple[str, Engine]]
) -> Outcome | None:
    try:
        outcome = _run(proof, bundle, node, [raw_sample(names, sample)], _LOOSER, opened)
    except Exception as error:  # moved inputs may be invalid, and an engine may raise any type
        logger.info("node '%s' cannot run on inputs near its first sample: %s", node.name, error)
        return None
    outcome.verdicts = [replace(verdict, engine=_MOVED) for verdict in outcome.verdicts]
    return outcome if outcome.verdicts else None


_BATCH = f"{_MOVED}, in a batch of"


def _run_batches(
    proof: Proof,
    bundle: Bundle,
    node: NodeTrace,
    names: FileNames,
    outcome: Outcome,
    opened: list[tuple[str, Engine]],
) -> tuple[Sample | None, Outcome | Exception]:
    """The first sample of another batch size on which the file fails, and how; ``outcome`` if it passes on all."""
    for rows in ROWS:
        # The user's code may reject moved inputs. It accepts recorded rows, repeated.
        sample = moved_sample(node, rows) or repeated_sample(node, rows)
        if isinstance(sample, Exception):
            return None, sample
        try:
            found = _run(proof, bundle, node, [raw_sample(names, sample)], _LOOSER, opened)
        except Exception as error:  # an engine may raise any type; the error becomes the result of the node
            return sample, error
        if found.verdicts:
            found.verdicts = [replace(verdict, engine=f"{_BATCH} {rows}") for verdict in found.verdicts]
            return sample, found
    return None, outcome


def _log_details(verdict: Verdict) -> None:
    for line in verdict.difference.details:
        logger.info("  %s", line)


def _compact(verdict: Verdict) -> str:
    """A verdict and its figures, on two lines."""
    return "\n    ".join([str(verdict), "; ".join(verdict.difference.details)])


def _brief(text: str) -> str:
    """The first and the last line of a long error of an engine. The log has all lines."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return text if len(lines) <= SHOWN else f"{lines[0]} ... {lines[-1]}"
