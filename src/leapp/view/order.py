"""Positions in a layered drawing: layers, order within a layer, heights. Works on plain graphs.

Items are any hashable values: nodes, and the bends of edges that pass through a layer. No text, no boxes, no colours.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Hashable, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T", bound=Hashable)
Pair = tuple[str, str]


class Segment(msgspec.Struct, Generic[T], frozen=True):
    """A piece of an edge between neighbouring layers. Offsets are measured down from the top of each item."""

    left: T
    left_offset: float
    right: T
    right_offset: float


def cut_cycles(nodes: Sequence[str], pairs: Iterable[Pair]) -> list[Pair]:
    """The pairs without those that close a cycle."""
    kept = dict.fromkeys(pairs)
    while True:
        after: dict[str, list[str]] = {node: [] for node in nodes}
        for a, b in kept:
            after[a].append(b)
        try:
            TopologicalSorter(after).prepare()
        except CycleError as error:
            b, a, *_ = error.args[1]
            del kept[a, b]
        else:
            return list(kept)


def layer_nodes(nodes: Sequence[str], pairs: Sequence[Pair], height: Mapping[str, float], cap: float) -> dict[str, int]:
    """A layer for every node, to the right of all nodes it depends on. No layer gets higher than ``cap``.

    A node that feeds at least as many nodes as feed it moves right, next to its first consumer.
    """
    before: dict[str, list[str]] = {node: [] for node in nodes}
    after: dict[str, list[str]] = {node: [] for node in nodes}
    for a, b in pairs:
        after[a].append(b)
        before[b].append(a)
    depth: dict[str, int] = {}
    for node in TopologicalSorter(before).static_order():
        depth[node] = max((depth[a] + 1 for a in before[node]), default=0)
    topological = sorted(nodes, key=lambda node: depth[node])
    filled: dict[int, float] = {}
    layer: dict[str, int] = {}
    for node in topological:
        place = max((layer[a] + 1 for a in before[node]), default=0)
        while filled.get(place, 0.0) and filled[place] + height[node] > cap:
            place += 1
        filled[place] = filled.get(place, 0.0) + height[node]
        layer[node] = place
    for node in reversed(topological):
        if after[node] and len(after[node]) >= len(before[node]):
            for place in range(min(layer[b] for b in after[node]) - 1, layer[node], -1):
                if not filled.get(place) or filled[place] + height[node] <= cap:
                    filled[layer[node]] -= height[node]
                    filled[place] = filled.get(place, 0.0) + height[node]
                    layer[node] = place
                    break
    used = {place: index for index, place in enumerate(sorted(set(layer.values())))}
    return {node: used[layer[node]] for node in nodes}


_End = tuple[T, float]
"""The end of a segment: an item, and the position in it from 0 at the top to 1 at the bottom."""


def reduce_crossings(
    layers: Sequence[Sequence[T]], segments: Sequence[Sequence[Segment[T]]], height: Mapping[T, float], sweeps: int = 12
) -> list[list[T]]:
    """Order every layer by the mean position of its neighbours, in several sweeps. Returns the order with the fewest crossings.

    ``segments[i]`` join ``layers[i]`` and ``layers[i + 1]``.
    """
    joined: list[list[tuple[_End[T], _End[T]]]] = [
        [
            ((s.left, s.left_offset / (height[s.left] + 1)), (s.right, s.right_offset / (height[s.right] + 1)))
            for s in between
        ]
        for between in segments
    ]
    current = [list(layer) for layer in layers]
    best, fewest = current, _crossings(current, joined)
    for sweep in range(sweeps):
        if not fewest:
            break
        current = [list(layer) for layer in current]
        for index in range(1, len(layers)):
            if sweep % 2 == 0:
                _sort_layer(current[index], current[index - 1], joined[index - 1])
            else:
                _sort_layer(current[-1 - index], current[-index], [(right, left) for left, right in joined[-1 - index]])
        crossings = _crossings(current, joined)
        if crossings < fewest:
            best, fewest = current, crossings
    return best


def _sort_layer(layer: list[T], fixed: Sequence[T], joined: Sequence[tuple[_End[T], _End[T]]]) -> None:
    at = {item: index for index, item in enumerate(fixed)}
    pulls: dict[T, list[float]] = {}
    for (there, part), (here, _) in joined:
        pulls.setdefault(here, []).append(at[there] + part)
    # An item without neighbours in the other layer keeps its relative position.
    scale = max(len(fixed), 1) / max(len(layer), 1)
    mean = {item: sum(pulls[item]) / len(pulls[item]) if item in pulls else index * scale for index, item in enumerate(layer)}
    layer.sort(key=lambda item: mean[item])


def _crossings(layers: Sequence[Sequence[T]], joined: Sequence[Sequence[tuple[_End[T], _End[T]]]]) -> int:
    at = {item: index for layer in layers for index, item in enumerate(layer)}
    total = 0
    for between in joined:
        seen: list[float] = []
        for _, end in sorted((at[left] + above, at[right] + below) for (left, above), (right, below) in between):
            total += len(seen) - bisect_right(seen, end)
            insort(seen, end)
    return total


def assign_heights(
    layers: Sequence[Sequence[T]],
    segments: Sequence[Sequence[Segment[T]]],
    height: Mapping[T, float],
    margin: Mapping[T, float],
    stiff: Mapping[T, float],
    rounds: int = 6,
) -> dict[T, float]:
    """The top of every item, with edges as horizontal as the order and the margins of the layers allow."""
    top: dict[T, float] = {}
    # Horizontal edges must not make the drawing higher: no layer may reach far beyond the fullest one.
    room = 0.53 * max(sum(height[item] + 2 * margin[item] for item in layer) for layer in layers)
    for layer in layers:
        y = -sum(height[item] + 2 * margin[item] for item in layer) / 2
        for item in layer:
            top[item] = y + margin[item]
            y += height[item] + 2 * margin[item]
    leftward: dict[T, list[tuple[T, float]]] = {}
    rightward: dict[T, list[tuple[T, float]]] = {}
    for s in (s for between in segments for s in between):
        leftward.setdefault(s.right, []).append((s.left, s.left_offset - s.right_offset))
        rightward.setdefault(s.left, []).append((s.right, s.right_offset - s.left_offset))
    for turn in range(rounds):
        last = turn >= rounds - 2
        for layer in layers if turn % 2 == 0 else reversed(layers):
            near, far = (leftward, rightward) if turn % 2 == 0 else (rightward, leftward)
            wish: list[tuple[float, float]] = []
            for item in layer:
                pulls = near.get(item, []) + (far.get(item, []) if last else [])
                levels = sorted(top[other] + offset for other, offset in pulls)
                wish.append((levels[(len(levels) - 1) // 2], stiff[item]) if levels else (top[item], 0.1))
            _settle(layer, wish, height, margin, top, room)
    return top


def _settle(
    layer: Sequence[T],
    wish: Sequence[tuple[float, float]],
    height: Mapping[T, float],
    margin: Mapping[T, float],
    top: dict[T, float],
    room: float,
) -> None:
    """Set the positions nearest to ``wish`` that keep the order, the margins and ``room`` on both sides of zero.

    This is isotonic regression by pooling neighbours, with the result clipped to ``room``.
    """
    shift, below = [], 0.0
    for index, item in enumerate(layer):
        if index:
            above = layer[index - 1]
            below += height[above] + margin[above] + margin[item]
        shift.append(below)
    pools: list[tuple[float, float, int]] = []
    for (level, weight), offset in zip(wish, shift, strict=True):
        pool = (level - offset, weight, 1)
        while pools and pools[-1][0] >= pool[0]:
            mean, mass, size = pools.pop()
            total = mass + pool[1]
            pool = ((mean * mass + pool[0] * pool[1]) / total, total, size + pool[2])
        pools.append(pool)
    lowest = room - shift[-1] - height[layer[-1]]
    index = 0
    for mean, _, size in pools:
        level = max(min(mean, lowest), -room)
        for _ in range(size):
            top[layer[index]] = level + shift[index]
            index += 1
