"""``leapp diff``: what changed between two bundles."""

from __future__ import annotations

import hashlib
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from leapp.bundle import Bundle, read_initial_values, read_samples
from leapp.bundle.reading import model_file
from leapp.bundle.trust import untrusted, why_untrusted
from leapp.cli.arguments import add_code, add_opening
from leapp.cli.opening import open_for
from leapp.cli.output import Answer, Cell, Table, Text, progress
from leapp.graph.contract import Contract, Port, key, split_key
from leapp.graph.validate import graph_ports, sources
from leapp.view.onnx_model import Weight, read_onnx
from leapp.view.torch_weights import read_torch_weights

_Change = dict[str, Any]
_MOST_WEIGHTS = 40
"""How many weights a table lists; ``--json`` lists all."""


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of ``leapp diff``."""
    parser.add_argument("bundle", metavar="A", help="the bundle before: its directory or its .yaml file")
    parser.add_argument("other", metavar="B", help="the bundle after")
    add_opening(parser)
    add_code(parser)


def command(arguments: Namespace) -> Answer:
    """What changed from one bundle to another: ports, wiring, meaning, weights, values."""
    old, new = (open_for(arguments, path) for path in (arguments.bundle, arguments.other))
    changes = list(_changes(dict(_facts(old, new.contract)), dict(_facts(new, old.contract))))
    with progress("comparing weights"):
        models, weights = _models(old, new)
    changes += models
    with progress("running both"):
        values, remark = _values(old, new, arguments.allow_code)
    moving = [v for v in values if v["moves"]]
    same = not changes and not weights and not moving
    data = {"same": same, "changes": changes, "weights": weights, "outputs": values, "remark": remark}
    rows = [[c["what"], (c["where"], "bold"), (str(c["old"]), "red"), (str(c["new"]), "green")] for c in changes]
    parts: list[Table | Text] = [
        Table(f"From {old.path} to {new.path}", ("what", "where", "was", "is"), rows),
        _weight_table(weights),
    ]
    if values:
        verdicts: dict[bool, Cell] = {True: ("moves", "red"), False: ("same", "green")}
        figures: list[tuple[Cell, ...]] = [((v["key"], "bold"), *_figures(v), verdicts[v["moves"]]) for v in values]
        parts.append(Table(f"Outputs over {remark}", ("output", "largest change", "relative", ""), figures, ("relative",)))
        parts.append(Text(_movement(moving, len(values)), "red" if moving else "green"))
    elif remark:
        parts.append(Text(f"Outputs were not compared: {remark}."))
    if same:
        parts.append(Text("The same." if values or not remark else "The same, as far as compared.", "green"))
    return Answer(data, parts, 0 if same else 1)


def _figures(figures: Mapping[str, Any]) -> list[str]:
    """Largest and relative change as text."""
    relative = figures["relative"]
    return [f"{figures['largest']:.4g}", "" if relative is None else f"{100 * relative:.3g} %"]


def _movement(moving: Sequence[Mapping[str, Any]], total: int) -> str:
    if not moving:
        return f"No output moves ({total} compared)."
    return f"{len(moving)} of {total} outputs move: {', '.join(v['key'] for v in moving)}."


def _weight_table(weights: Sequence[Mapping[str, Any]]) -> Table:
    ordered = sorted(weights, key=lambda w: -(w["relative"] if w["relative"] is not None else float("inf")))
    rows: list[tuple[Cell, ...]] = [
        (w["node"], (w["weight"], "bold"), w["value"], *_figures(w)) for w in ordered[:_MOST_WEIGHTS]
    ]
    more = len(weights) - len(rows)
    title = f"Weights that changed ({len(weights)}" + (f", the {len(rows)} that changed most)" if more else ")")
    head = ("node", "weight", "value", "largest change", "relative")
    return Table(title, head, rows, spare=("value", "node"))


def _changes(old: Mapping[tuple[str, str], Any], new: Mapping[tuple[str, str], Any]) -> Iterator[_Change]:
    """The differences between two sets of facts, by subject and place. ``-`` stands for a missing fact."""
    for what, where in dict.fromkeys([*old, *new]):
        before, after = (facts.get((what, where), "-") for facts in (old, new))
        if before != after:
            yield {"what": what, "where": where, "old": before, "new": after}


def _facts(bundle: Bundle, other: Contract) -> Iterator[tuple[tuple[str, str], Any]]:
    """The facts of a bundle. Details are given only for nodes and ports that the other bundle has too."""
    contract, pipeline = bundle.contract, bundle.contract.pipeline
    for name, node in contract.nodes.items():
        yield ("node", name), "present"
        if name in other.nodes:
            yield ("backend", name), node.model.backend
            for side in ("inputs", "outputs"):
                yield from _port_facts(name, side, getattr(node, side), {p.name for p in getattr(other.nodes[name], side)})
    for flow, what in (("data_flow", "edge"), ("feedback_flow", "feedback")):
        yield from (((what, target), source) for target, source in sources(getattr(pipeline, flow)).items())
    for side in ("inputs", "outputs"):
        yield (f"graph {side}", "pipeline"), ", ".join(graph_ports(contract, side))
    yield from ((("setting", name), value) for name, value in (pipeline.configs or {}).items())
    for where, value in read_initial_values(bundle).items():
        yield ("initial value", where), f"sha256 {hashlib.sha256(value.data).hexdigest()[:12]}"


def _port_facts(node: str, side: str, ports: Sequence[Port], there: Collection[str]) -> Iterator[tuple[tuple[str, str], Any]]:
    yield (f"order of {side}", node), ", ".join(port.name for port in ports if port.name in there)
    for port in ports:
        where = key(node, port.name)
        yield (f"{side[:-1]} port", where), _form(port)
        if port.name in there:
            facts = port.facts(node)
            known = {name: facts[name] for name in ("kind", "units", "element_names", "temporal_period_ms")} | facts["extra"]
            yield from ((("meaning", f"{where} {name}"), value) for name, value in known.items() if value is not None)


def _form(value: Port | Weight) -> str:
    return f"{value.dtype} {list(value.shape)}"


def _models(old: Bundle, new: Bundle) -> tuple[list[_Change], list[dict[str, Any]]]:
    """The model files that changed, and for each weight how much it changed. Files are read as data, not run."""
    changes: list[_Change] = []
    weights: list[dict[str, Any]] = []
    for name, node in old.contract.nodes.items():
        other = new.contract.nodes.get(name)
        if other is None or node.model.sha256sum == other.model.sha256sum:
            continue
        hashes = [f"sha256 {m.sha256sum[:12]}" if m.sha256sum else "-" for m in (node.model, other.model)]
        changes.append({"what": "model file", "where": name, "old": hashes[0], "new": hashes[1]})
        if node.model.backend == other.model.backend and node.model.backend in _READERS:
            read = _READERS[node.model.backend]
            try:
                before, after = ({w.name: w for w in read(model_file(b, name))} for b in (old, new))
            except ValueError as error:
                changes.append({"what": "weights", "where": name, "old": "not compared", "new": str(error)})
                continue
            changes += _changes(*({("weight", f"{name}: {n}"): _form(w) for n, w in ws.items()} for ws in (before, after)))
            common = [n for n, w in before.items() if n in after and (w.shape, w.dtype) == (after[n].shape, after[n].dtype)]
            for weight in common:
                change = _weight_change(before[weight], after[weight])
                if change is not None:
                    weights.append({"node": name, "weight": weight, "value": _form(before[weight]), **change})
    return changes, weights


_READERS: dict[str, Callable[[Path], Sequence[Weight]]] = {
    "onnx": lambda path: read_onnx(path).weights,
    "jit": read_torch_weights,
    "pt2": read_torch_weights,
}


def _weight_change(old: Weight, new: Weight) -> dict[str, Any] | None:
    """The largest change of one value, and the relative change of the whole weight; None if nothing changed."""
    import numpy as np

    from leapp.runtime.distance import gaps

    if old.data is not None and old.data == new.data:
        return None
    a, b = old.array(), new.array()
    if a is None or b is None:
        return {"largest": float("nan"), "relative": None}
    gap, norm = gaps(b, a), float(np.linalg.norm(a.astype(np.result_type(a, np.float64))))
    return {"largest": float(gap.max()), "relative": float(np.linalg.norm(gap)) / norm if norm else None}


def _values(old: Bundle, new: Bundle, allow_code: bool) -> tuple[list[dict[str, Any]], str]:
    """The largest difference of each common output on the recorded inputs, and a text: on which inputs, or why not compared."""
    import numpy as np

    from leapp.check.compare import Figures
    from leapp.check.samples import graph_inputs
    from leapp.runtime import Pipeline
    from leapp.runtime.distance import gaps

    samples, whose = read_samples(old), "the first bundle's"
    if not samples:
        samples, whose = read_samples(new), "the second bundle's"
    if not samples:
        return [], "neither bundle carries samples"
    if any(node.model.model_path is None for bundle in (old, new) for node in bundle.contract.nodes.values()):
        return [], "a node has no model"
    if _graph_inputs(old.contract) != _graph_inputs(new.contract):
        return [], "the graph inputs differ"
    for bundle in () if allow_code else (old, new):
        if names := untrusted(bundle):
            return [], why_untrusted(bundle, names[0]).removesuffix(".")
    before, after = (Pipeline(bundle, allow_code=allow_code or None) for bundle in (old, new))
    common = [where for where in before.outputs if where in after.outputs]
    figures = {where: Figures() for where in common}
    size = dict.fromkeys(common, 0.0)
    passes = min(len(samples[split_key(where)[0]]) for where in before.inputs) if before.inputs else 1
    for number in range(passes):
        given = graph_inputs(old.contract, samples, number)
        a, b = before(given), after(given)
        for where in common:
            if a[where].shape == b[where].shape:
                figures[where].add_gaps(gaps(a[where], b[where]))
                size[where] = max(size[where], float(np.nan_to_num(np.abs(a[where].astype(complex))).max(initial=0.0)))
            else:
                figures[where].largest = float(np.inf)
    found = [
        {
            "key": where,
            "largest": f.largest,
            "relative": f.largest / size[where] if size[where] else None,
            "moves": f.largest != 0,
        }
        for where, f in figures.items()
    ]
    return found, f"{passes} of {whose} samples"


def _graph_inputs(contract: Contract) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {where: (port.dtype, port.shape) for where, port in graph_ports(contract, "inputs").items()}
