"""A recorded run on the page: with ``--verify`` every port has values, also those between nodes, which no recording holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import leapp
from leapp import annotate
from leapp.bundle import open_bundle
from leapp.cli import main
from leapp.cli.bundle_page import recorded_values
from leapp.runtime import Pipeline


def step(x: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = annotate.input_tensors("filter", {"x": x})
    h = annotate.state_tensors("filter", {"h": h})
    h = annotate.update_state("filter", {"h": 0.5 * h + x})
    smooth = annotate.output_tensors("filter", {"smooth": 2.0 * h}, export_with="onnx")
    taken = annotate.input_tensors("policy", {"smooth": smooth})
    annotate.output_tensors("policy", {"action": torch.tanh(taken)}, export_with="onnx")
    return h, smooth


def test_values_between_nodes_are_those_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    h = torch.zeros(3)
    with leapp.session("g", save_path=tmp_path, compile={"visualize": False}):
        for _ in range(2):
            h, _ = step(torch.randn(3), h)
    bundle, run = tmp_path / "g", tmp_path / "run.npz"
    pipeline, inputs = Pipeline(bundle), np.random.default_rng(5).normal(size=(7, 3)).astype(np.float32)
    with pipeline.record(str(run)) as recorded:
        for x in inputs:
            recorded({"filter/x": x})
    h, wanted = torch.zeros(3), []
    for x in inputs:
        h, smooth = step(torch.from_numpy(x), h)
        wanted.append(smooth.numpy())
    plain, full = (recorded_values(open_bundle(bundle), str(run), replayed=replayed) for replayed in (False, True))
    assert ("out", "filter/smooth") not in plain
    for place in (("out", "filter/smooth"), ("in", "policy/smooth")):
        np.testing.assert_allclose(full[place], wanted, rtol=1e-5)
    assert all(np.array_equal(full[place], values) for place, values in plain.items())
    capsys.readouterr()
    page = ["view", str(bundle), "--recording", str(run), "--verify", "--no-open", "--output", str(tmp_path / "page")]
    assert main(page) == 0
    assert (tmp_path / "page" / "g.html").exists()
