"""The whole pipeline in one file, and bundles for a target."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import yaml

import leapp
from leapp import GraphConfigs, TensorSemantics, annotate
from leapp.bundle import open_bundle, read_initial_values
from leapp.deploy.fuse import CONTRACT, fuse_onnx, read_fused
from leapp.errors import BundleError, ExportError


class Loop:
    """Three nodes: feedback across nodes, a state within one, a weight and a value of the same inner names."""

    def __init__(self, backends=("onnx", "onnx", "onnx"), names=("obs", "policy", "act"), **params):
        torch.manual_seed(3)
        self.gru, self.head = torch.nn.GRUCell(5, 6), torch.nn.Linear(6, 2)
        self.backends, self.names, self.params = backends, names, params
        self.reset()

    def reset(self):
        self.h, self.last = torch.full((1, 6), 0.25), torch.full((1, 2), -0.5)

    def step(self, x):
        first, second, third = self.names
        out = dict(zip(self.names, self.backends))
        x, last = annotate.input_tensors(first, {"x": x, "last": self.last})
        y = torch.cat([x.sin(), last * 0.3], -1)
        y = annotate.output_tensors(first, {"y": y}, export_with=out[first], backend_params=self.params.get("first"))
        y = annotate.input_tensors(second, {"y": y})
        h = annotate.state_tensors(second, {"h": self.h})
        h = self.gru(y, h)
        annotate.update_state(second, {"h": h})
        names = [None, ["left", "right"]]
        raw = TensorSemantics("y", self.head(h), element_names=names)
        raw = annotate.output_tensors(second, raw, export_with=out[second], backend_params=self.params.get("second"))
        z = annotate.input_tensors(third, {"y": raw})
        action = annotate.output_tensors(third, {"action": torch.tanh(z) * 2}, export_with=out[third])
        self.h, self.last = h.detach(), action.detach()
        return action


def export(where, loop, name="g", **compile):
    loop.reset()
    leapp.start(name, save_path=str(where))
    with torch.no_grad():
        for _ in range(3):
            loop.step(torch.randn(1, 3))
    leapp.stop()
    leapp.compile_graph(visualize=False, graph_configs=GraphConfigs(frequency=0.1 + 0.2, extra={"tiny": 5e-324}), **compile)
    return where / name


def play(path, loop, steps=50):
    """The largest difference between a fused model in plain ONNX Runtime and eager code, over new inputs in closed loop."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    metadata = session.get_modelmeta().custom_metadata_map
    wiring = json.loads(metadata[CONTRACT])["pipeline"]
    contract, initial = read_fused(path)
    state = {key: value.numpy() for key, value in initial.items()}
    assert {value.name for value in session.get_inputs()} == {f"{loop.names[0]}/x", *state}
    loop.reset()
    worst = 0.0
    with torch.no_grad():
        for _ in range(steps):
            x = torch.randn(1, 3)
            names = [value.name for value in session.get_outputs()]
            outputs = dict(zip(names, session.run(None, {f"{loop.names[0]}/x": x.numpy(), **state})))
            state = {target: outputs[source] for source, targets in wiring["feedback_flow"].items() for target in targets}
            got = outputs[f"{loop.names[2]}/action"]
            worst = max(worst, float(np.abs(got - loop.step(x).numpy()).max()))
    return worst


def test_one_file_gives_the_same_loop_on_new_inputs(tmp_path):
    loop = Loop()
    directory = export(tmp_path, loop, fuse=True)
    onnx.checker.check_model(str(directory / "g.onnx"))
    assert play(directory / "g.onnx", loop) < 1e-5
    bundle = open_bundle(directory)
    contract, initial = read_fused(directory / "g.onnx")
    assert contract == bundle.contract
    assert contract.pipeline.configs == {"frequency": 0.1 + 0.2, "tiny": 5e-324}
    stored = read_initial_values(bundle)
    assert {key: bytes(value.data) for key, value in initial.items()} == {k: bytes(v.data) for k, v in stored.items()}
    assert "g.onnx" in bundle.files


def test_a_node_called_like_the_graph_keeps_its_file(tmp_path):
    loop = Loop(names=("obs", "G", "obs_y"))
    directory = export(tmp_path, loop, fuse=True)
    assert {path.name for path in directory.glob("*.onnx")} == {"obs.onnx", "G.onnx", "obs_y.onnx", "g_fused.onnx"}
    assert play(directory / "g_fused.onnx", loop) < 1e-5


def test_models_of_other_opsets_are_brought_together(tmp_path):
    loop = Loop(first={"opset_version": 18}, second={"opset_version": 20})
    directory = export(tmp_path, loop, fuse=True)
    assert [entry.version for entry in onnx.load(directory / "g.onnx").opset_import if not entry.domain] == [20]
    assert play(directory / "g.onnx", loop) < 1e-5


def test_other_backends_are_named(tmp_path):
    with pytest.raises(BundleError, match=r"'policy' \(jit\), 'act' \(pt2\).*export_with='onnx'"):
        export(tmp_path, Loop(backends=("onnx", "jit", "pt2")), fuse=True)
    assert not (tmp_path / "g" / "g.yaml").exists()


def test_a_bundle_can_be_fused_later_and_the_same_bytes_come_out(tmp_path):
    directory = export(tmp_path, Loop(), fuse=True)
    again = fuse_onnx(open_bundle(directory), tmp_path / "again.onnx")
    assert again.read_bytes() == (directory / "g.onnx").read_bytes()
    with pytest.raises(BundleError, match="not a model that leapp fused"):
        read_fused(directory / "obs.onnx")


def test_isaac_ros_spelling(tmp_path):
    directory = export(tmp_path, Loop(), target="isaac-ros")
    document = yaml.safe_load((directory / "g.yaml").read_text())
    names = [port.get("element_names") for port in document["models"]["policy"]["outputs"]]
    assert [[], ["left", "right"]] in names
    assert document["pipeline"]["feedback_connections"] == document["pipeline"]["feedback_flow"] != {}
    assert open_bundle(directory).contract.pipeline.feedback_flow
    assert leapp.InferenceManager(str(directory / "g.yaml")).outputs == ["act/action"]


@pytest.mark.parametrize("target", ["onnxruntime", "tensorrt", "openvino", "isaac-ros"])
def test_every_target_takes_onnx_and_refuses_the_rest(target, tmp_path):
    directory = export(tmp_path / "good", Loop(), target=target)
    models = yaml.safe_load((directory / "g.yaml").read_text())["models"].values()
    assert {model["parameters"]["opset_version"] for model in models} == {20}
    with pytest.raises(ExportError, match=rf"target='{target}'.*\n.*policy: the model is jit"):
        export(tmp_path / "bad", Loop(backends=("onnx", "jit", "onnx")), target=target)
    assert not (tmp_path / "bad" / "g" / "g.yaml").exists()


def test_a_target_checks_opsets_and_dtypes_before_anything_is_written(tmp_path):
    with pytest.raises(ExportError, match="obs: opset 23 is outside 9 to 20"):
        export(tmp_path, Loop(first={"opset_version": 23}), target="tensorrt")
    leapp.start("d", save_path=str(tmp_path))
    x = annotate.input_tensors("n", {"x": torch.arange(3, dtype=torch.int16)})
    annotate.output_tensors("n", {"y": x + 1}, export_with="onnx")
    leapp.stop()
    with pytest.raises(ExportError, match="n/x: int16 is not a type it takes"):
        leapp.compile_graph(visualize=False, target="tensorrt")
    with pytest.raises(ValueError, match="'jetson' is unknown.*'tensorrt'"):
        leapp.compile_graph(visualize=False, target="jetson")
