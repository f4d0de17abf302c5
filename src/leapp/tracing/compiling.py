"""From a finished session to a bundle on disk: export, describe, prove, draw, commit.

Everything is written to a staging directory and proven there; only a bundle that passed (or was not asked to) replaces what
is on disk.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from leapp.bundle import (
    Bundle,
    RawTensor,
    Staging,
    describe_model,
    system_information,
    write_initial_values,
    write_samples,
)
from leapp.bundle import Sample as RawSample
from leapp.bundle.fuse import fuse as write_fused
from leapp.bundle.fuse import fused_name
from leapp.bundle.profiles import PROFILES, Profile, check_profile, spelled
from leapp.check import Verdict, check_fused, check_nodes, check_pipeline
from leapp.check.blame import first_departure, why_not_run
from leapp.errors import AnnotationError, BundleFileError, ExportError, ValidationError
from leapp.export import ExportJob, export_node
from leapp.graph.contract import Contract, ModelFile, Node, Port, key
from leapp.graph.ports import port as describe_port
from leapp.graph.wiring import Link, wire
from leapp.semantics import GraphConfigs, OutputKindEnum
from leapp.tracing.deployment import missing_for_deployment
from leapp.tracing.details import page_details
from leapp.tracing.log import SECTION, SYSTEM, Log, logger
from leapp.tracing.node import InputPort, NodeTrace, OutputPort, Sample
from leapp.tracing.report import Report, enforce
from leapp.tracing.session import Session

__all__ = ["Failure", "Settings", "compile_session"]

_SUFFIXES = {
    ".pt": "jit", ".pt2": "pt2", ".onnx": "onnx", ".cpp": "cpp", ".cc": "cpp", ".py": "py", ".engine": "trt", ".plan": "trt"
}  # fmt: skip
_COMMANDS = frozenset(str(k.value) for k in OutputKindEnum)


@dataclass(slots=True)
class Settings:
    """Where a session writes."""

    graph: str
    directory: Path
    dry_run: bool
    log: Log


class Failure(ValidationError):
    """What went wrong with one node. False, so that ``all(results.values())`` means that everything passed."""

    def __bool__(self) -> bool:
        return False


def compile_session(
    session: Session,
    settings: Settings,
    report: Report,
    *,
    visualize: bool,
    validate: bool | str,
    rtol: float,
    atol: float,
    strict: bool,
    configs: GraphConfigs | None,
    dry_run: bool,
    fuse: bool = False,
    target: str | None = None,
) -> dict[str, Any] | bool:
    """Write the bundle of a session. See :func:`leapp.compile_graph`."""
    profile = _profile(target)
    enforce(report, session.escapes, strict)
    nodes = sorted(session.nodes.values(), key=lambda n: n.order)
    logger.info("Discovered %d nodes", len(nodes))
    if not nodes:
        logger.error("nothing was traced: no annotate.input_tensors() call was made between start() and stop().")
    names = {node.name: _file_names(node) for node in nodes}
    results: dict[str, Any] | bool = True
    with Staging(settings.directory) as staging:
        models = {
            n.name: ModelFile() if dry_run else _model(n, names[n.name], staging.path, settings, profile) for n in nodes
        }
        contract = _contract(session, nodes, names, models, configs)
        if target is not None:
            contract = spelled(contract, target)
        _log_wiring(contract)
        if not dry_run:
            contract = _sidecars(staging.path, settings.graph, nodes, names, contract)
        bundle = Bundle(staging.path / f"{settings.graph}.yaml", contract, None, {}, allow_outside=True)
        if target is not None and not dry_run:
            _check_target(bundle, target)
        fused = write_fused(bundle, staging.path / fused_name(contract, settings.graph)) if fuse and not dry_run else None
        _log_statistics(contract)
        report.missing = missing_for_deployment(contract)
        if report.missing:
            logger.log(SECTION, "Missing for deployment:\n%s", "\n".join(f"  {text}" for text in report.missing))
        if validate and not dry_run:
            results = _validate(bundle, session, nodes, names, rtol, atol, settings.log.path, validate == "thorough", fused)
            report.validation = dict(results)
            _raise_failures(results, strict, settings.log.path)
        if visualize:
            _draw(contract, settings.graph, nodes, names, report, staging.path)
        yaml = staging.commit(settings.graph, contract)
        for old, new in staging.kept.items():
            logger.warning("%s was not written by leapp; it is kept as %s.", old, new)
    without = [n for n, m in models.items() if m.model_path is None]
    logger.log(
        SYSTEM, "Wrote %s: %s%s%s", yaml, ", ".join(m.model_path for m in models.values() if m.model_path) or "no models",
        f", all in one: {fused.name}" if fused is not None else "",
        f"; without a model: {', '.join(without)}" if without else "",
    )  # fmt: skip
    return results


# -- the target --------------------------------------------------------------------------------------------------------


def _profile(target: str | None) -> Profile | None:
    if target is None:
        return None
    if target not in PROFILES:
        raise AnnotationError(f"target={target!r} is unknown; the targets are {', '.join(map(repr, PROFILES))}.")
    return PROFILES[target]


def _check_target(bundle: Bundle, target: str) -> None:
    findings = check_profile(bundle, target)
    for finding in findings:
        if finding.level == "warning":
            logger.warning("target %s: %s: %s", target, finding.where, finding.text)
    errors = [f"  {finding.where}: {finding.text}" for finding in findings if finding.level == "error"]
    if errors:
        raise ExportError(f"target='{target}' cannot take this pipeline:\n" + "\n".join(errors))


# -- names and ports ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Names:
    """The names of a node's ports in files. ONNX keeps inputs and outputs in one name space."""

    inputs: dict[str, str]
    outputs: dict[str, str]


def _file_names(node: NodeTrace) -> _Names:
    inputs, outputs = {n: n for n in node.inputs}, {n: n for n in node.outputs}
    if node.backend in ("onnx", "onnx-torchscript"):
        for name in [n for n in inputs if n in outputs]:
            renamed = (f"{name}_in", f"{name}_out")
            for new in renamed:
                if new in inputs.values() or new in outputs.values():
                    raise AnnotationError(
                        f"node '{node.name}': '{name}' is an input and an output, so ONNX needs the names "
                        f"'{renamed[0]}' and '{renamed[1]}', but '{new}' is taken. Rename a port."
                    )
            inputs[name], outputs[name] = renamed
    return _Names(inputs, outputs)


def _ports(ports: dict[str, Any], names: dict[str, str]) -> tuple[Port, ...]:
    found: list[Port] = []
    port: InputPort | OutputPort
    for port in ports.values():
        found.append(describe_port(names[port.name], port.dtype, port.shape, port.semantics))
    return tuple(found)


# -- models ------------------------------------------------------------------------------------------------------------


def _job(node: NodeTrace, names: _Names, profile: Profile | None = None) -> ExportJob:
    assert node.replay is not None
    assert node.backend is not None
    params = dict(node.backend_params)
    if profile is not None and node.backend in ("onnx", "onnx-torchscript"):
        params.setdefault("opset_version", profile.opset)
    return ExportJob(
        node=node.name,
        module=node.replay,
        example=tuple(node.samples[0].inputs[n] for n in node.inputs),
        input_names=[names.inputs[n] for n in node.inputs],
        output_names=[names.outputs[n] for n in node.outputs],
        backend=node.backend,
        params=params,
    )


def _model(node: NodeTrace, names: _Names, directory: Path, settings: Settings, profile: Profile | None) -> ModelFile:
    if node.backend is None or node.replay is None:
        return _own_model(node, directory, settings)
    logger.log(SECTION, "Compiling %s", node.name)
    began = time.perf_counter()
    with torch.no_grad():
        result = export_node(_job(node, names, profile), directory)
    if result.dropped_inputs:
        raise ExportError(f"node '{node.name}': the exporter dropped the inputs {', '.join(result.dropped_inputs)}.")
    logger.info("Success: %s in %.2f s", result.path.name, time.perf_counter() - began)
    return describe_model(result.path, directory, result.backend, result.extra)


def _own_model(node: NodeTrace, directory: Path, settings: Settings) -> ModelFile:
    """A model that the user brings, or none at all."""
    given = node.backend_params.get("model_path")
    if given is None:
        logger.warning("node '%s' has no export_with= and no model_path: it is described without a model.", node.name)
        return ModelFile()
    path = Path(given).expanduser()
    backend = _SUFFIXES.get(path.suffix)
    if backend is None:
        raise AnnotationError(
            f"node '{node.name}': '{path.name}' is no known kind of model. Known: {', '.join(_SUFFIXES)}."
        )
    if not path.is_file():
        raise BundleFileError(f"node '{node.name}': the model file {path} does not exist.")
    if not node.backend_params.get("copy_original_model"):
        return describe_model(path, settings.directory, backend)
    target = directory / path.name
    if target.exists():
        raise AnnotationError(f"node '{node.name}': another node already writes '{path.name}'. Rename the model file.")
    shutil.copyfile(path, target)
    data = path.with_name(path.name + ".data")
    if data.is_file():
        shutil.copyfile(data, directory / data.name)
    return describe_model(target, directory, backend)


# -- the contract ------------------------------------------------------------------------------------------------------


def _contract(
    session: Session,
    nodes: list[NodeTrace],
    names: dict[str, _Names],
    models: dict[str, ModelFile],
    configs: GraphConfigs | None,
) -> Contract:
    described = {
        n.name: Node(
            inputs=_ports(n.inputs, names[n.name].inputs),
            outputs=_ports(n.outputs, names[n.name].outputs),
            model=models[n.name],
        )
        for n in nodes
    }
    links: list[Link] = []
    states: list[str] = []
    wanted: list[str] = []
    static: list[str] = []
    for node in nodes:
        own = names[node.name]
        for output in node.outputs.values():
            where = key(node.name, own.outputs[output.name])
            if output.role == "state":
                states.append(where)
                links.append(Link(where, key(node.name, own.inputs[output.name]), feedback=True))
            if output.name in node.wanted or (output.role != "state" and _is_command(output)):
                wanted.append(where)
            if output.role == "static":
                static.append(where)
        for port in node.inputs.values():
            if port.source is not None:
                source = names[port.source.node].outputs[port.source.port]
                where = key(port.source.node, source)
                links.append(Link(where, key(node.name, own.inputs[port.name]), feedback=port.source.delayed))
    pipeline = wire(described, links, wanted=wanted, states=states, static=static)
    if configs is not None:
        from msgspec.structs import replace

        pipeline = replace(pipeline, configs=configs.to_dict())
    system = system_information(str(torch.__version__), torch.version.cuda)
    return Contract(nodes=described, pipeline=pipeline, system=system)


def _is_command(output: OutputPort) -> bool:
    kind = output.semantics.kind if output.semantics is not None else None
    text = str(getattr(kind, "value", kind))
    return text in _COMMANDS or text.startswith("target/")


def _in_step(nodes: list[NodeTrace]) -> dict[str, list[Sample]]:
    """The samples of consecutive passes in which every node ran, from the first such pass on."""
    if not nodes or not all(n.samples for n in nodes):
        return {n.name: [] for n in nodes}
    first = max(n.samples[0].passno for n in nodes)
    by_pass = [{s.passno: s for s in n.samples} for n in nodes]
    passes = 0
    while all(first + passes in samples for samples in by_pass):
        passes += 1
    return {n.name: [s[first + i] for i in range(passes)] for n, s in zip(nodes, by_pass, strict=True)}


def _sidecars(
    directory: Path, graph: str, nodes: list[NodeTrace], names: dict[str, _Names], contract: Contract
) -> Contract:
    """Write initial values and samples beside the models."""
    from msgspec.structs import replace

    samples = _raw_samples(nodes, names)
    write_samples(directory, graph, samples)
    targets = {t for ts in contract.pipeline.feedback_flow.values() for t in ts}
    if not targets:
        return contract
    start = {n.name: (_in_step(nodes)[n.name] or n.samples)[0] for n in nodes}
    first = {
        key(n.name, names[n.name].inputs[p]): RawTensor.of(v) for n in nodes for p, v in start[n.name].inputs.items()
    }
    name = write_initial_values(directory, graph, {t: first[t] for t in targets}, contract)
    return replace(contract, pipeline=replace(contract.pipeline, initial_values=name))


def _raw_samples(
    nodes: list[NodeTrace], names: dict[str, _Names], chosen: dict[str, list[Sample]] | None = None
) -> dict[str, list[RawSample]]:
    return {
        n.name: [
            RawSample(
                {names[n.name].inputs[p]: RawTensor.of(t) for p, t in s.inputs.items()},
                {names[n.name].outputs[p]: RawTensor.of(t) for p, t in s.outputs.items()},
            )
            for s in (n.samples if chosen is None else chosen[n.name])
        ]
        for n in nodes
    }


# -- proof -------------------------------------------------------------------------------------------------------------


def _validate(
    bundle: Bundle,
    session: Session,
    nodes: list[NodeTrace],
    names: dict[str, _Names],
    rtol: float,
    atol: float,
    log: Path,
    thorough: bool,
    fused: Path | None,
) -> dict[str, Any]:
    samples = _raw_samples(nodes, names)
    random = {n.name for n in nodes if n.tape is not None and n.tape.random}
    traced = {n.name for n in nodes if n.backend is not None}
    own = {n: node for n, node in bundle.contract.nodes.items() if n in traced}
    exported = _replaced(bundle, own)
    coarse = {n.name: n.tape.precision for n in nodes if n.tape is not None and n.tape.precision}
    found = check_nodes(exported, samples, rtol, atol, random, coarse, thorough=thorough)
    _check_moved(exported, found, nodes, names, rtol, atol, random, coarse)
    described = {n.name: n for n in nodes}
    results: dict[str, Any] = {}
    for name in session.nodes:
        outcome = found.get(name)
        if outcome is None:
            logger.warning("node '%s' has no model of leapp's to validate; skipped.", name)
            results[name] = True
        elif isinstance(outcome, Exception):
            reason = why_not_run(exported, name, outcome)
            logger.error("node '%s': the written model cannot be run: %s", name, reason)
            results[name] = _failure(f"node '{name}': the written model cannot be run: {reason}", outcome)
        else:
            results[name] = not outcome.verdicts
            _log_verdicts(outcome.verdicts, rtol, atol, log)
            if outcome.random:
                ports = ", ".join(sorted(outcome.random))
                logger.info("node '%s' draws random numbers: %s compared by shape and dtype only.", name, ports)
            if outcome.verdicts:
                _log_departure(described[name], names[name], outcome.verdicts[0], rtol, atol)
    if all(v is True for v in results.values()) and len(own) == len(bundle.contract.nodes):
        samples = _raw_samples(nodes, names, _in_step(nodes))
        for verdict in _closed_loop(bundle, samples, rtol, atol, random):
            logger.error("in closed loop, %s", verdict)
            results[verdict.node] = False
        for verdict in check_fused(fused, bundle, samples, 10 * rtol, 10 * atol, random) if fused is not None else ():
            logger.error("in closed loop, %s", verdict)
            results[verdict.node] = False
    _log_summary(results)
    return results


def _check_moved(
    bundle: Bundle,
    found: dict[str, Any],
    nodes: list[NodeTrace],
    names: dict[str, _Names],
    rtol: float,
    atol: float,
    random: set[str],
    coarse: dict[str, float],
) -> None:
    """Compare each file with the recorded calls on inputs near the first sample.

    Recorded samples may be special (a robot at rest, zeros, an identity) and hide what an engine gets wrong.
    """
    moved = {}
    for node in nodes:
        passed = not isinstance(found.get(node.name), Exception) and found.get(node.name) is not None
        if passed and not found[node.name].verdicts and node.name not in random and node.replay is not None:
            sample = _moved_sample(node, names[node.name])
            if sample is not None:
                moved[node.name] = [sample]
    chosen = {n: bundle.contract.nodes[n] for n in moved}
    again = check_nodes(_replaced(bundle, chosen), moved, 10 * rtol, 10 * atol, random, coarse)
    for name, outcome in again.items():
        if isinstance(outcome, Exception):
            logger.info("node '%s' cannot run on inputs near its first sample: %s", name, outcome)
        elif outcome.verdicts:
            logger.error("node '%s': on inputs near the first sample the file differs from the recorded calls.", name)
            found[name] = outcome


def _replaced(bundle: Bundle, nodes: dict[str, Node]) -> Bundle:
    return Bundle(bundle.path, _only(bundle.contract, nodes), None, {}, allow_outside=True)


def _moved_sample(node: NodeTrace, names: _Names) -> RawSample | None:
    """The first sample with its float inputs moved a little, and what the recorded calls make of it."""
    assert node.replay is not None
    generator = torch.Generator().manual_seed(0)
    first = node.samples[0].inputs
    inputs = {n: _moved(first[n], generator) for n in node.inputs}
    try:
        with torch.no_grad():
            outputs = node.replay(*(t.clone() for t in inputs.values()))
    except Exception as error:  # such inputs may be outside of what the user's code accepts
        logger.info("node '%s': its calls refuse inputs near its first sample: %s", node.name, error)
        return None
    return RawSample(
        {names.inputs[n]: RawTensor.of(t) for n, t in inputs.items()},
        {names.outputs[n]: RawTensor.of(t) for n, t in zip(node.outputs, outputs, strict=True)},
    )


def _moved(t: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if not t.is_floating_point() or not t.numel():
        return t
    scale = float(t.float().abs().nan_to_num(0.0, 0.0, 0.0).mean()) or 1.0
    return t + (0.1 * scale * torch.randn(t.shape, generator=generator)).to(t.dtype)


def _closed_loop(bundle: Bundle, samples: Any, rtol: float, atol: float, random: set[str]) -> list[Verdict]:
    """Feedback multiplies rounding differences: the loop is allowed ten times the tolerance of a single step."""
    return check_pipeline(bundle, samples, 10 * rtol, 10 * atol, random)


def _only(contract: Contract, nodes: dict[str, Node]) -> Contract:
    from msgspec.structs import replace

    return replace(contract, nodes=nodes)


def _failure(text: str, cause: Exception) -> Failure:
    failure = Failure(text)
    failure.__cause__ = cause
    return failure


def _log_verdicts(verdicts: list[Verdict], rtol: float, atol: float, log: Path) -> None:
    for verdict in verdicts:
        logger.error("%s (rtol %g, atol %g; see %s)", verdict, rtol, atol, log)
        for line in verdict.difference.details:
            logger.info("  %s", line)
    if verdicts and min(v.sample for v in verdicts) > 0:
        logger.warning(
            "node '%s' passes on sample 0 and fails on later ones: a value that varies was frozen as a constant. "
            "Declare it as an input, or keep it a tensor.", verdicts[0].node,
        )  # fmt: skip


def _log_departure(node: NodeTrace, names: _Names, verdict: Verdict, rtol: float, atol: float) -> None:
    sample = tuple(node.samples[verdict.sample].inputs[n] for n in node.inputs)
    wanted = tuple(node.samples[verdict.sample].outputs[n] for n in node.outputs)
    try:
        found = first_departure(_job(node, names), sample, wanted, rtol, atol)
    except Exception as error:  # the search is a courtesy: its failure must not hide the verdict
        logger.info("  the first operation that departs could not be found: %s", error)
        return
    logger.error("  %s", found)


def _log_summary(results: dict[str, Any]) -> None:
    logger.log(SECTION, "Validation Summary")
    logger.info("Passed: %d/%d", sum(v is True for v in results.values()), len(results))
    failed = [n for n, v in results.items() if v is False]
    errors = [n for n, v in results.items() if isinstance(v, Exception)]
    if failed:
        logger.warning("Failed: %s", ", ".join(failed))
    if errors:
        logger.error("Errors: %s", ", ".join(errors))


def _raise_failures(results: dict[str, Any] | bool, strict: bool, log: Path) -> None:
    if not strict or not isinstance(results, dict):
        return
    failed = [n for n, v in results.items() if v is not True]
    if failed:
        cause = next((v for v in results.values() if isinstance(v, Exception)), None)
        raise ValidationError(
            f"validation failed for {', '.join(failed)}: the written models do not reproduce the traced values, so the bundle "
            f"on disk was left as it was. Details are in {log}."
            + ("" if cause is None else f" First cause: {cause}")
        ) from cause


# -- the picture and the log -------------------------------------------------------------------------------------------


def _draw(
    contract: Contract, graph: str, nodes: list[NodeTrace], names: dict[str, _Names], report: Report, directory: Path
) -> None:
    static = [key(n.name, p.name) for n in nodes for p in n.outputs.values() if p.role == "static"]
    counts = {n.name: sum(p.numel() for p in n.replay.parameters()) for n in nodes if n.replay is not None}
    try:
        from leapp.view import write_page, write_picture

        write_picture(contract, graph, directory, static_outputs=static, parameter_counts=counts)
        write_page(contract, graph, directory, samples=_raw_samples(nodes, names), details=page_details(nodes, report))
    except Exception as error:  # a picture is never worth losing an export
        logger.error("the picture could not be drawn: %s", error)


def _log_wiring(contract: Contract) -> None:
    for source, targets in contract.pipeline.data_flow.items():
        for target in targets:
            logger.info("Found connection: %s -> %s", source, target)
    for source, targets in contract.pipeline.feedback_flow.items():
        for target in targets:
            logger.info("Found feedback connection: %s -> %s", source, target)


def _log_statistics(contract: Contract) -> None:
    def count(flows: Any) -> int:
        return sum(len(v) for v in flows.values())

    pipeline = contract.pipeline
    internal = count(pipeline.data_flow) + count(pipeline.feedback_flow)
    ins, outs = count(pipeline.inputs), count(pipeline.outputs)
    logger.info("Computation nodes: %d", len(contract.nodes))
    logger.info("Dangling inputs: %d", ins)
    logger.info("Dangling outputs: %d", outs)
    logger.info("Internal connections: %d", internal)
    logger.info("Total edges: %d", internal + ins + outs)


