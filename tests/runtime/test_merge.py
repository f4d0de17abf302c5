"""Merged models compute bit for bit what they compute apart, and what cannot be merged is left alone."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from leapp.bundle import open_bundle
from leapp.bundle.files import hash_file
from leapp.bundle.protobuf import SIZED, Chunks, message
from leapp.runtime import merge as merging
from leapp.runtime.inference_manager import InferenceManager
from leapp.runtime.load import EngineOptions, OnnxUnit, TorchUnit, open_units
from leapp.runtime.merge import Part, merge
from leapp.runtime.pipeline import Pipeline
from leapp.runtime.plan import make_plan
from tests.runtime.bundles import Stage, chain, loop, write_bundle


def apart(runner):
    """The same runner with an engine for each node."""
    runner._options = EngineOptions(merge=False)
    runner._engine = runner._open_engine(runner._plan)
    assert len(runner._engine.units) == len(runner._plan.order)
    return runner


def units(path) -> list[OnnxUnit | TorchUnit]:
    bundle = open_bundle(path)
    plan = make_plan(bundle.contract)
    return open_units(bundle, plan, plan.order, EngineOptions())


class Split(torch.nn.Module):
    """Ends in a matrix product without bias, which an optimiser would love to join with the next node's addition."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("w", torch.randn(64, 64, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.w


class Bias(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("b", torch.randn(64, generator=torch.Generator().manual_seed(1)) * 1e-3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.b)


@pytest.mark.parametrize("api", [Pipeline, InferenceManager])
@pytest.mark.parametrize("backend", ["onnx", "jit"])
def test_merged_is_bit_identical(tmp_path, api, backend):
    stages = {
        "a": Stage(Split(), {"x": torch.randn(3, 64)}, ["y"], backend),
        "b": Stage(Bias(), {"x": torch.randn(3, 64)}, ["y"], backend),
        "c": Stage(Split(), {"x": torch.randn(3, 64)}, ["y"], backend),
        "d": Stage(Bias(), {"x": torch.randn(3, 64)}, ["y"], backend),
    }
    flow = {"a/y": ("b/x",), "b/y": ("c/x", "d/x")}
    path = write_bundle(tmp_path, stages, flow)
    assert len(units(path)) == 1
    merged, single = api(path), apart(api(path))
    for _ in range(20):
        x = torch.randn(3, 64).numpy()
        got, want = merged({"a/x": x}), single({"a/x": x})
        assert list(got) == list(want) == ["c/y", "d/y"]
        for k in want:
            np.testing.assert_array_equal(got[k], want[k])


@pytest.mark.parametrize("backend", ["onnx", "jit"])
def test_merged_with_feedback_is_bit_identical(tmp_path, backend):
    path = loop(tmp_path, backend, backend)
    assert len(units(path)) == 1
    merged, single = Pipeline(path), apart(Pipeline(path))
    for _ in range(6):
        given = merged.get_mock_input()
        got, want = merged(given), single(given)
        for k in want:
            np.testing.assert_array_equal(got[k], want[k])
        assert {k: v.tolist() for k, v in merged.state().items()} == {k: v.tolist() for k, v in single.state().items()}


def test_only_neighbours_of_one_kind_are_merged(tmp_path):
    path, _ = chain(tmp_path, ["onnx", "onnx", "jit", "jit", "jit", "onnx", "pt2", "onnx"])
    assert [unit.label for unit in units(path)] == ["'n0' + 'n1'", "'n2' + 'n3' + 'n4'", "'n5'", "'n6'", "'n7'"]


def test_a_script_that_writes_its_input_is_not_merged(tmp_path):
    class Rude(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.add_(1.0)
            return x * 2.0

    stages = {n: Stage(Rude(), {"x": torch.zeros(2)}, ["y"], "jit") for n in ("a", "b", "c")}
    path = write_bundle(tmp_path, stages, {"a/y": ("b/x", "c/x")}, outputs=["a/y", "b/y", "c/y"])
    assert len(units(path)) == 3
    x = torch.ones(2)
    out = InferenceManager(path)({"a/x": x})
    assert {k: v.tolist() for k, v in out.items()} == {"a/y": [4.0] * 2, "b/y": [10.0] * 2, "c/y": [10.0] * 2}
    assert x.tolist() == [1.0, 1.0]


def model(nodes, initializers=(), opset=17, **more) -> bytes:
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])], list(initializers),
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8, **more)
    return made.SerializeToString()


def conditional() -> bytes:
    """Subgraphs that read values of the graph around them, constants and attributes of every wire type."""

    def branch(name: str, op: str):
        out = helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, [2])
        return helper.make_graph([helper.make_node(op, ["x", "k"], [f"{name}_out"])], name, [], [out])

    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Constant", [], ["zero"], value_float=0.0),
        helper.make_node("Greater", ["s", "zero"], ["up"]),
        helper.make_node("If", ["up"], ["mid"], then_branch=branch("t", "Add"), else_branch=branch("e", "Mul")),
        helper.make_node("Clip", ["mid", "", "top"], ["low"]),
        helper.make_node("LeakyRelu", ["low"], ["y"], alpha=0.25),
    ]
    constants = [numpy_helper.from_array(np.array([2.0, 3.0], np.float32), "k"),
                 numpy_helper.from_array(np.array(4.0, np.float32), "top")]  # fmt: skip
    return model(nodes, constants)


def conditional_in_numpy(x: np.ndarray) -> np.ndarray:
    mid = x + [2.0, 3.0] if x.sum() > 0 else x * [2.0, 3.0]
    low = np.minimum(mid, 4.0)
    return np.where(low < 0, low * 0.25, low).astype(np.float32)


def test_subgraphs_names_and_attributes_survive():
    import onnxruntime as ort

    merged = merge([Part(conditional(), "0/", {}), Part(conditional(), "1/", {"x": "0/y"})])
    assert merged is not None
    onnx.checker.check_model(onnx.load_from_string(merged), full_check=True)
    session = ort.InferenceSession(merged, providers=["CPUExecutionProvider"])
    for x in np.random.default_rng(0).standard_normal((20, 2)).astype(np.float32) * 3:
        once = conditional_in_numpy(x)
        got = session.run(["0/y", "1/y"], {"0/x": x})
        np.testing.assert_allclose(got[0], once, rtol=1e-6)
        np.testing.assert_allclose(got[1], conditional_in_numpy(once), rtol=1e-6)


DOUBLE = helper.make_node("Add", ["x", "x"], ["y"])


def with_function() -> bytes:
    body = helper.make_function(
        "own", "F", ["a"], ["b"], [helper.make_node("Neg", ["a"], ["b"])], [helper.make_opsetid("", 17)]
    )
    return model([helper.make_node("F", ["x"], ["y"], domain="own")], functions=[body])


def nested(levels: int) -> bytes:
    """A graph in an attribute of a node of a graph, and so on."""
    graph: Chunks = []
    for _ in range(levels):
        graph = message(1 << 3 | SIZED, message(5 << 3 | SIZED, message(6 << 3 | SIZED, graph)))
    return b"".join(message(7 << 3 | SIZED, graph))


def with_external_data() -> bytes:
    tensor = numpy_helper.from_array(np.ones(2, np.float32), "k")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "weights.bin"
    return model([helper.make_node("Add", ["x", "k"], ["y"])], [tensor])


def output_is_input() -> bytes:
    made = onnx.load_from_string(model([DOUBLE]))
    made.graph.output[0].name = "x"
    return made.SerializeToString()


@pytest.mark.parametrize(
    "other",
    [model([DOUBLE], opset=18), with_function(), with_external_data(), nested(3000), output_is_input(), b"\x00garbage",
     b"\x3a\xff", b"", model([DOUBLE])[:-3]],
    ids=["opset", "function", "external data", "deep", "output is input", "garbage", "cut length", "empty", "cut short"],
)  # fmt: skip
def test_what_cannot_be_merged_is_left_alone(other):
    good = Part(model([DOUBLE]), "0/", {})
    assert merge([good, Part(model([DOUBLE]), "1/", {"x": "0/y"})]) is not None
    assert merge([good, Part(other, "1/", {"x": "0/y"})]) is None


def test_large_models_are_left_alone(monkeypatch):
    monkeypatch.setattr(merging, "LARGEST", 10)
    assert merge([Part(model([DOUBLE]), "0/", {}), Part(model([DOUBLE]), "1/", {"x": "0/y"})]) is None


def test_a_model_with_weights_beside_it_runs_and_stays_apart(tmp_path):
    path, modules = chain(tmp_path, ["onnx", "onnx"])
    file = tmp_path / "n1.onnx"
    before = hash_file(file)[1]
    onnx.save(onnx.load(file), file, save_as_external_data=True, location="n1.onnx.data", size_threshold=0)
    path.write_text(path.read_text().replace(before, hash_file(file)[1]))
    assert [unit.label for unit in units(path)] == ["'n0'", "'n1'"]
    x = torch.randn(2, 8)
    torch.testing.assert_close(InferenceManager(path)({"n0/x": x})["n1/y"], modules[1](modules[0](x)))


@pytest.mark.parametrize("opened", [Pipeline, lambda path: apart(Pipeline(path))])
def test_factors_of_products_keep_the_digits_of_float64(tmp_path, opened):
    """ONNX Runtime would put them into its products, in float32."""

    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("by", torch.tensor(3.0, dtype=torch.float64))

        def forward(self, x):
            return (x @ x.T / self.by + (x[:1] @ x[:1].T) * 0.1,)

    def draw(seed):
        return torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))

    stages = {name: Stage(Scaled(), {"x": draw(0)}, ["y"], "onnx") for name in ("a", "b")}
    path = write_bundle(tmp_path, stages, {"a/y": ("b/x",)})
    (got,) = opened(path)({"a/x": draw(1).numpy()}).values()
    (first,) = Scaled()(draw(1))
    np.testing.assert_allclose(got, Scaled()(first)[0].numpy(), rtol=1e-13)
