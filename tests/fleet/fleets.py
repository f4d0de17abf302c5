"""A small policy with state and named joints, and recordings of it. Needs no torch, so that it runs beside Ray too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from leapp.bundle.sidecars import describe_model
from leapp.bundle.staging import Staging
from leapp.graph.contract import Contract, Node, Port, Wiring
from leapp.runtime import Pipeline

JOINTS = ["hip", "knee", "ankle"]
WEIGHT = np.array([[0.9, 0.0, 0.2], [0.0, -1.1, 0.0], [0.4, 0.0, 0.7]], np.float32)
"""The knee is moved by the knee alone."""


def write_policy(
    directory: Path,
    weight: np.ndarray = WEIGHT,
    inputs: str = "q",
    outputs: tuple[str, ...] = ("target",),
    any_batch: bool = False,
) -> Path:
    """``h = h / 2 + q`` and ``target = tanh(h weight)``, sealed. Returns the directory."""
    forms = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows" if any_batch else 1, 3])
        for name in (inputs, "h_in", "target", "h_out")
    }
    graph = helper.make_graph(
        [
            helper.make_node("Mul", ["h_in", "half"], ["kept"]),
            helper.make_node("Add", ["kept", inputs], ["h_out"]),
            helper.make_node("MatMul", ["h_out", "weight"], ["product"]),
            helper.make_node("Tanh", ["product"], ["target"]),
        ],
        "policy",
        [forms[inputs], forms["h_in"]],
        [forms["target"], forms["h_out"]],
        [numpy_helper.from_array(np.float32(0.5), "half"), numpy_helper.from_array(weight.astype(np.float32), "weight")],
    )
    ports = {
        name: Port(
            name=name, dtype="float32", shape=(1, 3), element_names=[["batch"], JOINTS], batch_axis=0 if any_batch else None
        )
        for name in forms
    }
    with Staging(directory) as staging:
        path = staging.path / "policy.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        node = Node(
            inputs=(ports[inputs], ports["h_in"]),
            outputs=(ports["target"], ports["h_out"]),
            model=describe_model(path, staging.path, "onnx"),
        )
        wiring = Wiring(
            feedback_flow={"policy/h_out": ("policy/h_in",)}, inputs={"policy": (inputs,)}, outputs={"policy": outputs}
        )
        system = {"leapp config version": "1.3", "leapp version": "1.0"}
        staging.commit("leg", Contract(nodes={"policy": node}, pipeline=wiring, system=system))
    return directory


def write_recordings(
    bundle: Path, directory: Path, count: int, steps: int = 20, suffixes: tuple[str, ...] = ("npz",)
) -> list[Path]:
    """Recordings of different inputs. In each, the knee stands still until step ``steps // 2``."""
    directory.mkdir(parents=True, exist_ok=True)
    running, generator = Pipeline(bundle), np.random.default_rng(5)
    paths = []
    for number in range(count):
        path = directory / f"run{number:04}.{suffixes[number % len(suffixes)]}"
        values = generator.standard_normal((steps, 1, 3)).astype(np.float32)
        values[: steps // 2, 0, 1] = 0.0
        running.reset()
        with running.record(path) as step:
            for value in values:
                step({"policy/q": value})
        paths.append(path)
    return paths
