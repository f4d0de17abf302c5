"""Computes every coordinate of the picture: connected nodes form a sheet, and rows of sheets lie between title and legend.

Renderers draw the result without further decisions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from leapp.graph.wiring import components
from leapp.view.facts import LinkFacts, Spot, Subject
from leapp.view.layered import Sheet
from leapp.view.node_box import Box, Label, NodeBox, Point, Route, line_height, lines_of, measure

_MARGIN = 32.0
_SHEET_GAP = 48.0


class LegendEntry(msgspec.Struct, frozen=True):
    """The meaning of one sign. ``sign`` is a kind of link, tag or port."""

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


def arrange(subject: Subject, aspects: Sequence[float] = (1.6,)) -> list[Layout]:
    """One layout for each aspect, which is the width of the window divided by its height."""
    own: dict[str, list[LinkFacts]] = {}
    for link in subject.links:
        if link.source[0] == link.target[0]:
            own.setdefault(link.source[0], []).append(link)
    shapes = {node.name: measure(node, own.get(node.name, ())) for node in subject.nodes}
    groups = components(list(shapes), [(link.source[0], link.target[0]) for link in subject.links])
    group_of = {name: number for number, group in enumerate(groups) for name in group}
    between: list[list[LinkFacts]] = [[] for _ in groups]
    for link in subject.links:
        if link.source[0] != link.target[0]:
            between[group_of[link.source[0]]].append(link)
    layouts = []
    for aspect in aspects:
        sheets = [
            Sheet({name: shapes[name] for name in group}, links, aspect) for group, links in zip(groups, between, strict=True)
        ]
        layouts.append(_frame(subject, shapes, sheets, aspect))
    return layouts


def _pack(sheets: Sequence[Sheet], aspect: float) -> list[Point]:
    """The position of every sheet, in order, in rows of equal width."""
    area = sum((sheet.width + _SHEET_GAP) * (sheet.height + _SHEET_GAP) for sheet in sheets)
    limit = max([math.sqrt(area * aspect * 1.15), *(sheet.width for sheet in sheets)])
    x = y = row = 0.0
    places = []
    for sheet in sheets:
        if x and x + sheet.width > limit:
            x, y, row = 0.0, y + row + _SHEET_GAP, 0.0
        places.append((x, y))
        x += sheet.width + _SHEET_GAP
        row = max(row, sheet.height)
    return places


def _frame(subject: Subject, shapes: Mapping[str, NodeBox], sheets: Sequence[Sheet], aspect: float) -> Layout:
    """Put the sheets on one page with title, legend and margins."""
    corners = list(zip(sheets, _pack(sheets, aspect), strict=True))
    width = max([560.0, *(x + sheet.width for sheet, (x, _) in corners)])
    title = lines_of("title", subject.title, _MARGIN, 20, width)
    top = 24 + len(title) * line_height("title")
    summary = lines_of("summary", subject.summary, _MARGIN, top, width)
    top += len(summary) * line_height("summary") + 24
    nodes: dict[str, NodeBox] = {}
    routes: dict[tuple[Spot, Spot, str], Route] = {}
    for sheet, (x, y) in corners:
        for name, (left, up) in sheet.places.items():
            shape = shapes[name]
            nodes[name] = measure(shape.facts, shape.loops, _MARGIN + x + left, top + y + up)
            routes.update({(loop.source, loop.target, loop.kind): loop for loop in nodes[name].loops})
        for route in sheet.routes:
            routes[route.source, route.target, route.kind] = route.moved(_MARGIN + x, top + y)
    bottom = max((y + sheet.height for sheet, (_, y) in corners), default=-16.0)
    ordered = tuple(routes[link.source, link.target, link.kind] for link in subject.links)
    placed = tuple(nodes[node.name] for node in subject.nodes)
    legend, end = _legend(placed, ordered, width, top + bottom + 32)
    return Layout(
        width=math.ceil(width + 2 * _MARGIN),
        height=math.ceil(end + 20),
        title=(*title, *summary),
        nodes=placed,
        routes=ordered,
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
