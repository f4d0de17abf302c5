"""Recordings replay exactly, and a replay finds the step that differs."""

from __future__ import annotations

import json
import random
import re
import sys
import time

import numpy as np
import pytest
import torch

from leapp.errors import InputError, LeappError, MissingDependencyError
from leapp.runtime import Pipeline
from leapp.runtime.bench import measure
from leapp.runtime.inference_manager import InferenceManager
from leapp.runtime.torch_engines import array_over
from tests.runtime.bundles import BACKENDS, Stage, array, held, loop, memory, write_bundle

APIS = (Pipeline, InferenceManager)


SUFFIXES = ("npz", "mcap")


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_recording_replays_exactly(tmp_path, api, backend, suffix):
    recording = tmp_path / f"run.{suffix}"
    path = loop(tmp_path / "g", backend, backend)
    runner = api(path)
    runner(runner.get_mock_input())
    given, want = [], []
    with runner.record(recording) as step:
        for k in range(6):
            given.append(runner.get_mock_input())
            if k == 3:
                given[-1]["p/mem"] = [7.0, 8.0]
            if k == 4:
                with pytest.raises(KeyError, match="no node 'zz'"):
                    step({**given[-1], "zz/x": [1.0]})
            if k == 5:
                runner.reset()
            want.append({k: array(v) for k, v in step(given[-1]).items()})
    for other in (runner, Pipeline(path), InferenceManager(path)):
        replay = other.replay(recording)
        assert (replay.steps, replay.difference) == (6, None)
    found = runner.read_recording(recording)
    for made, kept in zip(want, found.outputs, strict=True):
        assert {k: v.tolist() for k, v in made.items()} == {k: v.tolist() for k, v in kept.items()}
    assert found.inputs[3]["p/mem"].tolist() == [7.0, 8.0]
    assert found.state[5]["p/mem"].tolist() == [1.0, 2.0]
    assert found.placed.tolist() == [True, False, False, False, False, True]
    assert (found.duration_ns > 0).all()
    assert (np.diff(found.start_ns) > 0).all()


AWKWARD = {
    "float32": [float("nan"), float("inf"), -0.0, 1e-45, 0.1],
    "float64": [-float("inf"), 5e-324, 1.7976931348623157e308, 0.1, 3.0],
    "bfloat16": [float("nan"), 1.5, -0.0, 3.0, 0.1],
    "int64": [-(2**63), 2**63 - 1, 0, 1, 2],
    "bool": [True, False, True, True, False],
    "complex64": [complex(0.1, float("nan")), 1j, -1, 0, 2],
}


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("dtype", AWKWARD)
def test_every_value_survives_a_recording(tmp_path, suffix, dtype):
    class Turn(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x[1:], x[:1]])

    value = torch.tensor(AWKWARD[dtype], dtype=getattr(torch, dtype))
    path = write_bundle(tmp_path / "g", {"p": Stage(Turn(), {"x": torch.zeros_like(value)}, ["y"], "jit")})
    manager = InferenceManager(path)
    with manager.record(tmp_path / f"run.{suffix}") as step:
        step({"p/x": value})
    assert Pipeline(path).replay(tmp_path / f"run.{suffix}").difference is None
    found = manager.read_recording(tmp_path / f"run.{suffix}")
    assert str(found.inputs[0]["p/x"].astype(complex)) == str(array_over(value).astype(complex))
    assert str(found.outputs[0]["p/y"].astype(complex)) == str(array_over(value.roll(-1)).astype(complex))


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_held_inputs_are_part_of_a_recording(tmp_path, api, suffix):
    path = memory(tmp_path / "g", "onnx")
    runner = api(path)
    runner.set_input_value("p", "x", [1.0, 2.0, 3.0])
    with runner.record(tmp_path / f"run.{suffix}") as step:
        step({})
        step({"p/x": np.ones(3, np.float32)})
    replay = api(path).replay(tmp_path / f"run.{suffix}")
    assert (replay.steps, replay.difference) == (2, None)


def test_a_replay_sees_state_that_no_output_shows(tmp_path):
    class Hidden(torch.nn.Module):
        def __init__(self, gain: float) -> None:
            super().__init__()
            self.gain = gain

        def forward(self, x: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x * 2.0, h + self.gain * x

    stages = [Stage(Hidden(g), {"x": torch.ones(1), "h": torch.zeros(1)}, ["y", "n"], "jit") for g in (1.0, 1.5)]
    paths = [write_bundle(tmp_path / str(i), {"p": s}, {}, {"p/n": ("p/h",)}) for i, s in enumerate(stages)]
    with Pipeline(paths[0]).record(tmp_path / "run.npz") as step:
        for x in (0.0, 0.0, 1.0, 1.0):
            step({"p/x": [x]})
    difference = Pipeline(paths[1]).replay(tmp_path / "run.npz").difference
    assert (difference.step, difference.key, difference.largest) == (2, "p/h", 0.5)


def test_an_mcap_is_readable_by_the_tools_of_that_format(tmp_path):
    from mcap.reader import make_reader

    pipeline = Pipeline(memory(tmp_path / "g", "onnx"))
    with pipeline.record(tmp_path / "run.mcap") as step:
        made = [step({"p/x": np.full(3, k, np.float32)})["p/y"] for k in range(3)]
    with (tmp_path / "run.mcap").open("rb") as file:
        messages = [(channel.topic, json.loads(message.data)) for _, channel, message in make_reader(file).iter_messages()]
    assert [content["values"] for topic, content in messages if topic == "out/p/y"] == [y.tolist() for y in made]
    assert {topic for topic, _ in messages} == {"in/p/x", "out/p/y", "state/p/h_in", "step"}
    assert all(content["duration_ns"] > 0 for topic, content in messages if topic == "step")


def test_without_the_package_the_message_says_what_to_install_and_no_step_runs(tmp_path, monkeypatch):
    pipeline = Pipeline(memory(tmp_path / "g", "onnx"))
    monkeypatch.setitem(sys.modules, "mcap", None)
    for name in ("mcap.reader", "mcap.writer"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for use in (pipeline.record, pipeline.replay):
        with pytest.raises(MissingDependencyError, match=r"pip install 'leapp\[mcap\]'"):
            use(tmp_path / "run.mcap")
    assert list(tmp_path.glob("*.mcap")) == []


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_damaged_recordings_are_refused_or_harmless(tmp_path, suffix):
    path = memory(tmp_path / "g", "onnx")
    recording = tmp_path / f"run.{suffix}"
    with Pipeline(path).record(recording) as step:
        for k in range(3):
            step({"p/x": np.full(3, k, np.float32)})
    whole, pipeline, choose = recording.read_bytes(), Pipeline(path), random.Random(suffix)
    for size in (0, 1, len(whole) // 2, len(whole) - 1):
        recording.write_bytes(whole[:size])
        with pytest.raises(InputError, match="not a recording of this bundle"):
            pipeline.replay(recording)
    for _ in range(200):
        data = bytearray(whole)
        data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
        recording.write_bytes(data)
        try:
            pipeline.replay(recording)
        except LeappError:
            pass
    recording.unlink()
    with pytest.raises(InputError, match="not a recording"):
        pipeline.replay(recording)


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
    with pytest.raises(InputError, match="not a recording of this bundle"):
        Pipeline(loop(tmp_path / "b", "onnx", "onnx")).replay(tmp_path / "run.npz")
    with pytest.raises(InputError, match=".npz"):
        Pipeline(tmp_path / "a" / "g.yaml").record(tmp_path / "run.bin")


@pytest.mark.parametrize("other", [["int32", "[3]"], ["float32", "[1, 3]"], ["float16", "[6]"]])
def test_a_recording_of_ports_with_the_same_bytes_in_another_form_is_refused(tmp_path, other):
    """As a bundle would have written it whose port has this dtype and shape."""
    pipeline = Pipeline(memory(tmp_path / "a", "onnx"))
    with pipeline.record(tmp_path / "run.npz") as step:
        step({"p/x": np.ones(3, np.float32)})
    assert pipeline.replay(tmp_path / "run.npz").difference is None
    arrays = dict(np.load(tmp_path / "run.npz"))
    np.savez(tmp_path / "other.npz", **{**arrays, "form:in:p/x": np.array(other)})
    with pytest.raises(InputError, match=re.escape(f"in 'p/x' is {' '.join(other)}, expected float32 [3]")):
        pipeline.replay(tmp_path / "other.npz")
    older = {name: value for name, value in arrays.items() if not name.startswith("form:")}
    np.savez(tmp_path / "older.npz", **older)
    assert pipeline.replay(tmp_path / "older.npz").difference is None


@pytest.mark.parametrize("api", APIS)
def test_bench_times_steps_and_leaves_the_state(tmp_path, api):
    runner = api(memory(tmp_path, "onnx"))
    runner({"p/x": [1.0, 2.0, 3.0]})
    before = held(runner)
    free, paced = runner.bench(steps=200), runner.bench(steps=20, rate=2000.0)
    assert 0 < free.noise_p50 < free.p50 <= free.p99 <= free.p999 <= free.longest
    assert (free.misses, free.noise_misses, free.rate) == (None, None, None)
    assert paced.misses is not None and paced.noise_misses is not None
    assert 0 <= paced.misses <= 20 and 0 <= paced.noise_misses <= 20
    np.testing.assert_equal(held(runner), before)


def test_bench_counts_late_steps_and_tells_a_slow_step_from_a_slow_machine():
    slow = [k % 4 == 3 for k in range(40)]
    turn = iter(slow)
    found = measure(lambda: time.sleep(0.012 if next(turn) else 0.0), 40, 200.0)
    assert 10 <= found.misses <= 40
    assert found.longest > 11_000 > found.p50
    assert found.jitter > 1000
    assert found.noise_p50 < found.p999
    assert found.noise_p50 <= found.noise_p999


@pytest.mark.parametrize("api", APIS)
def test_bench_refuses_what_cannot_be_measured(tmp_path, api):
    runner = api(memory(tmp_path, "onnx"))
    for wrong in ({"steps": 0}, {"rate": 0.0}, {"rate": -5.0}, {"rate": float("nan")}):
        with pytest.raises(InputError, match="at least one step and a positive rate"):
            runner.bench(**wrong)
