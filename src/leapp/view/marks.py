"""Translates a layout into a list of simple marks with colours, in drawing order. No file format.

Any two signs differ in shape or line as well as in colour.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise

import msgspec

from leapp.view.facts import Spot
from leapp.view.layout import Layout, LegendEntry
from leapp.view.node_box import Box, Label, NodeBox, Path, Point, PortBox, Route, lines_of
from leapp.view.text import visible

BACKGROUND = "#f6f7f9"

_SIGN = {
    "data": "#475569",
    "feedback": "#d11a2a",
    "state": "#7c3aed",
    "input": "#15803d",
    "output": "#c2410c",
    "static": "#1d4ed8",
    "static output": "#1d4ed8",
    "loose": "#6b7280",
}
_TINTS = (_SIGN["data"], "#0369a1", "#4d7c0f", "#a16207", "#0f766e", "#9d174d")
"""Colours of edges. Edges that cross get different colours while there are enough."""
_BORDER = "#94a3b8"
_HEADER, _HEADER_WITHOUT_MODEL = "#dbe7f6", "#e5e7eb"


class Rect(msgspec.Struct, frozen=True):
    """A rectangle with rounded corners."""

    box: Box
    radius: float
    fill: str | None
    stroke: str | None = None
    dashed: bool = False


class Polygon(msgspec.Struct, frozen=True):
    """A filled shape with straight sides."""

    points: tuple[Point, ...]
    fill: str


class Line(msgspec.Struct, frozen=True):
    """An open line; ``dash`` is the length of its strokes and gaps."""

    path: Path
    colour: str
    width: float
    dash: tuple[float, float] | None = None


Mark = Rect | Polygon | Line | Label


class Group(msgspec.Struct, frozen=True):
    """The marks of one node, port or wire: ``role`` is its kind, ``key`` its public name, ``title`` its full description."""

    role: str
    key: str
    title: str
    marks: tuple[Mark, ...]


def compose(layout: Layout) -> list[Group]:
    """Everything to draw, back to front. The order depends only on the links, not on their positions."""
    return [
        Group("title", "", "", layout.title),
        *_wires(layout.routes),
        *(group for node in layout.nodes for group in _node(node)),
        *(Group("legend", entry.sign, "", tuple(_legend(entry))) for entry in layout.legend),
    ]


def _key(spot: Spot) -> str:
    return f"{spot[0]}/{spot[2]}"


def _wires(routes: Sequence[Route]) -> Iterator[Group]:
    """Wires by source. A pale halo around each wire keeps crossings readable; the halos of a source lie below all its wires.

    Where an output has both, the edge of the same pass lies on top and the feedback branches off it at a dot.
    """
    nets: dict[tuple[Spot, str], list[Route]] = {}
    for route in sorted(routes, key=lambda route: ("feedback", "state", "data").index(route.kind)):
        nets.setdefault((route.source, route.kind), []).append(route)
    tints = _tints({source: net for (source, kind), net in nets.items() if kind == "data"})
    for (source, kind), net in nets.items():
        yield Group("halo", "", "", tuple(Line(route.path, BACKGROUND, 5.5) for route in net))
        for route in net:
            name = f"{_key(source)} → {_key(route.target)}"
            yield Group(kind, name, f"{kind}: {name}", _wire(kind, route.path, tints.get(source) if kind == "data" else None))
    for (source, kind), net in nets.items():
        if kind != "data" and (source, "data") in nets:
            name = f"{_key(source)} → {_key(net[0].target)}"
            yield Group("branch", name, "", (_dot(_at(net[0].path[1]), 3.5, _SIGN[kind]),))


def _tints(nets: Mapping[Spot, Sequence[Route]]) -> dict[Spot, str]:
    """A colour for the edges of every output. Outputs whose edges cross between two layers get different ones."""
    gaps: dict[tuple[float, float], dict[tuple[Spot, float, float], None]] = {}
    for source, net in nets.items():
        for route in net:
            for before, piece in pairwise(route.path):
                (x0, y0), (x1, y1) = _at(before), _at(piece)
                if x1 > x0:
                    gaps.setdefault((x0, x1), {})[source, y0, y1] = None
    crossed: dict[Spot, set[Spot]] = {}
    for pieces in gaps.values():
        for (a, a0, a1), (b, b0, b1) in combinations(pieces, 2):
            if a != b and (a0 - b0) * (a1 - b1) < 0:
                crossed.setdefault(a, set()).add(b)
                crossed.setdefault(b, set()).add(a)
    tints: dict[Spot, str] = {}
    for source in nets:
        taken = [tints[other] for other in crossed.get(source, ()) if other in tints]
        tints[source] = min(_TINTS, key=taken.count)
    return tints


def _at(piece: Sequence[float]) -> Point:
    """Where a piece of a path ends."""
    return piece[-2], piece[-1]


def _dot(at: Point, radius: float, fill: str) -> Rect:
    return Rect(Box(at[0] - radius, at[1] - radius, 2 * radius, 2 * radius), radius, fill)


def _wire(kind: str, path: Path, tint: str | None = None) -> tuple[Mark, ...]:
    colour = tint or _SIGN[kind]
    x, y = _at(path[-1])
    head = ((x - 10, y - 5), (x, y), (x - 10, y + 5))
    return Line((*path[:-1], (x - 6, y)), colour, 1.8, (9.0, 4.0) if kind == "feedback" else None), Polygon(head, colour)


def _node(node: NodeBox) -> Iterator[Group]:
    fill = _HEADER if node.facts.has_model else _HEADER_WITHOUT_MODEL
    head = node.header
    lower = Box(head.x, head.y + head.height / 2, head.width, head.height / 2)
    marks: list[Mark] = [
        Rect(node.box, 8, "#ffffff"),
        Rect(head, 8, fill),
        Rect(lower, 0, fill),
        Line(((head.x, head.bottom), (head.right, head.bottom)), _BORDER, 1.0),
        Rect(node.box, 8, None, _BORDER, dashed=not node.facts.has_model),
        *node.labels,
    ]
    name = visible(node.facts.name)
    yield Group("node", name, f"{name}, {visible(node.facts.subtitle)}", tuple(marks))
    for port in node.ports:
        facts = port.facts
        key = f"{name}/{visible(facts.name)}"
        title = ", ".join([key, *(visible(text) for _, text in facts.details), *([facts.tag] if facts.tag else [])])
        yield Group(f"port {facts.spot[1]}", key, title, tuple(_port(port)))


def _port(port: PortBox) -> Iterator[Mark]:
    yield from port.labels
    if port.facts.tag and port.tag:
        yield from _tag(port.facts.tag, port.tag)
        yield from lines_of("tag", port.facts.tag, port.tag.x + 6, port.tag.y + 2)
        return
    wiring = port.facts.wiring
    sign = next((kind for kind in ("state", "feedback", "data") if kind in wiring), "loose")
    if sign == "loose" or port.facts.spot[1] == "out":
        yield from _marker(sign, (port.border, port.anchor[1]))


def _marker(sign: str, at: Point) -> Iterator[Mark]:
    x, y = at
    if sign == "state":
        yield Polygon(((x - 6, y), (x, y - 6), (x + 6, y), (x, y + 6)), _SIGN[sign])
    elif sign == "feedback":
        yield Rect(Box(x - 4, y - 4, 8, 8), 0, _SIGN[sign])
    elif sign == "loose":
        yield Rect(Box(x - 4.5, y - 4.5, 9, 9), 4.5, "#ffffff", _SIGN[sign])
    else:
        yield _dot(at, 4, _SIGN[sign])


def _tag(kind: str, box: Box) -> Iterator[Mark]:
    """A tag: an arrow for graph inputs and outputs, a bar for static outputs."""
    tip = box.right if kind == "static" else box.right - 7
    middle = box.y + box.height / 2
    sides = ((box.x, box.y), (tip, box.y), (box.right, middle), (tip, box.bottom), (box.x, box.bottom))
    yield Polygon(sides, _SIGN[kind])
    if kind.startswith("static"):
        yield Line(((box.x + 3, box.y), (box.x + 3, box.bottom)), "#ffffff", 1.5)


def _legend(entry: LegendEntry) -> Iterator[Mark]:
    box, sign = entry.box, entry.sign
    x, y = box.x, box.y + box.height / 2
    if sign in ("data", "feedback", "state"):
        yield from _wire(sign, ((x, y), (box.right, y)))
        yield from _marker(sign, (x + 4, y))
    elif sign == "loose":
        yield from _marker(sign, (x + box.width / 2, y))
    elif sign == "no model":
        yield Rect(box, 4, _HEADER_WITHOUT_MODEL, _BORDER, dashed=True)
    else:
        yield from _tag(sign, box)
    yield entry.label
