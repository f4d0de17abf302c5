"""State: reset, save and restore, override, and that nobody else can reach it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from leapp.errors import InputError, InputTypeError, UnknownPortError
from leapp.runtime import Pipeline
from leapp.runtime.inference_manager import InferenceManager
from tests.runtime.bundles import BACKENDS, Memory, Stage, array, held, loop, memory, write_bundle

APIS = (Pipeline, InferenceManager)


def values(count: int, size: int) -> list[np.ndarray]:
    generator = np.random.default_rng(count)
    return [generator.standard_normal(size).astype(np.float32) for _ in range(count)]


def run(runner, xs, key="p/x") -> list[list[np.ndarray]]:
    return [[array(v) for v in runner({key: x}).values()] for x in xs]


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_reset_starts_over_and_touches_nobody_elses_tensors(tmp_path, api, backend):
    runner = api(memory(tmp_path, backend))
    xs = values(5, 3)
    first = run(runner, xs)
    mine = torch.from_numpy(xs[0].copy()) if api is InferenceManager else xs[0].copy()
    out = runner({"p/x": mine})
    held = {k: array(v) for k, v in out.items()}
    runner.reset()
    np.testing.assert_array_equal(array(mine), xs[0])
    for k, v in out.items():
        np.testing.assert_array_equal(array(v), held[k])
    np.testing.assert_array_equal(run(runner, xs), first)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs_belong_to_the_caller(tmp_path, api, backend):
    class Echo(torch.nn.Module):
        def forward(self, x: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            new = h * 0.5 + x
            return new, new

    names = ("h_in", "h_out") if backend == "onnx" else ("h", "h")
    stage = Stage(Echo(), {"x": torch.ones(2), names[0]: torch.zeros(2)}, ["y", names[1]], backend)
    feedback = {f"p/{names[1]}": (f"p/{names[0]}",)}
    outputs = ["p/y", f"p/{names[1]}"]
    spoiled, clean = (api(write_bundle(tmp_path, {"p": stage}, {}, feedback, outputs=outputs)) for _ in range(2))
    earlier = []
    for x in values(4, 2):
        out, want = spoiled({"p/x": x}), clean({"p/x": x})
        for k, v in out.items():
            np.testing.assert_array_equal(array(v), array(want[k]))
        for v, copy in earlier:
            np.testing.assert_array_equal(array(v), copy)
        for v in out.values():
            v[...] = -1000.0
        earlier += [(v, array(v)) for v in out.values()]


@pytest.mark.parametrize("api", APIS)
def test_views_are_given_out_only_when_asked(tmp_path, api):
    runner = api(memory(tmp_path, "onnx"), copy=False)
    first = runner({"p/x": values(1, 3)[0]})["p/y"]
    before = array(first)
    second = runner({"p/x": values(1, 3)[0]})["p/y"]
    np.testing.assert_array_equal(array(first), array(second))
    assert not np.array_equal(before, array(second))


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(("first", "second"), [("onnx", "onnx"), ("jit", "onnx"), ("onnx", "jit"), ("pt2", "jit")])
def test_state_can_be_saved_and_restored(tmp_path, api, first, second):
    runner = api(loop(tmp_path, first, second))
    xs = values(7, 2)
    run(runner, xs[:3], "p/obs")
    saved = runner.state()
    kept = {k: array(v) for k, v in saved.items()}
    want = run(runner, xs[3:], "p/obs")
    for k, v in saved.items():
        np.testing.assert_array_equal(array(v), kept[k])
    runner.load_state(saved)
    np.testing.assert_array_equal(run(runner, xs[3:], "p/obs"), want)
    other = api(loop(tmp_path / "other", first, second))
    other.load_state(kept)
    np.testing.assert_array_equal(run(other, xs[3:], "p/obs"), want)
    with pytest.raises(UnknownPortError, match="p/mem"):
        runner.load_state({"f/prev": np.zeros(2, np.float32)})
    now = held(runner)
    with pytest.raises(InputError, match="f/prev"):
        runner.load_state({"p/mem": np.zeros(2, np.float32), "f/prev": np.zeros(3, np.float32)})
    np.testing.assert_equal(held(runner), now)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(("first", "second"), [("onnx", "onnx"), ("jit", "onnx"), ("jit", "jit")])
def test_one_node_can_be_reset_alone(tmp_path, api, first, second):
    runner = api(loop(tmp_path, first, second))
    run(runner, values(3, 2), "p/obs")
    before = held(runner)
    runner.reset(node="f")
    after = held(runner)
    np.testing.assert_array_equal(after["p/mem"], before["p/mem"])
    np.testing.assert_array_equal(after["f/prev"], [3.0, -3.0])
    with pytest.raises(UnknownPortError, match="no node 'zz'"):
        runner.reset(node="zz")


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_of_a_batch_are_reset_by_mask(tmp_path, api, backend):
    class Count(torch.nn.Module):
        def forward(self, x: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            new = h + x
            return new * 1.0, new

    names = ("h_in", "h_out") if backend == "onnx" else ("h", "h")
    stage = Stage(Count(), {"x": torch.ones(3, 2), names[0]: torch.zeros(3, 2)}, ["y", names[1]], backend)
    start = {f"p/{names[0]}": torch.tensor([[10.0, 10.0], [20.0, 20.0], [30.0, 30.0]])}
    runner = api(write_bundle(tmp_path, {"p": stage}, {}, {f"p/{names[1]}": (f"p/{names[0]}",)}, start))
    ones = np.ones((3, 2), np.float32)
    for _ in range(2):
        runner({"p/x": ones})
    runner.reset(mask=torch.tensor([False, True, False]))
    assert array(runner({"p/x": ones})["p/y"])[:, 0].tolist() == [13.0, 21.0, 33.0]
    with pytest.raises(InputError, match=r"mask has the shape \[2\]"):
        runner.reset(mask=[True, False])


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("backends", [("onnx", "onnx"), ("jit", "onnx"), ("onnx", "jit"), ("jit", "jit")], ids="-".join)
def test_a_row_that_was_reset_runs_like_a_fresh_one(tmp_path, api, backends):
    class Leak(torch.nn.Module):
        def forward(self, x: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            new = torch.tanh(0.7 * h + x)
            return new * 2.0, new

    rows, start = 4, torch.linspace(-1.0, 1.0, 8).reshape(4, 2)
    stages = {
        f"n{i}": Stage(Leak(), {"x": torch.ones(rows, 2), "h": torch.zeros(rows, 2)}, ["y", "n"], backend)
        for i, backend in enumerate(backends)
    }
    feedback = {f"{name}/n": (f"{name}/h",) for name in stages}
    initial = {"n0/h": start, "n1/h": -start}
    runner = api(write_bundle(tmp_path, stages, {"n0/y": ("n1/x",)}, feedback, initial))
    choose = np.random.default_rng(0)
    h = [start, -start]
    for k in range(12):
        if k % 3 == 2:
            mask = choose.random(rows) < 0.5
            runner.reset(mask=[mask, torch.from_numpy(mask), mask.tolist()][k % 9 // 3])
            h = [torch.where(torch.from_numpy(mask)[:, None], s, v) for s, v in zip((start, -start), h, strict=True)]
        if k == 7:
            runner.reset(node="n1", mask=[True, False, False, False])
            h[1] = torch.cat([-start[:1], h[1][1:]])
        x = choose.standard_normal((rows, 2)).astype(np.float32)
        y, h[0] = Leak()(torch.from_numpy(x), h[0])
        want, h[1] = Leak()(y, h[1])
        np.testing.assert_allclose(array(runner({"n0/x": x})["n1/y"]), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("api", APIS)
def test_masks_that_could_mean_something_else_are_refused_and_change_nothing(tmp_path, api):
    runner = api(loop(tmp_path, "onnx", "jit"))
    run(runner, values(3, 2), "p/obs")
    before = held(runner)
    for mask in ([0, 1], np.array([1.0, 0.0]), torch.tensor([1, 0])):
        with pytest.raises(InputTypeError, match="one truth value a row"):
            runner.reset(mask=mask)
    for mask in (True, [True], [[True, False]]):
        with pytest.raises(InputError, match="mask has the shape"):
            runner.reset(mask=mask)
    np.testing.assert_equal(held(runner), before)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_state_given_as_input_replaces_it_for_this_step(tmp_path, api, backend):
    runner = api(memory(tmp_path, backend))
    (state,) = runner.feedback_inputs
    x, h = np.array([1.0, 2.0, 3.0], np.float32), np.array([5.0, 6.0], np.float32)
    runner({"p/x": x})
    for name in (state, "p/h"):
        want, after = Memory()(torch.from_numpy(x), torch.from_numpy(h))
        np.testing.assert_allclose(array(runner({"p/x": x, name: h})["p/y"]), want, rtol=1e-6)
        np.testing.assert_allclose(array(runner.state()[state]), after, rtol=1e-6)
        assert h.tolist() == [5.0, 6.0]


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_set_input_value(tmp_path, api, backend):
    runner = api(memory(tmp_path, backend))
    x = np.array([1.0, 2.0, 3.0], np.float32)
    for value, full in ((torch.tensor([5.0, 6.0]), [5.0, 6.0]), (2, [2.0, 2.0]), (np.float64(0.5), [0.5, 0.5])):
        runner.set_input_value(node_name="p", input_name="h", value=value)
        want = Memory()(torch.from_numpy(x), torch.tensor(full))[0]
        np.testing.assert_allclose(array(runner({"p/x": x})["p/y"]), want, rtol=1e-6)
    with pytest.raises(InputError, match="Missing input 'p/x'"):
        runner({})
    runner.set_input_value("p", "x", x)
    runner.set_input_value("p", "h", [1.0, -2.0])
    want = Memory()(torch.from_numpy(x), torch.tensor([1.0, -2.0]))[0]
    np.testing.assert_allclose(array(runner({})["p/y"]), want, rtol=1e-6)
    for node, name, error in (("q", "h", KeyError), ("p", "zz", KeyError)):
        with pytest.raises(error):
            runner.set_input_value(node, name, 1.0)
    with pytest.raises(InputError, match=r"'p/h.*\[3\] cannot be broadcast to \[2\]"):
        runner.set_input_value("p", "h", torch.zeros(3))
    for wide in (torch.zeros(2, dtype=torch.float64), np.zeros(2), np.zeros(2, np.int64)):
        with pytest.raises(InputError, match=r"'p/h.*expected float32 \[2\], got (float|int)64 \[2\]. Convert it"):
            runner.set_input_value("p", "h", wide)
    willing = api(memory(tmp_path / "willing", backend), cast=True)
    willing.set_input_value("p", "h", np.array([5.0, 6.0]))
    want = Memory()(torch.from_numpy(x), torch.tensor([5.0, 6.0]))[0]
    np.testing.assert_allclose(array(willing({"p/x": x})["p/y"]), want, rtol=1e-6)
    runner.reset()
    with pytest.raises(InputError, match="Missing input 'p/x'"):
        runner({})


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_warm_up_leaves_the_state(tmp_path, api, backend):
    warm, cold = api(memory(tmp_path, backend)), api(memory(tmp_path, backend))
    xs = values(4, 3)
    run(warm, xs[:1]), run(cold, xs[:1])
    warm.warm_up(3)
    np.testing.assert_array_equal(run(warm, xs[1:]), run(cold, xs[1:]))


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_state_without_stored_initial_values_starts_at_zero(tmp_path, api, backend):
    names = ("h_in", "h_out") if backend == "onnx" else ("h", "h")
    stage = Stage(Memory(), {"x": torch.ones(3), names[0]: torch.ones(2)}, ["y", names[1]], backend)
    runner = api(write_bundle(tmp_path, {"p": stage}, {}, {f"p/{names[1]}": (f"p/{names[0]}",)}))
    assert array(runner({"p/x": [1.0, 2.0, 3.0]})["p/y"]).tolist() == [14.0, 14.0]


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_graph_without_inputs_runs_on_an_empty_mapping(tmp_path, api, backend):
    class Clock(torch.nn.Module):
        def forward(self, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return t * 10.0, t + 1.0

    stage = Stage(Clock(), {"t": torch.zeros(1)}, ["y", "next"], backend)
    runner = api(write_bundle(tmp_path, {"p": stage}, {}, {"p/next": ("p/t",)}))
    assert [runner({})["p/y"].item() for _ in range(4)] == [0.0, 10.0, 20.0, 30.0]
