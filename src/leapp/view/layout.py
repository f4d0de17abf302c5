"""Every coordinate of the picture: connected nodes form a sheet, sheets stand in rows between title and legend.

Renderers only draw what stands here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from .boxes import Box, Label, NodeBox, Route, line_height, lines_of, measure
from .order import components
from .sheet import Sheet
from .subject import Subject

__all__ = ["Layout", "LegendEntry", "arrange"]

_MARGIN = 32.0
_SHEET_GAP = 48.0


class LegendEntry(msgspec.Struct, frozen=True):
    """What one sign means: ``sign`` is the kind of link, tag or port that the renderers know how to draw."""

    sign: str
    box: Box
    label: Label


class Layout(msgspec.Struct, frozen=True):
    """The finished geometry, in units of one pixel at scale one."""

    width: float
    height: float
    title: tuple[Label, ...]
    nodes: tuple[NodeBox, ...]
    routes: tuple[Route, ...]
    legend: tuple[LegendEntry, ...]


def arrange(subject: Subject) -> Layout:
    """Lay out the picture of ``subject``."""
    shapes = {
        node.name: measure(node, [link for link in subject.links if link.source[0] == link.target[0] == node.name])
        for node in subject.nodes
    }
    pairs = [(link.source[0], link.target[0]) for link in subject.links]
    sheets = []
    for group in components(list(shapes), pairs):
        inside = set(group)
        links = [link for link in subject.links if link.source[0] in inside and link.source[0] != link.target[0]]
        sheets.append(Sheet({name: shapes[name] for name in group}, links))
    width = _pack(sheets)
    nodes = {node.facts.name: node for sheet in sheets for node in sheet.nodes}
    routes = [route for sheet in sheets for route in sheet.routes]
    routes += [loop for node in nodes.values() for loop in node.loops]
    return _frame(subject, [nodes[node.name] for node in subject.nodes], routes, max(width, 560.0))


def _pack(sheets: list[Sheet]) -> float:
    """Put the sheets in rows of one width, in order, and return that width."""
    area = sum((sheet.width + _SHEET_GAP) * (sheet.height + _SHEET_GAP) for sheet in sheets)
    limit = max([math.sqrt(area * 1.9), *(sheet.width for sheet in sheets)])
    x = y = row = right = 0.0
    for sheet in sheets:
        if x and x + sheet.width > limit:
            x, y, row = 0.0, y + row + _SHEET_GAP, 0.0
        sheet.move(x, y)
        right = max(right, x + sheet.width)
        x += sheet.width + _SHEET_GAP
        row = max(row, sheet.height)
    return right


def _frame(subject: Subject, nodes: Sequence[NodeBox], routes: Sequence[Route], width: float) -> Layout:
    """Add title, legend and margins."""
    title = lines_of("title", subject.title, _MARGIN, 20, width)
    y = 24 + len(title) * line_height("title")
    summary = lines_of("summary", subject.summary, _MARGIN, y, width)
    y += len(summary) * line_height("summary") + 24
    content = max((node.outer.bottom for node in nodes), default=-16.0)
    content = max(content, *(p[1] for route in routes for p in route.points)) if routes else content
    legend, bottom = _legend(nodes, routes, width, y + content + 32)
    return Layout(
        width=math.ceil(width + 2 * _MARGIN),
        height=math.ceil(bottom + 20),
        title=(*title, *summary),
        nodes=tuple(node.moved(_MARGIN, y) for node in nodes),
        routes=tuple(route.moved(_MARGIN, y) for route in routes),
        legend=legend,
    )


def _legend(nodes: Sequence[NodeBox], routes: Sequence[Route], width: float, y: float) -> tuple[tuple[LegendEntry, ...], float]:
    """An entry for every sign that occurs, and where the legend ends."""
    ports = [port.facts for node in nodes for port in node.ports]
    present: dict[str, bool] = dict.fromkeys([*(r.kind for r in routes), *(p.tag for p in ports if p.tag)], True)
    present["no model"] = not all(node.facts.has_model for node in nodes)
    present["loose"] = any(not port.tag and not port.wiring for port in ports)
    meanings = {
        "input": "graph input",
        "output": "graph output",
        "static output": "graph output that never changes",
        "static": "output that never changes",
        "data": "edge, same pass",
        "feedback": "feedback, next pass",
        "state": "state, kept inside the node",
        "no model": "node without a model",
        "loose": "port not connected",
    }
    entries: list[LegendEntry] = []
    x = _MARGIN
    for sign, meaning in meanings.items():
        if not present.get(sign):
            continue
        label = lines_of("legend", meaning, 0, 0)[0]
        if x > _MARGIN and x + 44 + label.width > _MARGIN + width:
            x, y = _MARGIN, y + 26
        entries.append(LegendEntry(sign, Box(x, y, 34, 18), label.moved(x + 42, y + 1)))
        x += 42 + label.width + 28
    return tuple(entries), y + 18 if entries else y
