"""Compares two arrays: shape, dtype, NaN and infinity, values. Integers and truth values must be equal."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from leapp.runtime.arrays import Array
from leapp.runtime.distance import beyond, gaps

_PERCENTILES = {"p50": 50.0, "p75": 75.0, "p90": 90.0, "p99": 99.0, "p995": 99.5}


@dataclass(frozen=True, slots=True)
class Difference:
    """How an exported value differs from the traced one. ``details`` are lines for the log."""

    reason: str
    details: tuple[str, ...] = ()
    largest: float = field(default=float("nan"))
    index: tuple[int, ...] = ()


class Figures(msgspec.Struct):
    """The absolute differences of one port.

    Attributes:
        count: How many values were compared.
        equal: How many were equal. NaN equals NaN.
        unlike: How many were finite on one side only. Their difference counts as infinite, and is left out of the mean.
        total: The sum of all finite differences.
        largest: The largest difference.
        bins: How many differences fell into each bin, see ``bin_numbers``. Differences of 0 and infinity are in no bin.
    """

    count: int = 0
    equal: int = 0
    unlike: int = 0
    total: float = 0.0
    largest: float = 0.0
    bins: dict[int, int] = {}

    def add_gaps(self, gap: Array) -> None:
        """Count values, given how far each is from the wanted one."""
        apart = gap[gap > 0]
        self.count += gap.size
        self.equal += gap.size - apart.size
        if not apart.size:
            return
        finite = apart[np.isfinite(apart)]
        self.unlike += apart.size - finite.size
        self.total += float(finite.sum())
        self.largest = max(self.largest, float(apart.max()))
        if not finite.size:
            return
        numbers = self.bin_numbers(finite)
        lowest = int(numbers.min())
        for number, found in enumerate(np.bincount(numbers - lowest).tolist(), lowest):
            if found:
                self.bins[number] = self.bins.get(number, 0) + found

    @staticmethod
    def bin_numbers(gap: Array) -> Array:
        """The bin of each difference: its power of ten."""
        return np.floor(np.log10(gap)).astype(int)

    @property
    def mean(self) -> float:
        """The mean of the finite differences; NaN if there is none."""
        return self.total / (self.count - self.unlike) if self.count > self.unlike else math.nan

    def as_dict(self) -> dict[str, Any]:
        """The figures as plain data."""
        mean = self.mean if self.count > self.unlike else 0.0
        counts = {"count": self.count, "exact": self.equal, "unlike": self.unlike}
        return {"largest": self.largest, "mean": mean, **counts, "bins": self.bins}


def compare(got: Array, want: Array, rtol: float, atol: float, gap: Array | None = None) -> Difference | None:
    """The difference between a value and the traced one, or ``None`` if they agree within the tolerance.

    NaN and infinity are equal if both arrays have them at the same position. ``gap`` is the result of ``gaps``, if it is known.
    """
    if got.shape != want.shape or got.dtype != want.dtype:
        return Difference(
            f"is {got.dtype} {list(got.shape)}, traced was {want.dtype} {list(want.shape)}", _describe(got, want)
        )
    gap = gaps(got, want) if gap is None else gap
    if gap.max(initial=0.0) <= (0.0 if want.dtype.kind in "biu" else atol):
        return None
    wrong = beyond(gap, want, rtol, atol)
    if not wrong.any():
        return None
    if got.dtype.kind in "biu":
        index = _first_largest(gap)
        place = f"at {list(index)}: exported {got[index]}, traced {want[index]}"
        reason = f"{_share(wrong)} differ, and they must be equal ({place})"
        return Difference(reason, (*_describe(got, want), *_statistics(gap)), float(gap.max()), index)
    unlike = np.isinf(gap)
    if unlike.any():
        return _nonfinite(unlike, "on one side only", got, want)
    return _numeric(gap, wrong, got, want)


def nonfinite(got: Array, want: Array) -> Difference | None:
    """The NaN and infinity in a value that agrees with the traced one; ``None`` if it has none. Both have the same shape."""
    if want.dtype.kind in "biu":
        return None
    bad = ~np.isfinite(got if got.dtype.kind in "fc" else got.astype(np.float64))
    return _nonfinite(bad, "on both sides", got, want) if bad.any() else None


def _nonfinite(bad: Array, sides: str, got: Array, want: Array) -> Difference:
    index = _first_largest(bad)
    counts = (_counts("exported", got), _counts("traced", want))
    reason = f"{_share(bad)} are NaN or infinite {sides} (first at {list(index)}); {'; '.join(counts)}"
    return Difference(reason, _describe(got, want), index=index)


def _numeric(gap: Array, wrong: Array, got: Array, want: Array) -> Difference:
    index = _first_largest(np.where(wrong, gap, -1.0))
    largest = float(gap[index])
    reason = (
        f"{_share(wrong)} are out of tolerance, by up to {largest:.6g} "
        f"(at {list(index)}: exported {got[index].item():.6g}, traced {want[index].item():.6g})"
    )
    return Difference(reason, (*_describe(got, want), *_statistics(gap)), largest, index)


def _first_largest(values: Array) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(values)), values.shape))


def _share(wrong: Array) -> str:
    count = int(wrong.sum())
    return f"{count} of {wrong.size} values ({100 * count / wrong.size:.1f} %)"


def _describe(got: Array, want: Array) -> tuple[str, ...]:
    lines = []
    for label, array in (("traced", want), ("exported", got)):
        line = f"{label}: {array.dtype} {list(array.shape)}"
        if array.size and array.dtype.kind != "c":
            wide = array.astype(np.float64)
            line += f", range {np.nanmin(wide):.6g} to {np.nanmax(wide):.6g}" if not np.isnan(wide).all() else ", all NaN"
        lines.append(line)
    return tuple(lines)


def _statistics(gap: Array) -> tuple[str, ...]:
    parts = [f"max {gap.max():.6g}", f"mean {gap.mean():.6g}"]
    parts += [f"{name} {np.percentile(gap, q):.6g}" for name, q in _PERCENTILES.items()]
    return (f"absolute difference: {', '.join(parts)}",)


def _counts(label: str, values: Array) -> str:
    total = max(values.size, 1)
    wide = values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)
    nan, inf = int(np.isnan(wide).sum()), int(np.isinf(wide).sum())
    return f"{label}: {nan} NaN ({100 * nan / total:.1f} %), {inf} infinite ({100 * inf / total:.1f} %)"
