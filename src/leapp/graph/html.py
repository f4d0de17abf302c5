"""HTML tables and the picture for notebooks. All text of the bundle is escaped; there are no scripts and no requests."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from leapp.graph.contract import Contract, Port
from leapp.graph.validate import graph_ports, ports

_CELL = "text-align:left;vertical-align:top;padding:2px 10px 2px 0;white-space:normal"
_SHOWN = 6
"""How many element names a cell shows. After them it says how many more there are."""


def card(title: str, facts: Mapping[str, object], parts: Iterable[str]) -> str:
    """A titled box: facts in one line, then the given parts. Facts that are ``None`` are left out."""
    line = " · ".join(f"{escape(name)} {escape(str(value))}" for name, value in facts.items() if value is not None)
    return f'<div style="max-width:60em"><b>{escape(title)}</b><div>{line}</div>{"".join(parts)}</div>'


def table(caption: str, headers: Sequence[str], rows: Sequence[Sequence[object]], *, open: bool = True) -> str:
    """A table that folds under its caption, or nothing if there are no rows. Columns without content are left out."""
    if not rows:
        return ""
    columns = [i for i in range(len(headers)) if any(str(row[i]) for row in rows)]
    head = "".join(f'<th style="{_CELL}">{escape(headers[i])}</th>' for i in columns)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{escape(str(row[i]))}</td>' for i in columns) + "</tr>" for row in rows
    )
    return (
        f"<details{' open' if open else ''}><summary>{escape(caption)} ({len(rows)})</summary>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></details>"
    )


def picture(name: str, contract: Contract) -> str:
    """The drawn graph as an ``<img>``, in which scripts cannot run; empty if it cannot be drawn."""
    from leapp.view.picture import draw  # a higher layer, loaded in notebooks only

    try:
        svg = draw(contract, name).svg()
    except Exception:  # drawing may fail in any way, and the notebook must still show the tables
        return ""
    data = base64.b64encode(svg.encode()).decode()
    style = "display:block;max-width:100%;height:auto;margin:4px 0"
    return f'<img alt="the graph {escape(name)}" style="{style}" src="data:image/svg+xml;base64,{data}">'


def describe_contract(title: str, graph: str, contract: Contract, digest: str | None) -> str:
    """The facts that a deployer needs first: inputs, states, outputs, rate and files."""
    pipeline = contract.pipeline
    entering = ports(contract.nodes, "inputs")
    state = sorted({target for targets in pipeline.feedback_flow.values() for target in targets})
    rate = pipeline.frequency
    facts = {
        "nodes": len(contract.nodes),
        "rate": None if rate is None else f"{rate} Hz",
        "digest": digest[:12] if digest else None,
    }
    files = [
        (name, node.model.backend or "none", node.model.model_path or "none", len(node.inputs), len(node.outputs))
        for name, node in contract.nodes.items()
    ]
    headers = ("port", "type", "kind", "elements", "units")
    return card(
        title,
        facts,
        [
            picture(graph, contract),
            table("inputs", headers, [_port(k, p) for k, p in graph_ports(contract, "inputs").items()]),
            table("state", headers, [_port(k, entering[k]) for k in state if k in entering]),
            table("outputs", headers, [_port(k, p) for k, p in graph_ports(contract, "outputs").items()]),
            table("nodes", ("node", "backend", "file", "inputs", "outputs"), files, open=False),
        ],
    )


def _port(name: str, port: Port) -> tuple[object, ...]:
    shape = f"{port.dtype} {list(port.shape)}"
    return name, shape.replace(" ", "\N{NO-BREAK SPACE}"), port.kind or "", _elements(port), port.units or ""


def _elements(port: Port) -> str:
    axes = [[str(name) for name in axis] for axis in port.element_names or () if isinstance(axis, list) and axis]
    return " × ".join(
        ", ".join(names[:_SHOWN]) + (f" … {len(names) - _SHOWN} more" if len(names) > _SHOWN else "") for names in axes
    )
