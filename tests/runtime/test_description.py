"""What deployers and client code read: catalogue, binding by name, the attributes of the manager, cost of a step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from leapp.bundle import open_bundle
from leapp.cli import main
from leapp.deploy import deploy_cpp
from leapp.errors import InputError, UnknownPortError
from leapp.graph.gaps import deployment_gaps
from leapp.runtime import Pipeline
from leapp.runtime.inference_manager import InferenceManager
from tests.runtime.bundles import BACKENDS, Scale, Stage, array, chain, held, loop, memory, write_bundle

APIS = (Pipeline, InferenceManager)


class Joints(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor([1.0, 10.0, 100.0]))

    def forward(self, q: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return q * self.scale + g


def joints(directory, backend="onnx"):
    names = [["hip", "knee", "ankle"]]
    extra = {"units": "rad", "limits": [-1, 1], "frame": "base"}
    semantics = {
        "q": {"kind": "state/joint/position", "element_names": names, "extra": extra},
        "y": {"kind": "target/joint/position", "element_names": [None, *names]},
        "g": {"kind": "state/vector3d", "element_names": ["__temporal_axis__"], "temporal_period_ms": 20},
    }  # fmt: skip
    stage = Stage(Joints(), {"q": torch.zeros(1, 3), "g": torch.zeros(1)}, ["y"], backend, semantics)
    return write_bundle(directory, {"p": stage}, configs={"frequency": 50, "robot": "a"})


@pytest.mark.parametrize("api", APIS)
def test_catalogue(tmp_path, api):
    runner = api(joints(tmp_path))
    port = runner.input_by_kind("state/joint/position")
    assert (port.key, port.node, port.name, port.role) == ("p/q", "p", "q", "input")
    assert port.element_names == ("hip", "knee", "ankle")
    assert (port.units, port.limits, port.shape, port.dtype) == ("rad", [-1, 1], (1, 3), "float32")
    assert port.extra["frame"] == "base"
    assert runner.input_ports["p/g"].temporal_period_ms == 20
    assert runner.input_ports["p/g"].element_names == ()
    assert [p.key for p in runner.outputs_by_kind("target/joint/position")] == ["p/y"]
    assert runner.output_by_kind("nope") is None
    assert runner.inputs_by_kind("nope") == []
    assert [p.key for p in runner.ports] == ["p/q", "p/g", "p/y"]
    assert (runner.frequency, runner.configs) == (50, {"frequency": 50, "robot": "a"})
    from leapp.semantics import InputKindEnum

    assert runner.input_by_kind(InputKindEnum.JOINT_POSITION) == port
    stateful = api(memory(tmp_path / "m", "jit"))
    assert [(p.key, p.role) for p in stateful.ports] == [("p/x", "input"), ("p/h", "feedback"), ("p/y", "output")]
    assert stateful.frequency is None


@pytest.mark.parametrize("api", APIS)
def test_binding_by_name_takes_and_gives_the_robots_order(tmp_path, api):
    runner = api(joints(tmp_path))
    bound = runner.bind(inputs={"p/q": ["ankle", "hip", "knee"]}, outputs={"p/y": ["knee", "ankle", "hip"]})
    for q in (np.array([[3.0, 1.0, 2.0]], np.float32), torch.tensor([[3.0, 1.0, 2.0]]), [[3.0, 1.0, 2.0]]):
        out = bound({"p/q": q, "p/g": [0.5]})
        assert array(out["p/y"]).tolist() == [[20.5, 300.5, 1.5]]
    with pytest.raises(InputError, match=r"'p/q'.*\[1, 2\]"):
        bound({"p/q": [[1.0, 2.0]], "p/g": [0.5]})
    with pytest.raises(InputError, match=r"'p/q'.*missing \['knee'\], extra \['wheel', 'arm'\]"):
        runner.bind(inputs={"p/q": ["hip", "ankle", "wheel", "arm"]})
    with pytest.raises(InputError, match=r"twice \['hip'\]"):
        runner.bind(outputs={"p/y": ["hip", "hip", "knee", "ankle"]})
    with pytest.raises(InputError, match=r"(?s)'p/q'.*missing \['hip'\].*'p/y'.*extra \['tail'\]"):
        runner.bind(inputs={"p/q": ["knee", "ankle"]}, outputs={"p/y": ["hip", "knee", "ankle", "tail"]})
    with pytest.raises(UnknownPortError, match="'p/zz' cannot be bound"):
        runner.bind(inputs={"p/zz": []})
    with pytest.raises(InputError, match=r"(?s)'p/q'.*missing.*'p/g' has no element names"):
        runner.bind(inputs={"p/q": ["hip"], "p/g": ["x"]})


@pytest.mark.parametrize("api", APIS)
def test_of_several_named_axes_the_one_with_the_names_is_bound(tmp_path, api):
    class Same(torch.nn.Module):
        def forward(self, q: torch.Tensor) -> torch.Tensor:
            return q + 1.0

    names = {"element_names": [["left", "right"], ["hip", "knee"]]}
    stage = Stage(Same(), {"q": torch.zeros(2, 2)}, ["y"], "jit", {"q": names, "y": names})
    runner = api(write_bundle(tmp_path, {"p": stage}))
    step = runner.bind(inputs={"p/q": ["knee", "hip"]}, outputs={"p/y": ["right", "left"]})
    assert array(step({"p/q": [[1.0, 2.0], [3.0, 4.0]]})["p/y"]).tolist() == [[5.0, 4.0], [3.0, 2.0]]
    with pytest.raises(InputError, match=r"those of no axis.*\['left', 'right'\], \['hip', 'knee'\]"):
        runner.bind(inputs={"p/q": ["knee", "left"]})


@pytest.mark.parametrize("api", APIS)
def test_several_inputs_and_outputs_are_bound_at_once(tmp_path, api):
    class Two(torch.nn.Module):
        def forward(self, q: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return q - v, torch.stack([q, 10.0 * v], 1)

    legs, spine = [["a", "b", "c"]], [["a", "b", "c"], None]
    semantics = {k: {"element_names": n} for k, n in {"q": legs, "v": legs, "t": legs, "m": spine}.items()}
    stage = Stage(Two(), {"q": torch.zeros(3), "v": torch.zeros(3)}, ["t", "m"], "jit", semantics)
    runner = api(write_bundle(tmp_path, {"p": stage}))
    step = runner.bind(
        inputs={"p/q": ["c", "a", "b"], "p/v": ["b", "a", "c"]}, outputs={"p/t": ["c", "b", "a"], "p/m": ["b", "c", "a"]}
    )
    for k in range(3):
        a, b, c = 1.0 + k, 2.0, 3.0 * k
        out = step({"p/q": np.array([c, a, b], np.float32), "p/v": np.array([b, 0.0, c], np.float32)})
        assert array(out["p/t"]).tolist() == [0.0, 0.0, a]
        assert array(out["p/m"]).tolist() == [[b, 10.0 * b], [c, 10.0 * c], [a, 0.0]]


def test_manager_attributes_that_clients_read(tmp_path):
    path = loop(tmp_path, "jit", "onnx")
    manager = InferenceManager(str(path))
    assert manager.model_path == str(path)
    assert set(manager.leapp_description) == {"models", "pipeline", "system information"}
    assert manager.models["p"]["inputs"][0] == {"name": "obs", "dtype": "float32", "shape": [2], "type": "tensor"}
    assert manager.pipeline["feedback_flow"] == {"f/mo": ["p/mem", "f/prev"]}
    assert manager.system_info == {"leapp config version": "1.3"}
    assert (manager.inputs, manager.outputs) == (["p/obs"], ["f/mo", "p/a"])
    assert manager.feedback_inputs == ["p/mem", "f/prev"]
    assert manager.organized_pipeline_connections["f"] == {"mo": [("p", "mem"), ("f", "prev"), ("==out==", "f/mo")]}
    node = manager.nodes["f"]
    assert (node.input_names, node.output_names, node.device.type) == (["c", "prev"], ["mo"], "cpu")
    assert [entry["shape"] for entry in node.input_descriptions] == [[2], [2]]
    assert node.output_descriptions[0]["name"] == "mo"
    out = manager.run_policy({"p/obs": torch.tensor([1.0, 1.0])})
    kept = manager.value_dict
    assert torch.equal(kept["==out=="]["p/a"], out["p/a"])
    assert torch.equal(kept["p"]["mem"], out["f/mo"])
    assert torch.equal(kept["f"]["prev"], out["f/mo"])
    assert kept["f"]["c"].tolist() == [2.0, 3.0]
    kept["p"]["mem"].zero_()
    assert torch.equal(manager.state()["p/mem"], out["f/mo"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_node_can_be_called_alone_without_moving_state(tmp_path, backend):
    manager = InferenceManager(loop(tmp_path, backend, backend))
    before = held(manager)
    c, prev = torch.randn(2), torch.randn(2)
    (got,) = manager.nodes["f"](c, prev)
    torch.testing.assert_close(got, 0.5 * c + 0.25 * prev)
    np.testing.assert_equal(held(manager), before)
    with pytest.raises(InputError, match="takes 2 inputs, got 1"):
        manager.nodes["f"](c)


@pytest.mark.parametrize("api", APIS)
def test_mock_and_zero_inputs_fit(tmp_path, api):
    class Mix(torch.nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
            return a + b.float() + c.float()

    ones = torch.ones(64)
    stage = Stage(Mix(), {"a": ones, "b": ones.bool(), "c": ones.to(torch.int8)}, ["y"], "jit")
    runner = api(write_bundle(tmp_path, {"p": stage}))
    mock = runner.get_mock_input()
    runner(mock)
    assert 0 < array(mock["p/b"]).sum() < 64
    assert array(mock["p/c"]).min() >= 0
    assert array(runner(runner.zeros_input())["p/y"]).tolist() == [0.0] * 64


def test_counting_from_four_threads_loses_no_step(tmp_path):
    class Count(torch.nn.Module):
        def forward(self, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return t * 1.0, t + 1.0

    manager = InferenceManager(
        write_bundle(tmp_path, {"p": Stage(Count(), {"t": torch.zeros(1)}, ["y", "n"], "onnx")}, {}, {"p/n": ("p/t",)})
    )
    seen: list[list[float]] = [[] for _ in range(4)]
    threads = [threading.Thread(target=lambda s=s: s.extend(manager({})["p/y"].item() for _ in range(1000))) for s in seen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(v for s in seen for v in s) == [float(i) for i in range(4000)]


def calls(step) -> int:
    """Python and C calls of one step."""
    count = [0]

    def profile(frame, event, arg) -> None:
        count[0] += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        step()
    finally:
        sys.setprofile(None)
    return count[0] - 2


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("backends", "most"), [(["onnx"] * 3, 15), (["jit", "onnx"] * 5, 40), (["jit"] * 3, 15)], ids=["onnx3", "mixed10", "jit3"]
)
def test_calls_per_step(tmp_path, api, backends, most):
    path, _ = chain(tmp_path, backends)
    runner = api(path)
    inputs = runner.get_mock_input()
    for _ in range(5):
        runner(inputs)
    with torch.no_grad():
        assert calls(lambda: runner(inputs)) <= most


def test_calls_per_step_of_a_model_that_refuses_zeros(tmp_path):
    """Two steps on the caller's values show that no copies are needed; the model is run on no other values."""

    class Root(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.cholesky(x).sum(1)

    manager = InferenceManager(write_bundle(tmp_path, {"p": Stage(Root(), {"x": torch.eye(2)}, ["y"], "jit")}))
    for scale in range(1, 6):
        given = {"p/x": torch.eye(2) * scale}
        torch.testing.assert_close(manager(given)["p/y"], torch.linalg.cholesky(torch.eye(2) * scale).sum(1))
    with torch.no_grad():
        assert calls(lambda: manager(given)) <= 13


def test_an_onnx_bundle_runs_without_torch_and_onnx(tmp_path):
    path, modules = chain(tmp_path, ["onnx", "onnx"])
    code = f"""
import sys, numpy
import leapp.runtime
assert not {{"torch", "onnx", "onnxruntime", "difflib", "html", "tempfile"}} & set(sys.modules), sorted(sys.modules)
x = numpy.full((2, 8), 0.5, numpy.float32)
pipeline = leapp.runtime.Pipeline({str(path)!r})
numpy.save({str(tmp_path / "out.npy")!r}, pipeline({{"n0/x": x}})["n1/y"])
assert not {{"torch", "onnx"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    want = modules[1](modules[0](torch.full((2, 8), 0.5)))
    torch.testing.assert_close(torch.from_numpy(np.load(tmp_path / "out.npy")), want)


def test_threads_and_providers_are_passed_on(tmp_path):
    path, modules = chain(tmp_path, ["onnx", "onnx"])
    x = torch.randn(2, 8)
    got = InferenceManager(path, threads=2, providers=["CPUExecutionProvider"], device="cpu")({"n0/x": x})["n1/y"]
    torch.testing.assert_close(got, modules[1](modules[0](x)))
    assert Scale(8, 8, 0)(x).shape == got.shape


@pytest.mark.parametrize(("rows", "given", "want"), [(300, None, 1), (400, None, 0), (400, 1, 1), (300, 2, 2)])
def test_a_session_has_several_threads_if_its_values_are_large(tmp_path, rows, given, want):
    path = write_bundle(tmp_path, {"p": Stage(torch.nn.Tanh(), {"x": torch.zeros(rows, 48)}, ["y"], "onnx")})
    (unit,) = Pipeline(path, threads=given)._engine.units
    assert unit.session.get_session_options().intra_op_num_threads == (want or min(8, len(os.sched_getaffinity(0))))


@pytest.mark.parametrize(("version", "spins"), [("1.20.1", "0"), ("1.30.0", "0"), ("1.31.0", "1"), ("2.0.0", "1")])
def test_threads_of_a_session_spin_only_where_that_can_be_limited(tmp_path, monkeypatch, version, spins):
    """Without a limit they spin for milliseconds after each step, on cores that other programs need."""
    path = write_bundle(tmp_path, {"p": Stage(torch.nn.Tanh(), {"x": torch.zeros(2, 48)}, ["y"], "onnx")})
    monkeypatch.setattr(onnxruntime, "__version__", version)
    (unit,) = Pipeline(path, threads=2)._engine.units
    entry = unit.session.get_session_options().get_session_config_entry
    assert entry("session.intra_op.allow_spinning") == spins and entry("session.inter_op.allow_spinning") == "0"
    assert 0 < int(entry("session.intra_op.spin_duration_us")) < 1000


@pytest.mark.parametrize("backend", BACKENDS)
def test_opening_reads_each_file_once(tmp_path, backend, monkeypatch):
    path = memory(tmp_path, backend)
    path.write_text(path.read_text().replace("integrity: unsealed\n", ""))
    assert main(["seal", str(path)]) == 0
    opened, real = [], os.open
    monkeypatch.setattr(os, "open", lambda file, *more, **named: opened.append(Path(file).name) or real(file, *more, **named))
    InferenceManager(path)
    files = [file.name for file in tmp_path.iterdir()]
    assert sorted(name for name in opened if name in files) == sorted(files)


@pytest.mark.parametrize("spelling", ["units", "unit"])
def test_either_spelling_of_units_is_read_alike_everywhere(tmp_path, spelling, capsys):
    semantics = {"x": {"kind": "state/joint/position", "extra": {spelling: "furlong"}}}
    path = write_bundle(tmp_path, {"p": Stage(torch.nn.Identity(), {"x": torch.zeros(1, 3)}, ["y"], "onnx", semantics)})
    runner = Pipeline(path)
    assert runner.input_ports["p/x"].units == "furlong"
    assert "furlong" in runner._repr_html_()
    bundle = open_bundle(path)
    assert not any(gap.startswith("no units") and "p/x" in gap for gap in deployment_gaps(bundle.contract))
    assert "furlong" in (deploy_cpp(bundle, tmp_path / "cpp").path).read_text()
    assert main(["inspect", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["inputs"][0]["units"] == "furlong"
