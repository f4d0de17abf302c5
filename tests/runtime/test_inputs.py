"""What a caller gives is checked by name, and a refused step changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from leapp.errors import InputError, InputTypeError, LeappError, UnknownPortError
from leapp.runtime import Pipeline
from leapp.runtime.inference_manager import InferenceManager
from tests.runtime.bundles import BACKENDS, Memory, Stage, array, held, loop, memory, write_bundle

APIS = (Pipeline, InferenceManager)
GOOD = np.array([1.0, 2.0, 3.0], np.float32)

REFUSED = {
    "missing": ({}, InputError, "Missing input 'p/x'"),
    "no mapping": (None, InputTypeError, "mapping"),
    "a list": ([GOOD], InputTypeError, "mapping"),
    "unknown port": ({"p/x": GOOD, "p/z": GOOD}, UnknownPortError, r"node 'p' has no input 'z'; it has \['x', 'h'\]"),
    "unknown node": ({"p/x": GOOD, "q/x": GOOD}, UnknownPortError, "no node 'q'"),
    "no slash": ({"x": GOOD}, InputError, "'node/port'"),
    "a number as key": ({1: GOOD}, InputTypeError, "'node/port'"),
    "shape": ({"p/x": GOOD[:2]}, InputError, r"'p/x': expected float32 \[3\], got float32 \[2\]"),
    "broadcastable shape": ({"p/x": GOOD[:1]}, InputError, r"expected float32 \[3\], got float32 \[1\]"),
    "extra axis": ({"p/x": GOOD[None]}, InputError, r"got float32 \[1, 3\]"),
    "float64": ({"p/x": GOOD.astype(np.float64)}, InputError, r"got float64 \[3\].*cast=True"),
    "int": ({"p/x": GOOD.astype(np.int64)}, InputError, r"got int64 \[3\]"),
    "complex": ({"p/x": GOOD.astype(np.complex64)}, InputError, "got complex64"),
    "torch float64": ({"p/x": torch.ones(3, dtype=torch.float64)}, InputError, r"got float64 \[3\]"),
    "torch shape": ({"p/x": torch.ones(3, 1)}, InputError, r"got float32 \[3, 1\]"),
    "wrong device": ({"p/x": torch.ones(3, device="meta")}, InputError, "a tensor on meta"),
    "None": ({"p/x": None}, InputTypeError, "NoneType"),
    "text": ({"p/x": "abc"}, InputTypeError, "str"),
    "ragged list": ({"p/x": [1.0, [2.0, 3.0]]}, InputError, "rows differ"),
    "short list": ({"p/x": [1.0, 2.0]}, InputError, r"expected float32 \[3\]"),
    "bad state": ({"p/x": GOOD, "STATE": np.zeros(5, np.float32)}, InputError, r"expected float32 \[2\]"),
}


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("backend", BACKENDS[:2])
def test_refused_inputs_name_the_port_and_leave_the_state(tmp_path, api, backend):
    runner = api(memory(tmp_path, backend))
    (state,) = runner.feedback_inputs
    runner({"p/x": GOOD})
    before = held(runner)
    for name, (given, error, message) in REFUSED.items():
        if isinstance(given, dict):
            given = {state if k == "STATE" else k: v for k, v in given.items()}
        with pytest.raises(error, match=message) as caught:
            runner(given)
        assert isinstance(caught.value, LeappError), name
        np.testing.assert_equal(held(runner), before, err_msg=name)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("backend", BACKENDS[:2])
def test_a_step_that_was_right_many_times_makes_nothing_else_right(tmp_path, backend, mode):
    path = memory(tmp_path, backend)
    manager, fresh = InferenceManager(path), Pipeline(path)
    (state,) = manager.feedback_inputs
    wide = torch.stack([torch.from_numpy(GOOD), torch.zeros(3)], 1)
    row = torch.zeros(2, 3)
    row[1] = torch.from_numpy(GOOD)
    others = [
        wide[:, 0],
        row[1],
        torch.from_numpy(GOOD).requires_grad_(),
        torch.nn.Parameter(torch.from_numpy(GOOD)),
        GOOD,
        GOOD.tolist(),
    ]
    with mode():
        for k in range(40):
            given = torch.from_numpy(GOOD) + k
            np.testing.assert_array_equal(array(manager({"p/x": given})["p/y"]), fresh({"p/x": given})["p/y"])
        for k in range(40):
            (made,) = manager({"p/x": others[k % len(others)]}).values()
            assert not made.requires_grad
            np.testing.assert_array_equal(array(made), fresh({"p/x": GOOD})["p/y"])
        before = array(manager.state()[state])
        for given, error, message in REFUSED.values():
            if isinstance(given, dict):
                given = {state if k == "STATE" else k: v for k, v in given.items()}
                given |= {k: torch.from_numpy(v) for k, v in given.items() if isinstance(v, np.ndarray)}
            with pytest.raises(error, match=message):
                manager(given)
        np.testing.assert_array_equal(array(manager.state()[state]), before)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "value",
    [GOOD, torch.from_numpy(GOOD), [1.0, 2.0, 3.0], (1, 2, 3), np.array([1, 0, 2, 0, 3], np.float32)[::2],
     torch.tensor([1.0, 2.0, 3.0], requires_grad=True), torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0])),
     torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]).t()[:, 0]],
    ids=["numpy", "torch", "list", "ints", "strided", "grad", "parameter", "transposed"],
)  # fmt: skip
def test_numpy_torch_and_lists_are_taken_alike(tmp_path, api, backend, value):
    runner = api(memory(tmp_path, backend))
    want = Memory()(torch.from_numpy(GOOD), torch.tensor([1.0, -2.0]))[0]
    got = runner({"p/x": value})["p/y"]
    torch.testing.assert_close(torch.as_tensor(got), want)
    assert not torch.as_tensor(got).requires_grad


@pytest.mark.parametrize("api", APIS)
def test_gradients_are_neither_kept_nor_left_switched_off(tmp_path, api):
    runner = api(memory(tmp_path, "jit"))
    weight = torch.ones(3, requires_grad=True)
    for _ in range(3):
        runner({"p/x": weight * 2})
    assert torch.is_grad_enabled()
    assert not any(torch.as_tensor(v).requires_grad for v in runner.state().values())


@pytest.mark.parametrize("backend", BACKENDS)
def test_inference_mode_comes_and_goes_between_steps(tmp_path, backend):
    manager, plain = InferenceManager(memory(tmp_path, backend)), InferenceManager(memory(tmp_path, backend))
    for k in range(4):
        x = torch.randn(3)
        with torch.inference_mode(k % 2 == 0):
            got = manager({"p/x": x.clone()})["p/y"]
        assert torch.equal(got, plain({"p/x": x})["p/y"])
    manager.reset()
    manager.set_input_value("p", "h", torch.ones(2))


@pytest.mark.parametrize("api", APIS)
def test_cast_is_only_done_when_asked(tmp_path, api):
    runner = api(memory(tmp_path, "onnx"), cast=True)
    want = Memory()(torch.from_numpy(GOOD), torch.tensor([1.0, -2.0]))[0]
    torch.testing.assert_close(torch.as_tensor(runner({"p/x": GOOD.astype(np.float64)})["p/y"]), want)
    with pytest.raises(InputError, match="complex64"):
        runner({"p/x": GOOD.astype(np.complex64)})


@pytest.mark.parametrize("api", APIS)
def test_integers_outside_the_range_are_refused(tmp_path, api):
    class Same(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    stage = Stage(Same(), {"x": torch.zeros(2, dtype=torch.int8)}, ["y"], "jit")
    runner = api(write_bundle(tmp_path, {"p": stage}), cast=True)
    assert array(runner({"p/x": [1, 2]})["p/y"]).tolist() == [2, 3]
    for value in ([1, 300], np.array([1, -300]), [0.5, 1.0]):
        with pytest.raises(InputError, match="expected int8"):
            runner({"p/x": value})


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nonfinite_policies(tmp_path, api, bad):
    given = {"p/x": np.array([1.0, bad, 0.0], np.float32)}
    path = memory(tmp_path, "onnx")
    api(path)(given)
    with pytest.warns(RuntimeWarning, match="'p/x' holds NaN") as caught:
        api(path, nonfinite="warn")(given)
    assert caught[0].filename == __file__
    runner = api(path, nonfinite="raise")
    with pytest.raises(InputError, match="'p/x' holds NaN"):
        runner(given)
    assert array(runner.state()["p/h_in"]).tolist() == [1.0, -2.0]
    runner({"p/x": GOOD})
    with pytest.raises(InputError, match="nonfinite"):
        api(path, nonfinite="maybe")


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_sticky_reuses_the_last_value_and_only_when_asked(tmp_path, api, backend):
    runner, strict = api(memory(tmp_path, backend), sticky=True), api(memory(tmp_path, backend))
    zeros = np.zeros(3, np.float32)
    given = GOOD.copy()
    for sticky, full in (({}, zeros), ({"p/x": given}, GOOD), ({}, GOOD), ({}, GOOD)):
        got = runner(sticky)["p/y"]
        if sticky:
            given[...] = 99.0  # The runner kept the value, not the array.
        np.testing.assert_array_equal(array(got), array(strict({"p/x": full})["p/y"]))


@pytest.mark.parametrize("api", APIS)
def test_a_value_of_an_inner_port_is_refused(tmp_path, api):
    runner = api(loop(tmp_path, "jit", "onnx"))
    with pytest.raises(InputError, match="'f/c' is fed by 'p/c'"):
        runner({"p/obs": np.ones(2, np.float32), "f/c": np.ones(2, np.float32)})
    with pytest.raises(InputError, match="'f/c' is fed by 'p/c'"):
        runner.set_input_value("f", "c", np.ones(2, np.float32))


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_are_not_kept_changed_or_aliased(tmp_path, api, backend):
    class Grabs(torch.nn.Module):
        """Writes its input and returns views of it: everything a model should not do."""

        def forward(self, x: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = x + h
            return x.view(3), y

    class Rude(Grabs):
        def forward(self, x: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x.add_(1.0)
            return x.view(3), x + h

    module = Rude() if backend == "jit" else Grabs()
    names = ("h_in", "h_out") if backend == "onnx" else ("h", "h")
    stage = Stage(module, {"x": torch.ones(3), names[0]: torch.zeros(3)}, ["y", names[1]], backend)
    runner = api(write_bundle(tmp_path, {"p": stage}, {}, {f"p/{names[1]}": (f"p/{names[0]}",)}))
    x = torch.tensor([1.0, 2.0, 3.0])
    given = x.numpy() if api is Pipeline else x
    out = runner({"p/x": given})
    assert x.tolist() == [1.0, 2.0, 3.0]
    shift = 1.0 if backend == "jit" else 0.0
    x.fill_(50.0)
    first = torch.as_tensor(out["p/y"])
    assert first.tolist() == [1.0 + shift, 2.0 + shift, 3.0 + shift]
    first.fill_(-7.0)
    again = x.clone().numpy() if api is Pipeline else x.clone()
    assert torch.as_tensor(runner({"p/x": again})["p/y"]).tolist() == [50.0 + shift] * 3
    assert torch.as_tensor(next(iter(runner.state().values()))).tolist() == [
        51.0 + 2 * shift,
        52.0 + 2 * shift,
        53.0 + 2 * shift,
    ]
    assert x.tolist() == [50.0] * 3


@pytest.mark.parametrize("backend", ["jit", "pt2"])
def test_a_result_never_shares_memory_with_a_strided_input(tmp_path, backend):
    class Turn(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.t().contiguous()

    manager = InferenceManager(write_bundle(tmp_path, {"p": Stage(Turn(), {"x": torch.zeros(2, 3)}, ["y"], backend)}))
    base = torch.arange(6.0).reshape(3, 2)
    for call in (lambda x: manager({"p/x": x})["p/y"], lambda x: manager.nodes["p"](x)[0]):
        out = call(base.t())
        out.fill_(-1.0)
        assert base.tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]


@pytest.mark.parametrize("backend", ["jit", "pt2"])
def test_a_model_that_writes_into_its_input_leaves_the_callers_tensor_alone(tmp_path, backend):
    class Shift(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.add_(1.0)
            return x * 2.0

    manager = InferenceManager(write_bundle(tmp_path, {"p": Stage(Shift(), {"x": torch.zeros(3)}, ["y"], backend)}))
    given = torch.tensor([1.0, 2.0, 3.0])
    for call in (lambda x: manager({"p/x": x})["p/y"], lambda x: manager.nodes["p"](x)[0]) * 3:
        assert call(given).tolist() == [4.0, 6.0, 8.0]
        assert given.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("api", APIS)
def test_a_constant_given_out_cannot_be_spoiled(tmp_path, api):
    class Gains(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kp", torch.tensor([1.0, 2.0]))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x * self.kp, self.kp

    runner = api(write_bundle(tmp_path, {"p": Stage(Gains(), {"x": torch.ones(2)}, ["y", "kp"], "jit")}))
    for _ in range(3):
        out = runner({"p/x": [3.0, 4.0]})
        assert (array(out["p/y"]).tolist(), array(out["p/kp"]).tolist()) == ([3.0, 8.0], [1.0, 2.0])
        for value in out.values():
            value[...] = 0.0


@pytest.mark.parametrize("api", APIS)
def test_scripts_with_branches_and_singular_zeros(tmp_path, api):
    class Branch(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if bool(x.sum() > 0):
                x.mul_(2.0)
                return x
            return torch.linalg.inv(x)

    runner = api(write_bundle(tmp_path, {"p": Stage(Branch(), {"x": torch.eye(2)}, ["y"], "jit")}))
    for sign in (1.0, -1.0):
        x = torch.eye(2) * sign * 4.0
        out = runner({"p/x": x if api is InferenceManager else x.numpy()})["p/y"]
        assert x[0, 0] == sign * 4.0
        assert array(out)[0, 0] == (8.0 if sign > 0 else -0.25)


class Fussy(torch.nn.Module):
    """Fails on a row count that only its input can bring about, after the state was read."""

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        new = h + x.sum()
        return x[x > 0].reshape(3) + new, new


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("backends", [["jit"], ["onnx"], ["jit", "onnx"], ["onnx", "jit"]], ids="-".join)
@pytest.mark.parametrize("sticky", [False, True])
def test_a_step_whose_engine_fails_leaves_the_state_it_was_given_over(tmp_path, api, backends, sticky):
    stages = {f"n{i}": Stage(Fussy(), {"x": torch.ones(3), "h": torch.zeros(1)}, ["y", "n"], b) for i, b in enumerate(backends)}
    flow = {"n0/y": ("n1/x",)} if len(backends) > 1 else {}
    feedback = {f"{name}/n": (f"{name}/h",) for name in stages}
    path = write_bundle(tmp_path, stages, flow, feedback)
    runner, other = api(path, sticky=sticky), api(path, sticky=sticky)
    states = {f"{name}/h": np.array([5.0], np.float32) for name in stages}
    bad = np.array([1.0, -1.0, 2.0], np.float32)
    for k in range(4):
        x = np.array([1.0, 2.0, 3.0], np.float32) + k
        before = held(runner)
        for given in ({"n0/x": bad}, {"n0/x": bad, **states}, {"n0/x": bad, "n0/h": np.float32([-9.0])}):
            with pytest.raises(LeappError, match="n0"):
                runner(given)
            np.testing.assert_equal(held(runner), before)
        given = {} if sticky and k == 2 else {"n0/x": x}
        for key, value in runner(given).items():
            np.testing.assert_array_equal(array(value), array(other(given)[key]))


@pytest.mark.parametrize("api", APIS)
def test_opening_draws_no_random_numbers(tmp_path, api):
    """A model of random numbers draws the same numbers as eager code with the same seed, from the first step on."""

    class Noise(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand(3)

    path = write_bundle(tmp_path, {"p": Stage(Noise(), {"x": torch.zeros(3)}, ["y"], "jit")})
    torch.manual_seed(7)
    runner = api(path)
    got = [torch.as_tensor(runner({"p/x": torch.full((3,), float(k)).numpy()})["p/y"]) for k in range(4)]
    torch.manual_seed(7)
    assert [value.tolist() for value in got] == [(torch.full((3,), float(k)) + torch.rand(3)).tolist() for k in range(4)]
