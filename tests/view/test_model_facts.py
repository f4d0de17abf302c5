"""Operators and weights read from model files: what is there, and nothing that a hostile file could make of it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import leapp
from leapp import annotate
from leapp.view import page, write_page
from leapp.view.model_facts import MAX_VALUES, model_facts, weight_facts
from leapp.view.onnx_model import read_onnx

from .cases import CASES, contract, node, port
from .test_page import Outline


def model(path: Path, values: np.ndarray, external: str | None = None, repeats: int = 1) -> Path:
    """y = tanh(x @ weight), ``repeats`` times, as an ONNX file."""
    names = ["x", *(f"v{i}" for i in range(2 * repeats))]
    nodes = []
    for i in range(repeats):
        nodes.append(helper.make_node("MatMul", [names[2 * i], "block/weight"], [names[2 * i + 1]]))
        nodes.append(
            helper.make_node("Clip" if i else "Softmax", [names[2 * i + 1]], [names[2 * i + 2]], **({} if i else {"axis": -2}))
        )
    size = values.shape[0]
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3, size]) for n in (names[0], names[-1])]
    inner = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", size]) for n in names[1:-1]]
    weight = numpy_helper.from_array(values, "block/weight")
    made = helper.make_model(helper.make_graph(nodes, "g", info[:1], info[1:], [weight], value_info=inner))
    if external is None:
        onnx.save(made, path)
    else:
        onnx.save(made, path, save_as_external_data=True, location=external, size_threshold=0)
    return path


@pytest.mark.parametrize("external", [None, "weights.data"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int64", "int8"])
def test_operators_and_weights_are_those_of_the_file(dtype: str, external: str | None, tmp_path: Path) -> None:
    values = (np.random.default_rng(3).normal(size=(5, 5)) * 9).astype(dtype)
    found = read_onnx(model(tmp_path / "m.onnx", values, external))
    first, second = found.operators
    assert (first["op"], first["in"]) == ("MatMul", (("x", "[3, 5] float32"), ("block/weight", f"[5, 5] {dtype}")))
    assert first["out"] == (("v0", "[batch, 5] float32"),)
    assert (second["op"], second["attributes"], second["out"]) == ("Softmax", {"axis": -2}, (("v1", "[3, 5] float32"),))
    (weight,) = found.weights
    np.testing.assert_array_equal(weight.array(), values)


def test_the_figures_of_a_weight_are_those_of_its_values() -> None:
    values = np.random.default_rng(1).normal(2, 3, size=(40, 50)).astype(np.float32)
    facts = weight_facts("w", values.shape, "float32", values)
    assert facts["low"] == pytest.approx(values.min(), rel=1e-3)
    assert facts["high"] == pytest.approx(values.max(), rel=1e-3)
    assert facts["mean"] == pytest.approx(values.mean(), rel=1e-3)
    assert facts["bins"] == np.histogram(values.astype(np.float64), len(facts["bins"]))[0].tolist()
    assert "sampled" not in facts


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([np.nan, 1, np.inf, 3, 2, 5], {"low": 1, "high": 5, "odd": 2}),
        ([np.nan, np.inf], {"odd": 2}),
        ([], {"note": "empty"}),
        ([7], {"low": 7, "high": 7, "mean": 7}),
        ([True, False], {"low": 0, "high": 1, "mean": 0.5}),
        ([1j, 2], {"note": "values not shown"}),
    ],
)
def test_odd_weights_are_shown_as_far_as_they_can_be(values: list, expected: dict) -> None:
    array = np.array(values)
    facts = weight_facts("w", array.shape, str(array.dtype), array)
    assert {k: v for k, v in facts.items() if k in expected} == expected


def test_of_a_large_weight_some_values_are_looked_at() -> None:
    values = np.arange(10 * MAX_VALUES, dtype=np.float32)
    facts = weight_facts("w", values.shape, "float32", values)
    assert facts["sampled"] <= MAX_VALUES and facts["count"] == len(values)
    assert sum(facts["bins"]) == facts["sampled"]
    assert facts["high"] == pytest.approx(len(values), rel=1e-3)


def test_a_large_model_gives_a_small_page(tmp_path: Path) -> None:
    model(tmp_path / "model.onnx", np.ones((4, 4), np.float32), repeats=3000)
    made = contract({"n": node([port("x")], [port("y")])})
    text = page(made, "g", models=tmp_path)
    found = Outline(text).data["nodes"][0]["operators"]
    assert found["total"] == 6000 and len(found["list"]) < 500
    assert len(text) < 300_000


def test_damaged_files_say_nothing_and_break_nothing(tmp_path: Path) -> None:
    path = model(tmp_path / "m.onnx", np.ones((4, 4), np.float32))
    whole = path.read_bytes()
    rng = random.Random(5)
    for _ in range(400):
        broken = bytearray(whole)
        for _ in range(rng.randint(1, 6)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        path.write_bytes(broken[: rng.randrange(1, len(broken) + 1)])
        facts = model_facts(path)
        assert set(facts) <= {"operators", "weights"}
        page(contract({"n": node([port("x")], [port("y")])}), "g", details={"nodes": {"n": facts}})
    path.write_bytes(b"")
    assert model_facts(path) == model_facts(tmp_path / "missing.onnx") == model_facts(tmp_path) == {}


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "link", "sub/../../secret"])
def test_weights_outside_the_directory_are_not_read(location: str, tmp_path: Path) -> None:
    inside = tmp_path / "bundle"
    (inside / "sub").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(np.full(16, 7, np.float32).tobytes())
    os.symlink(tmp_path / "secret", inside / "link")
    made = onnx.load(model(inside / "m.onnx", np.ones((4, 4), np.float32)))
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for name, value in (("location", location), ("offset", "0"), ("length", "64")):
        tensor.external_data.add(key=name, value=value)
    (inside / "m.onnx").write_bytes(made.SerializeToString())
    (weight,) = model_facts(inside / "m.onnx")["weights"]["list"]
    assert "low" not in weight


def test_a_shape_that_promises_more_than_there_is_allocates_nothing(tmp_path: Path) -> None:
    made = onnx.load(model(tmp_path / "m.onnx", np.ones((4, 4), np.float32)))
    made.graph.initializer[0].dims[:] = [1 << 40, 1 << 40]
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    (weight,) = model_facts(tmp_path / "m.onnx")["weights"]["list"]
    assert "low" not in weight


@pytest.mark.parametrize("backend", ["onnx", "jit", "pt2"])
def test_the_page_of_an_export_shows_the_weights(backend: str, tmp_path: Path) -> None:
    net = torch.nn.Linear(6, 4)
    leapp.start("g", save_path=str(tmp_path))
    try:
        for _ in range(2):
            x = annotate.input_tensors("n", {"x": torch.randn(1, 6)})
            annotate.output_tensors("n", {"y": torch.tanh(net(x))}, export_with=backend)
    finally:
        leapp.stop()
    leapp.compile_graph()
    (found,) = Outline((tmp_path / "g" / "g.html").read_text()).data["nodes"]
    weights = {tuple(w["shape"]): w for w in found["weights"]["list"]}
    shape = (4, 6) if (4, 6) in weights else (6, 4)
    for own, seen in ((net.weight.detach(), weights[shape]), (net.bias.detach(), weights[4,])):
        assert seen["low"] == pytest.approx(float(own.min()), rel=1e-3)
        assert seen["high"] == pytest.approx(float(own.max()), rel=1e-3)
    assert ("operators" in found) == (backend == "onnx")


def test_a_page_loads_no_code_of_a_bundle(tmp_path: Path) -> None:
    """A page of TorchScript and pt2 nodes, and of damaged files, imports no engine."""
    program = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.view.cases import contract, node, port
from leapp.view import page
nodes = {b: node([port("x")], [port("y")], b) for b in ("onnx", "jit", "pt2")}
page(contract(nodes), "g", models=Path(sys.argv[2]))
heavy = {"torch", "onnx", "onnxruntime"} & set(sys.modules)
assert not heavy, heavy
"""
    for suffix in ("onnx", "jit", "pt2"):
        (tmp_path / f"model.{suffix}").write_bytes(b"\x80\x04N.")
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", program, str(root), str(tmp_path)], check=True, timeout=60)


def test_a_run_is_shown_step_by_step(tmp_path: Path) -> None:
    made = CASES["one"]()
    values = {("in", "policy/obs"): [np.full((1, 45), t, np.float32) for t in range(1000)]}
    text = write_page(made, "g", tmp_path, recording=values).read_text()
    data = Outline(text).data
    spark = data["nodes"][0]["inputs"][0]["spark"]
    assert (data["unit"], spark["passes"], spark["low"], spark["high"]) == ("step", 1000, 0, 999)
    assert 100 < len(spark["lines"][0]) <= 240
    assert spark["lines"][0][0] == 0 and spark["lines"][0][-1] == 999
    assert "spark" not in data["nodes"][0]["outputs"][0]
