"""The results of all recordings as one report, and as rows of a table.

Results are added in the order of the recordings, never in the order in which they finished, so the report does not depend on
the number of workers. One result at a time is in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from leapp.check.samples import element_name
from leapp.fleet.outcome import Result
from leapp.fleet.statistics import Statistics
from leapp.graph.contract import Port

PERCENTILES = (50.0, 90.0, 99.0, 99.9)


@dataclass(frozen=True, slots=True)
class Departure:
    """A value that is not the wanted one.

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
        unlike: How many were finite on one side only. They count as infinitely far, and not for the mean.
        beyond: How many were further away than tolerated.
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


class Report:
    """Gathers results into a report.

    Args:
        outputs: The outputs that there are.
        states: The states that there are.
        worst: How many of the worst recordings to list for each port.
    """

    def __init__(self, outputs: Mapping[str, Port], states: Mapping[str, Port], worst: int) -> None:
        self._ports = {"output": outputs, "state": states}
        self._gathered: dict[tuple[str, str], _Gathered] = {}
        self._worst = worst
        self._recordings = self._steps = self._differing = 0
        self._difference: Departure | None = None

    def add(self, recording: str, result: Result) -> None:
        """Add a recording. Call it in the order of recordings."""
        self._recordings += 1
        self._steps += result.steps
        found: list[Departure] = []
        for role, key, statistics in _statistics(result):
            port = self._ports[role][key]
            gathered = self._gathered.setdefault((role, key), _Gathered())
            gathered.merged.merge(statistics)
            gathered.totals.append(statistics.total)
            if statistics.largest > 0:
                place = Departure(recording, key, statistics.step, _element(port, statistics.index), statistics.largest)
                gathered.worst.append(place)
                # Sorting is stable: of equal ones the earlier recording stays in front.
                gathered.worst.sort(key=lambda one: -one.largest)
                del gathered.worst[self._worst :]
            if statistics.first is not None:
                gathered.differing += 1
                element = _element(port, statistics.first_index)
                found.append(Departure(recording, key, statistics.first, element, statistics.first_largest))
        if found:
            self._differing += 1
            self._difference = self._difference or min(found, key=lambda one: one.step)

    def finish(self, resumed: int, failed: dict[str, str]) -> FleetReport:
        """The report over all that was added."""
        return FleetReport(
            recordings=self._recordings,
            resumed=resumed,
            steps=self._steps,
            differing=self._differing,
            difference=self._difference,
            ports=[self._port(role, key) for role in self._ports for key in self._ports[role] if (role, key) in self._gathered],
            missing=[key for key in self._ports["output"] if ("output", key) not in self._gathered],
            failed=failed,
        )

    def _port(self, role: str, key: str) -> PortReport:
        gathered = self._gathered[role, key]
        merged = gathered.merged
        # The exact sum, whatever the order of the numbers.
        merged.total = math.fsum(gathered.totals)
        return PortReport(
            key=key,
            role=role,
            recordings=len(gathered.totals),
            differing=gathered.differing,
            count=merged.count,
            equal=merged.equal,
            unlike=merged.unlike,
            beyond=merged.beyond,
            largest=merged.largest,
            mean=merged.mean,
            percentiles={f"{percent:g}": merged.percentile(percent) for percent in PERCENTILES},
            worst=gathered.worst,
        )


def rows(recording: str, result: Result, outputs: Mapping[str, Port], states: Mapping[str, Port]) -> Iterator[dict[str, Any]]:
    """A recording as rows of a table, one for each port."""
    for role, key, statistics in _statistics(result):
        port = (outputs if role == "output" else states)[key]
        yield {
            "recording": recording,
            "error": None,
            "steps": result.steps,
            "port": key,
            "role": role,
            "count": statistics.count,
            "equal": statistics.equal,
            "unlike": statistics.unlike,
            "beyond": statistics.beyond,
            "mean": statistics.mean,
            **{f"p{percent:g}".replace(".", ""): statistics.percentile(percent) for percent in PERCENTILES},
            "largest": statistics.largest,
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
    # A row of a batch has a number, whatever the row that was traced is called.
    names = list(port.element_names or [])
    place = port.batch_axis - (len(port.shape) - len(names))
    if place >= 0:
        names[place] = None
    name = element_name(msgspec.structs.replace(port, element_names=names), index)
    return f"row {index[port.batch_axis]} {name}" if name else str(list(index))
