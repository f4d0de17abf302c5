"""Statistics of the differences between the values of one port and the expected ones. They can be merged.

Counts, the largest difference and the bins merge exactly, in any order. Percentiles come from bins that split every power of
two into 128, so a reported percentile is never below the true one and less than 0.8 % above it. Knows arrays, no ports and no
files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from leapp.check.compare import Figures
from leapp.runtime.arrays import Array
from leapp.runtime.distance import beyond, gaps

_SHIFT = 45
"""How many of the 52 fraction bits of a float64 the bins leave out: they keep seven."""


class Statistics(Figures):
    """The absolute differences of one port, and where they are.

    Attributes:
        beyond: How many differed by more than the tolerance.
        step: The first step with the largest difference.
        index: The first element with the largest difference in that step.
        first: The first step with a value beyond the tolerance, if there is one.
        first_index: The first element with the largest difference beyond the tolerance in that step.
        first_largest: The difference of that element.
    """

    beyond: int = 0
    step: int = 0
    index: tuple[int, ...] = ()
    first: int | None = None
    first_index: tuple[int, ...] = ()
    first_largest: float = 0.0

    @staticmethod
    def bin_numbers(gap: Array) -> Array:
        """The bin of each difference: the upper bits of its float64."""
        numbers: Array = gap.view(np.uint64) >> np.uint64(_SHIFT)
        return numbers

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
        place = _place(gap)
        if gap[place] > self.largest:
            self.step, self.index = steps[place[0]], place[1:]
        self.add_gaps(gap)
        wrong = beyond(gap, want, rtol, atol)
        self.beyond += int(wrong.sum())
        if self.first is None and wrong.any():
            row = _place(wrong)[0]
            # A difference beyond the tolerance is above 0, so the largest is never one of the zeros put in here.
            self.first_index = _place(np.where(wrong[row], gap[row], 0.0))
            self.first, self.first_largest = steps[row], float(gap[row][self.first_index])

    def merge(self, other: Statistics) -> None:
        """Add the counts and bins of another run. The caller adds ``total`` and the positions, in the order of runs."""
        for name in ("count", "equal", "unlike", "beyond"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.largest = max(self.largest, other.largest)
        for number, found in other.bins.items():
            self.bins[number] = self.bins.get(number, 0) + found

    def figures(self) -> dict[str, Any]:
        """The figures that every report shows, by their names in it."""
        return {name: getattr(self, name) for name in ("count", "equal", "unlike", "beyond", "largest", "mean")}

    def percentile(self, percent: float) -> float:
        """A percentile of the differences: never too small, less than 0.8 % too large; NaN without values.

        Args:
            percent: The percentile, with at most one decimal.
        """
        if not self.count:
            return math.nan
        # Computed in integers, because a rounded float product may be one too large.
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
    """The first index of the largest value."""
    return tuple(int(i) for i in np.unravel_index(int(values.argmax()), values.shape))
