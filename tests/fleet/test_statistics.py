"""The figures of a fleet are those of all its values, however they are split."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from leapp.fleet.statistics import Statistics


def figures(got: np.ndarray, want: np.ndarray, rtol: float = 0.0, atol: float = 0.0) -> Statistics:
    found = Statistics()
    found.add(range(len(got)), got, want, rtol, atol)
    return found


@pytest.mark.parametrize("seed", range(5))
def test_percentiles_are_never_low_and_within_the_stated_width(seed):
    generator = np.random.default_rng(seed)
    gap = np.where(generator.random(5000) < 0.3, 0.0, 10 ** generator.uniform(-12, 6, 5000))
    found = figures(gap[:, None], np.zeros((5000, 1)))
    for percent in (0.1, 10, 29, 31, 50, 90, 99, 99.9, 100):
        exact = np.sort(gap)[math.ceil(5000 * Fraction(str(percent)) / 100) - 1]
        assert exact <= found.percentile(percent) <= exact * 1.008
    assert found.percentile(100) == found.largest == gap.max()
    assert math.isclose(found.mean, gap.mean(), rel_tol=1e-12)
    assert (found.count, found.equal) == (5000, int((gap == 0).sum()))


def test_parts_merge_to_the_whole_in_any_order():
    generator = np.random.default_rng(3)
    got, want = generator.standard_normal((60, 4)), generator.standard_normal((60, 4))
    whole, parts = figures(got, want, 0.1), [figures(got[i : i + 7], want[i : i + 7], 0.1) for i in range(0, 60, 7)]
    for order in (parts, parts[::-1], sorted(parts, key=lambda part: part.largest)):
        merged = Statistics()
        for part in order:
            merged.merge(part)
        for name in ("count", "equal", "unlike", "beyond", "largest", "bins"):
            assert getattr(merged, name) == getattr(whole, name)


def test_the_place_is_the_first_of_the_largest_and_the_first_beyond_the_tolerance():
    want = np.zeros((6, 2, 3))
    got = want.copy()
    got[2, 1, 0], got[2, 0, 2], got[4, 0, 1], got[5, 1, 2] = 0.2, 0.1, -0.9, 0.9
    found = Statistics()
    found.add(range(10, 16), got, want, 0.0, 0.15)
    assert (found.largest, found.step, found.index) == (0.9, 14, (0, 1))
    assert (found.first, found.first_index, found.first_largest, found.beyond) == (12, (1, 0), 0.2, 3)
    found.add(range(16, 22), got, want, 0.0, 0.15)
    assert (found.step, found.first, found.beyond) == (14, 12, 6)


def test_values_that_are_no_numbers():
    nan, inf = float("nan"), float("inf")
    got, want = np.array([[nan, inf, -inf, 1.0, nan, inf]]), np.array([[nan, inf, inf, nan, 2.0, 3.0]])
    found = figures(got, want, rtol=1e9, atol=1e9)
    assert (found.count, found.equal, found.unlike, found.beyond) == (6, 2, 4, 4)
    assert (found.largest, found.index, found.mean) == (inf, (2,), 0.0)
    assert (found.percentile(30), found.percentile(50)) == (0.0, inf)


def test_integers_must_be_equal_however_large():
    want = np.array([[2**62, 5, 0]])
    found = figures(want + [1, 0, 0], want, rtol=0.5, atol=100.0)
    assert (found.beyond, found.equal, found.index, found.largest) == (1, 2, (0,), 1.0)
    flags = figures(np.array([[True, False]]), np.array([[True, True]]), atol=5.0)
    assert (flags.beyond, flags.index) == (1, (1,))


def test_scalars_empty_values_and_complex_numbers():
    found = figures(np.array([1.0, 2.0, 3.5]), np.array([1.0, 2.0, 3.0]))
    assert (found.step, found.index, found.first, found.first_index) == (2, (), 2, ())
    assert figures(np.zeros((4, 0)), np.zeros((4, 0))) == Statistics()
    assert math.isnan(Statistics().percentile(50))
    assert figures(np.array([[3 + 4j]], np.complex64), np.zeros((1, 1), np.complex64)).largest == 5.0
