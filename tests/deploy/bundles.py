"""A bundle with everything a server makes hard, written with ONNX alone so that a server's venv needs no torch.

Both nodes keep a state; ``policy`` also counts, in a number without axes. What ``policy`` returns goes back to ``arm`` in the
next step. Both have an input ``gain``, a state ``h`` and an output ``y``, and one is called like the graph. ``policy`` fails
for a ``mode`` other than 0, 1 or 2, when ``arm`` has taken its step already.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from leapp.bundle import RawTensor
from leapp.bundle.sidecars import describe_model, write_initial_values
from leapp.bundle.staging import Staging
from leapp.graph.contract import Contract, Node, Port, Wiring

TYPES = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "int64": TensorProto.INT64, "bool": TensorProto.BOOL}
TYPES["bfloat16"] = TensorProto.BFLOAT16
START = {
    "arm/h": np.array([[0.5, -0.25, 1.0, 0.0]], np.float32),
    "arm/last": np.array([[1.0, -1.0]], np.float32),
    "policy/count": np.array(7, np.int64),
    "policy/h": np.array([[0.125, -2.0]], np.float32),
}


def onnx_model(inputs: list[Port], outputs: list[Port], nodes: list[Any], constants: dict[str, Any]) -> bytes:
    def info(port: Port) -> Any:
        return helper.make_tensor_value_info(port.name, TYPES[port.dtype], list(port.shape))

    graph = helper.make_graph(
        nodes, "g", [info(p) for p in inputs], [info(p) for p in outputs],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data


def port(name: str, shape: tuple[int, ...], dtype: str = "float32") -> Port:
    return Port(name=name, dtype=dtype, shape=shape)


def weights(*shape: int, seed: int) -> Any:
    return np.random.default_rng(seed).normal(0, 0.7, shape).astype(np.float32)


def write_bundle(
    directory: Path, graph: str, models: dict[str, tuple[list[Port], list[Port], bytes]], wiring: Wiring,
    initial: dict[str, Any],
) -> Path:  # fmt: skip
    """Seal models as a bundle and return its directory."""
    with Staging(directory) as staging:
        nodes = {}
        for name, (inputs, outputs, data) in models.items():
            path = staging.path / f"{name}.onnx"
            path.write_bytes(data)
            model = describe_model(path, staging.path, "onnx")
            nodes[name] = Node(inputs=tuple(inputs), outputs=tuple(outputs), model=model)
        system = {"leapp config version": "1.3", "leapp version": "1.0.0"}
        contract = Contract(nodes=nodes, pipeline=wiring, system=system)
        if initial:
            values = {k: RawTensor.of(v) for k, v in initial.items()}
            file = write_initial_values(staging.path, graph, values, contract)
            fields = {f: getattr(wiring, f) for f in wiring.__struct_fields__} | {"initial_values": file}
            contract = Contract(nodes=nodes, pipeline=Wiring(**fields), system=system)
        staging.commit(graph, contract)
    return directory


def arm(directory: Path) -> Path:
    """Recurrent state inside a node and feedback across nodes; see the module."""
    make = helper.make_node
    inputs = [port("obs", (1, 3)), port("gain", (1,)), port("h", (1, 4)), port("last", (1, 2))]
    outputs = [port("y", (1, 4)), port("h_out", (1, 4))]
    first = onnx_model(
        inputs,
        outputs,
        [
            make("MatMul", ["obs", "a"], ["oa"]),
            make("MatMul", ["h", "b"], ["hb"]),
            make("MatMul", ["last", "c"], ["lc"]),
            make("Sum", ["oa", "hb", "lc"], ["sum"]),
            make("Tanh", ["sum"], ["h_out"]),
            make("Mul", ["h_out", "gain"], ["y"]),
        ],
        {"a": weights(3, 4, seed=1), "b": weights(4, 4, seed=2), "c": weights(2, 4, seed=3)},
    )
    policy_in = [port("x", (1, 4)), port("gain", (1,)), port("h", (1, 2))]
    policy_in += [port("count", (), "int64"), port("mode", (1,), "int64")]
    policy_out = [port("y", (1, 2)), port("next", (), "int64"), port("h_out", (1, 2))]
    second = onnx_model(
        policy_in,
        policy_out,
        [
            make("MatMul", ["x", "d"], ["xd"]),
            make("Add", ["count", "one"], ["next"]),
            make("Cast", ["next"], ["number"], to=TensorProto.FLOAT),
            make("Mul", ["number", "small"], ["drift"]),
            make("Mul", ["h", "decay"], ["faded"]),
            make("Gather", ["table", "mode"], ["chosen"]),
            make("Sum", ["xd", "faded", "chosen"], ["h_out"]),
            make("Add", ["h_out", "drift"], ["moved"]),
            make("Tanh", ["moved"], ["bounded"]),
            make("Mul", ["bounded", "gain"], ["y"]),
        ],
        {
            "d": weights(4, 2, seed=4),
            "one": np.array(1, np.int64),
            "small": np.array(0.01, np.float32),
            "decay": np.array(0.5, np.float32),
            "table": weights(3, 2, seed=5),
        },
    )
    wiring = Wiring(
        data_flow={"arm/y": ("policy/x",)},
        feedback_flow={
            "arm/h_out": ("arm/h",),
            "policy/y": ("arm/last",),
            "policy/next": ("policy/count",),
            "policy/h_out": ("policy/h",),
        },
        inputs={"arm": ("obs", "gain"), "policy": ("gain", "mode")},
        outputs={"arm": ("y",), "policy": ("y",)},
    )
    models = {"arm": (inputs, outputs, first), "policy": (policy_in, policy_out, second)}
    return write_bundle(directory, "arm", models, wiring, START)


def arm_inputs(seed: int, steps: int, dye: bool = False) -> list[dict[str, Any]]:
    """Inputs for ``arm``; with ``dye`` some of them are not numbers."""
    rng = np.random.default_rng(seed)
    made = [
        {
            "arm/obs": rng.normal(size=(1, 3)).astype(np.float32),
            "arm/gain": rng.uniform(0.5, 1.5, 1).astype(np.float32),
            "policy/gain": rng.uniform(0.5, 1.5, 1).astype(np.float32),
            "policy/mode": rng.integers(0, 3, 1),
        }
        for _ in range(steps)
    ]
    if dye:
        for values in made[steps // 2 :]:
            values["arm/obs"][0, 1] = np.nan
    return made


def halved(directory: Path) -> Path:
    """One node in bfloat16 with a state."""
    make = helper.make_node
    inputs, outputs = ([port(n, (1, 3), "bfloat16") for n in names] for names in (("x", "h"), ("y", "h_out")))
    nodes = [
        make("Cast", ["x"], ["wide_x"], to=TensorProto.FLOAT),
        make("Cast", ["h"], ["wide_h"], to=TensorProto.FLOAT),
        make("Mul", ["wide_h", "decay"], ["faded"]),
        make("Add", ["wide_x", "faded"], ["sum"]),
        make("Tanh", ["sum"], ["bounded"]),
        make("Cast", ["sum"], ["h_out"], to=TensorProto.BFLOAT16),
        make("Cast", ["bounded"], ["y"], to=TensorProto.BFLOAT16),
    ]
    model = onnx_model(inputs, outputs, nodes, {"decay": np.array(0.5, np.float32)})
    wiring = Wiring(feedback_flow={"p/h_out": ("p/h",)}, inputs={"p": ("x",)}, outputs={"p": ("y",)})
    return write_bundle(directory, "half", {"p": (inputs, outputs, model)}, wiring, {})
