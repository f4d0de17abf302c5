"""How far two arrays are apart, as reports say it: nothing is lost by adding samples, and large integers are not rounded."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from leapp.check.compare import Figures, compare
from leapp.runtime.distance import gaps

SAME = np.array([1.0, 2.0], np.float32)


def figures(*samples: tuple[np.ndarray, np.ndarray]) -> Figures:
    found = Figures()
    for got, want in samples:
        found.add_gaps(gaps(got, want))
    return found


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_value_that_only_one_side_has_is_not_lost_among_the_samples(bad, at):
    samples = [(SAME, SAME + np.float32(0.25)) for _ in range(3)]
    samples[at] = (np.array([1.0, bad], np.float32), SAME)
    found = figures(*samples)
    assert found.largest == math.inf
    assert (found.count, found.equal, found.unlike) == (6, 1, 1)
    assert found.mean == pytest.approx(4 * 0.25 / 5)  # over the differences that are numbers


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_large_integers_one_apart_differ(dtype):
    got, want = np.array([2**60 + 1, 5], dtype), np.array([2**60, 5], dtype)
    found = figures((got, want))
    assert (found.largest, found.equal) == (1.0, 1)
    assert "1 of 2 values" in compare(got, want, 1e-3, 1e-5).reason


def test_equal_nan_and_infinity_are_exact():
    both = np.array([math.nan, math.inf, -math.inf, 1.0])
    assert figures((both, both.copy())).equal == 4
    assert compare(both, both.copy(), 0.0, 0.0) is None


@pytest.mark.parametrize("got", [[math.inf], [math.nan], [-math.inf]])
def test_infinity_tolerates_nothing(got):
    assert compare(np.array(got), np.array([1e300]), 1e-3, 1e-5) is not None
    assert compare(np.array([1e300]), np.array(got), 1e-3, 1e-5) is not None


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3fn", "complex64"])
def test_narrow_and_complex_values_are_described(name):
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    got, want = np.array([1.0, 2.0]).astype(dtype), np.array([1.0, 1.0]).astype(dtype)
    difference = compare(got, want, 1e-3, 1e-5)
    assert difference.index == (1,)
    assert "by up to 1 (at [1]: exported 2" in difference.reason
    got[0] = math.nan
    assert "1 of 2 values (50.0 %) are NaN" in compare(got, want, 1e-3, 1e-5).reason
