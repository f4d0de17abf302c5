"""From a finished session to a bundle on disk: export, describe, prove, draw, commit.

Everything is written to a staging directory and proven there. Only a bundle that passed, or that was not to be proven, replaces
the one on disk.
"""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from leapp.bundle import Bundle, Sample
from leapp.bundle.onnx_files import external_files
from leapp.bundle.owned_files import MODEL_SUFFIXES
from leapp.bundle.sbom import write_bom
from leapp.bundle.sidecars import describe_model, write_initial_values, write_samples
from leapp.bundle.staging import Staging
from leapp.bundle.system import system_information
from leapp.bundle.trust import remember
from leapp.capture.equality import same_bits
from leapp.check.engine_process import LARGE, EngineProcess
from leapp.check.engines import open_engine
from leapp.deploy.fuse import fuse_onnx, fused_name
from leapp.deploy.targets import TARGETS, TargetRules, check_target, spelled
from leapp.errors import AnnotationError, BundleError, BundleFileError, ExportError, SessionError, TraceError
from leapp.export import export_node, sharing_setup
from leapp.export.backends import BACKENDS
from leapp.graph.contract import Contract, ModelFile, Node, Port, key, split_key
from leapp.graph.formats import FORMATS, RUNNABLE, format_of
from leapp.graph.ports import port as describe_port
from leapp.graph.validate import check
from leapp.graph.wiring import Link, wire
from leapp.runtime.load import kept_open
from leapp.semantics import GraphConfigs, OutputKindEnum
from leapp.tracing.batching import follow_batch
from leapp.tracing.brought import placeholders
from leapp.tracing.describe import missing_for_deployment, page_details
from leapp.tracing.examine import enforce
from leapp.tracing.failed import clear, kept_beside
from leapp.tracing.log import SECTION, SYSTEM, logger
from leapp.tracing.node import InputPort, NodeTrace, OutputPort
from leapp.tracing.node_files import FileNames, export_job, file_names, in_step, raw_samples
from leapp.tracing.progress import Progress
from leapp.tracing.prove import Proof, prove
from leapp.tracing.report import ProofInfo, Report
from leapp.tracing.session import Session
from leapp.tracing.settings import Settings

_COMMANDS = frozenset(str(k.value) for k in OutputKindEnum)


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
    allow_nonfinite: bool = False,
    allow_random: bool = False,
    sbom: bool | str = False,
) -> dict[str, Any] | bool:
    """Write the bundle of a session. See :func:`leapp.compile_graph`."""
    rules = _rules(target)
    nodes = sorted(session.nodes.values(), key=lambda n: n.order)
    if not nodes:
        raise SessionError(
            "nothing was traced: no annotate.input_tensors() call was made between start() and stop(), so nothing was written. "
            "Run the annotated code while the session is open."
        )
    clear(settings.directory)
    models: dict[str, ModelFile] = {}
    contents: dict[str, bytes] = {}
    figures: dict[str, Any] = {}

    def draw_failed(directory: Path) -> None:
        if visualize:
            names = {node.name: file_names(node) for node in nodes}
            described = {node.name: models.get(node.name, ModelFile()) for node in nodes}
            contract = _contract(session, nodes, names, described, configs)
            _draw(contract, settings.graph, nodes, names, report, figures, directory)

    _log_programs(nodes)
    for line in (*report.training, *report.notes):
        logger.warning("%s", line)
    with kept_beside(settings.directory, None, draw_failed):
        enforce(report, session.escapes, strict)
        _require_passes(nodes, session.min_passes)
        follow_batch(nodes)
        names = {node.name: file_names(node) for node in nodes}
    logger.info("Discovered %d nodes", len(nodes))
    results: dict[str, Any] | bool = True
    progress = Progress([] if dry_run else [n.name for n in nodes])
    with (
        Staging(settings.directory) as staging,
        kept_beside(settings.directory, staging.path, draw_failed, staging.is_full),
        progress,
        EngineProcess() as engine_process,
    ):
        if validate and not dry_run and _weights(nodes) > LARGE:
            engine_process.begin(*sorted({BACKENDS[n.backend].format.engine or "" for n in nodes if n.backend is not None}))
        taken = {f"{n.name}{suffix}".casefold() for n in nodes if _is_exported(n) for suffix in MODEL_SUFFIXES}
        with sharing_setup():
            for node in nodes:
                with nullcontext() if dry_run else progress.step(node.name, "export"):
                    if dry_run:
                        models[node.name] = ModelFile()
                    elif _is_exported(node):
                        models[node.name] = _model(node, names[node.name], staging.path, rules, contents)
                    else:
                        models[node.name] = _own_model(node, staging.path, settings, taken)
        contract = _contract(session, nodes, names, models, configs)
        if target is not None:
            contract = spelled(contract, target)
        check(contract)
        _log_wiring(contract)
        samples = {} if dry_run else raw_samples(nodes, names)
        if not dry_run:
            contract = _sidecars(staging.path, settings.graph, nodes, samples, contract)
        report._wired = settings.graph, contract
        bundle = Bundle(staging.path / f"{settings.graph}.yaml", contract, None, {}, allow_outside=True, contents=contents)
        if not dry_run:
            _open_brought(bundle, nodes, ports_too=not validate)
        if target is not None and not dry_run:
            _check_target(bundle, target)
        fused = fuse_onnx(bundle, staging.path / fused_name(contract, settings.graph)) if fuse and not dry_run else None
        _log_statistics(contract)
        report.missing = missing_for_deployment(contract)
        if report.missing:
            logger.log(SECTION, "Missing for deployment:\n%s", "\n".join(f"  {text}" for text in report.missing))
        if validate and not dry_run:
            thorough = validate == "thorough"
            proof = Proof(rtol, atol, thorough, settings.log.path, engine_process, allow_nonfinite, allow_random, strict)
            with kept_open():
                prove(proof, bundle, nodes, names, samples, report, fused, progress)
            results = {name: proof.results[name] for name in session.nodes}
            report.validation = dict(results)
            figures |= proof.figures
            if strict:
                proof.require()
            report.proven = list(_proven(proof, models))
        if visualize:
            _draw(contract, settings.graph, nodes, names, report, figures, staging.path)
        if sbom:
            write_bom(bundle, sbom if isinstance(sbom, str) else None)
        yaml = staging.commit(settings.graph, contract)
        remember(contract)
        for old, new in staging.kept.items():
            logger.warning("%s was not written by leapp; it is kept as %s.", old, new)
    without = [n for n, m in models.items() if m.model_path is None]
    logger.log(
        SYSTEM, "Wrote %s: %s%s%s. To see it: leapp view %s", yaml,
        ", ".join(m.model_path for m in models.values() if m.model_path) or "no models",
        f", all in one: {fused.name}" if fused is not None else "",
        f"; without a model: {', '.join(without)}" if without else "", shlex.quote(str(settings.directory)),
    )  # fmt: skip
    return results


def _proven(proof: Proof, models: dict[str, ModelFile]) -> Iterator[ProofInfo]:
    """The files that were run on samples and passed."""
    largest: dict[str, float] = {}
    for where, found in proof.figures.items():
        node = split_key(where)[0]
        largest[node] = max(largest.get(node, 0.0), found["largest"])
    for node, samples in proof.samples.items():
        file = models[node].model_path
        if proof.results[node] is True and file is not None:
            yield ProofInfo(node, file, samples, largest.get(node))


def _require_passes(nodes: list[NodeTrace], least: int) -> None:
    """Refuse nodes with fewer passes than ``least``. Warn of nodes with one pass, and of nodes whose inputs never changed."""
    traced = [n for n in nodes if n.program is not None and n.backend is not None]
    few = [n for n in traced if n.passes < least]
    if few:
        listed = ", ".join(f"'{n.name}' ({n.passes})" for n in few)
        raise TraceError(
            f"min_passes={least}, but these nodes were traced in fewer passes: {listed}. Run the loop between start() and "
            "stop() more often, with other inputs each time."
        )
    once = [n for n in traced if n.passes + n.dropped_passes < 2]
    if once:
        logger.warning(
            "%s traced in one pass only, so nothing shows whether a value that is frozen in a model changes from call to call: "
            "run the loop once more, with other inputs, before leapp.stop(). start(min_passes=2) makes this an error.",
            ", ".join(f"'{n.name}'" for n in once) + (" was" if len(once) == 1 else " were"),
        )  # fmt: skip
    alike = [n for n in traced if n not in once and _same_inputs(n)]
    if alike:
        logger.warning(
            "%s had the same inputs in every pass, so nothing shows whether a frozen value depends on them: give each pass "
            "other inputs.", ", ".join(f"'{n.name}'" for n in alike),
        )  # fmt: skip


def _same_inputs(node: NodeTrace) -> bool:
    names = [n for n, p in node.inputs.items() if p.role == "input"]
    first, *others = node.samples
    return bool(names and others) and all(same_bits(first.inputs[n], s.inputs[n]) for n in names for s in others)


# -- the target --------------------------------------------------------------------------------------------------------


def _rules(target: str | None) -> TargetRules | None:
    if target is None:
        return None
    if target not in TARGETS:
        raise AnnotationError(f"target={target!r} is unknown; the targets are {', '.join(map(repr, TARGETS))}.")
    return TARGETS[target]


def _check_target(bundle: Bundle, target: str) -> None:
    findings = check_target(bundle, target)
    for finding in findings:
        if finding.level == "warning":
            logger.warning("target %s: %s: %s", target, finding.where, finding.text)
    errors = [f"  {finding.where}: {finding.text}" for finding in findings if finding.level == "error"]
    if errors:
        raise ExportError(f"target='{target}' cannot take this pipeline:\n" + "\n".join(errors))


# -- names and ports ---------------------------------------------------------------------------------------------------


def _ports(ports: dict[str, Any], names: dict[str, str]) -> tuple[Port, ...]:
    found: list[Port] = []
    port: InputPort | OutputPort
    for port in ports.values():
        found.append(describe_port(names[port.name], port.dtype, port.shape, port.semantics, port.axis))
    return tuple(found)


# -- models ------------------------------------------------------------------------------------------------------------


def _is_exported(node: NodeTrace) -> bool:
    return node.backend is not None and node.replay is not None


def _model(
    node: NodeTrace, names: FileNames, directory: Path, rules: TargetRules | None, contents: dict[str, bytes]
) -> ModelFile:
    logger.log(SECTION, "Compiling %s", node.name)
    began = time.perf_counter()
    with torch.no_grad():
        result = export_node(export_job(node, names, rules), directory)
    if result.dropped_inputs:
        dropped = ", ".join(result.dropped_inputs)
        raise ExportError(f"node '{node.name}': the exporter dropped the inputs {dropped}. Use another export_with=.")
    logger.info("Success: %s in %.2f s", result.path.name, time.perf_counter() - began)
    return describe_model(result.path, directory, result.backend, result.extra, contents)


def _log_programs(nodes: list[NodeTrace]) -> None:
    """Log the recorded calls of all nodes. To do it while tracing would slow that down by a third."""
    for node in nodes:
        if node.program is not None:
            logger.debug(
                "Compiled graph module for %s:\n%s\ninputs: %s\noutputs: %s",
                node.name, node.program, ", ".join(node.inputs), ", ".join(node.outputs),
            )  # fmt: skip


def _weights(nodes: list[NodeTrace]) -> int:
    """Bytes of all parameters."""
    constants = (c for n in nodes if n.program is not None for c in n.program.constants.values())
    return sum(c.value.numel() * c.value.element_size() for c in constants if c.parameter)


def _own_model(node: NodeTrace, directory: Path, settings: Settings, taken: set[str]) -> ModelFile:
    """A model that the user brings, or none at all. ``taken`` are the file names of other models, in lower case."""
    given = node.backend_params.get("model_path")
    if given is None:
        logger.warning("node '%s' has no export_with= and no model_path: it is described without a model.", node.name)
        return ModelFile()
    path = Path(given).expanduser()
    format = format_of(path)
    if format is None:
        known = ", ".join(suffix for each in FORMATS.values() for suffix in each.suffixes)
        raise AnnotationError(f"node '{node.name}': '{path.name}' is not a known kind of model. Known: {known}.")
    if not path.is_file():
        raise BundleFileError(f"node '{node.name}': the model file {path} does not exist.")
    if not node.backend_params.get("copy_original_model"):
        return describe_model(path, settings.directory, format.name)
    data = external_files(path.read_bytes(), f"node '{node.name}': {path.name}") if format is FORMATS["onnx"] else []
    files = [path.name, *data]
    folder = ""
    while any(os.path.join(folder, name).casefold() in taken for name in files):
        # A model refers to its data by relative path, so both go into the same folder, which no other node uses.
        folder = f"{folder}_" if folder else node.name
    for name in files:
        target = directory / folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path.parent / name, target)
        taken.add(os.path.join(folder, name).casefold())
    return describe_model(directory / folder / path.name, directory, format.name)


def _open_brought(bundle: Bundle, nodes: list[NodeTrace], ports_too: bool) -> None:
    """Refuse models of the user's that no engine can open, and with ``ports_too`` those whose ports do not fit.

    Otherwise the proof compares the ports.
    """
    for node in nodes:
        if node.backend is None and bundle.contract.nodes[node.name].model.backend in RUNNABLE:
            try:
                open_engine(bundle, node.name)
            except BundleError as error:
                path = node.backend_params["model_path"]
                if error.__cause__ is not None or ports_too:
                    raise ExportError(f"node '{node.name}': the model {path} cannot be used: {error}") from error


# -- the contract ------------------------------------------------------------------------------------------------------


def sketch(session: Session) -> Contract:
    """The graph of what was traced so far, without models."""
    nodes = sorted((n for n in session.nodes.values() if n.finished), key=lambda n: n.order)
    names = {node.name: file_names(node) for node in nodes}
    return _contract(session, nodes, names, {n.name: ModelFile(backend=n.backend) for n in nodes}, None)


def _contract(
    session: Session,
    nodes: list[NodeTrace],
    names: dict[str, FileNames],
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


def _sidecars(
    directory: Path, graph: str, nodes: list[NodeTrace], samples: dict[str, list[Sample]], contract: Contract
) -> Contract:
    """Write initial values and samples beside the models."""
    from msgspec.structs import replace

    told = [n for n in nodes if contract.nodes[n.name].model.model_path is None or n.backend is not None or not placeholders(n)]
    write_samples(directory, graph, {n.name: samples[n.name] for n in told})
    targets = {t for ts in contract.pipeline.feedback_flow.values() for t in ts}
    if not targets:
        return contract
    start = {name: samples[name][numbers[0] if numbers else 0] for name, numbers in in_step(nodes).items()}
    first = {key(name, port): value for name, sample in start.items() for port, value in sample.inputs.items()}
    name = write_initial_values(directory, graph, {t: first[t] for t in targets}, contract)
    return replace(contract, pipeline=replace(contract.pipeline, initial_values=name))


# -- the picture and the log -------------------------------------------------------------------------------------------


def _draw(
    contract: Contract,
    graph: str,
    nodes: list[NodeTrace],
    names: dict[str, FileNames],
    report: Report,
    figures: dict[str, Any],
    directory: Path,
) -> None:
    try:
        from leapp.view import write_views

        details = page_details(nodes, report, figures)
        write_views(contract, graph, directory, samples=raw_samples(nodes, names), details=details)
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


