"""``leapp inspect``: shows the description of a bundle, without running it."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from typing import Any

from leapp.bundle import Bundle, load_contract, open_bundle, read_initial_values
from leapp.bundle.reading import find_description, read_model
from leapp.cli.arguments import add_bundle
from leapp.cli.output import Answer, Cell, Table, Text, progress
from leapp.errors import BundleError
from leapp.graph.contract import Contract, split_key
from leapp.graph.gaps import deployment_gaps
from leapp.graph.validate import feedback_ports, graph_ports, links
from leapp.semantics import TEMPORAL_AXIS

_SHOWN = 200
"""How many characters of an annotation are shown."""


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of ``leapp inspect``."""
    add_bundle(parser)
    parser.add_argument("--quick", action="store_true", help="do not check the model files")


def command(arguments: Namespace) -> Answer:
    """Show the inputs and outputs of a bundle, their order, units and rate, and which facts are missing."""
    bundle, damage = _open_damaged(arguments.bundle)
    contract, readable = bundle.contract, not damage
    if not damage and not arguments.quick:
        damage = _damaged_models(bundle)
    checked = "damaged" if damage else "not checked" if arguments.quick else "unchanged"
    data = _describe(bundle) | {"missing": deployment_gaps(contract), "files": checked, "damage": damage, "ok": not damage}
    frequency = data["frequency"]
    rate = f"{frequency:g} Hz, one step every {1000 / frequency:g} ms" if frequency else "not given"
    seal = f"sealed, digest {bundle.digest}" if bundle.digest else "not sealed: changed files go unnoticed"
    if bundle.seal.annotated:
        seal += "; annotations were changed after it was sealed"
    if not readable:
        seal = "not checked, because the bundle is damaged"
    gaps = data["missing"]
    parts: list[Table | Text] = [
        Text(f"{bundle.graph}  ({bundle.path})", "bold"),
        Text(f"rate: {rate}"),
        Text(f"seal: {seal}", "" if bundle.digest else "yellow"),
        *_file_lines(bundle, checked, damage),
        _port_table("You give, each step, in this order", data["inputs"]),
        _port_table("You receive", data["outputs"]),
        Table("Order of elements", ("port", "names"), _element_rows(data)),
        Table(
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
        Table("Wiring", ("from", "to"), [(s, ", ".join(t)) for s, t in contract.pipeline.data_flow.items()]),
        Table(
            "Annotations" if bundle.seal.covers_annotations else "Annotations, which no seal covers",
            ("where", "key", "value"),
            list(_annotation_rows(data["annotations"])),
        ),
        Table("Missing for deployment", ("what",), [((gap, "yellow"),) for gap in gaps]),
    ]
    if not gaps:
        parts += [Text(""), Text("Nothing is missing for deployment.", "green")]
    return Answer(data, parts, 1 if damage else 0)


def _open_damaged(path: str) -> tuple[Bundle, list[str]]:
    """The bundle and a list of its damage. A bundle with a damaged file has only its description."""
    try:
        return open_bundle(path, allow_outside=True), []
    except BundleError as error:
        # If the description itself cannot be read, this raises again.
        found = find_description(path)
        return Bundle(found, load_contract(found), None, {}, allow_outside=True), [str(error)]


def _damaged_models(bundle: Bundle) -> list[str]:
    """The damage of the models. Every other file was checked when the bundle was opened."""
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


def _describe(bundle: Bundle) -> dict[str, Any]:
    """The description of a bundle as plain data."""
    contract = bundle.contract
    pipeline = contract.pipeline
    configs = dict(pipeline.configs or {})
    return {
        "graph": bundle.graph,
        "path": str(bundle.path),
        "digest": bundle.digest,
        "annotated": bundle.seal.annotated,
        "annotations": dict(bundle.annotations),
        "frequency": pipeline.frequency,
        "configs": configs,
        "inputs": _port_facts(contract, "inputs"),
        "outputs": _port_facts(contract, "outputs"),
        "state": list(_states(bundle)),
        "nodes": [_node(bundle, name) for name in contract.nodes],
        "wiring": {
            "data_flow": {k: list(v) for k, v in pipeline.data_flow.items()},
            "feedback_flow": {k: list(v) for k, v in pipeline.feedback_flow.items()},
        },
        "system": contract.system,
    }


def _port_facts(contract: Contract, side: str) -> list[dict[str, Any]]:
    return [port.facts(split_key(where)[0]) for where, port in graph_ports(contract, side).items()]


def _states(bundle: Bundle) -> Iterator[dict[str, Any]]:
    try:
        start = read_initial_values(bundle)
    except BundleError:
        start = None
    ports = feedback_ports(bundle.contract)
    for source, _, target in links(bundle.contract.pipeline.feedback_flow):
        value = start.get(target) if start else None
        words = "zeros" if value is None or not any(bytes(value.data)) else "stored values"
        words = "unreadable" if start is None else words
        yield ports[target].facts(split_key(target)[0]) | {"source": source, "initial": words}


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
        words = [
            ", ".join(map(str, axis)) if isinstance(axis, list) and axis else "time" if axis == TEMPORAL_AXIS else "unnamed"
            for axis in port["element_names"] or ()
        ]
        if words:
            rows.append((port["key"], " × ".join(words)))
    return rows
