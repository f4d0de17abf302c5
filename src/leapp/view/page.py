"""Writes the page of a pipeline: one offline HTML file with the graph, its ports, the recorded values and the proof.

It reads a contract, recorded samples and further facts as plain data, and runs no model. Style, script and data are in the
file, and its content security policy forbids everything else, network requests included.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from leapp.graph.contract import Contract, Node, Port, key
from leapp.graph.gaps import deployment_gaps
from leapp.graph.validate import graph_ports
from leapp.view.layout import Layout
from leapp.view.node_box import Box, Point
from leapp.view.picture import Picture, draw, file_for
from leapp.view.svg import encode_mark, encode_svg, path_data
from leapp.view.text import visible

if TYPE_CHECKING:
    from leapp.bundle import Sample

_ASSETS = Path(__file__).with_name("assets")

_DARK = {
    "#f6f7f9": "#10151f",
    "#ffffff": "#1b2332",
    "#dbe7f6": "#243c5a",
    "#e5e7eb": "#333d4d",
    "#94a3b8": "#56657c",
    "#111827": "#e8edf5",
    "#374151": "#c3ccd9",
    "#4b5563": "#a3aec0",
    "#0b6b62": "#5fd6c4",
    "#475569": "#9fb0c8",
    "#d11a2a": "#ff7b84",
    "#7c3aed": "#b79cff",
    "#6b7280": "#9ca3af",
    "#15803d": "#15803d",
    "#c2410c": "#c2410c",
    "#1d4ed8": "#3b66e0",
    "#0369a1": "#5cb8f0",
    "#4d7c0f": "#a3cc52",
    "#a16207": "#e0b04a",
    "#0f766e": "#4fc9b8",
    "#9d174d": "#f08db8",
}
"""The colours of the picture, each with its colour on a dark background."""

Recorded = Mapping[tuple[str, str], Sequence[Any]]
"""Values by side (``in``, ``out``) and port ``node/port``, one for each step: arrays, or raw tensors as bundles hold them."""

_MAX_PASSES, _MAX_STEPS, _MAX_LINES, _MAX_BARS = 32, 240, 6, 48
_ASPECTS = (1.6, 1.0, 0.55, 2.5)
"""Width divided by height of the windows that have a layout. The first is that of the picture."""
_MAX_LAID_OUT = 120
"""A pipeline with more nodes gets one layout only."""


def write_page(
    contract: Contract,
    name: str,
    directory: str | Path,
    *,
    samples: Mapping[str, Sequence[Sample]] | None = None,
    recording: Recorded | None = None,
    details: Mapping[str, Any] | None = None,
    models: Path | None = None,
) -> Path:
    """Write ``<name>.html`` into ``directory`` and return its path. See :func:`page`."""
    path = file_for(directory, name, ".html")
    text = page(contract, name, samples=samples, recording=recording, details=details, models=models)
    path.write_text(text, encoding="utf-8")
    return path


def write_views(
    contract: Contract,
    name: str,
    directory: str | Path,
    *,
    samples: Mapping[str, Sequence[Sample]] | None = None,
    details: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write ``<name>.png``, ``<name>.svg`` and ``<name>.html`` into ``directory`` and return their paths.

    See :func:`page` for the arguments. The model files are those in ``directory``.
    """
    png, svg, html = (file_for(directory, name, suffix) for suffix in (".png", ".svg", ".html"))
    picture = _draw_for_page(contract, name, details or {})
    png.write_bytes(picture.png())
    svg.write_text(picture.svg(), encoding="utf-8")
    text = page(contract, name, samples=samples, details=details, models=Path(directory), picture=picture)
    html.write_text(text, encoding="utf-8")
    return [png, svg, html]


def page(
    contract: Contract,
    name: str,
    *,
    samples: Mapping[str, Sequence[Sample]] | None = None,
    recording: Recorded | None = None,
    details: Mapping[str, Any] | None = None,
    models: Path | None = None,
    picture: Picture | None = None,
) -> str:
    """The page of a pipeline, as HTML.

    Args:
        contract: The pipeline.
        name: The graph's name, shown as the title.
        samples: The recorded passes of each node, shown as curves and played over the graph.
        recording: The values of a run by side (``in``, ``out``) and port ``node/port``, one for each step. Shown instead
            of the samples.
        details: Facts that only the exporter knows, as plain data. All keys may be missing:

            * ``static_outputs``: keys ``node/port`` of outputs that never change
            * ``digest``: the digest of the bundle
            * ``glue``: entries with ``node``, ``source``, ``ops`` (texts), ``file``, ``line``
            * ``validation``: for an output ``node/port`` its ``largest`` and ``mean`` difference, the ``count`` of values
              compared, how many were ``exact`` or ``unlike``, and ``bins``, the number of differences for each power of ten
            * ``nodes``: for each node ``parameters`` (a number), ``seconds`` (of one run), ``passed`` (true, false or a text),
              ``pruned`` and ``random`` (texts), ``op_count``, ``ops`` (``op``, ``file``, ``line``, ``text``; not
              necessarily all), ``constants`` (``name``, ``shape``, ``dtype``, ``bytes``, ``file``, ``line``) and
              ``escapes`` (``kind``, ``file``, ``line``, ``text``, ``value``, ``varies``), ``weights`` as
              :func:`leapp.view.model_facts.weights_facts` gives them
        models: The directory of the model files. ONNX models in it are read for their operators and weights; nothing is
            loaded or run.
        picture: Its picture, if it was drawn before.

    Raises:
        BundleError: If the wiring names a port that no node has.
    """
    details = details or {}
    exported = details.get("nodes", {})
    picture = picture or _draw_for_page(contract, name, details)
    subject = picture.subject
    shown = _by_port(samples or {}) if recording is None else recording
    passes = _MAX_PASSES if recording is None else _MAX_STEPS
    groups = [group for group in picture.groups if group.role not in ("title", "legend")]
    svg = encode_svg(groups, picture.layout.width, picture.layout.height, name).partition("\n")[2]
    data = {
        "name": name,
        "summary": subject.summary,
        "nodes": [
            _node(n, node, shown, passes, exported.get(n, {}), models) | {"outer": _corners(box.outer)}
            for (n, node), box in zip(contract.nodes.items(), picture.layout.nodes, strict=True)
        ],
        "edges": [
            {"kind": link.kind, "source": key(link.source[0], link.source[2]), "target": key(link.target[0], link.target[2])}
            for link in subject.links
        ],
        "inputs": list(graph_ports(contract, "inputs")),
        "outputs": list(graph_ports(contract, "outputs")),
        "static": sorted(details.get("static_outputs", ())),
        "configs": contract.pipeline.configs or {},
        "system": contract.system,
        "digest": details.get("digest"),
        "gaps": deployment_gaps(contract),
        "glue": list(details.get("glue", ())),
        "validation": details.get("validation", {}),
        "unit": "sample" if recording is None else "step",
        "layouts": _layouts(picture.layouts),
    }
    script = _script()
    return Template(_asset("page.html")).substitute(
        title=_markup(name),
        policy=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=_asset("page.css") + _dark_style(),
        svg=svg,
        legend=_legend(picture),
        data=_embedded(data),
        script=script,
    )


def _draw_for_page(contract: Contract, name: str, details: Mapping[str, Any]) -> Picture:
    """The picture, with layouts for windows of several shapes."""
    exported = details.get("nodes", {})
    known = {n: exported.get(n, {}).get("parameters") for n in contract.nodes}
    counts = {n: int(count) for n, count in known.items() if count is not None}
    aspects = _ASPECTS if len(contract.nodes) <= _MAX_LAID_OUT else _ASPECTS[:1]
    return draw(contract, name, static_outputs=details.get("static_outputs", ()), parameter_counts=counts, aspects=aspects)


def _layouts(layouts: Sequence[Layout]) -> list[dict[str, Any]]:
    """For each layout the wires, and the shift of each node from its position in the first layout. Equal layouts come once."""
    found: dict[tuple[Point, ...], dict[str, Any]] = {}
    first = layouts[0].nodes
    for layout in layouts:
        moves = tuple(
            (round(n.box.x - f.box.x, 1), round(n.box.y - f.box.y, 1)) for n, f in zip(layout.nodes, first, strict=True)
        )
        if moves in found:
            continue
        boxes = [node.outer for node in layout.nodes]
        wires = []
        for route in layout.routes:
            (x, y), dot = route.path[-1], route.path[1]
            wires.append([path_data((*route.path[:-1], (x - 6, y))), *(round(v, 1) for v in (x, y, *dot[-2:]))])
        found[moves] = {
            "width": max((b.right for b in boxes), default=0.0) - min((b.x for b in boxes), default=0.0),
            "height": max((b.bottom for b in boxes), default=0.0) - min((b.y for b in boxes), default=0.0),
            "moves": moves,
            "wires": wires,
        }
    return list(found.values())


def _corners(box: Box) -> list[float]:
    return [round(v, 1) for v in (box.x, box.y, box.width, box.height)]


def _legend(picture: Picture) -> str:
    """The legend as pieces of HTML that wrap to the width of the page."""
    groups = [group for group in picture.groups if group.role == "legend"]
    pieces = []
    for entry, group in zip(picture.layout.legend, groups, strict=True):
        box = entry.box
        view = f"{box.x - 1:g} {box.y - 1:g} {box.width + 2:g} {box.height + 2:g}"
        signs = "".join(encode_mark(mark) for mark in group.marks[:-1])
        size = f'width="{box.width + 2:g}" height="{box.height + 2:g}"'
        pieces.append(f'<span><svg {size} viewBox="{view}" aria-hidden="true">{signs}</svg>{_markup(entry.label.text)}</span>')
    return "".join(pieces)


@cache
def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


@cache
def _script() -> str:
    """All scripts, in the order of their names, in one function, so that they define no globals."""
    parts = [_asset(path.name) for path in sorted(_ASSETS.glob("*.js"))]
    return "\n".join(["'use strict';", "(() => {", *parts, "})();"])


def _markup(text: str) -> str:
    from html import escape

    return escape(visible(text))


def _dark_style() -> str:
    """Style rules that recolour the picture on a dark ground. Text on tags and the bar of a static tag stay white."""
    rules = []
    for light, dark in _DARK.items():
        fill = "rect" if light == "#ffffff" else ":is(rect,polygon,text)"
        rules.append(f'[data-theme=dark] .picture {fill}[fill="{light}"]{{fill:{dark}}}')
        if light != "#ffffff":
            rules.append(f'[data-theme=dark] .picture [stroke="{light}"]{{stroke:{dark}}}')
    return "\n".join(rules)


def _embedded(data: Any) -> str:
    """JSON for a script element. Names in it cannot close the element."""
    text = json.dumps(_plain(data), ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _plain(value: Any) -> Any:
    """The value for JSON, with control characters escaped as in the picture, and NaN and infinity as text."""
    if isinstance(value, str):
        return visible(value)
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {visible(str(k)): _plain(v) for k, v in value.items()}
    return visible(str(value))


def _by_port(samples: Mapping[str, Sequence[Sample]]) -> Recorded:
    """The samples of all nodes, port by port."""
    values: dict[tuple[str, str], list[Any]] = {}
    for node, passes in samples.items():
        for sample in passes:
            for side, ports in (("in", sample.inputs), ("out", sample.outputs)):
                for port, value in ports.items():
                    values.setdefault((side, key(node, port)), []).append(value)
    return values


def _node(
    name: str, node: Node, recorded: Recorded, passes: int, exported: Mapping[str, Any], models: Path | None
) -> dict[str, Any]:
    model = node.model

    def ports(side: str, declared: tuple[Port, ...]) -> list[dict[str, Any]]:
        return [_port(name, port, recorded.get((side, key(name, port.name)), ()), passes) for port in declared]

    facts = {
        "name": name,
        "backend": model.backend,
        "file": model.model_path,
        "sha256": model.sha256sum,
        "extra": dict(model.extra),
        "inputs": ports("in", node.inputs),
        "outputs": ports("out", node.outputs),
    }
    if models is not None and model.backend == "onnx" and model.model_path is not None:
        from leapp.view.model_facts import model_facts

        facts |= model_facts(models / model.model_path)
    known = ("parameters", "seconds", "passed", "pruned", "random", "op_count", "ops", "constants", "escapes", "weights")
    return facts | {k: exported[k] for k in known if k in exported}


def _port(node: str, port: Port, values: Sequence[Any], passes: int) -> dict[str, Any]:
    facts = {"name": port.name, **port.facts(node), "spark": _spark(values, passes)}
    return {k: v for k, v in facts.items() if v is not None and (k != "extra" or v)}


def _spark(values: Sequence[Any], most: int) -> dict[str, Any] | None:
    """A few numbers of recorded values: the elements that vary most over the passes, or the elements of a single pass."""
    import numpy as np

    from leapp.errors import MissingDependencyError
    from leapp.runtime.values import from_raw
    from leapp.view.model_facts import rounded

    if not values or 0 in values[0].shape or str(values[0].dtype).startswith("complex"):
        return None
    # Evenly spaced passes, and the last one.
    shown = values if len(values) <= most else [*values[: -1 : -(-(len(values) - 1) // (most - 1))], values[-1]]
    try:
        flats = [(v if isinstance(v, np.ndarray) else from_raw(v)).reshape(-1) for v in shown]
    except MissingDependencyError:
        return None
    low, high = flats[0].astype(np.float32), flats[0].astype(np.float32)
    for flat in flats[1:]:
        if flat.shape != low.shape:
            # If the batch size changes from step to step, there is no element to follow.
            return None
        narrow = flat.astype(np.float32)
        np.fmin(low, narrow, out=low)
        np.fmax(high, narrow, out=high)
    bounds = [bound[np.isfinite(bound)] for bound in (low, high)]
    spark: dict[str, Any] = {
        "passes": len(values),
        "size": len(low),
        "low": rounded(bounds[0].min()) if bounds[0].size else None,
        "high": rounded(bounds[1].max()) if bounds[1].size else None,
    }
    if len(shown) == 1:
        return spark | {"bars": [rounded(v) for v in flats[0][:_MAX_BARS]]}
    with np.errstate(invalid="ignore"):
        range_ = np.nan_to_num(high - low, nan=-1, posinf=-1)
    picked = np.sort(np.argsort(-range_, kind="stable")[:_MAX_LINES])
    lines = np.stack([flat[picked].astype(np.float64) for flat in flats]).T
    return spark | {"picked": picked.tolist(), "lines": [[rounded(v) for v in line] for line in lines]}
