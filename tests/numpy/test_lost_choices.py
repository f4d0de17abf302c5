"""Elements of plain arrays that a traced index or mask chooses: NumPy reads it unseen, and both passes choose the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.interpolate import interp1d

import leapp
from leapp import annotate as A
from leapp.errors import TraceError
from leapp.runtime import Pipeline

Array = Any
GAINS = np.array([1.0, 2.0, 3.0])
ORDER = [2, 0, 1]
previous = interp1d([-9.0, 0.0, 9.0], GAINS, kind="previous")


def chooses(x: Array) -> Array:
    index = (x > 5).astype(int)
    return x * GAINS[index]  # ENTERS


def masks(x: Array) -> Array:
    low = x < 5
    return x * np.append(GAINS[low], GAINS)[:3]  # ENTERS


def interpolates(x: Array) -> Array:
    return x * previous(x - 5)  # ENTERS


def takes(x: Array) -> Array:
    index = (x > 5).astype(int)
    return x * np.take(GAINS, index) * np.where(x > 5, GAINS * 0.5, GAINS)


def leaves_results_unused(x: Array) -> Array:
    first, _, _ = x
    np.sin(x)
    return x * (GAINS[ORDER] * 0.5) + first


def trace(compute: Callable[[Any], Any], where: Path) -> None:
    with leapp.session("g", save_path=where):
        for number in range(2):
            x = A.input_tensors("n", {"x": np.arange(3.0) + number})
            A.output_tensors("n", {"y": compute(x)}, export_with="jit")


def departs(compute: Callable[[Any], Any], where: Path) -> bool:
    """Whether the model gives something else than the program on a new input."""
    x = np.array([8.0, 4.0, -1.0])
    return not np.allclose(Pipeline(where / "g", allow_code=True)({"n/x": x})["n/y"], compute(x))


@pytest.mark.parametrize("compute", [chooses, masks, interpolates])
def test_a_choice_that_is_not_followed_is_reported(compute: Callable[[Any], Any], tmp_path: Path) -> None:
    trace(compute, tmp_path)
    (found,) = leapp.report().escapes
    assert "may have chosen" in found.kind and "# ENTERS" in found.source and "np.take" in found.cure, found
    assert departs(compute, tmp_path)


@pytest.mark.parametrize("compute", [takes, leaves_results_unused])
def test_a_choice_that_is_followed_is_not_reported(compute: Callable[[Any], Any], tmp_path: Path) -> None:
    trace(compute, tmp_path)
    assert leapp.report().escapes == []
    assert not departs(compute, tmp_path)


def test_passes_that_choose_differently_name_the_value_that_chose(tmp_path: Path) -> None:
    def chooses_often(x: Array) -> Array:
        index = (x > 1).astype(int)  # LEAVES
        return x * GAINS[index]

    leaves = chooses_often.__code__.co_firstlineno + 1
    with pytest.raises(TraceError, match=rf"the value made at .*test_lost_choices.py:{leaves} left the graph(.|\n)*np\.take"):
        trace(chooses_often, tmp_path)
