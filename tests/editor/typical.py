"""A program as users write it, with types. Both checkers take it as it is; test_editor.py runs them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import leapp
from leapp import (
    FunctionPatch,
    GraphConfigs,
    InferenceManager,
    InputKindEnum,
    OutputKindEnum,
    TemporalAxis,
    TensorSemantics,
    annotate,
)
from leapp.bundle import Bundle, open_bundle
from leapp.errors import LeappError
from leapp.runtime import Pipeline, PortInfo

JOINTS = ["hip", "knee"]


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return out


@annotate.method(node_name="observe", export_with="onnx", output_names=["obs"], input_semantics={"q": {"units": "rad"}})
def observe(q: Tensor, qd: Tensor) -> Tensor:
    return torch.cat([q, qd])


class Controller:
    def __init__(self) -> None:
        self.policy = Policy().eval()
        self.hidden = torch.zeros(2)

    @torch.no_grad()
    def step(self, q: Tensor, image: np.ndarray) -> Tensor:
        q, image = annotate.input_tensors("policy", {"q": q, "image": image}, batch_axis=None)
        meaning = TensorSemantics("goal", q, InputKindEnum.JOINT_POSITION, JOINTS, units="rad", limits=[-1.0, 1.0])
        goal: Tensor = annotate.input_tensors("policy", meaning)
        self.hidden = annotate.state_tensors("policy", {"hidden": self.hidden})
        annotate.module("policy", self.policy, buffer_names=["memory"])
        scratch = annotate.register_buffer("policy", {"scratch": torch.zeros(2)})
        scratch[0] = goal[0]
        action: Tensor = self.policy(q) + self.hidden + scratch
        self.hidden = annotate.update_state("policy", {"hidden": action})
        copy = annotate.mirror_leapp_tags(action, action.clone())
        target = TensorSemantics(
            "target", copy, OutputKindEnum.JOINT_POSITION, element_names=[TemporalAxis(20), JOINTS], scale=2.0, frame="base",
            extra={"topic": "/command"},
        )  # fmt: skip
        annotate.output_tensors(
            "policy", [target], static_outputs={"kp": torch.ones(2)}, export_with="onnx",
            backend_params={"opset_version": 20, "optimize": True}, graph_outputs=["target"],
        )  # fmt: skip
        return action


def export(directory: Path) -> bool:
    controller = Controller()
    patch = FunctionPatch(np, "interp", torch.lerp)
    leapp.start(
        "robot", save_path=directory, verbose=False, max_cached_io=3, patching=[patch], escapes="error", dynamic_batch=False,
        min_passes=2,
    )  # fmt: skip
    for _ in range(2):
        controller.step(observe(torch.randn(1), torch.randn(1)), np.zeros(3))
    leapp.stop()
    results = leapp.compile_graph(
        validate="thorough", graph_configs=GraphConfigs(frequency=50), target="onnxruntime", fuse=True
    )
    report = leapp.report()
    for escape in report.escapes:
        print(escape.node, escape.file, escape.line, escape.source)
    for proof in report.proven:
        print(proof.file, proof.samples, proof.largest)
    return results if isinstance(results, bool) else all(results.values())


def export_in_a_block() -> None:
    with leapp.session("robot", save_path="exports", min_passes=2, compile={"fuse": True, "rtol": 1e-4}):
        Controller().step(torch.randn(2), np.zeros(3))


def deploy(path: str | Path) -> float:
    pipeline = Pipeline(path, threads=1, nonfinite="raise", expect_digest=None)
    port: PortInfo | None = pipeline.input_by_kind(InputKindEnum.JOINT_POSITION)
    if port is not None:
        print(port.key, port.shape, port.element_names, port.units)
    outputs = pipeline(pipeline.zeros_input())
    target: np.ndarray = outputs["policy/target"]
    robot = pipeline.bind(inputs={"policy/q": ["knee", "hip"]})
    robot({"policy/q": np.zeros(2, np.float32)})
    with pipeline.record("run.npz") as recorded:
        recorded(pipeline.zeros_input())
    saved = pipeline.state()
    pipeline.reset()
    pipeline.load_state(saved)
    return float(target[0])


def play(path: Path) -> Tensor:
    manager = InferenceManager(path, device="cpu")
    try:
        outputs = manager.run_policy({name: torch.zeros(2) for name in manager.inputs})
    except LeappError as error:
        print(error)
        raise
    manager.reset(node="policy")
    return outputs["policy/target"]


def look(path: Path) -> list[str]:
    bundle: Bundle = open_bundle(path, expect_digest=None)
    return [f"{name}: {node.model.model_path}" for name, node in bundle.contract.nodes.items()]
