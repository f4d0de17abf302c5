"""``leapp diff``: what changed between two bundles."""

from __future__ import annotations

import hashlib
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any

from leapp.bundle import Bundle, open_bundle, read_initial_values, read_model, read_samples
from leapp.cli.output import Answer, Table, Text, progress
from leapp.extras import INSTALL, has
from leapp.graph.contract import Contract, Port, key

__all__ = ["diff"]

_Change = dict[str, Any]


def diff(arguments: Namespace) -> Answer:
    """What changed from one bundle to another: ports, wiring, meaning, weights, values."""
    old, new = (open_bundle(path, allow_outside=arguments.allow_outside) for path in (arguments.bundle, arguments.other))
    changes = [
        *_nodes(old.contract, new.contract),
        *_ports(old.contract, new.contract),
        *_wiring(old.contract, new.contract),
        *_settings(old.contract, new.contract),
        *_start(old, new),
    ]
    with progress("comparing weights"):
        models = _models(old, new)
    changes += models
    with progress("running both"):
        values, remark = _values(old, new)
    changed = [v for v in values if v["largest"] != 0]
    same = not changes and not changed
    data = {"same": same, "changes": changes, "outputs": values, "remark": remark}
    rows = [[c["what"], (c["where"], "bold"), (str(c["old"]), "red"), (str(c["new"]), "green")] for c in changes]
    parts: list[Table | Text] = []
    if rows:
        parts.append(Table(f"From {old.path} to {new.path}", ("what", "where", "was", "is"), rows))
    if values:
        figures = [[v["key"], f"{v['largest']:.6g}"] for v in values]
        parts.append(Table(f"Largest difference of outputs over {remark}", ("output", "difference"), figures))
    elif remark:
        parts.append(Text(f"Outputs were not compared: {remark}."))
    if models and not has("onnx"):
        parts.append(Text(f"Weights were not compared one by one, which needs onnx: {INSTALL}."))
    if same:
        parts.append(Text("The same." if values or not remark else "The same, as far as compared.", "green"))
    return Answer(data, parts, 0 if same else 1)


def _change(what: str, where: str, old: Any, new: Any) -> _Change:
    return {"what": what, "where": where, "old": old, "new": new}


def _mapping(what: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[_Change]:
    """A change for each key that differs; ``-`` stands for a key that is not there."""
    for name in dict.fromkeys([*old, *new]):
        before, after = old.get(name, "-"), new.get(name, "-")
        if before != after:
            yield _change(what, name, before, after)


def _nodes(old: Contract, new: Contract) -> Iterator[_Change]:
    yield from _mapping("node", dict.fromkeys(old.nodes, "present"), dict.fromkeys(new.nodes, "present"))
    both = [name for name in old.nodes if name in new.nodes]
    yield from _mapping(
        "backend", {n: old.nodes[n].model.backend for n in both}, {n: new.nodes[n].model.backend for n in both}
    )


def _ports(old: Contract, new: Contract) -> Iterator[_Change]:
    for name in old.nodes:
        if name not in new.nodes:
            continue
        for side in ("inputs", "outputs"):
            before, after = ({p.name: p for p in getattr(c.nodes[name], side)} for c in (old, new))
            forms = ({key(name, n): f"{p.dtype} {list(p.shape)}" for n, p in ports.items()} for ports in (before, after))
            yield from _mapping(f"{side[:-1]} port", *forms)
            common = [n for n in before if n in after]
            if common != [n for n in after if n in before]:
                yield _change(f"order of {side}", name, ", ".join(before), ", ".join(after))
            for port in common:
                for fact in _mapping("meaning", _meaning(before[port]), _meaning(after[port])):
                    yield fact | {"where": f"{key(name, port)} {fact['where']}"}


def _meaning(port: Port) -> dict[str, Any]:
    known = {"kind": port.kind, "element_names": port.element_names, "temporal_period_ms": port.temporal_period_ms}
    return {name: value for name, value in (known | port.extra).items() if value is not None}


def _wiring(old: Contract, new: Contract) -> Iterator[_Change]:
    for flow, what in (("data_flow", "edge"), ("feedback_flow", "feedback")):
        sources = (
            {target: source for source, targets in getattr(c.pipeline, flow).items() for target in targets} for c in (old, new)
        )
        yield from _mapping(what, *sources)
    for side in ("inputs", "outputs"):
        before, after = ([key(n, p) for n, ps in getattr(c.pipeline, side).items() for p in ps] for c in (old, new))
        if before != after:
            yield _change(f"graph {side}", "pipeline", ", ".join(before), ", ".join(after))


def _settings(old: Contract, new: Contract) -> Iterator[_Change]:
    yield from _mapping("setting", old.pipeline.configs or {}, new.pipeline.configs or {})


def _start(old: Bundle, new: Bundle) -> Iterator[_Change]:
    before, after = (
        {k: f"sha256 {hashlib.sha256(v.data).hexdigest()[:12]}" for k, v in read_initial_values(b).items()} for b in (old, new)
    )
    yield from _mapping("initial value", before, after)


def _models(old: Bundle, new: Bundle) -> list[_Change]:
    changes: list[_Change] = []
    for name, node in old.contract.nodes.items():
        other = new.contract.nodes.get(name)
        if other is None or node.model.sha256sum == other.model.sha256sum:
            continue
        hashes = [f"sha256 {m.sha256sum[:12]}" if m.sha256sum else "-" for m in (node.model, other.model)]
        changes.append(_change("model file", name, *hashes))
        if node.model.backend == other.model.backend == "onnx" and has("onnx"):
            weights = [_initializers(bundle, name) for bundle in (old, new)]
            changes += [fact | {"where": f"{name}: {fact['where']}"} for fact in _mapping("weight", *weights)]
    return changes


def _initializers(bundle: Bundle, node: str) -> dict[str, str]:
    """Form and hash of every initializer of an ONNX model."""
    import onnx
    from onnx.external_data_helper import load_external_data_for_model

    model = onnx.load_model_from_string(read_model(bundle, node))
    load_external_data_for_model(model, str((bundle.directory / str(bundle.contract.nodes[node].model.model_path)).parent))
    found = {}
    for tensor in model.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        digest = hashlib.sha256(array.tobytes()).hexdigest()[:12]
        found[tensor.name] = f"{array.dtype} {list(array.shape)} sha256 {digest}"
    return found


def _values(old: Bundle, new: Bundle) -> tuple[list[dict[str, Any]], str]:
    """The largest difference of each common output over the recorded inputs, and over what, or why there is none."""
    import numpy as np

    from leapp.check.compare import Figures
    from leapp.graph.contract import split_key
    from leapp.runtime import Pipeline
    from leapp.runtime.values import from_raw

    samples, whose = read_samples(old), "the first bundle's"
    if not samples:
        samples, whose = read_samples(new), "the second bundle's"
    if not samples:
        return [], "neither bundle carries samples"
    if any(node.model.model_path is None for bundle in (old, new) for node in bundle.contract.nodes.values()):
        return [], "a node has no model"
    if _graph_inputs(old.contract) != _graph_inputs(new.contract):
        return [], "the graph inputs differ"
    before, after = Pipeline(old), Pipeline(new)
    common = [where for where in before.outputs if where in after.outputs]
    figures = {where: Figures() for where in common}
    passes = min(len(samples[split_key(where)[0]]) for where in before.inputs) if before.inputs else 1
    for number in range(passes):
        given = {}
        for where in before.inputs:
            node, name = split_key(where)
            given[where] = from_raw(samples[node][number].inputs[name])
        a, b = before(given), after(given)
        for where in common:
            if a[where].shape == b[where].shape:
                figures[where].add(a[where], b[where])
            else:
                figures[where].largest = float(np.inf)
    return [{"key": where, "largest": f.largest} for where, f in figures.items()], f"{passes} of {whose} samples"


def _graph_inputs(contract: Contract) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {
        key(n, p.name): (p.dtype, p.shape)
        for n, names in contract.pipeline.inputs.items()
        for p in contract.nodes[n].inputs
        if p.name in names
    }
