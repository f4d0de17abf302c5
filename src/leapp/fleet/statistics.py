"""How far the values of one port are from the wanted ones, in figures that merge.

Counts, the largest difference and the bins merge exactly, in any order. Percentiles come from bins that split every power
of two into 128: what is reported is never below the true percentile and less than 0.8 % above it. Knows arrays, no ports
and no files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from leapp.runtime.arrays import Array
from leapp.runtime.distance import beyond, gaps

_SHIFT = 45
"""Of the 52 bits after the point of a float64, the bins keep seven."""


class Statistics(msgspec.Struct):
    """The absolute differences of one port.

    Attributes:
        count: How many values were compared.
        equal: How many were equal. NaN equals NaN.
        unlike: How many were finite on one side only. They count as infinitely far, and not for the mean.
        beyond: How many were further away than tolerated.
        total: The sum of all finite differences.
        largest: The largest difference.
        step: The first step with the largest difference.
        index: The first element with it in that step.
        first: The first step with a value beyond the tolerance, if there is one.
        first_index: The first element with the largest difference beyond the tolerance in that step.
        first_largest: That difference.
        bins: How many differences fell into each bin. Those of 0 and of infinity have none.
    """

    count: int = 0
    equal: int = 0
    unlike: int = 0
    beyond: int = 0
    total: float = 0.0
    largest: float = 0.0
    step: int = 0
    index: tuple[int, ...] = ()
    first: int | None = None
    first_index: tuple[int, ...] = ()
    first_largest: float = 0.0
    bins: dict[int, int] = {}

    def add(self, steps: Sequence[int], got: Array, want: Array, rtol: float, atol: float) -> None:
        """Count the values of some steps, stacked along the first axis.

        Args:
            steps: Their numbers, ascending.
            got: The values made.
            want: The values wanted.
            rtol: How much a value may differ, relative to the wanted one.
            atol: How much a value may differ in any case.
        """
        gap = gaps(got, want)
        if not gap.size:
            return
        self.count += gap.size
        self.equal += int((gap == 0).sum())
        self.unlike += int(np.isinf(gap).sum())
        counted = gap[(gap > 0) & np.isfinite(gap)]
        self.total += float(counted.sum())
        bins, times = np.unique(counted.view(np.uint64) >> np.uint64(_SHIFT), return_counts=True)
        for number, found in zip(bins.tolist(), times.tolist(), strict=True):
            self.bins[number] = self.bins.get(number, 0) + found
        place = _place(gap)
        if gap[place] > self.largest:
            self.largest, self.step, self.index = float(gap[place]), steps[place[0]], place[1:]
        wrong = beyond(gap, want, rtol, atol)
        self.beyond += int(wrong.sum())
        if self.first is None and wrong.any():
            row = _place(wrong)[0]
            # Where something is beyond the tolerance every difference is above 0, so nothing else can win.
            self.first_index = _place(np.where(wrong[row], gap[row], 0.0))
            self.first, self.first_largest = steps[row], float(gap[row][self.first_index])

    def merge(self, other: Statistics) -> None:
        """Add the counts and bins of another run. The caller adds ``total`` and places, in the order of runs."""
        for name in ("count", "equal", "unlike", "beyond"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.largest = max(self.largest, other.largest)
        for number, found in other.bins.items():
            self.bins[number] = self.bins.get(number, 0) + found

    def figures(self) -> dict[str, Any]:
        """The figures that every report shows, by their names in it."""
        return {name: getattr(self, name) for name in ("count", "equal", "unlike", "beyond", "largest", "mean")}

    @property
    def mean(self) -> float:
        """The mean of the finite differences; NaN if there is none."""
        return self.total / (self.count - self.unlike) if self.count > self.unlike else math.nan

    def percentile(self, percent: float) -> float:
        """A percentile of the differences: never too small, less than 0.8 % too large; NaN without values.

        Args:
            percent: Which one, with at most one decimal.
        """
        if not self.count:
            return math.nan
        # In whole numbers, because a rounded product may be one too many.
        wanted = -(-self.count * round(percent * 10) // 1000)
        passed = self.equal
        if passed >= wanted:
            return 0.0
        for number in sorted(self.bins):
            passed += self.bins[number]
            if passed >= wanted:
                return min(self.largest, float(np.uint64((number + 1) << _SHIFT).view(np.float64)))
        return math.inf


class Result(msgspec.Struct):
    """What one recording showed.

    Attributes:
        steps: How many steps it has.
        outputs: The differences of each output, by key.
        states: The differences of each state after a step, by key.
    """

    steps: int
    outputs: dict[str, Statistics]
    states: dict[str, Statistics]


def _place(values: Array) -> tuple[int, ...]:
    """Where the largest value is first."""
    return tuple(int(i) for i in np.unravel_index(int(values.argmax()), values.shape))
