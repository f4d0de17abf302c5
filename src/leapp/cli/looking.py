"""``leapp inspect``, ``check``, ``view`` and ``schema``: what a bundle says, without running it."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from leapp.bundle import Bundle, load_contract, open_bundle
from leapp.bundle.trust import require_trust
from leapp.cli.consent import open_for
from leapp.cli.output import Answer, Cell, Table, Text, progress
from leapp.graph.contract import Contract, Port, key, split_key
from leapp.semantics import TEMPORAL_AXIS

__all__ = ["check", "describe", "inspect", "schema", "view"]

_SHOWN = 200
"""How many characters of an annotation are shown."""


def inspect(arguments: Namespace) -> Answer:
    """What to feed a bundle, in which order, units and rate, and what is missing."""
    from leapp.bundle.profiles import deployment_gaps

    bundle, damage = _open_damaged(arguments.bundle)
    contract = bundle.contract
    if not damage and not arguments.quick:
        damage = _damaged_models(bundle)
    checked = "damaged" if damage else "not checked" if arguments.quick else "unchanged"
    data = describe(bundle) | {"missing": deployment_gaps(contract), "files": checked, "damage": damage, "ok": not damage}
    frequency = data["frequency"]
    rate = f"{frequency:g} Hz, one step every {1000 / frequency:g} ms" if frequency else "not said"
    seal = f"sealed, digest {bundle.digest}" if bundle.digest else "not sealed: changed files go unnoticed"
    if bundle.seal.annotated:
        seal += "; annotations were changed after it was sealed"
    gaps = data["missing"]
    parts: list[Table | Text] = [
        Text(f"{bundle.graph}  ({bundle.path})", "bold"),
        Text(f"rate: {rate}"),
        Text(f"seal: {seal}", "" if bundle.digest else "yellow"),
        *_file_lines(bundle, checked, damage),
        _port_table("You give, each step, in this order", data["inputs"]),
        _port_table("You receive", data["outputs"]),
        *_optional("Order of elements", ("port", "names"), _element_rows(data)),
        *_optional(
            "Kept between steps",
            ("state", "value", "from the last step's", "starts as"),
            [(s["key"], _form(s), s["source"], s["initial"]) for s in data["state"]],
            spare=("starts as", "value"),
        ),
        Table(
            "Nodes",
            ("node", "backend", "file", "size", "opset", "takes", "gives"),
            [_node_row(n) for n in data["nodes"]],
            spare=("opset", "size", "takes", "gives", "file"),
        ),
        *_optional("Wiring", ("from", "to"), [(s, ", ".join(t)) for s, t in contract.pipeline.data_flow.items()]),
        *_optional(
            "Annotations" if bundle.seal.covers_annotations else "Annotations, which no seal covers",
            ("where", "key", "value"),
            list(_annotation_rows(data["annotations"])),
        ),
    ]
    if gaps:
        parts.append(Table("Missing for deployment", ("what",), [((gap, "yellow"),) for gap in gaps]))
    else:
        parts += [Text(""), Text("Nothing is missing for deployment.", "green")]
    return Answer(data, parts, 1 if damage else 0)


def _open_damaged(path: str) -> tuple[Bundle, list[str]]:
    """The bundle, or as much of it as its description tells if one of its files is not what it was."""
    from leapp.errors import BundleError

    try:
        return open_bundle(path, allow_outside=True), []
    except BundleError as error:
        # What cannot be read at all is an error, and raises once more.
        contract = load_contract(path)
        found = Path(path)
        if found.is_dir():
            files = sorted(p for p in found.iterdir() if p.suffix in (".yaml", ".yml"))
            found = next((p for p in files if p.stem == found.resolve().name), files[0])
        return Bundle(found, contract, None, {}, allow_outside=True), [str(error)]


def _damaged_models(bundle: Bundle) -> list[str]:
    """What is wrong with the models. Opening a bundle checks every other file."""
    from leapp.bundle.reading import read_model
    from leapp.errors import BundleError

    damage = []
    models = [name for name, node in bundle.contract.nodes.items() if node.model.model_path is not None]
    with progress("checking files", len(models)) as advance:
        for name in models:
            try:
                read_model(bundle, name)
            except BundleError as error:
                damage.append(str(error))
            advance()
    return damage


def _file_lines(bundle: Bundle, checked: str, damage: list[str]) -> Iterator[Text]:
    if damage:
        yield from (Text(f"files: DAMAGED, {text}", "bold red") for text in damage)
    elif checked == "not checked":
        yield Text("files: models were not checked", "yellow")
    else:
        count = len(bundle.files) or sum(node.model.model_path is not None for node in bundle.contract.nodes.values())
        yield Text(f"files: checked, {count} {'model' if not bundle.files else 'file'}{'s' * (count != 1)} unchanged")


def describe(bundle: Bundle) -> dict[str, Any]:
    """What a bundle says, as plain data."""
    contract = bundle.contract
    pipeline = contract.pipeline
    configs = dict(pipeline.configs or {})
    return {
        "graph": bundle.graph,
        "path": str(bundle.path),
        "digest": bundle.digest,
        "annotated": bundle.seal.annotated,
        "annotations": dict(bundle.annotations),
        "frequency": configs.get("frequency"),
        "configs": configs,
        "inputs": [_find(contract, n, p, "inputs").facts(n) for n, ports in pipeline.inputs.items() for p in ports],
        "outputs": [_find(contract, n, p, "outputs").facts(n) for n, ports in pipeline.outputs.items() for p in ports],
        "state": list(_states(bundle)),
        "nodes": [_node(bundle, name) for name in contract.nodes],
        "wiring": {
            "data_flow": {k: list(v) for k, v in pipeline.data_flow.items()},
            "feedback_flow": {k: list(v) for k, v in pipeline.feedback_flow.items()},
        },
        "system": contract.system,
    }


def _find(contract: Contract, node: str, name: str, side: str) -> Port:
    from leapp.errors import BundleError

    for port in getattr(contract.nodes.get(node), side, ()):
        if port.name == name:
            found: Port = port
            return found
    raise BundleError(f"The pipeline names '{key(node, name)}', which is none of the {side} of a node.")


def _states(bundle: Bundle) -> Iterator[dict[str, Any]]:
    from leapp.bundle import read_initial_values
    from leapp.errors import BundleError

    try:
        start = read_initial_values(bundle)
    except BundleError:
        start = None
    for source, targets in bundle.contract.pipeline.feedback_flow.items():
        for target in targets:
            value = start.get(target) if start else None
            words = "zeros" if value is None or not any(bytes(value.data)) else "stored values"
            words = "unreadable" if start is None else words
            node, name = split_key(target)
            yield _find(bundle.contract, node, name, "inputs").facts(node) | {"source": source, "initial": words}


def _node(bundle: Bundle, name: str) -> dict[str, Any]:
    node = bundle.contract.nodes[name]
    path = bundle.directory / node.model.model_path if node.model.model_path else None
    return {
        "name": name,
        "backend": node.model.backend,
        "file": node.model.model_path,
        "bytes": os.path.getsize(path) if path is not None and path.exists() else None,
        "sha256": node.model.sha256sum,
        "opset": node.model.extra.get("opset_version"),
        "inputs": [port.name for port in node.inputs],
        "outputs": [port.name for port in node.outputs],
    }


def _annotation_rows(found: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for where, value in found.items():
        for name, item in value.items() if isinstance(value, dict) else [("", value)]:
            text = str(item)
            yield where, str(name), text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ... ({len(text)} characters)"


def _node_row(node: dict[str, Any]) -> list[Cell]:
    size = "" if node["bytes"] is None else _size(node["bytes"])
    backend = node["backend"] or ("none", "yellow")
    return [
        (node["name"], "bold"), backend, node["file"] or "", size, str(node["opset"] or ""),
        ", ".join(node["inputs"]), ", ".join(node["outputs"]),
    ]  # fmt: skip


def _size(count: int) -> str:
    return f"{count} B" if count < 1024 else f"{count / 1024:.1f} KiB" if count < 1 << 20 else f"{count / (1 << 20):.1f} MiB"


def _form(port: dict[str, Any]) -> str:
    return f"{port['dtype']} {port['shape']}"


def _port_table(title: str, ports: list[dict[str, Any]]) -> Table:
    rows: list[list[Cell]] = []
    for number, port in enumerate(ports, 1):
        more = [f"{k} {v}" for k, v in port["extra"].items()]
        if port["temporal_period_ms"] is not None:
            more.insert(0, f"{port['temporal_period_ms']} ms between entries")
        units = ", ".join(map(str, port["units"])) if isinstance(port["units"], list) else str(port["units"] or "")
        rows.append([str(number), (port["key"], "bold"), _form(port), (port["kind"] or "", "cyan"), units, "; ".join(more)])
    return Table(title, ("#", "port", "value", "kind", "units", "more"), rows, spare=("#", "more", "kind"))


def _element_rows(data: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    for port in (*data["inputs"], *data["outputs"]):
        axes = port["element_names"] or []
        if axes and all(isinstance(axis, str) and axis != TEMPORAL_AXIS for axis in axes):
            axes = [axes]
        words = [
            ", ".join(map(str, axis)) if isinstance(axis, list) and axis else "time" if axis == TEMPORAL_AXIS else "unnamed"
            for axis in axes
        ]
        if words:
            rows.append((port["key"], " × ".join(words)))
    return rows


def _optional(title: str, columns: tuple[str, ...], rows: list[Any], spare: tuple[str, ...] = ()) -> list[Table]:
    return [Table(title, columns, rows, spare)] if rows else []


def check(arguments: Namespace) -> Answer:
    """Whether a target can take a bundle."""
    from leapp.bundle.profiles import PROFILES, check_profile

    bundle = open_bundle(arguments.bundle, allow_outside=True)
    findings = check_profile(bundle, arguments.profile)
    errors = sum(finding.level == "error" for finding in findings)
    data = {
        "graph": bundle.graph,
        "profile": arguments.profile,
        "ok": not errors,
        "findings": [{"level": f.level, "where": f.where, "text": f.text} for f in findings],
    }
    style = {"error": "red", "warning": "yellow"}
    rows = [[(f.level, style[f.level]), (f.where, "bold"), f.text] for f in findings]
    verdict = "can take this bundle." if not errors else f"cannot take this bundle: {errors} error{'s' * (errors > 1)}."
    parts: list[Table | Text] = [
        Text(PROFILES[arguments.profile].about),
        *_optional("Findings", ("level", "where", "what"), rows),
        Text(f"{arguments.profile} {verdict}", "red" if errors else "green"),
    ]
    return Answer(data, parts, 1 if errors else 0)


def schema(arguments: Namespace) -> Answer:
    """The JSON Schema of a bundle's description. It is JSON with or without ``--json``."""
    import json

    from leapp.bundle.schema import schema as made

    document = made()
    return Answer(document, [Text(json.dumps(document, indent=2))])


def view(arguments: Namespace) -> Answer:
    """Write the page of a bundle and open it."""
    bundle = open_for(arguments)
    if arguments.verify:
        require_trust(bundle, arguments.allow_code or None)
    # Always drawn anew: the page that lies in the bundle may be anybody's, and a browser would run it.
    path = write_bundle_page(bundle, arguments.output, arguments.recording, measured=arguments.verify)
    opened = not arguments.no_open and _open(path)
    return Answer({"page": str(path), "opened": opened}, [Text(str(path))])


def write_bundle_page(bundle: Bundle, output: str | None, recording: str | None = None, *, measured: bool = False) -> Path:
    """Write a new page of a bundle, into a temporary directory by default.

    Args:
        bundle: The bundle. Its ONNX models are read; no model is run unless ``measured``.
        output: The directory to write to.
        recording: A recorded run to show instead of the samples.
        measured: Replay the samples, for times and differences of every node, and the recording, for the values between nodes.
    """
    import tempfile

    from leapp.bundle import read_samples
    from leapp.view import write_page
    from leapp.view.exported import exported_details

    samples = read_samples(bundle)
    details: dict[str, Any] = {"digest": bundle.digest}
    own = f"{bundle.graph}.html"
    if own in bundle.files:
        details |= exported_details(bundle.directory / own, bundle.contract)
    if measured:
        from leapp.cli.proving import measure

        with progress("replaying samples", len(bundle.contract.nodes)) as advance:
            found = measure(bundle, samples, advance)
        told = details.get("nodes", {})
        details |= found | {
            "nodes": {name: told.get(name, {}) | found["nodes"].get(name, {}) for name in bundle.contract.nodes}
        }
    run = recorded_values(bundle, recording, replayed=measured) if recording is not None else None
    directory = Path(output) if output is not None else Path(tempfile.mkdtemp(prefix="leapp-"))
    directory.mkdir(parents=True, exist_ok=True)
    return write_page(
        bundle.contract, bundle.graph, directory, samples=samples, recording=run, details=details, models=bundle.directory
    )


def recorded_values(bundle: Bundle, path: str, *, replayed: bool = False) -> dict[tuple[str, str], list[Any]]:
    """The values of a recorded run by side and port. A state is shown at the input that it feeds.

    A recording has no values between nodes. With ``replayed``, every node is run on the recorded inputs and states for them.
    """
    from leapp.runtime.recording import read_recording

    contract = bundle.contract

    def ports(side: str) -> dict[str, Port]:
        named = getattr(contract.pipeline, side)
        return {key(n, p): _find(contract, n, p, side) for n, names in named.items() for p in names}

    fed = [target for targets in contract.pipeline.feedback_flow.values() for target in targets]
    state = {target: _find(contract, *split_key(target), "inputs") for target in fed}
    run = read_recording(path, ports("inputs"), ports("outputs"), state)
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
    """What every node takes from another and gives, step by step."""
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


def _open(path: Path) -> bool:
    import webbrowser

    return webbrowser.open(path.resolve().as_uri())
