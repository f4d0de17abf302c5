"""The results of all recordings as one report, and as rows of a table.

Results come in the order of the recordings, not in the order in which they finished, so the report does not depend on the
number of workers. One result at a time is in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from leapp.check.samples import element_name
from leapp.fleet.statistics import Result, Statistics
from leapp.graph.contract import Port

PERCENTILES = (50.0, 90.0, 99.0, 99.9)

Ports = Mapping[str, Mapping[str, Port]]
"""The ports that are compared, by role (``output``, ``state``) and key."""


@dataclass(frozen=True, slots=True)
class Departure:
    """A value that differs from the expected one.

    Attributes:
        recording: The file, as it was named.
        key: The output or state.
        step: The step, counted from 0. A state is that after the step.
        element: The name of the element, with its row in a bundle that takes any batch; its indices where it has no name.
        largest: The difference.

    Example:
        >>> report.difference  # nothing is beyond the tolerance
    """

    recording: str
    key: str
    step: int
    element: str
    largest: float


@dataclass(frozen=True, slots=True)
class PortReport:
    """The differences of one port over all recordings.

    Attributes:
        key: The output or state.
        role: ``output`` or ``state``.
        recordings: How many recordings have it.
        differing: In how many of them a value is beyond the tolerance.
        count: How many values were compared.
        equal: How many were equal. NaN equals NaN.
        unlike: How many were finite on one side only. Their difference counts as infinite, and is left out of the mean.
        beyond: How many differed by more than the tolerance.
        largest: The largest difference.
        mean: The mean difference.
        percentiles: Percentiles of the difference, by percent: never too small, and less than 0.8 % too large.
        worst: Where the difference is largest, one place for each recording, largest first.

    Example:
        >>> [port.key for port in report.ports]
        ['policy/action']
    """

    key: str
    role: str
    recordings: int
    differing: int
    count: int
    equal: int
    unlike: int
    beyond: int
    largest: float
    mean: float
    percentiles: dict[str, float]
    worst: list[Departure]


@dataclass(frozen=True, slots=True)
class FleetReport:
    """What replaying many recordings showed.

    Attributes:
        recordings: How many were replayed, now or before.
        resumed: How many of them were replayed before.
        steps: How many steps they have.
        differing: In how many of them a value is beyond the tolerance.
        difference: The first step beyond the tolerance, in the first recording that has one.
        ports: The figures of each port, outputs first.
        missing: Outputs that were not compared: no recording holds them, or only one of the two bundles has them.
        failed: Recordings that could not be replayed, and why.

    Example:
        >>> report = replay_fleet("policy", ["run*.npz"])
        >>> assert not report.differing and not report.failed
    """

    recordings: int
    resumed: int
    steps: int
    differing: int
    difference: Departure | None
    ports: list[PortReport]
    missing: list[str]
    failed: dict[str, str]

    @property
    def same(self) -> bool:
        """Whether everything could be replayed and nothing differs."""
        return not self.differing and not self.failed


@dataclass(slots=True)
class _Gathered:
    merged: Statistics = field(default_factory=Statistics)
    totals: list[float] = field(default_factory=list)
    differing: int = 0
    worst: list[Departure] = field(default_factory=list)

    def report(self, role: str, key: str) -> PortReport:
        # fsum() is exact, so the order of the recordings does not matter.
        self.merged.total = math.fsum(self.totals)
        percentiles = {f"{percent:g}": self.merged.percentile(percent) for percent in PERCENTILES}
        return PortReport(
            key, role, len(self.totals), self.differing, **self.merged.figures(), percentiles=percentiles, worst=self.worst
        )


def make_report(
    results: Iterable[tuple[str, Result]], ports: Ports, worst: int, resumed: int, failed: dict[str, str]
) -> FleetReport:
    """The report over the results of all recordings.

    Args:
        results: Name and result of each recording, in the order of the recordings.
        ports: All outputs and states.
        worst: How many of the worst recordings to list for each port.
        resumed: How many recordings were replayed before.
        failed: Recordings that could not be replayed, and why.
    """
    gathered: dict[tuple[str, str], _Gathered] = {}
    recordings = steps = differing = 0
    difference: Departure | None = None
    for recording, result in results:
        recordings += 1
        steps += result.steps
        found: list[Departure] = []
        for role, key, statistics in _statistics(result):
            port = ports[role][key]
            into = gathered.setdefault((role, key), _Gathered())
            into.merged.merge(statistics)
            into.totals.append(statistics.total)
            if statistics.largest > 0:
                place = Departure(recording, key, statistics.step, _element(port, statistics.index), statistics.largest)
                # Sorting is stable, so of equal differences the earlier recording comes first.
                into.worst = sorted([*into.worst, place], key=lambda one: -one.largest)[:worst]
            if statistics.first is not None:
                into.differing += 1
                element = _element(port, statistics.first_index)
                found.append(Departure(recording, key, statistics.first, element, statistics.first_largest))
        if found:
            differing += 1
            difference = difference or min(found, key=lambda one: one.step)
    reports = [gathered[role, key].report(role, key) for role in ports for key in ports[role] if (role, key) in gathered]
    missing = [key for key in ports["output"] if ("output", key) not in gathered]
    return FleetReport(recordings, resumed, steps, differing, difference, reports, missing, failed)


def rows(recording: str, result: Result, ports: Ports) -> Iterator[dict[str, Any]]:
    """A recording as rows of a table, one for each port."""
    for role, key, statistics in _statistics(result):
        port = ports[role][key]
        yield {
            "recording": recording,
            "steps": result.steps,
            "port": key,
            "role": role,
            **statistics.figures(),
            **{f"p{percent:g}".replace(".", ""): statistics.percentile(percent) for percent in PERCENTILES},
            "worst_step": statistics.step if statistics.largest else None,
            "worst_element": _element(port, statistics.index) if statistics.largest else None,
            "first_step": statistics.first,
            "first_element": _element(port, statistics.first_index) if statistics.first is not None else None,
        }


def _statistics(result: Result) -> Iterator[tuple[str, str, Statistics]]:
    for role, figures in (("output", result.outputs), ("state", result.states)):
        for key, statistics in figures.items():
            yield role, key, statistics


def _element(port: Port, index: Sequence[int]) -> str:
    if port.batch_axis is None:
        return element_name(port, index) or str(list(index))
    # A row of a batch is named by its number, not by the element name of the traced row.
    names = list(port.element_names or [])
    place = port.batch_axis - (len(port.shape) - len(names))
    if place >= 0:
        names[place] = None
    name = element_name(msgspec.structs.replace(port, element_names=names), index)
    return f"row {index[port.batch_axis]} {name}" if name else str(list(index))
