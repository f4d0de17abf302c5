"""Exceptions that depend on values, and that the code of a node handles: they decide what runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import leapp
from leapp import InferenceManager
from leapp import annotate as A

Array = np.ndarray[Any, Any]


def inverse(x: Array) -> Array:
    """Singular if the first number is 0."""
    matrix = np.diag(np.array([x[0], 1.0, 1.0])) + 0 * np.outer(x, x)
    try:
        return np.linalg.inv(matrix) @ x  # RAISES
    except np.linalg.LinAlgError:
        return x * 5


def factor(x: Any) -> Any:
    """Not positive definite if the first number is 0."""
    t = torch.from_numpy(x)
    try:
        return torch.linalg.cholesky(torch.diag(t * t)).diagonal()  # RAISES
    except RuntimeError:
        return t * 5


def angle(x: Array) -> Array:
    """Not defined if the first number is 0."""
    try:
        return x * math.log(abs(x[0]))  # RAISES
    except (TypeError, ValueError):
        return x * 5


def refuses(x: Array) -> Array:
    """The program does not go on, so nothing is decided."""
    try:
        return np.linalg.inv(np.diag(x)) @ x * math.pi
    except np.linalg.LinAlgError as error:
        raise ValueError("singular") from error


def cannot_raise(x: Array) -> Array:
    """No call in the statement raises because of values, though the function uses ``math`` elsewhere."""
    try:
        y = x * 2
    except ValueError:
        y = x
    return y * math.cos(0.0)


def trace(compute: Callable[[Any], Any], drawn: list[Array], where: Path) -> InferenceManager:
    leapp.start("g", save_path=where)
    for given in drawn:
        x = A.input_tensors("n", {"x": given.copy()})
        A.output_tensors("n", {"y": compute(x)}, export_with="jit")
    leapp.stop()
    assert leapp.compile_graph(visualize=False) == {"n": True}
    return InferenceManager(where / "g")


USUAL = [np.array([1.0, 2.0, 3.0]), np.array([0.5, -1.0, 4.0])]
NEW = np.array([2.0, 0.25, -3.0])
SPECIAL = [np.array([0.0, 2.0, 3.0]), np.array([0.0, -1.0, 4.0])]


@pytest.mark.parametrize("compute", [inverse, factor, angle])
def test_a_call_that_may_raise_is_reported(compute: Callable[[Any], Any], tmp_path: Path) -> None:
    model = trace(compute, USUAL, tmp_path)
    (found,) = leapp.report().escapes
    assert "raises decides what runs" in found.kind and "# RAISES" in found.source, found
    assert np.allclose(model({"n/x": NEW})["n/y"], compute(NEW))
    special = SPECIAL[0]
    try:
        assert not np.allclose(model({"n/x": special})["n/y"], compute(special))
    except leapp.errors.BundleError:  # torch raises in the model too
        assert compute is not angle


@pytest.mark.parametrize("compute", [inverse, factor, angle])
def test_a_call_that_raised_is_reported(compute: Callable[[Any], Any], tmp_path: Path) -> None:
    model = trace(compute, SPECIAL, tmp_path)
    (found,) = leapp.report().escapes
    assert "raises" in found.kind and "# RAISES" in found.source, found
    assert not np.allclose(model({"n/x": NEW})["n/y"], compute(NEW))


@pytest.mark.parametrize("compute", [refuses, cannot_raise])
def test_a_program_that_does_not_go_on_is_not_reported(compute: Callable[[Any], Any], tmp_path: Path) -> None:
    model = trace(compute, USUAL, tmp_path)
    assert leapp.report().escapes == []
    assert np.allclose(model({"n/x": NEW})["n/y"], compute(NEW))
