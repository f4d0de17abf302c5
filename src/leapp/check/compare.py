"""Two arrays compared: shape, dtype, NaN and infinity, values. Integers and truth values must be equal."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from leapp.runtime.arrays import Array
from leapp.runtime.distance import beyond, gaps

_PERCENTILES = {"p50": 50.0, "p75": 75.0, "p90": 90.0, "p99": 99.0, "p995": 99.5}


@dataclass(frozen=True, slots=True)
class Difference:
    """How an exported value departs from the traced one. ``details`` are lines for the log."""

    reason: str
    details: tuple[str, ...] = ()
    largest: float = field(default=float("nan"))
    index: tuple[int, ...] = ()


@dataclass(slots=True)
class Figures:
    """The absolute differences of one output over all samples.

    Attributes:
        largest: The largest difference; infinite where a value is NaN or infinite on one side only.
        mean: The mean of the finite differences.
        count: How many values were compared.
        exact: How many were equal. NaN equals NaN.
        unlike: How many are infinitely far apart.
        bins: How many of the finite differences above 0 fell into each power of ten.
    """

    largest: float = 0.0
    mean: float = 0.0
    count: int = 0
    exact: int = 0
    unlike: int = 0
    bins: dict[int, int] = field(default_factory=dict)

    def add(self, gap: Array) -> None:
        """Count the values of one sample, given how far each is from the wanted one."""
        numbers = self.count - self.unlike
        if not gap.any():
            self.mean = self.mean * numbers / max(numbers + gap.size, 1)
            self.count += gap.size
            self.exact += gap.size
            return
        finite = gap[np.isfinite(gap)]
        if finite.size:
            self.mean = (self.mean * numbers + float(finite.sum())) / (numbers + finite.size)
        self.largest = max(self.largest, float(gap.max(initial=0.0)))
        self.count += gap.size
        self.unlike += gap.size - finite.size
        self.exact += int((gap == 0).sum())
        for power in np.floor(np.log10(finite[finite > 0])).astype(int).tolist():
            self.bins[power] = self.bins.get(power, 0) + 1

    def as_dict(self) -> dict[str, Any]:
        """The figures as plain data."""
        return asdict(self)


def compare(got: Array, want: Array, rtol: float, atol: float, gap: Array | None = None) -> Difference | None:
    """``None`` if ``got`` is what was traced, else what is wrong with it.

    NaN and infinity on both sides at the same place are equal. ``gap`` is what ``gaps`` says of the two, if it is known.
    """
    if got.shape != want.shape or got.dtype != want.dtype:
        return Difference(
            f"is {got.dtype} {list(got.shape)}, traced was {want.dtype} {list(want.shape)}", _describe(got, want)
        )
    gap = gaps(got, want) if gap is None else gap
    if not gap.any():
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
    """What is NaN or infinite in a value that is right otherwise; ``None`` if nothing is. Both have the same shape."""
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
