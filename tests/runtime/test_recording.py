"""Recordings replay exactly, and a replay finds the step that differs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from leapp.errors import InputError
from leapp.runtime import Pipeline
from leapp.runtime.inference_manager import InferenceManager
from tests.runtime.bundles import BACKENDS, Stage, array, loop, memory, write_bundle

FACES = (Pipeline, InferenceManager)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_recording_replays_exactly(tmp_path, face, backend):
    path = loop(tmp_path / "g", backend, backend)
    runner = face(path)
    runner(runner.get_mock_input())
    given, want = [], []
    with runner.record(tmp_path / "run.npz") as step:
        for k in range(6):
            given.append(runner.get_mock_input())
            if k == 3:
                given[-1]["p/mem"] = [7.0, 8.0]
            if k == 4:
                with pytest.raises(KeyError, match="no node 'zz'"):
                    step({**given[-1], "zz/x": [1.0]})
            want.append({k: array(v) for k, v in step(given[-1]).items()})
    for other in (runner, Pipeline(path), InferenceManager(path)):
        replay = other.replay(tmp_path / "run.npz")
        assert (replay.steps, replay.difference) == (6, None)
    file = np.load(tmp_path / "run.npz")
    assert len(file["duration_ns"]) == 6
    assert (file["duration_ns"] > 0).all()


def test_a_replay_finds_the_step_that_differs(tmp_path):
    class Drift(torch.nn.Module):
        def __init__(self, limit: float) -> None:
            super().__init__()
            self.limit = limit

        def forward(self, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.clamp(t, max=self.limit) * 1.0, t + 1.0

    paths = [
        write_bundle(
            tmp_path / str(limit), {"p": Stage(Drift(limit), {"t": torch.zeros(1)}, ["y", "n"], "onnx")}, {}, {"p/n": ("p/t",)}
        )
        for limit in (10.0, 4.0)
    ]
    with Pipeline(paths[0]).record(tmp_path / "run.npz") as step:
        for _ in range(8):
            step({})
    replay = Pipeline(paths[1]).replay(tmp_path / "run.npz")
    assert (replay.steps, replay.difference.step, replay.difference.key) == (6, 5, "p/y")
    assert replay.difference.largest == 1.0
    assert Pipeline(paths[1]).replay(tmp_path / "run.npz", atol=3.0).difference is None


def test_a_recording_of_another_bundle_is_refused(tmp_path):
    with Pipeline(memory(tmp_path / "a", "onnx")).record(tmp_path / "run.npz") as step:
        step({"p/x": np.ones(3, np.float32)})
    with pytest.raises(InputError, match="no recording of this bundle"):
        Pipeline(loop(tmp_path / "b", "onnx", "onnx")).replay(tmp_path / "run.npz")
    with pytest.raises(InputError, match=".npz"):
        Pipeline(tmp_path / "a" / "g.yaml").record(tmp_path / "run.bin")


@pytest.mark.parametrize("face", FACES)
def test_bench_times_steps_and_leaves_the_state(tmp_path, face):
    runner = face(memory(tmp_path, "onnx"))
    runner({"p/x": [1.0, 2.0, 3.0]})
    before = {k: array(v) for k, v in runner.state().items()}
    free, paced = runner.bench(steps=200), runner.bench(steps=20, rate=2000.0)
    assert 0 < free.noise_p50 < free.p50 <= free.p99 <= free.p999 <= free.longest
    assert (free.misses, free.rate) == (None, None)
    assert paced.misses is not None
    assert 0 <= paced.misses <= 20
    for k, v in runner.state().items():
        np.testing.assert_array_equal(array(v), before[k])
