"""Measures one node: its box, header, port rows, tags, and the loops of its own states around it.

Sizes are computed from the text, so no text is cut off or crosses a border. ``layered`` decides where a node is placed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from leapp.view.facts import LinkFacts, NodeFacts, PortFacts, Spot
from leapp.view.text import text_width, wrap

Point = tuple[float, float]

Path = tuple[tuple[float, ...], ...]
"""A line: its start, then pieces. Two numbers are the end of a straight piece; four or six add the control points of a
quadratic or cubic Bézier curve before it."""

_INK = "#111827"
STYLES: dict[str, tuple[float, bool, str]] = {
    "title": (22, True, _INK),
    "summary": (14, False, "#374151"),
    "node": (15, True, _INK),
    "subtitle": (12, False, "#374151"),
    "port": (13, True, _INK),
    "shape": (12, False, "#4b5563"),
    "kind": (12, False, "#0b6b62"),
    "tag": (11, True, "#ffffff"),
    "legend": (12, False, "#374151"),
}
"""Every kind of text: its size, whether it is bold, its colour."""

TRACK = 8.0
"""The distance between parallel wires."""

_PAD = 14.0
_LINE = 300.0
_ROW_GAP = 10.0
_COLUMN_GAP = 32.0
_TAG_HEIGHT = 18.0
_TAG_TIP = 7.0


class Box(msgspec.Struct, frozen=True):
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """The right border."""
        return self.x + self.width

    @property
    def bottom(self) -> float:
        """The lower border."""
        return self.y + self.height


class Label(msgspec.Struct, frozen=True):
    """One line of text, placed by its left end and its baseline."""

    text: str
    style: str
    x: float
    baseline: float
    width: float

    @property
    def box(self) -> Box:
        """The room the line takes, ascenders and descenders included."""
        size = STYLES[self.style][0]
        return Box(self.x, self.baseline - size * 0.95, self.width, size * 1.2)

    def moved(self, dx: float, dy: float) -> Label:
        """The same line, shifted."""
        return msgspec.structs.replace(self, x=self.x + dx, baseline=self.baseline + dy)


class PortBox(msgspec.Struct, frozen=True):
    """One port: its rows of text, the point where wires attach, and its tag: graph input, graph output or static."""

    facts: PortFacts
    box: Box
    anchor: Point
    border: float
    labels: tuple[Label, ...]
    tag: Box | None


class Route(LinkFacts, frozen=True):
    """One wire as a line from the source's anchor to the target's, corners already rounded. It ends straight."""

    path: Path

    @property
    def points(self) -> tuple[Point, ...]:
        """The line in short straight pieces."""
        return flatten(self.path)

    def moved(self, dx: float, dy: float) -> Route:
        """The same wire, shifted."""
        path = tuple([tuple([n + (dy if i % 2 else dx) for i, n in enumerate(piece)]) for piece in self.path])
        return Route(self.kind, self.source, self.target, path)


class NodeBox(msgspec.Struct, frozen=True):
    """One node. ``outer`` adds the tags and loops to ``box``; no other node reaches into it."""

    facts: NodeFacts
    box: Box
    outer: Box
    header: Box
    labels: tuple[Label, ...]
    ports: tuple[PortBox, ...]
    loops: tuple[Route, ...]


def line_height(style: str) -> float:
    """The distance between two lines of this style."""
    return round(STYLES[style][0] * 1.35)


def lines_of(style: str, text: str, x: float, y: float, limit: float = _LINE) -> list[Label]:
    """``text`` as lines whose first one starts at the top ``y``."""
    size, bold, _ = STYLES[style]
    height = line_height(style)
    return [
        Label(line, style, x, y + index * height + round(size * 1.05), text_width(line, size, bold))
        for index, line in enumerate(wrap(text, size, bold, limit))
    ]


def measure(facts: NodeFacts, links: Sequence[LinkFacts], x: float = 0.0, y: float = 0.0) -> NodeBox:
    """The node with the upper left corner of its box at ``x``, ``y``. ``links`` are those from the node to itself."""
    header_labels = lines_of("node", facts.name, x + _PAD, y + 9)
    header_labels += lines_of("subtitle", facts.subtitle, x + _PAD, y + 10 + len(header_labels) * line_height("node"))
    header_bottom = header_labels[-1].baseline + 11
    columns = [[_rows(port) for port in ports] for ports in (facts.inputs, facts.outputs)]
    widths = [_width(label for labels in column for label in labels) for column in columns]
    between = _COLUMN_GAP if all(widths) else 0
    width = 2 * _PAD + max(sum(widths) + between, _width(header_labels), 120)
    ports: list[PortBox] = []
    bottom = header_bottom
    for column, border, ports_facts in zip(columns, (x, x + width), (facts.inputs, facts.outputs), strict=True):
        top = header_bottom + _ROW_GAP
        for labels, port in zip(column, ports_facts, strict=True):
            ports.append(_place(port, labels, border, top))
            top = ports[-1].box.bottom + _ROW_GAP
            bottom = max(bottom, top)
    box, header = Box(x, y, width, bottom - y), Box(x, y, width, header_bottom - y)
    outer, loops = _surroundings(box, ports, links)
    return NodeBox(facts, box, outer, header, tuple(header_labels), tuple(ports), loops)


def _width(labels: Iterable[Label]) -> float:
    return max((label.width for label in labels), default=0.0)


def _rows(port: PortFacts) -> list[Label]:
    labels, y = [], 0.0
    for style, text in (("port", port.name), *port.details):
        lines = lines_of(style, text, 0, y)
        y += len(lines) * line_height(style)
        labels += lines
    return labels


def _place(port: PortFacts, labels: Sequence[Label], border: float, y: float) -> PortBox:
    """The port's rows inside the left or right border of its node, its tag outside of it."""
    outward = port.spot[1] == "out"
    width = _width(labels)
    box = Box(border - _PAD - width if outward else border + _PAD, y, width, labels[-1].baseline - labels[0].baseline + 18)
    placed = tuple(label.moved(box.right - label.width if outward else box.x, y) for label in labels)
    middle = y + line_height("port") / 2
    tag = None
    reach = border
    if port.tag:
        length = text_width(port.tag, *STYLES["tag"][:2]) + 12 + _TAG_TIP
        tag = Box(border if outward else border - length, middle - _TAG_HEIGHT / 2, length, _TAG_HEIGHT)
        reach = tag.right if outward else tag.x
    return PortBox(port, box, (reach, middle), border, placed, tag)


def _surroundings(box: Box, ports: Sequence[PortBox], links: Sequence[LinkFacts]) -> tuple[Box, tuple[Route, ...]]:
    """The box with tags and loops, and the loops, one nested in the other below the node."""
    anchors = {port.facts.spot: port.anchor for port in ports}
    reach = [box.x, box.right, *(port.anchor[0] for port in ports)]
    left, right, bottom = min(reach), max(reach), box.bottom
    exits = _nested(dict.fromkeys(link.source for link in links), anchors)
    entries = _nested(dict.fromkeys(link.target for link in links), anchors)
    loops = []
    for link in links:
        start, end = anchors[link.source], anchors[link.target]
        x_out = right + (exits[link.source] + 1) * TRACK + 4
        x_in = left - (entries[link.target] + 1) * TRACK - 8
        y = bottom + (exits[link.source] + 1) * TRACK + 2
        path = rounded([start, (x_out, start[1]), (x_out, y), (x_in, y), (x_in, end[1]), end])
        loops.append(Route(link.kind, link.source, link.target, path))
    if links:
        right += len(exits) * TRACK + 8
        left -= len(entries) * TRACK + 12
        bottom += len(exits) * TRACK + 6
    return Box(left, box.y, right - left, bottom - box.y), tuple(loops)


def _nested(spots: Iterable[Spot], anchors: dict[Spot, Point]) -> dict[Spot, int]:
    """The track of each port, counted from the node outwards. The lowest port gets the innermost, so loops do not cross."""
    return {spot: index for index, spot in enumerate(sorted(spots, key=lambda spot: -anchors[spot][1]))}


def rounded(points: Sequence[Point], radius: float = 7) -> Path:
    """A right-angled line with its corners rounded; repeated points and straight-through corners vanish."""
    corners: list[Point] = []
    for point in points:
        if corners and abs(point[0] - corners[-1][0]) + abs(point[1] - corners[-1][1]) < 1e-6:
            continue
        if len(corners) > 1 and any(
            abs(corners[-2][i] - corners[-1][i]) + abs(corners[-1][i] - point[i]) < 1e-6 for i in (0, 1)
        ):
            corners.pop()
        corners.append(point)
    path: list[tuple[float, ...]] = [corners[0]]
    for before, corner, after in zip(corners, corners[1:], corners[2:], strict=False):
        lengths = [abs(corner[0] - p[0]) + abs(corner[1] - p[1]) for p in (before, after)]
        r = min(radius, *(length / 2 for length in lengths))
        start, end = (
            (corner[0] + (p[0] - corner[0]) * r / length, corner[1] + (p[1] - corner[1]) * r / length)
            for p, length in zip((before, after), lengths, strict=True)
        )
        path += [start, (*corner, *end)]
    return (*path, corners[-1])


def flatten(path: Path) -> tuple[Point, ...]:
    """The line in straight pieces, short enough to look like a curve."""
    x, y = path[0]
    points = [(x, y)]
    for piece in path[1:]:
        if len(piece) == 4:
            cx, cy, ex, ey = piece
            for t in (0.25, 0.5, 0.75, 1.0):
                u = 1 - t
                points.append((u * u * x + 2 * t * u * cx + t * t * ex, u * u * y + 2 * t * u * cy + t * t * ey))
        elif len(piece) == 6:
            ax, ay, bx, by, ex, ey = piece
            for step in range(1, 25):
                t = step / 24
                u = 1 - t
                a, b, c, d = u * u * u, 3 * u * u * t, 3 * u * t * t, t * t * t
                points.append((a * x + b * ax + c * bx + d * ex, a * y + b * ay + c * by + d * ey))
        else:
            points.append((piece[0], piece[1]))
        x, y = points[-1]
    return tuple(points)
