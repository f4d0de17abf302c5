"""NaN and infinity in outputs: they fail the node with counts of both sides, unless they are meant and both sides have them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import leapp
from leapp import InferenceManager, annotate
from leapp.check.compare import compare, nonfinite
from leapp.errors import LeappError, ValidationError

BACKENDS = ["onnx", "onnx-torchscript", "jit", "pt2"]
LAST = torch.tensor([0.5, 1.0, -2.0, -1.0])


def export(tmp_path: Path, backend: str, code: Callable[[Tensor], Tensor], **kwargs: Any) -> Any:
    """Trace two passes; only the inputs of the second have negative elements."""
    leapp.start("g", save_path=tmp_path)
    for x in (LAST.abs(), LAST.clone()):
        x = annotate.input_tensors("n", {"x": x})
        annotate.output_tensors("n", {"fine": x + 1.0, "y": code(x)}, export_with=backend)
    leapp.stop()
    return leapp.compile_graph(visualize=False, **kwargs)


def log(x: Tensor) -> Tensor:
    shifted = x + 0.0
    return torch.log(shifted)  # the line that makes them


def beyond(x: Tensor) -> Tensor:
    return torch.exp(-1000.0 * x.clamp(max=0.0))


CASES: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "nan": (log, r"2 NaN \(50\.0 %\), 0 infinite \(0\.0 %\)"),
    "inf": (beyond, r"0 NaN \(0\.0 %\), 2 infinite \(50\.0 %\)"),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_they_fail_the_node_with_counts_and_the_line(case: str, backend: str, tmp_path: Path) -> None:
    """Node, output, sample, counts and percentages of both sides, and the line that makes the first."""
    code, counts = CASES[case]
    where = r"test_nonfinite\.py:\d+: return torch\.(log|exp)"
    words = rf"n/y, sample 1: .*exported: {counts}; traced: {counts}\n.*\n.*{where}"
    with pytest.raises(ValidationError, match=words) as caught:
        export(tmp_path, backend, code)
    assert "n/fine" not in str(caught.value) and "allow_nonfinite=True" in str(caught.value)
    assert export(tmp_path, backend, code, strict=False) == {"n": False}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_they_are_accepted_and_reported_if_they_are_meant(case: str, backend: str, tmp_path: Path, capsys: Any) -> None:
    code, counts = CASES[case]
    assert export(tmp_path, backend, code, allow_nonfinite=True) == {"n": True}
    told = capsys.readouterr().err
    assert "n/y, sample 1" in told and counts.replace("\\", "") in told and "Accepted" in told
    x = torch.tensor([3.0, -4.0, 0.25, -7.0])
    torch.testing.assert_close(InferenceManager(tmp_path / "g")({"n/x": x})["n/y"], code(x), equal_nan=True)


def test_values_beside_them_are_still_compared(tmp_path: Path) -> None:
    """A frozen number is found, whatever is accepted."""
    factor = [1.0]

    def code(x: Tensor) -> Tensor:
        factor[0] += 1.0
        return torch.log(x) * factor[0]

    with pytest.raises(LeappError):
        export(tmp_path, "onnx", code, allow_nonfinite=True)


def test_infinite_inputs_are_named(tmp_path: Path) -> None:
    leapp.start("g", save_path=tmp_path)
    x = annotate.input_tensors("n", {"x": torch.tensor([1.0, float("inf")])})
    annotate.output_tensors("n", {"y": x * 2.0}, export_with="onnx")
    leapp.stop()
    with pytest.raises(ValidationError, match=r"input 'x' holds NaN or infinity in sample 0"):
        leapp.compile_graph(visualize=False)


def test_masks_of_minus_infinity_inside_a_node_are_fine(tmp_path: Path) -> None:
    """It is about outputs."""

    def code(x: Tensor) -> Tensor:
        return torch.softmax(x.masked_fill(x < 0.0, float("-inf")), 0)

    assert export(tmp_path, "onnx", code) == {"n": True}


def test_only_one_side() -> None:
    """Counts are given for both sides, whoever has them."""
    a, b = np.array([np.nan, np.inf, 1.0, 2.0], np.float32), np.array([1.0, np.inf, 1.0, 2.0], np.float32)
    found = compare(a, b, 1e-3, 1e-5)
    assert found is not None
    counts = "exported: 1 NaN (25.0 %), 1 infinite (25.0 %); traced: 0 NaN (0.0 %), 1 infinite (25.0 %)"
    assert "on one side only" in found.reason and counts in found.reason
    assert compare(b, b.copy(), 1e-3, 1e-5) is None and nonfinite(b, b.copy()) is not None
    assert nonfinite(np.zeros(3), np.zeros(3)) is None and nonfinite(np.arange(3), np.arange(3)) is None
