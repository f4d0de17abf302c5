"""What is said of a model that gives other values: everything at once, in one place, and in full in the log."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import leapp
from leapp import annotate
from leapp.errors import TraceError, ValidationError

FIGURES = ("max", "mean", "p50", "p75", "p90", "p99", "p995")


class Wrong(nn.Module):
    """A model that the user brings and that is not the one of the code."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2.0 + 0.25, x + 1.0


class Crashing(nn.Module):
    """A model that does not run."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.abs().sum() >= 0.0):
            raise RuntimeError("no gripper")
        return x


def trace(tmp_path: Path) -> None:
    """Three nodes: one is right, one gives other values, one cannot be run."""
    torch.jit.trace(Wrong(), torch.zeros(4)).save(str(tmp_path / "wrong.pt"))  # type: ignore[no-untyped-call]
    torch.jit.script(Crashing()).save(str(tmp_path / "crashing.pt"))
    leapp.start("g", save_path=tmp_path)
    for scale in (1.0, 3.0):
        x = annotate.input_tensors("right", {"x": torch.linspace(-1.0, 1.0, 4) * scale})
        annotate.output_tensors("right", {"y": x + 0.0}, export_with="onnx")
        x = annotate.input_tensors("wrong", {"x": torch.linspace(-1.0, 1.0, 4) * scale})
        own = {"model_path": tmp_path / "wrong.pt"}
        annotate.output_tensors("wrong", {"y": x * 2.0, "z": x + 1.0}, export_with=None, backend_params=own)
        x = annotate.input_tensors("crashing", {"x": torch.linspace(-1.0, 1.0, 4) * scale})
        own = {"model_path": tmp_path / "crashing.pt"}
        annotate.output_tensors("crashing", {"y": x * 1.0 + 0.0}, export_with=None, backend_params=own)
    leapp.stop()


def test_everything_is_in_the_error_and_said_once(tmp_path: Path, capsys: Any) -> None:
    """Node, output, sample, tolerances, forms, ranges, figures and the log; how many nodes passed, failed and errored."""
    trace(tmp_path)
    with pytest.raises(ValidationError) as caught:
        leapp.compile_graph(visualize=False, rtol=2e-3, atol=3e-5)
    message, console = str(caught.value), capsys.readouterr().err
    assert re.search(r"validation failed for wrong, crashing: .*1 passed, 1 failed, 1 errored of 3 node\(s\)", message)
    (line,) = re.findall(r"wrong/y, sample 0: .*\n.*", message)
    for words in (
        "4 of 4 values (100.0 %)", "rtol 0.002", "atol 3e-05", "traced: float32 [4], range -2 to 2",
        "exported: float32 [4], range -1.75 to 2.25", *(f"{name} 0.25" for name in FIGURES),
    ):  # fmt: skip
        assert words in line
    assert "wrong/z" not in message and "no gripper" in message
    assert f"Details are in {tmp_path / 'g' / 'log.txt'}" in message
    for words in ("wrong/y", "no gripper", "computes something else", "validation failed"):
        assert words not in console, "the exception says it"


def test_the_log_has_all_samples_in_full(tmp_path: Path) -> None:
    trace(tmp_path)
    with pytest.raises(ValidationError):
        leapp.compile_graph(visualize=False)
    log = (tmp_path / "g" / "log.txt").read_text()
    for sample, low in ((0, "-2"), (1, "-6")):
        assert re.search(rf"wrong/y, sample {sample}: 4 of 4", log) and f"traced: float32 [4], range {low} to" in log
    assert all(log.count(f"{name} 0.25") >= 2 for name in FIGURES)
    assert "1 passed, 1 failed, 1 errored of 3 node(s): wrong, crashing" in log and "Traceback of TorchScript" in log


def test_without_strict_the_console_says_it(tmp_path: Path, capsys: Any) -> None:
    """There is no exception then. Each thing is said once here too."""
    trace(tmp_path)
    results = leapp.compile_graph(visualize=False, strict=False)
    assert isinstance(results, dict)
    assert results["right"] is True and results["wrong"] is False and isinstance(results["crashing"], ValidationError)
    console = capsys.readouterr().err
    assert "1 passed, 1 failed, 1 errored of 3 node(s): wrong, crashing" in console
    assert console.count("wrong/y, sample 0") == console.count("no gripper") == console.count("computes something else") == 1


def test_a_refused_export_lists_its_escapes_once(tmp_path: Path, capsys: Any) -> None:
    """What is proven stands in the error, first the line where the passes part; the rest is a warning."""
    bound = torch.tensor(3.0)
    leapp.start("g", save_path=tmp_path)
    for _ in range(2):
        x = annotate.input_tensors("n", {"x": torch.rand(3)})
        y = x * float(bound) + float(x.sum())  # FROZEN
        y = y + 1.0 if bool(x.max() < 5.0) else y  # SAME
        annotate.output_tensors("n", {"y": y}, export_with="onnx")
    leapp.stop()
    with pytest.raises(TraceError) as caught:
        leapp.compile_graph(visualize=False)
    console = capsys.readouterr().err
    lines = str(caught.value).splitlines()
    assert "# FROZEN" in lines[1] and "# SAME" not in str(caught.value)
    assert console.count("# SAME") == 1 and "# FROZEN" not in console
