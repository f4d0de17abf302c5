"""The facts about targets, one by one, and what a deployer would have to ask for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from leapp.bundle import Bundle, RawTensor
from leapp.bundle.contract_yaml import dump_contract
from leapp.bundle.sidecars import write_initial_values
from leapp.deploy.targets import TARGETS, check_target, spelled
from leapp.graph.contract import Contract, ModelFile, Node, Port, Wiring
from leapp.graph.gaps import deployment_gaps


def bundle(directory: Path, inputs: list[Port], backend: str | None = "onnx", opset: int = 18, **wiring: object) -> Bundle:
    """One node ``n`` with the given inputs and an output ``y``. Its model is an empty ONNX file."""
    import hashlib

    (directory / "n.onnx").write_bytes(b"")
    sha = hashlib.sha256(b"").hexdigest()
    model = ModelFile(model_path="n.onnx", md5sum="0" * 32, sha256sum=sha, backend=backend, extra={"opset_version": opset})
    node = Node(inputs=tuple(inputs), outputs=(Port(name="y", dtype="float32", shape=(2,)),), model=model)
    pipeline = Wiring(inputs={"n": tuple(p.name for p in inputs)}, outputs={"n": ("y",)})
    if wiring:
        pipeline = Wiring(outputs={"n": ("y",)}, **wiring)  # type: ignore[arg-type]
    contract = Contract(nodes={"n": node}, pipeline=pipeline, system={"leapp config version": "1.3"})
    path = directory / "g.yaml"
    path.write_text(dump_contract(contract) + "\nintegrity: unsealed\n")
    return Bundle(path, contract, None, {})


def port(dtype: str = "float32", names: list | None = None) -> Port:
    return Port(name="x", dtype=dtype, shape=(2,), element_names=names)


def findings(made: Bundle, target: str) -> list[tuple[str, str]]:
    return [(f.level, f.where) for f in check_target(made, target)]


@pytest.mark.parametrize("target", TARGETS)
def test_a_plain_model_is_taken_by_all(target: str, tmp_path: Path) -> None:
    assert findings(bundle(tmp_path, [port(names=[["a", "b"]])]), target) == []


@pytest.mark.parametrize(
    ("target", "level"), [("onnxruntime", None), ("openvino", None), ("tensorrt", "warning"), ("isaac-ros", "warning")]
)
def test_a_model_for_any_batch(target: str, level: str | None, tmp_path: Path) -> None:
    made = bundle(tmp_path, [Port(name="x", dtype="float32", shape=(2,), batch_axis=0)])
    assert findings(made, target) == ([] if level is None else [(level, "n")])


@pytest.mark.parametrize("target", TARGETS)
def test_only_onnx_is_read(target: str, tmp_path: Path) -> None:
    assert findings(bundle(tmp_path, [port()], backend="jit"), target) == [("error", "n")]


@pytest.mark.parametrize(
    ("target", "dtype", "level"),
    [
        ("onnxruntime", "complex64", "error"),
        ("onnxruntime", "int16", None),
        ("openvino", "complex128", "error"),
        ("tensorrt", "float64", "warning"),
        ("tensorrt", "int16", "error"),
        ("tensorrt", "uint8", None),
        ("isaac-ros", "bfloat16", "error"),
    ],
)
def test_dtypes(target: str, dtype: str, level: str | None, tmp_path: Path) -> None:
    expected = [] if level is None else [(level, "n/x")]
    assert findings(bundle(tmp_path, [port(dtype)]), target) == expected


@pytest.mark.parametrize(("opset", "taken"), [(8, False), (9, True), (20, True), (21, False)])
def test_tensorrt_reads_a_range_of_opsets(opset: int, taken: bool, tmp_path: Path) -> None:
    assert (findings(bundle(tmp_path, [port()], opset=opset), "tensorrt") == []) is taken


@pytest.mark.parametrize("names", [[None, ["a", "b"]], ["__temporal_axis__", ["a", "b"]], ["a", "b"]])
def test_isaac_ros_needs_a_list_for_each_axis(names: list, tmp_path: Path) -> None:
    assert ("error", "n/x") in findings(bundle(tmp_path, [port(names=names)]), "isaac-ros")
    assert findings(bundle(tmp_path, [port(names=[[], ["a", "b"]])]), "isaac-ros") == []


def test_the_isaac_ros_spelling_keeps_which_axis_runs_over_time() -> None:
    named = Port(name="y", dtype="float32", shape=(1, 8, 2), element_names=[[], "__temporal_axis__", ["a", "b"]],
                 temporal_period_ms=20, extra={"units": "rad"})  # fmt: skip
    plain = Port(name="x", dtype="float32", shape=(2,), element_names=[["a", "b"]])
    contract = Contract(nodes={"n": Node(inputs=(plain,), outputs=(named,))}, pipeline=Wiring())
    document = yaml.safe_load(dump_contract(spelled(contract, "isaac-ros")))["models"]["n"]
    assert document["inputs"][0]["element_names"] == [["a", "b"]] and "temporal_axis" not in document["inputs"][0]
    (output,) = document["outputs"]
    assert output["element_names"] == [[], [], ["a", "b"]]
    assert (output["temporal_axis"], output["temporal_period_ms"], output["units"]) == (1, 20, "rad")
    # Without a target, programs built on 0.7.2 find the axis by its mark.
    default = yaml.safe_load(dump_contract(contract))["models"]["n"]["outputs"][0]
    assert default["element_names"] == [[], "__temporal_axis__", ["a", "b"]] and "temporal_axis" not in default


def test_old_isaac_ros_knows_neither_feedback_flow_nor_initial_values(tmp_path: Path) -> None:
    made = bundle(tmp_path, [port()], feedback_flow={"n/y": ("n/x",)}, initial_values="g_initial_values.safetensors")
    for value, expected in ((0.0, ["pipeline"]), (1.0, ["pipeline", "n/x"])):
        start = RawTensor.of(np.full(2, value, np.float32))
        write_initial_values(tmp_path, "g", {"n/x": start}, made.contract)
        assert findings(made, "isaac-ros") == [("warning", where) for where in expected]


def test_gaps_name_the_ports() -> None:
    vector = Port(name="x", dtype="float32", shape=(1, 3))
    image = Port(name="image", dtype="float32", shape=(3, 8, 8), kind="camera", extra={"units": "1"})
    done = Port(name="y", dtype="float32", shape=(2,), kind="k", element_names=[["a", "b"]], extra={"units": "m"})
    node = Node(inputs=(vector, image), outputs=(done,))
    pipeline = Wiring(inputs={"n": ("x", "image")}, outputs={"n": ("y",)}, feedback_flow={"n/y": ("n/h",)})
    gaps = deployment_gaps(Contract(nodes={"n": node}, pipeline=pipeline))
    assert [gap.split(":")[0] for gap in gaps] == [
        "no frequency", "no kind", "no units", "no element names", "no model", "no initial values",
    ]  # fmt: skip
    assert gaps[1:4] == ["no kind: n/x", "no units: n/x", "no element names: n/x"]
