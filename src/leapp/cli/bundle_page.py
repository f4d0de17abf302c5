"""Writes a new page of a bundle, with the results of replaying its samples or a recording."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from leapp.bundle import Bundle, Sample, read_samples
from leapp.cli.output import progress
from leapp.graph.contract import key
from leapp.graph.tolerances import ATOL, RTOL
from leapp.graph.validate import feedback_ports, graph_ports


def write_bundle_page(bundle: Bundle, output: str | None, recording: str | None = None, *, measured: bool = False) -> Path:
    """Write a new page of a bundle, into a temporary directory by default.

    Args:
        bundle: The bundle. Its ONNX models are read; no model is run unless ``measured``.
        output: The directory to write to.
        recording: A recorded run to show instead of the samples.
        measured: Replay the samples, for times and differences of every node, and the recording, for the values between nodes.
    """
    from leapp.view import write_page
    from leapp.view.exported import exported_details

    samples = read_samples(bundle)
    details: dict[str, Any] = {"digest": bundle.digest}
    own = f"{bundle.graph}.html"
    if own in bundle.files:
        details |= exported_details(bundle.directory / own, bundle.contract)
    if measured:
        with progress("replaying samples", len(bundle.contract.nodes)) as advance:
            found = _measure(bundle, samples, advance)
        exported = details.get("nodes", {})
        details |= found | {
            "nodes": {name: exported.get(name, {}) | found["nodes"].get(name, {}) for name in bundle.contract.nodes}
        }
    run = recorded_values(bundle, recording, replayed=measured) if recording is not None else None
    directory = Path(output) if output is not None else Path(tempfile.mkdtemp(prefix="leapp-"))
    directory.mkdir(parents=True, exist_ok=True)
    return write_page(
        bundle.contract, bundle.graph, directory, samples=samples, recording=run, details=details, models=bundle.directory
    )


def recorded_values(bundle: Bundle, path: str, *, replayed: bool = False) -> dict[tuple[str, str], list[Any]]:
    """The values of a recorded run by side and port. A state is shown at the input that it feeds.

    A recording has no values between nodes. With ``replayed``, they come from running every node on the recorded inputs.
    """
    from leapp.runtime.recording import read_recording

    given, returned = (graph_ports(bundle.contract, side) for side in ("inputs", "outputs"))
    run = read_recording(path, given, returned, feedback_ports(bundle.contract))
    values: dict[tuple[str, str], list[Any]] = {}
    for side, steps in (("in", run.inputs), ("out", run.outputs), ("in", run.state)):
        for step in steps:
            for where, value in step.items():
                values.setdefault((side, where), []).append(value)
    if replayed:
        steps = [{**given, **state} for given, state in zip(run.inputs, run.state, strict=True)]
        for place, between in _between(bundle, steps).items():
            values.setdefault(place, between)
    return values


def _between(bundle: Bundle, steps: list[dict[str, Any]]) -> dict[tuple[str, str], list[Any]]:
    """The values that every node takes from other nodes and gives to them, step by step."""
    from leapp.check.engines import open_engine
    from leapp.runtime.plan import make_plan

    contract = bundle.contract
    found: dict[tuple[str, str], list[Any]] = {}
    order = make_plan(contract).order
    engines = {name: open_engine(bundle, name) for name in order}
    for step in steps:
        known = dict(step)
        for name in order:
            outputs = engines[name]({port.name: known[key(name, port.name)] for port in contract.nodes[name].inputs})
            for port, value in outputs.items():
                found.setdefault(("out", key(name, port)), []).append(value)
                for target in contract.pipeline.data_flow.get(key(name, port), ()):
                    known[target] = value
                    found.setdefault(("in", target), []).append(value)
    return found


def _measure(bundle: Bundle, samples: Mapping[str, Sequence[Sample]], advance: Callable[[], None]) -> dict[str, Any]:
    """Times and differences of every node, for the page's ``details``. The caller has checked that the models may run."""
    from leapp.check.samples import measure_node

    validation: dict[str, Any] = {}
    nodes: dict[str, Any] = {}
    for name, node in bundle.contract.nodes.items():
        if node.model.model_path is not None and samples.get(name):
            found, seconds = measure_node(bundle, name, samples[name], RTOL, ATOL)
            validation |= {key(name, port): figures.as_dict() for port, figures in found.figures.items()}
            nodes[name] = {"passed": not found.verdicts, "seconds": seconds}
        advance()
    return {"validation": validation, "nodes": nodes}
