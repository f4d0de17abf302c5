"""The differences between the values of two arrays. Every comparison of arrays in leapp uses these two functions."""

from __future__ import annotations

import numpy as np

from leapp.runtime.arrays import Array


def gaps(got: Array, want: Array) -> Array:
    """How far each value is from the wanted one.

    NaN equals NaN. Where only one side is a finite number the distance is infinite, and integers that differ are never 0
    apart, however large they are.
    """
    if got.dtype == want.dtype and got.tobytes() == want.tobytes():
        return np.zeros(want.shape)
    if want.dtype.kind in "biu":
        apart = np.abs(got.astype(np.float64) - want.astype(np.float64))
        return np.where(got == want, 0.0, np.maximum(apart, 1.0))
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    a, b = got.astype(wide), want.astype(wide)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(a - b)
    if np.isfinite(apart).all():
        return apart
    apart = np.where((got == want) | (np.isnan(a) & np.isnan(b)), 0.0, apart)
    return np.where(np.isnan(apart), np.inf, apart)


def beyond(gap: Array, want: Array, rtol: float, atol: float) -> Array:
    """Which values are further from the wanted ones than tolerated. Integers and truth values must be equal."""
    if want.dtype.kind in "biu":
        return gap > 0
    size = np.abs(want.astype(np.complex128 if want.dtype.kind == "c" else np.float64))
    # For a wanted infinity only atol counts: relative to it, every difference would be tolerated.
    limit = atol + rtol * np.where(np.isfinite(size), size, 0.0)
    return ~(gap <= limit)
