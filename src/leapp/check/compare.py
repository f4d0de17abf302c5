"""Two arrays compared: shape, dtype, NaN and infinity, values. Integers and truth values must be equal."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

__all__ = ["Difference", "Figures", "compare"]

Array = np.ndarray[Any, np.dtype[Any]]
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
        largest: The largest difference; NaN where only one side has a value.
        mean: The mean difference.
        count: How many values were compared.
        exact: How many were equal.
        bins: How many of the others fell into each power of ten.
    """

    largest: float = 0.0
    mean: float = 0.0
    count: int = 0
    exact: int = 0
    bins: dict[int, int] = field(default_factory=dict)

    def add(self, got: Array, want: Array) -> None:
        """Count the values of one sample. Both arrays have the same shape."""
        wide = np.complex128 if want.dtype.kind == "c" else np.float64
        a, b = got.astype(wide).reshape(-1), want.astype(wide).reshape(-1)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        with np.errstate(invalid="ignore"):
            gap = np.where(same, 0.0, np.abs(a - b))
        if gap.size:
            self.largest = float(np.fmax(self.largest, gap.max())) if not np.isnan(gap).any() else float("nan")
            self.mean = (self.mean * self.count + float(gap.sum())) / (self.count + gap.size)
        self.count += gap.size
        self.exact += int(same.sum())
        for power in np.floor(np.log10(gap[np.isfinite(gap) & (gap > 0)])).astype(int).tolist():
            self.bins[power] = self.bins.get(power, 0) + 1

    def as_dict(self) -> dict[str, Any]:
        """The figures as plain data."""
        return asdict(self)


def compare(got: Array, want: Array, rtol: float, atol: float) -> Difference | None:
    """``None`` if ``got`` is what was traced, else what is wrong with it.

    NaN and infinity on both sides at the same place are equal.
    """
    if got.shape != want.shape or got.dtype != want.dtype:
        return Difference(
            f"is {got.dtype} {list(got.shape)}, traced was {want.dtype} {list(want.shape)}", _describe(got, want)
        )
    if got.tobytes() == want.tobytes():
        return None
    if got.dtype.kind in "biu":
        return _exact(got, want)
    complex_values = got.dtype.kind == "c"
    wide = np.complex128 if complex_values else np.float64
    a, b = got.astype(wide), want.astype(wide)
    unequal = ~(np.isfinite(a) & np.isfinite(b)) & ~((np.isnan(a) & np.isnan(b)) | (a == b))
    if unequal.any():
        index = tuple(int(i) for i in np.unravel_index(int(np.argmax(unequal)), unequal.shape))
        reason = f"{_share(unequal)} are NaN or infinite on one side only (first at {list(index)})"
        counts = (*_counts("exported", a), *_counts("traced", b))
        return Difference(reason, (*_describe(got, want), *counts), index=index)
    finite = np.isfinite(a) & np.isfinite(b)
    gap = np.where(finite, np.abs(np.where(finite, a, 0) - np.where(finite, b, 0)), 0.0)
    limit = atol + rtol * np.abs(np.where(finite, b, 0))
    if not (gap > limit).any():
        return None
    return _numeric(a, b, gap, gap > limit, got, want)


def _exact(got: Array, want: Array) -> Difference | None:
    wrong = got != want
    if not wrong.any():
        return None
    gap = np.abs(got.astype(np.float64) - want.astype(np.float64))
    # Where the gap is largest, and never where there is none: truth values and huge integers may round to the same float.
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(np.where(wrong, gap + 1, 0))), wrong.shape))
    reason = f"{_share(wrong)} differ, and they must be equal (at {list(index)}: exported {got[index]}, traced {want[index]})"
    return Difference(reason, (*_describe(got, want), *_statistics(gap)), float(gap.max()), index)


def _numeric(a: Array, b: Array, gap: Array, wrong: Array, got: Array, want: Array) -> Difference:
    worst = np.where(wrong, gap, -1.0)
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(worst)), gap.shape))
    largest = float(worst.max())
    reason = (
        f"{_share(wrong)} are out of tolerance, by up to {largest:.6g} "
        f"(at {list(index)}: exported {a[index]:.6g}, traced {b[index]:.6g})"
    )
    return Difference(reason, (*_describe(got, want), *_statistics(gap)), largest, index)


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


def _counts(label: str, values: Array) -> tuple[str, ...]:
    total = max(values.size, 1)
    nan, inf = int(np.isnan(values).sum()), int(np.isinf(values).sum())
    return (f"{label}: {nan} NaN ({100 * nan / total:.1f} %), {inf} infinite ({100 * inf / total:.1f} %)",)
