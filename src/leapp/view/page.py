"""The page of a pipeline: one offline HTML file with the graph, its ports, what was traced and how it was proven.

It reads a contract, recorded samples and plain data from whoever has more to tell. It runs no model and asks no network:
style, script and data stand in the file, and its security policy forbids everything else.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from leapp.errors import BundleError
from leapp.graph.contract import Contract, Node, Port, key

from .picture import draw
from .subject import describe
from .svg import encode_svg
from .text import visible

if TYPE_CHECKING:
    from leapp.bundle import Sample

__all__ = ["page", "write_page"]

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
}
"""The colours of the picture and what they become on a dark ground."""

_MAX_PASSES, _MAX_LINES, _MAX_BARS = 32, 6, 48


def write_page(
    contract: Contract,
    name: str,
    directory: str | Path,
    *,
    samples: Mapping[str, Sequence[Sample]] | None = None,
    details: Mapping[str, Any] | None = None,
) -> Path:
    """Write ``<name>.html`` into ``directory`` and return its path. See :func:`page`."""
    if Path(name).name != name:
        raise BundleError(f"The graph name {name!r} cannot name a file. Use a name without path separators.")
    path = Path(directory) / f"{name}.html"
    path.write_text(page(contract, name, samples=samples, details=details), encoding="utf-8")
    return path


def page(
    contract: Contract,
    name: str,
    *,
    samples: Mapping[str, Sequence[Sample]] | None = None,
    details: Mapping[str, Any] | None = None,
) -> str:
    """The page of a pipeline, as HTML.

    Args:
        contract: The pipeline.
        name: The graph's name, shown as the title.
        samples: The recorded passes of each node, shown as sparklines.
        details: What only the exporter knows, as plain data. All keys may be missing:

            * ``static_outputs``: keys ``node/port`` of outputs that never change
            * ``digest``: the digest of the bundle
            * ``glue``: entries with ``node``, ``source``, ``ops`` (texts), ``file``, ``line``
            * ``validation``: for an output ``node/port`` its ``largest`` and ``mean`` difference, the ``count`` of values
              compared, how many were ``exact``, and ``bins``, the number of differences for each power of ten
            * ``nodes``: for each node ``parameters`` (a number), ``seconds`` (of one run), ``passed`` (true, false or a text),
              ``pruned`` and ``random`` (texts), ``op_count``, ``ops`` (``op``, ``file``, ``line``, ``text``; not
              necessarily all), ``constants`` (``name``, ``shape``, ``dtype``, ``bytes``, ``file``, ``line``) and
              ``escapes`` (``kind``, ``file``, ``line``, ``text``, ``value``, ``varies``)

    Raises:
        BundleError: If the wiring names a port that no node has.
    """
    from leapp.bundle.profiles import deployment_gaps

    details = details or {}
    told = details.get("nodes", {})
    counts = {n: int(told[n]["parameters"]) for n in contract.nodes if told.get(n, {}).get("parameters") is not None}
    static = details.get("static_outputs", ())
    picture = draw(contract, name, static_outputs=static, parameter_counts=counts)
    groups = [group for group in picture.groups if group.role != "title"]
    svg = encode_svg(groups, picture.layout.width, picture.layout.height, name).partition("\n")[2]
    subject = describe(contract, name, static_outputs=static, parameter_counts=counts)
    data = {
        "name": name,
        "summary": subject.summary,
        "nodes": [_node(n, node, contract, samples or {}, told.get(n, {})) for n, node in contract.nodes.items()],
        "edges": [
            {"kind": link.kind, "source": key(link.source[0], link.source[2]), "target": key(link.target[0], link.target[2])}
            for link in subject.links
        ],
        "inputs": [key(n, p) for n, ports in contract.pipeline.inputs.items() for p in ports],
        "outputs": [key(n, p) for n, ports in contract.pipeline.outputs.items() for p in ports],
        "static": sorted(static),
        "configs": contract.pipeline.configs or {},
        "system": contract.system,
        "digest": details.get("digest"),
        "gaps": deployment_gaps(contract),
        "glue": list(details.get("glue", ())),
        "validation": details.get("validation", {}),
    }
    script = _asset("page.js")
    return Template(_asset("page.html")).substitute(
        title=_markup(name),
        policy=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=_asset("page.css") + _dark_style(),
        svg=svg,
        data=_embedded(data),
        script=script,
    )


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _markup(text: str) -> str:
    from html import escape

    return escape(visible(text))


def _dark_style() -> str:
    """Rules that recolour the picture. Text on tags and the bar of a static tag stay white."""
    rules = []
    for light, dark in _DARK.items():
        fill = "rect" if light == "#ffffff" else ":is(rect,polygon,text)"
        rules.append(f'[data-theme=dark] #graph {fill}[fill="{light}"]{{fill:{dark}}}')
        if light != "#ffffff":
            rules.append(f'[data-theme=dark] #graph [stroke="{light}"]{{stroke:{dark}}}')
    return "\n".join(rules)


def _embedded(data: Any) -> str:
    """JSON that cannot leave its script element, whatever names say."""
    text = json.dumps(_plain(data), ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _plain(value: Any) -> Any:
    """The value as the picture spells it: names in visible characters, numbers that JSON has."""
    if isinstance(value, Mapping):
        return {visible(str(k)): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if value is None or isinstance(value, (bool, int)):
        return value
    return visible(str(value))


def _node(
    name: str, node: Node, contract: Contract, samples: Mapping[str, Sequence[Sample]], told: Mapping[str, Any]
) -> dict[str, Any]:
    model = node.model
    passes = samples.get(name, ())

    def ports(side: str, declared: tuple[Port, ...]) -> list[dict[str, Any]]:
        values = [sample.inputs if side == "in" else sample.outputs for sample in passes]
        return [_port(name, port, [v[port.name] for v in values if port.name in v]) for port in declared]

    facts = {
        "name": name,
        "backend": model.backend,
        "file": model.model_path,
        "sha256": model.sha256sum,
        "extra": dict(model.extra),
        "inputs": ports("in", node.inputs),
        "outputs": ports("out", node.outputs),
    }
    known = ("parameters", "seconds", "passed", "pruned", "random", "op_count", "ops", "constants", "escapes")
    return facts | {k: told[k] for k in known if k in told}


def _port(node: str, port: Port, values: Sequence[Any]) -> dict[str, Any]:
    extra = dict(port.extra)
    units = extra.pop("units", extra.pop("unit", None))
    facts = {
        "name": port.name,
        "key": key(node, port.name),
        "shape": list(port.shape),
        "dtype": port.dtype,
        "kind": port.kind,
        "units": units,
        "elements": port.element_names,
        "period": port.temporal_period_ms,
        "extra": extra or None,
        "spark": _spark(values),
    }
    return {k: v for k, v in facts.items() if v is not None}


def _spark(values: Sequence[Any]) -> dict[str, Any] | None:
    """Recorded values in few numbers: the elements that vary most over the passes, or the elements of a single pass."""
    import numpy as np

    from leapp.errors import MissingDependencyError
    from leapp.runtime.values import from_raw

    if not values or 0 in values[0].shape or values[0].dtype.startswith("complex"):
        return None
    shown = values[:: -(-len(values) // _MAX_PASSES)]
    try:
        flat = from_raw(values[0]).reshape(-1).astype(np.float32)
        low, high = flat.copy(), flat.copy()
        for value in shown[1:]:
            flat = from_raw(value).reshape(-1).astype(np.float32)
            np.fmin(low, flat, out=low)
            np.fmax(high, flat, out=high)
    except MissingDependencyError:
        return None
    bounds = [bound[np.isfinite(bound)] for bound in (low, high)]
    spark: dict[str, Any] = {
        "passes": len(values),
        "size": len(flat),
        "low": _rounded(bounds[0].min()) if bounds[0].size else None,
        "high": _rounded(bounds[1].max()) if bounds[1].size else None,
    }
    if len(shown) == 1:
        return spark | {"bars": [_rounded(v) for v in flat[:_MAX_BARS]]}
    with np.errstate(invalid="ignore"):
        range_ = np.nan_to_num(high - low, nan=-1, posinf=-1)
    picked = np.sort(np.argsort(-range_, kind="stable")[:_MAX_LINES])
    lines = np.stack([from_raw(value).reshape(-1)[picked].astype(np.float64) for value in shown]).T
    return spark | {"picked": picked.tolist(), "lines": [[_rounded(v) for v in line] for line in lines]}


def _rounded(value: Any) -> float | None:
    number = float(f"{float(value):.4g}")
    return number if number - number == 0 else None
