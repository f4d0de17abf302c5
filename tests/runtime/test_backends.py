"""A step gives what eager PyTorch gives, on every backend and mix of backends, in both APIs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import yaml

from leapp.runtime import Pipeline
from leapp.runtime.inference_manager import InferenceManager
from leapp.runtime.load import kept_open
from tests.runtime.bundles import BACKENDS, Memory, Scale, Stage, chain, loop, memory, write_bundle

APIS = (Pipeline, InferenceManager)


def step(runner, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """One step of either api, torch in and out."""
    if isinstance(runner, Pipeline):
        return {k: torch.from_numpy(v) for k, v in runner({k: v.numpy() for k, v in inputs.items()}).items()}
    return runner(inputs)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    "backends",
    [[b] for b in BACKENDS] + [[b] * 3 for b in BACKENDS] + [["jit", "onnx"] * 2, ["onnx", "pt2", "onnx", "onnx", "jit"]],
    ids="-".join,
)
def test_chain_matches_eager(tmp_path, api, backends):
    path, modules = chain(tmp_path, backends)
    runner = api(path)
    for seed in range(3):
        x = torch.randn(2, 8, generator=torch.Generator().manual_seed(100 + seed))
        want = x
        for module in modules:
            want = module(want)
        out = step(runner, {"n0/x": x})
        assert list(out) == [f"n{len(backends) - 1}/y"]
        torch.testing.assert_close(*out.values(), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_state_is_carried_from_step_to_step(tmp_path, api, backend):
    runner = api(memory(tmp_path, backend))
    module, h = Memory(), torch.tensor([1.0, -2.0])
    for k in range(5):
        x = torch.randn(3, generator=torch.Generator().manual_seed(k))
        want, h = module(x, h)
        torch.testing.assert_close(step(runner, {"p/x": x})["p/y"], want)


class Counter(torch.nn.Module):
    """Keeps a number in a buffer of its own, which no bundle of leapp's own declares."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return x * self.count


@pytest.mark.parametrize("backend", ["jit", "pt2"])
def test_a_model_that_keeps_values_is_opened_anew_where_others_are_kept_open(tmp_path, backend):
    path = write_bundle(tmp_path, {"n": Stage(Counter(), {"x": torch.ones(2)}, ["y"], backend)})
    x = torch.tensor([2.0, -3.0])
    with kept_open():
        for _ in range(2):
            runner = Pipeline(path)
            first, second = (step(runner, {"n/x": x})["n/y"].clone() for _ in range(2))
            runner = Pipeline(path)
            assert torch.equal(step(runner, {"n/x": x})["n/y"], first)
            assert torch.equal(second - first, x)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(("first", "second"), list(itertools.product(BACKENDS, BACKENDS)))
def test_feedback_over_two_nodes_is_seen_in_the_next_step(tmp_path, api, first, second):
    runner = api(loop(tmp_path, first, second))
    mem, prev = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -3.0])
    for k in range(5):
        obs = torch.randn(2, generator=torch.Generator().manual_seed(k))
        a, mo = obs * mem - 1.0, 0.5 * (obs + mem) + 0.25 * prev
        out = step(runner, {"p/obs": obs})
        torch.testing.assert_close(out["p/a"], a)
        torch.testing.assert_close(out["f/mo"], mo)
        mem = prev = mo


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_feedback_to_a_later_node_is_seen_in_the_next_step_too(tmp_path, api, backend):
    stages = {
        "a": Stage(Scale(4, 4, 1), {"x": torch.randn(1, 4)}, ["y"], backend),
        "b": Stage(Scale(4, 4, 2), {"x": torch.randn(1, 4)}, ["y"], backend),
    }
    start = torch.full((1, 4), 0.3)
    runner = api(write_bundle(tmp_path, stages, {}, {"a/y": ("b/x",)}, {"b/x": start}, outputs=["a/y", "b/y"]))
    late = start
    for k in range(3):
        x = torch.randn(1, 4, generator=torch.Generator().manual_seed(k))
        out = step(runner, {"a/x": x})
        torch.testing.assert_close(out["b/y"], stages["b"].module(late))
        late = stages["a"].module(x)
        torch.testing.assert_close(out["a/y"], late)


@pytest.mark.parametrize("backends", [["onnx"] * 3, ["jit"] * 3, ["jit", "onnx", "onnx"]], ids="-".join)
def test_order_of_keys_in_the_yaml_does_not_matter(tmp_path, backends):
    path, _ = chain(tmp_path, backends)
    x = np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)
    want = Pipeline(path)({"n0/x": x})
    document = yaml.safe_load(path.read_text())
    document["models"] = dict(reversed(document["models"].items()))
    document["pipeline"]["data_flow"] = dict(reversed(document["pipeline"]["data_flow"].items()))
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    got = Pipeline(path)({"n0/x": x})
    np.testing.assert_array_equal(got["n2/y"], want["n2/y"])


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int8", "int32", "int64", "uint8", "bool"])
@pytest.mark.parametrize("backend", ["onnx", "jit"])
def test_every_dtype_passes_unchanged(tmp_path, backend, dtype):
    class Flip(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x[1:], x[:1]])

    example = torch.tensor([1, 0, 1]).to(getattr(torch, dtype))
    path = write_bundle(tmp_path, {"p": Stage(Flip(), {"x": example}, ["y"], backend)})
    manager, pipeline = InferenceManager(path), Pipeline(path)
    for given in (manager.get_mock_input()["p/x"], torch.tensor([0, 1, 1]).to(example.dtype)):
        want = torch.cat([given[1:], given[:1]])
        assert torch.equal(manager({"p/x": given})["p/y"], want)
        got = pipeline({"p/x": given})["p/y"]
        assert str(got.dtype) == dtype
        assert torch.equal(torch.tensor(got.astype(np.float64)), want.double())


@pytest.mark.parametrize("api", APIS)
def test_scalars_and_empty_values(tmp_path, api):
    class Both(torch.nn.Module):
        def forward(self, s: torch.Tensor, e: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return s * 2.0 + e.sum(), e + 1.0

    stage = Stage(Both(), {"s": torch.tensor(1.0), "e": torch.zeros(0, 3)}, ["t", "f"], "jit")
    out = step(api(write_bundle(tmp_path, {"p": stage})), {"p/s": torch.tensor(4.0), "p/e": torch.zeros(0, 3)})
    assert out["p/t"] == 8.0
    assert out["p/f"].shape == (0, 3)


def test_both_apis_agree_bit_for_bit(tmp_path):
    path, _ = chain(tmp_path, ["jit", "onnx", "onnx", "jit", "jit", "onnx"])
    manager, pipeline = InferenceManager(path), Pipeline(path)
    for _ in range(4):
        given = manager.get_mock_input()
        np.testing.assert_array_equal(
            manager(given)["n5/y"].numpy(), pipeline({k: v.numpy() for k, v in given.items()})["n5/y"]
        )


def test_a_model_that_returns_another_shape_is_refused_and_changes_no_state(tmp_path):
    class Shrinks(torch.nn.Module):
        def forward(self, x: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x[x > 0], h + 1.0

    stage = Stage(Shrinks(), {"x": torch.ones(3), "h": torch.zeros(1)}, ["y", "h"], "jit")
    manager = InferenceManager(write_bundle(tmp_path, {"p": stage}, {}, {"p/h": ("p/h",)}))
    manager({"p/x": torch.ones(3)})
    with pytest.raises(ValueError, match=r"'p/y' came out as float32 \[1\], the bundle says float32 \[3\]"):
        manager({"p/x": torch.tensor([1.0, -1.0, -1.0])})
    assert manager.state()["p/h"] == 1.0


def test_a_node_without_model_can_be_inspected_but_not_run(tmp_path):
    stages = {
        "a": Stage(Scale(4, 4), {"x": torch.randn(1, 4)}, ["y"], None),
        "b": Stage(Scale(4, 4), {"x": torch.randn(1, 4)}, ["y"], "jit"),
    }
    path = write_bundle(tmp_path, stages, {"a/y": ("b/x",)})
    for runner in (InferenceManager(path), Pipeline(path)):
        assert (runner.inputs, runner.outputs) == (["a/x"], ["b/y"])
        assert runner.models["a"]["parameters"]["model_path"] is None
        with pytest.raises(ValueError, match="no model for node 'a'"):
            runner({"a/x": torch.randn(1, 4)})
    x = torch.randn(1, 4)
    torch.testing.assert_close(InferenceManager(path).nodes["b"](x)[0], stages["b"].module(x))
    with pytest.raises(ValueError, match="no model for node 'a'"):
        InferenceManager(path).nodes["a"](x)
