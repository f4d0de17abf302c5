"""The layout of connected nodes: layers from left to right, and the wires between them.

Layers stand side by side in a band; a sheet too wide for its window is folded into several bands. A wire inside a band runs
through the gaps between layers and bends around the boxes on its way. Feedback, and a wire from band to band, takes a
detour: it leaves through a track beside its layer into a lane above or below the band. Lane group ``i`` lies above band
``i``, the last one below the last band. It knows measured boxes and links, nothing of drawing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import msgspec

from leapp.view.facts import LinkFacts, LinkKind, Spot
from leapp.view.node_box import TRACK, NodeBox, Point, Route, rounded
from leapp.view.order import Segment, assign_heights, cut_cycles, layer_nodes, reduce_crossings

_CURVE_MIN, _CURVE_MAX = 56.0, 240.0
_BAND_GAP = 44.0
# One more band must make everything at least this much larger, because wires between bands are longer.
_FOLD_GAIN = 1.15
# In a window of this height everything has its natural size, and a higher window does not help.
_SMALL = 520.0

_Bend = tuple[Spot, int]
"""Where the wires of an output pass through a layer."""
_Item = str | _Bend
_Net = tuple[Spot, LinkKind]
"""The wires of one kind at one port. They share tracks and lanes; an edge and a feedback of one output do not."""


class _Column(msgspec.Struct):
    """One layer: its position, and the wires in the tracks to its left and right, innermost first.

    The boxes of a layer are aligned at ``x + indent``; tags and loops are left of that.
    """

    width: float
    indent: float
    x: float = 0.0
    entries: list[tuple[_Net, int]] = []
    exits: list[tuple[_Net, int]] = []

    @property
    def inner(self) -> float:
        """Where the curves from the left end."""
        return self.x - _tracks(self.entries)

    @property
    def outer(self) -> float:
        """Where the curves to the right start."""
        return self.x + self.width + _tracks(self.exits)

    def entry(self, net: _Net, lane: int) -> float:
        return self.x - (self.entries.index((net, lane)) + 2) * TRACK

    def exit(self, net: _Net, lane: int) -> float:
        return self.x + self.width + (self.exits.index((net, lane)) + 1) * TRACK


class _Detour(msgspec.Struct, frozen=True):
    """A wire that leaves into lane group ``out`` and comes back from lane group ``back``."""

    link: LinkFacts
    out: int
    back: int

    @property
    def leaving(self) -> _Net:
        """The wires with which it shares the way out."""
        return self.link.source, self.link.kind

    @property
    def arriving(self) -> _Net:
        """The wires with which it shares the way in."""
        return self.link.target, self.link.kind


class Sheet:
    """Connected nodes with the wires between them, laid out from the origin for a window ``aspect`` times as wide as high."""

    def __init__(self, shapes: Mapping[str, NodeBox], links: Sequence[LinkFacts], aspect: float) -> None:
        self._shapes = shapes
        self._anchors = {port.facts.spot: port.anchor for node in shapes.values() for port in node.ports}
        self._layer, self._bands = _fold(shapes, links, aspect)
        self._band = {layer: index for index, band in enumerate(self._bands) for layer in band}
        self._top: dict[_Item, float] = {}
        self._columns: dict[int, _Column] = {}
        direct = [link for link in links if self._is_direct(link)]
        detours = [self._detour(link) for link in links if not self._is_direct(link)]
        heights = [self._arrange_band(band, direct) for band in self._bands]
        self._assign_tracks(detours)
        # A track left of all layers for every output whose wires pass by a whole band.
        passing = dict.fromkeys(detour.leaving for detour in detours if detour.out != detour.back)
        self._margin = {net: index * TRACK + 2 for index, net in enumerate(passing)}
        self.width = self._place_columns(direct)
        self._lanes: dict[tuple[int, _Net], float] = {}
        self.height = self._place_bands(detours, heights)
        self.places: dict[str, Point] = {name: (self._left(name), self._top[name]) for name in shapes}
        """The corner of each node's box."""
        self.routes = [self._direct_route(link) for link in direct] + [self._detour_route(d) for d in detours]

    def _is_direct(self, link: LinkFacts) -> bool:
        start, end = self._layer[link.source[0]], self._layer[link.target[0]]
        return link.kind == "data" and start < end and self._band[start] == self._band[end]

    def _detour(self, link: LinkFacts) -> _Detour:
        start, end = (self._band[self._layer[spot[0]]] for spot in (link.source, link.target))
        return _Detour(link, start if end < start else start + 1, end if end > start else end + 1)

    def _steps(self, link: LinkFacts) -> Iterator[tuple[int, Segment[_Item]]]:
        """The pieces of a direct wire, each with the layer in which it starts."""
        start, end = self._layer[link.source[0]], self._layer[link.target[0]]
        bends: list[tuple[_Item, float]] = [((link.source, layer), 0.0) for layer in range(start + 1, end)]
        path: list[tuple[_Item, float]] = [
            (link.source[0], self._anchors[link.source][1]),
            *bends,
            (link.target[0], self._anchors[link.target][1]),
        ]
        for index, (left, right) in enumerate(pairwise(path)):
            yield start + index, Segment(*left, *right)

    def _arrange_band(self, band: range, direct: Sequence[LinkFacts]) -> float:
        """Order the band's layers, set the height of every item within the band, return the height of the band."""
        layers: dict[int, list[_Item]] = {layer: [] for layer in band}
        height: dict[_Item, float] = {}
        for name, shape in self._shapes.items():
            if self._layer[name] in layers:
                layers[self._layer[name]].append(name)
                height[name] = shape.outer.height
        segments: dict[int, dict[Segment[_Item], None]] = {layer: {} for layer in band}
        for link in direct:
            if self._layer[link.source[0]] not in layers:
                continue
            for layer, segment in self._steps(link):
                # A dict, because wires from one output share segments.
                segments[layer][segment] = None
                if segment.right not in height:
                    height[segment.right] = 0.0
                    layers[layer + 1].append(segment.right)
        between = [list(segments[layer]) for layer in band]
        ordered = reduce_crossings(list(layers.values()), between, height)
        margin = {item: 16.0 if isinstance(item, str) else 7.0 for item in height}
        stiff = {item: 1.0 if isinstance(item, str) else 3.0 for item in height}
        top = assign_heights(ordered, between, height, margin, stiff)
        highest = min(top.values())
        self._top.update({item: y - highest for item, y in top.items()})
        for layer in band:
            shapes = [self._shapes[item] for item in layers[layer] if isinstance(item, str)]
            indent = max(-shape.outer.x for shape in shapes)
            width = indent + max(shape.outer.right for shape in shapes)
            self._columns[layer] = _Column(math.ceil(width / TRACK) * TRACK, indent)
        return max(top[item] + height[item] for item in top) - highest

    def _assign_tracks(self, detours: Sequence[_Detour]) -> None:
        """A track beside its layer for every end of a detour; the wire with the shortest way to its lane innermost."""
        way: dict[tuple[_Net, int], float] = {}
        for detour in detours:
            for net, lane, leaves in ((detour.leaving, detour.out, True), (detour.arriving, detour.back, False)):
                spot = net[0]
                layer = self._layer[spot[0]]
                y = self._top[spot[0]] + self._anchors[spot][1]
                way[net, lane] = y if lane == self._band[layer] else -y
                column = self._columns[layer]
                tracks = column.exits if leaves else column.entries
                if (net, lane) not in tracks:
                    tracks.append((net, lane))
        for column in self._columns.values():
            for tracks in (column.exits, column.entries):
                tracks.sort(key=lambda track: way[track])

    def _place_columns(self, direct: Sequence[LinkFacts]) -> float:
        """Place the layers, with gaps wide enough for the curves between them, and return the sheet's width."""
        need: dict[int, float] = {}
        for link in direct:
            for layer, s in self._steps(link):
                step = abs(self._top[s.left] + s.left_offset - self._top[s.right] - s.right_offset)
                # Steep curves need room, and so do many of them side by side.
                need[layer] = max(need.get(layer, 0.0), min(step * 0.3, 140.0)) + min(step * 0.05, 4.0)
        width = 0.0
        for index, band in enumerate(self._bands):
            x = len(self._margin) * TRACK
            for layer in band:
                column = self._columns[layer]
                x += _tracks(column.entries)
                # Neighbouring bands are shifted by half a track, so that two tracks are never on one line.
                column.x = math.ceil(x / TRACK) * TRACK + (index % 2) * TRACK / 2
                x = column.outer + min(max(need.get(layer, 0.0), _CURVE_MIN), _CURVE_MAX)
                width = max(width, column.outer)
        return width

    def _place_bands(self, detours: Sequence[_Detour], heights: Sequence[float]) -> float:
        """Assign the lanes, move every band below its lanes, and return the sheet's height."""
        spans: list[dict[_Net, list[float]]] = [{} for _ in range(len(self._bands) + 1)]
        for detour in detours:
            net = detour.leaving
            ends = [self._exit(detour), self._entry(detour)]
            turn = [] if detour.out == detour.back else [self._margin[net]]
            for group, end in zip((detour.out, detour.back), ends, strict=True):
                spans[group].setdefault(net, []).extend([end, *turn])
        y = 0.0
        for group, span in enumerate(spans):
            lanes = _share_lanes({net: (min(xs), max(xs)) for net, xs in span.items()})
            count = max(lanes.values(), default=-1) + 1
            inside = 0 < group < len(self._bands)
            y += _BAND_GAP / 2 if inside else 0.0
            first = y + (TRACK if group else 0.0)
            self._lanes.update({(group, net): first + lane * TRACK for net, lane in lanes.items()})
            y += count * TRACK + TRACK * bool(count) + (_BAND_GAP / 2 if inside else 0.0)
            if group < len(self._bands):
                for item in self._top:
                    if self._band[self._layer_of(item)] == group:
                        self._top[item] += y
                y += heights[group]
        return y

    def _layer_of(self, item: _Item) -> int:
        return self._layer[item] if isinstance(item, str) else item[1]

    def _left(self, node: str) -> float:
        column = self._columns[self._layer[node]]
        return column.x + column.indent

    def _point(self, spot: Spot) -> Point:
        x, y = self._anchors[spot]
        return self._left(spot[0]) + x, self._top[spot[0]] + y

    def _exit(self, detour: _Detour) -> float:
        return self._columns[self._layer[detour.link.source[0]]].exit(detour.leaving, detour.out)

    def _entry(self, detour: _Detour) -> float:
        return self._columns[self._layer[detour.link.target[0]]].entry(detour.arriving, detour.back)

    def _direct_route(self, link: LinkFacts) -> Route:
        path: list[tuple[float, ...]] = [self._point(link.source)]
        for layer, s in self._steps(link):
            start = (self._columns[layer].outer, self._top[s.left] + s.left_offset)
            path.append(start)
            path.append(_curve(start, (self._columns[layer + 1].inner, self._top[s.right] + s.right_offset)))
        return Route(link.kind, link.source, link.target, (*path, self._point(link.target)))

    def _detour_route(self, detour: _Detour) -> Route:
        link = detour.link
        start, end = self._point(link.source), self._point(link.target)
        x_out, x_back = self._exit(detour), self._entry(detour)
        y_out, y_back = (self._lanes[group, detour.leaving] for group in (detour.out, detour.back))
        x_turn = x_back if detour.out == detour.back else self._margin[detour.leaving]
        corners = [start, (x_out, start[1]), (x_out, y_out), (x_turn, y_out), (x_turn, y_back)]
        corners += [(x_back, y_back), (x_back, end[1]), end]
        return Route(link.kind, link.source, link.target, rounded(corners))


def _tracks(wires: Sequence[object]) -> float:
    """The width of the tracks beside a layer. Arrow heads need some width even without tracks."""
    return (len(wires) + 2) * TRACK if wires else TRACK


def _curve(start: Point, end: Point) -> tuple[float, ...]:
    """An S-shaped curve from ``start`` to ``end``, horizontal at both ends."""
    middle = (start[0] + end[0]) / 2
    return end if abs(start[1] - end[1]) < 0.01 else (middle, start[1], middle, end[1], *end)


def _share_lanes(spans: Mapping[_Net, tuple[float, float]]) -> dict[_Net, int]:
    """A lane for every span, short ones nearest, so that no two overlap in one lane."""
    taken: list[list[tuple[float, float]]] = []
    lanes: dict[_Net, int] = {}
    for net in sorted(spans, key=lambda net: spans[net][1] - spans[net][0]):
        left, right = spans[net]
        lane = next(
            (i for i, others in enumerate(taken) if all(right + TRACK < a or b + TRACK < left for a, b in others)),
            len(taken),
        )
        if lane == len(taken):
            taken.append([])
        taken[lane].append((left, right))
        lanes[net] = lane
    return lanes


def _fold(shapes: Mapping[str, NodeBox], links: Sequence[LinkFacts], aspect: float) -> tuple[dict[str, int], list[range]]:
    """The layer of every node, and the layers of every band.

    Feedback counts backwards: its target is left of its source, because the target runs first.
    """
    pairs = [(link.source[0], link.target[0]) if link.kind == "data" else (link.target[0], link.source[0]) for link in links]
    acyclic = cut_cycles(list(shapes), pairs)
    heights = {name: shape.outer.height + 32 for name, shape in shapes.items()}
    widths = {name: shape.outer.width + _CURVE_MIN + 2 * TRACK for name, shape in shapes.items()}
    # A layer may be about as high as a window that holds all boxes.
    high_enough = math.sqrt(sum(heights[name] * widths[name] for name in shapes) / aspect)
    layer = layer_nodes(list(shapes), acyclic, heights, max(1000.0, 1.5 * high_enough))
    count = max(layer.values()) + 1
    wide, high = [0.0] * count, [0.0] * count
    for name, at in layer.items():
        wide[at] = max(wide[at], widths[name])
        high[at] += heights[name]
    best, least = [range(count)], math.inf
    for number in range(1, count + 1):
        bands = _split(wide, number)
        width = max(sum(wide[at] for at in band) for band in bands)
        height = sum(max(high[at] for at in band) + 2 * _BAND_GAP for band in bands)
        need = max(width / aspect, height, _SMALL)
        if need * _FOLD_GAIN < least:
            best, least = bands, need
        if width <= aspect * height:
            break
    return layer, best


def _split(widths: Sequence[float], number: int) -> list[range]:
    """Consecutive layers in at most ``number`` bands, the widest as narrow as can be."""
    low, high = max(widths), sum(widths)
    while high - low > 1:
        middle = (low + high) / 2
        low, high = (low, middle) if len(_bands(widths, middle)) <= number else (middle, high)
    return _bands(widths, high)


def _bands(widths: Sequence[float], limit: float) -> list[range]:
    bands, start, used = [], 0, 0.0
    for at, width in enumerate(widths):
        if at > start and used + width > limit:
            bands.append(range(start, at))
            start, used = at, 0.0
        used += width
    return [*bands, range(start, len(widths))]
