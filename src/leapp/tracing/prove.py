"""The proof of a bundle before it is put in place: every file on every sample, then the pipeline in closed loop.

Says what differs, where, and what in the user's code is behind it. Writes nothing but the log.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace as changed

from leapp.bundle import Bundle
from leapp.bundle import Sample as RawSample
from leapp.capture.tape import Call, Constant
from leapp.capture.user_line import line_name
from leapp.check.brought import check_brought
from leapp.check.engine_process import Apart, ApartError, is_large
from leapp.check.engines import Engine, Place, engines, here, open_pipeline
from leapp.check.samples import Outcome, Verdict, check_node, check_pipeline
from leapp.deploy.fused import check_fused
from leapp.errors import ExportError, ValidationError
from leapp.export.bisect import spelled_call
from leapp.graph.contract import key
from leapp.graph.formats import RUNNABLE
from leapp.runtime.plan import Plan, make_plan
from leapp.tracing.batching import ROWS, resized
from leapp.tracing.blame import first_departure, recording_departs, why_not_run
from leapp.tracing.brought import placeholders
from leapp.tracing.edges import same_bits
from leapp.tracing.jobs import FileNames, export_job, in_step, raw_sample, raw_samples
from leapp.tracing.log import RAISED, logger
from leapp.tracing.node import InputPort, NodeTrace, Sample
from leapp.tracing.progress import Progress
from leapp.tracing.report import Report

__all__ = ["Failure", "Proof", "Unproven", "prove"]

_LOOSER = 10
"""How much wider than for a recorded sample the tolerance is where rounding differences multiply: feedback, moved inputs."""

_SHOWN = 5
"""How many suspects a message lists."""


class Failure(ValidationError):
    """What went wrong with one node. False, so that ``all(results.values())`` means that everything passed."""

    def __bool__(self) -> bool:
        return False


class Unproven(Failure):
    """A node that passed as far as it can be checked, and draws random numbers. False, but it stops no export."""


@dataclass(slots=True)
class Proof:
    """What running a bundle showed.

    Attributes:
        rtol: Relative tolerance for floats.
        atol: Absolute tolerance for floats.
        thorough: Whether ONNX models run at every level of graph optimisation.
        log: Where the details are.
        apart: The process that runs large models.
        allow_nonfinite: Whether NaN and infinity that both sides have are right.
        allow_random: Whether nodes that draw random numbers are right.
        strict: Whether only what is proven counts as true.
        results: Node to ``True``, ``False`` or the error.
        reasons: What is wrong with nodes that failed, in sentences.
        figures: For an output ``node/port`` how close the file came to the traced values.
        samples: On how many traced passes a node's file was run.
    """

    rtol: float
    atol: float
    thorough: bool
    log: Path
    apart: Apart
    allow_nonfinite: bool = False
    allow_random: bool = False
    strict: bool = True
    results: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, list[str]] = field(default_factory=dict)
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)

    def places(self, bundle: Bundle) -> Iterator[Place]:
        """Where the models of a bundle are to be run, first choice first: large ones elsewhere if that can be done."""
        if is_large(bundle):
            yield self.apart.open
        yield here

    def fail(self, node: str, reason: str) -> None:
        """Note and log why a node fails. What ``require`` will raise is not shown on the console before."""
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
    compared = True
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
    if all(v is True for v in proof.results.values()) and compared:
        recorded = in_step(nodes)
        _prove_loop(proof, bundle, nodes, raw_samples(nodes, names, recorded), fused)
        passes = min((len(s) for s in recorded.values()), default=0)
        for samples in _batch_loops(bundle, nodes, names, passes) if not any(map(_is_random, nodes)) else ():
            _prove_loop(proof, bundle, nodes, samples, fused)
    failed, counts = proof.summary()
    logger.log(logging.WARNING if failed else logging.INFO, "Validation: %s%s.", counts,
               f": {', '.join(failed)}" if failed else "", extra=RAISED if proof.strict else None)  # fmt: skip
    if not proof.allow_random:
        for node in nodes:
            unproven = _unproven(node)
            if unproven is not None and proof.results[node.name] is True:
                logger.warning("%s", unproven)
                proof.results[node.name] = unproven if proof.strict else True


def _unproven(node: NodeTrace) -> Unproven | None:
    """What is to be said of a node that draws random numbers, or has some frozen in it."""
    if node.backend is None or node.program is None:
        return None
    meant = "If it is dropout, call .eval() before tracing; if it is meant, pass compile_graph(allow_random=True)."
    drawn = node.draws()
    if drawn:
        lines = "; ".join(f"{w}: {w.text}" for w in drawn[:_SHOWN])
        return Unproven(
            f"node '{node.name}' draws random numbers whenever it runs, at {lines}. Its outputs are others in every call, so "
            f"only their shape and dtype were compared. {meant}"
        )
    # What is older than the node may be a constant that was drawn once, such as a projection.
    frozen = next((c.drawn for c in node.program.constants.values() if c.drawn is not None and not c.origins), None)
    if frozen is None or node.compared:
        return None
    return Unproven(
        f"node '{node.name}' has random numbers frozen in it that were drawn at {frozen}: {frozen.text}. Its model gives the "
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
    for place in proof.places(bundle):
        try:
            verdicts = check_pipeline(bundle, samples, *tolerance, random, partial(place, open_pipeline))
            if fused is not None:
                verdicts += check_fused(fused, bundle, samples, *tolerance, random, place)
            return verdicts
        except ApartError as error:
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
    alone = Bundle(
        bundle.path, changed(bundle.contract, nodes={node.name: bundle.contract.nodes[node.name]}), None, {}, allow_outside=True
    )
    sample: Sample | None = None
    opened, outcome = _run_samples(proof, alone, node, samples, stand_in)
    if isinstance(outcome, Outcome) and outcome.nonfinite and not _accepts(proof, outcome) and not outcome.verdicts:
        proof.fail(node.name, _nonfinite_cause(node, outcome.nonfinite[0].sample))
        return False
    if isinstance(outcome, Outcome):
        proof.samples[node.name] = outcome.passes
        proof.figures |= {key(node.name, port): found.as_dict() for port, found in outcome.figures.items()}
    if isinstance(outcome, Outcome) and not outcome.verdicts and not _is_random(node) and not stand_in:
        sample = _moved_sample(node)
        again = _run_moved(proof, alone, node, names, sample, opened) if sample is not None else None
        outcome = again or outcome
        if again is None and node.program is not None and node.program.batch is not None:
            sample, outcome = _run_batches(proof, alone, node, names, outcome, opened)
    if isinstance(outcome, Exception):
        logger.info("node '%s': %s: %s", node.name, type(outcome).__name__, outcome)
        reason = f"node '{node.name}': the written model cannot be run: {_brief(why_not_run(alone, node.name, outcome))}"
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
        if verdict.port not in shown and len(shown) < _SHOWN:
            shown.add(verdict.port)
            proof.fail(node.name, _compact(verdict))
        else:
            logger.info("%s", verdict)
        _log_details(verdict)
    if len(others) >= len(shown):
        proof.fail(node.name, f"and {len(others) + 1 - len(shown)} more difference(s) of this node, which the log lists")
    assert sample is not None
    proof.fail(node.name, _cause(proof, node, names, sample, report) if node.backend is not None else _other_model(node))
    return False


def _accepts(proof: Proof, outcome: Outcome) -> bool:
    """Whether NaN and infinity that both sides have are accepted. They are reported all the same."""
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


def _nonfinite_cause(node: NodeTrace, number: int) -> str:
    """Where a node of the user's makes the first NaN or infinity."""
    text = "cause: the traced code gives NaN or infinity itself, and so does the model"
    accept = "Mend the computation, or pass compile_graph(allow_nonfinite=True) if they are meant."
    if node.backend is None or node.replay is None:
        return f"cause: the model {node.backend_params.get('model_path')} gives NaN or infinity. {accept}"
    inputs = [node.samples[number].inputs[n] for n in node.inputs]
    given = [n for n in node.inputs if not _is_finite(node.samples[number].inputs[n])]
    if given:
        return f"{text}; input '{given[0]}' holds some already in sample {number}. {accept}"
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


def _run_samples(
    proof: Proof, alone: Bundle, node: NodeTrace, samples: list[RawSample], stand_in: Collection[str]
) -> tuple[list[tuple[str, Engine]], Outcome | Exception]:
    """The runtime's engine for a node, and what all engines made of its samples."""
    own = node.backend is None
    for place in proof.places(alone):
        opened: list[tuple[str, Engine]] = []
        try:
            found = engines(alone, node.name, proof.thorough, place)
            opened.append(next(found))
            outcome = _run(proof, alone, node, samples, 1, chain(opened, found), stand_in)
            if own:
                check_brought(alone, node.name, samples, place)
            return opened, outcome
        except ApartError as error:
            logger.info("node '%s' is run in this process: %s", node.name, error)
        except Exception as error:  # any engine may raise anything
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
    return check_node(bundle, node.name, samples, *_tolerance(proof, [node], looser), opened, random, stand_in)


def _tolerance(proof: Proof, nodes: list[NodeTrace], looser: int) -> tuple[float, float]:
    """Nodes that compute with less than float32, and those they feed, cannot be closer than the rounding step of their type."""
    step = 2 * max((node.tape.precision for node in nodes if node.tape is not None), default=0.0)
    return max(looser * proof.rtol, step), max(looser * proof.atol, step)


# Recorded samples may be special (a robot at rest, zeros, an identity) and hide what an engine gets wrong. So each file is
# also compared with the recorded calls on inputs near the first sample.

_MOVED = "inputs moved a little"


def _run_moved(
    proof: Proof, bundle: Bundle, node: NodeTrace, names: FileNames, sample: Sample, opened: list[tuple[str, Engine]]
) -> Outcome | None:
    try:
        outcome = _run(proof, bundle, node, [raw_sample(names, sample)], _LOOSER, opened)
    except Exception as error:  # any engine may refuse them
        logger.info("node '%s' cannot run on inputs near its first sample: %s", node.name, error)
        return None
    outcome.verdicts = [replace(verdict, engine=_MOVED) for verdict in outcome.verdicts]
    return outcome if outcome.verdicts else None


def _moved_inputs(node: NodeTrace, rows: int | None = None, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    first = node.samples[0].inputs
    return {n: _moved(first[n] if rows is None else resized(node, n, rows), generator) for n in node.inputs}


def _moved_sample(node: NodeTrace, rows: int | None = None) -> Sample | None:
    """The first sample with its float inputs moved a little, and what the recorded calls make of it.

    Args:
        node: The node.
        rows: The batch size, if it is to be another one.
    """
    if node.replay is None:
        return None
    first = node.samples[0]
    inputs = _moved_inputs(node, rows)
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
    return t + (0.1 * scale * torch.randn(t.shape, generator=generator)).to(t)


# A model that takes any batch is compared with the recorded calls for other numbers of rows.

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
        # Moved inputs may be outside of what the user's code accepts; recorded rows, repeated, are not.
        sample = _moved_sample(node, rows) or _repeated_sample(node, rows)
        if isinstance(sample, Exception):
            return None, sample
        try:
            found = _run(proof, bundle, node, [raw_sample(names, sample)], _LOOSER, opened)
        except Exception as error:  # any engine may refuse them
            return sample, error
        if found.verdicts:
            found.verdicts = [replace(verdict, engine=f"{_BATCH} {rows}") for verdict in found.verdicts]
            return sample, found
    return None, outcome


def _repeated_sample(node: NodeTrace, rows: int) -> Sample | Exception:
    """The first sample with its rows repeated, or why the recorded calls do not take it."""
    assert node.replay is not None
    inputs = {n: resized(node, n, rows) for n in node.inputs}
    reached: list[Call] = []

    def run(_: int, call: Call, args: Any, kwargs: Any) -> Any:
        reached.append(call)
        return call.func(*args, **kwargs)

    try:
        with torch.no_grad():
            values = node.replay.run([t.clone() for t in inputs.values()], run)
    except Exception as error:  # whatever torch says: the code does not take that many rows
        line = f" at {spelled_call(reached[-1])}" if reached else ""
        return ExportError(f"the batch size is baked into the code: with {rows} rows it fails{line}: {error}")
    return Sample(0, inputs, {n: values[p.slot] for n, p in node.outputs.items() if p.slot is not None})


def _batch_loops(bundle: Bundle, nodes: list[NodeTrace], names: dict[str, FileNames], passes: int) -> Iterator[Any]:
    """The samples of a closed loop of the recorded calls, for other batch sizes."""
    plan = make_plan(bundle.contract)
    traced = {n.name: n for n in nodes}
    for rows in ROWS if plan.batch is not None else ():
        if not all(_spreads(traced[n].inputs[p], traced[n].samples[0].inputs[p]) for n, p in _fed_back(plan, names)):
            logger.warning("a state begins with different rows, so the bundle takes a batch of %d only.", plan.batch)
            return
        values: dict[str, torch.Tensor] = {}
        samples: dict[str, list[RawSample]] = {n.name: [] for n in nodes}
        for number in range(passes):
            before = dict(values)
            for node in (traced[name] for name in plan.order):
                assert node.replay is not None
                drawn = _moved_inputs(node, rows, seed=number)
                inputs = {}
                for port in node.inputs:
                    where = key(node.name, names[node.name].inputs[port])
                    source = plan.feedback.get(where)
                    if where in plan.edges:
                        inputs[port] = values[plan.edges[where]]
                    elif source is not None:
                        inputs[port] = before[source] if number else resized(node, port, rows)
                    else:
                        inputs[port] = drawn[port]
                with torch.no_grad():
                    made = node.replay(*(t.clone() for t in inputs.values()))
                outputs = dict(zip(node.outputs, made, strict=True))
                values |= {key(node.name, names[node.name].outputs[p]): t for p, t in outputs.items()}
                samples[node.name].append(raw_sample(names[node.name], Sample(number, inputs, outputs)))
        yield samples


def _fed_back(plan: Plan, names: dict[str, FileNames]) -> Iterator[tuple[str, str]]:
    ports = {key(n, written): (n, port) for n, own in names.items() for port, written in own.inputs.items()}
    return (ports[where] for where in plan.feedback)


def _spreads(port: InputPort, value: torch.Tensor) -> bool:
    """Whether all rows of an initial value are the same."""
    if port.axis is None:
        return True
    return same_bits(value, value.narrow(port.axis, 0, 1).expand_as(value))


# -- why it failed -----------------------------------------------------------------------------------------------------


def _cause(proof: Proof, node: NodeTrace, names: FileNames, sample: Sample, report: Report) -> str:
    """What is behind a wrong value: a call that the file computes otherwise, or something that was frozen."""
    drawn = node.draws()
    if drawn:
        return (
            f"cause: the node draws random numbers at {drawn[0]}: {drawn[0].text}\nThe written model does not draw the same. "
            "If it is dropout, call .eval() before tracing; else declare what is drawn with input_tensors()."
        )
    job = export_job(node, names)
    inputs = tuple(sample.inputs[n].cpu() for n in node.inputs)
    outputs = tuple(sample.outputs[n].cpu() for n in node.outputs)
    try:
        if recording_departs(job, inputs, outputs, proof.rtol, proof.atol):
            return _frozen(node, sample, report)
        return f"cause: {first_departure(job, inputs, proof.rtol, proof.atol)}"
    except Exception as error:  # the search is a courtesy: its failure must not hide the verdict
        return f"cause: the first operation that departs could not be found ({error})"


def _other_model(node: NodeTrace) -> str:
    return (
        f"cause: {node.backend_params['model_path']} computes something else than the code of the node. Bring the model that "
        "the code stands for; if the code is no more than a placeholder, let it return an input or a constant."
    )


def _frozen(node: NodeTrace, sample: Sample, report: Report) -> str:
    assert node.tape is not None
    if node.tape.shared_writes:
        at = node.tape.shared_writes[0]
        return (
            f"cause: inputs of the node share memory, and one of them is written to at {at}: {at.text}\nIn a model each input "
            "is a value of its own. Clone the tensors before they are declared."
        )
    text = (
        "cause: the file does what was recorded in the first pass; in this pass the program computed something else. A value "
        "that changes between passes was frozen. Keep it a tensor, or declare it with input_tensors or state_tensors."
    )
    if node.compared and node.difference is None:
        text = (
            "cause: the first two passes were recorded and agree, call by call; in a later one (pass "
            f"{sample.passno + 1}) the program computed something else. A value that was frozen changes less often than "
            "every pass, such as a delay of several steps, a counter or a schedule. Declare it with state_tensors and "
            "update_state, or with input_tensors. Trace more passes to see in which of them it changes."
        )
    found = sorted((e for e in report.escapes if e.node == node.name), key=lambda e: not e.varies)
    escapes = [f"{e.kind} at {line_name(e.file, e.line)}: {e.source} [frozen: {e.value}]" for e in found]
    if escapes:
        return "\n    ".join([f"{text} What left the graph of this node:", *_few(escapes)])
    assert node.program is not None
    # Those that hold something else by now come first. Then tensors made for one pass, and then those that live on.
    constants = sorted(node.program.constants.values(), key=lambda c: (not _changed(c), c.origin() is not None))
    read = {f"{c.where}: {c.where.text}{' [changed since]' if _changed(c) else ''}": None for c in constants if not c.parameter}
    return "\n    ".join([f"{text} Plain tensors this node reads:", *_few(list(read))]) if read else text


def _changed(constant: Constant) -> bool:
    """Whether the user's tensor holds something else now than when the node read it."""
    now = constant.origin()
    return now is not None and now.shape == constant.value.shape and not same_bits(now, constant.value)


def _few(lines: list[str]) -> list[str]:
    return lines if len(lines) <= _SHOWN else [*lines[:_SHOWN], f"and {len(lines) - _SHOWN} more"]


# -- the log -----------------------------------------------------------------------------------------------------------


def _log_details(verdict: Verdict) -> None:
    for line in verdict.difference.details:
        logger.info("  %s", line)


def _compact(verdict: Verdict) -> str:
    """A verdict and its figures, on two lines."""
    return "\n    ".join([str(verdict), "; ".join(verdict.difference.details)])


def _brief(text: str) -> str:
    """The first and the last line of what an engine says; the log has all of it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return text if len(lines) <= _SHOWN else f"{lines[0]} ... {lines[-1]}"
