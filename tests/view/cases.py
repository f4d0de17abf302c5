"""Contracts of many shapes to draw."""

from __future__ import annotations

import random
from collections.abc import Callable

from leapp.graph.contract import Contract, ModelFile, Node, Port, Wiring


def port(name: str, shape: tuple[int, ...] = (1, 12), dtype: str = "float32", **meaning: object) -> Port:
    return Port(name=name, dtype=dtype, shape=shape, **meaning)  # type: ignore[arg-type]


def node(inputs: list[Port], outputs: list[Port], backend: str | None = "onnx") -> Node:
    path = f"model.{backend}" if backend else None
    return Node(inputs=tuple(inputs), outputs=tuple(outputs), model=ModelFile(model_path=path, backend=backend))


def contract(
    nodes: dict[str, Node],
    data: dict[str, list[str]] | None = None,
    feedback: dict[str, list[str]] | None = None,
    also_outputs: tuple[str, ...] = (),
    configs: dict[str, object] | None = None,
) -> Contract:
    """Unwired ports become graph inputs and outputs."""
    data, feedback = data or {}, feedback or {}
    fed = {t for flow in (data, feedback) for targets in flow.values() for t in targets}
    used = {*data, *feedback} - set(also_outputs)
    inputs = {n: tuple(p.name for p in v.inputs if f"{n}/{p.name}" not in fed) for n, v in nodes.items()}
    outputs = {n: tuple(p.name for p in v.outputs if f"{n}/{p.name}" not in used) for n, v in nodes.items()}
    return Contract(
        nodes=nodes,
        pipeline=Wiring(
            data_flow={k: tuple(v) for k, v in data.items()},
            feedback_flow={k: tuple(v) for k, v in feedback.items()},
            inputs={n: p for n, p in inputs.items() if p},
            outputs={n: p for n, p in outputs.items() if p},
            configs=configs,
        ),
    )


def empty() -> Contract:
    return contract({})


def one() -> Contract:
    return contract({"policy": node([port("obs", (1, 45))], [port("action")])}, configs={"frequency": 50})


def quadruped() -> Contract:
    """Three nodes with everything a usual policy has: kinds, units, a state, feedback, static gains."""
    names = [f"joint_{i}" for i in range(12)]
    nodes = {
        "observation": node(
            [
                port("joint_pos", kind="state/joint/position", element_names=[names], extra={"units": "rad"}),
                port("joint_vel", kind="state/joint/velocity", element_names=[names], extra={"units": "rad/s"}),
                port("base_ang_vel", (1, 3), kind="state/body/angular_velocity", extra={"units": "rad/s"}),
                port("command", (1, 3), kind="command/body/velocity"),
                port("last_action"),
            ],
            [port("obs", (1, 45))],
            "jit",
        ),
        "actor": node(
            [port("obs", (1, 45)), port("hidden", (1, 1, 256))],
            [port("action"), port("hidden", (1, 1, 256))],
        ),
        "actuation": node(
            [port("action")],
            [
                port(
                    "targets",
                    (4, 12),
                    kind="target/joint/position",
                    element_names=["__temporal_axis__", names],
                    temporal_period_ms=20,
                    extra={"units": "rad"},
                ),
                port("kp", (12,), kind="kp"),
                port("kd", (12,), kind="kd"),
            ],
            "pt2",
        ),
    }
    return contract(
        nodes,
        {"observation/obs": ["actor/obs"], "actor/action": ["actuation/action"]},
        {"actor/action": ["observation/last_action"], "actor/hidden": ["actor/hidden"]},
        also_outputs=("actor/action",),
        configs={"frequency": 50},
    )


def chain(count: int) -> Contract:
    nodes = {f"stage_{i}": node([port("x")], [port("y")]) for i in range(count)}
    return contract(
        nodes,
        {f"stage_{i}/y": [f"stage_{i + 1}/x"] for i in range(count - 1)},
    )


def mesh(count: int, seed: int, feedbacks: int = 4, reach: int = 8) -> Contract:
    """A random pipeline with skips, shared outputs, feedback over many nodes and states."""
    rng = random.Random(seed)
    nodes: dict[str, Node] = {}
    data: dict[str, list[str]] = {}
    feedback: dict[str, list[str]] = {}
    for i in range(count):
        inputs = [port(f"in_{k}") for k in range(rng.randint(1, 4))]
        outputs = [port(f"out_{k}") for k in range(rng.randint(1, 3))]
        nodes[f"node_{i}"] = node(inputs, outputs, rng.choice(["onnx", "jit", "pt2", None]))
        for p in inputs:
            if i and rng.random() < 0.75:
                j = max(0, i - rng.randint(1, reach))
                source = rng.choice(nodes[f"node_{j}"].outputs).name
                data.setdefault(f"node_{j}/{source}", []).append(f"node_{i}/{p.name}")
    fed = {t for targets in data.values() for t in targets}
    free = [(i, p.name) for i in range(count) for p in nodes[f"node_{i}"].inputs if f"node_{i}/{p.name}" not in fed]
    for i, name in rng.sample(free, min(feedbacks, len(free))):
        j = rng.randint(i, count - 1)
        source = rng.choice(nodes[f"node_{j}"].outputs).name
        feedback.setdefault(f"node_{j}/{source}", []).append(f"node_{i}/{name}")
    return contract(nodes, data, feedback)


def fan(count: int) -> Contract:
    nodes = {"split": node([port("x")], [port("y")])}
    nodes |= {f"expert_{i}": node([port("x")], [port("y")]) for i in range(count)}
    nodes["join"] = node([port(f"from_{i}") for i in range(count)], [port("action")])
    data = {"split/y": [f"expert_{i}/x" for i in range(count)]}
    data |= {f"expert_{i}/y": [f"join/from_{i}"] for i in range(count)}
    return contract(nodes, data)


def many_ports() -> Contract:
    names = [f"sensor_{i:02d}" for i in range(40)]
    nodes = {
        "reader": node([port("raw", (40,))], [port(n, (1,)) for n in names[:6]]),
        "hub": node(
            [port(n, (1, 3), kind="state/vector3d", extra={"units": "m/s²"}) for n in names],
            [port(f"feature_{i}", (8,)) for i in range(10)],
        ),
        "head": node([port(f"feature_{i}", (8,)) for i in range(10)], [port("action")]),
    }
    data = {f"reader/{n}": [f"hub/{n}"] for n in names[:6]}
    data |= {f"hub/feature_{i}": [f"head/feature_{i}"] for i in range(10)}
    return contract(nodes, data)


def long_names() -> Contract:
    a, b, c = ("left_front_leg_" + tail for tail in ("hip_abduction", "hip_flexion", "knee_flexion"))
    long = [f"{n}_filtered_joint_position_measurement_number_{i}"[:60].ljust(60, "x") for i, n in enumerate((a, b, c))]
    solid = "w" * 60
    return contract(
        {
            "estimator_of_everything_that_the_robot_can_possibly_know_now": node(
                [port(n, (1, 3), kind="state/joint/position/of/the/whole/kinematic/chain") for n in long],
                [port(n) for n in (*long, solid)],
            ),
            "policy": node([port(n) for n in (*long, solid)], [port("action")]),
        },
        {f"estimator_of_everything_that_the_robot_can_possibly_know_now/{n}": [f"policy/{n}"] for n in (*long, solid)},
    )


def states(count: int) -> Contract:
    ports = [port(f"h{i}", (1, 64)) for i in range(count)]
    return contract(
        {"recurrent": node([port("obs"), *ports], [port("action"), *ports])},
        feedback={f"recurrent/h{i}": [f"recurrent/h{i}"] for i in range(count)},
    )


def far_feedback() -> Contract:
    nodes = {f"stage_{i}": node([port("x"), port("memory")], [port("y"), port("trace")]) for i in range(7)}
    return contract(
        nodes,
        {f"stage_{i}/y": [f"stage_{i + 1}/x"] for i in range(6)},
        {
            "stage_6/y": ["stage_0/memory", "stage_3/memory"],
            "stage_5/trace": ["stage_1/memory"],
            "stage_4/trace": ["stage_4/memory", "stage_2/memory"],
        },
    )


def without_model() -> Contract:
    return contract(
        {
            "camera": node([port("frame", (3, 64, 64), "uint8")], [port("image", (3, 64, 64))], None),
            "encoder": node([port("image", (3, 64, 64))], [port("latent", (256,))]),
        },
        {"camera/image": ["encoder/image"]},
    )


def disconnected() -> Contract:
    nodes = {f"lonely_{i}": node([port("x")], [port("y")]) for i in range(5)}
    nodes |= {"first": node([port("x")], [port("y")]), "second": node([port("y")], [port("z")])}
    nodes["silent"] = node([], [])
    nodes["constant"] = node([], [port("gains", (12,))])
    return contract(nodes, {"first/y": ["second/y"]})


HOSTILE = (
    "<script src=x onerror=alert(1)>",
    "\"quoted\" & 'single'",
    "line\nbreak\ttab",
    "x" * 500,
    "名前_速度",
    "größe_µ_Ω→α̂",
    "bell\x07null\x00",
    "right\u202eleft",
    "lone\ud800",
    "🤖",
    "]]>",
    "",
)


def hostile() -> Contract:
    ports = [port(name, kind=name, extra={"units": name}) for name in HOSTILE]
    return contract(
        {HOSTILE[0]: node(ports, ports), HOSTILE[2]: node(ports, [])},
        {f"{HOSTILE[0]}/{p.name}": [f"{HOSTILE[2]}/{p.name}"] for p in ports},
    )


def loose() -> Contract:
    made = contract({"a": node([port("x"), port("unused")], [port("y"), port("dropped")])})
    pipeline = Wiring(inputs={"a": ("x",)}, outputs={"a": ("y",)})
    return Contract(nodes=made.nodes, pipeline=pipeline)


def cyclic() -> Contract:
    """Not a pipeline anyone can run, but a picture helps to see why."""
    nodes = {n: node([port("x")], [port("y")]) for n in "abc"}
    return contract(nodes, {"a/y": ["b/x"], "b/y": ["c/x"], "c/y": ["a/x"]})


CASES: dict[str, Callable[[], Contract]] = {
    "empty": empty,
    "one": one,
    "quadruped": quadruped,
    "chain_12": lambda: chain(12),
    "chain_60": lambda: chain(60),
    "mesh_12": lambda: mesh(12, 3),
    "mesh_60": lambda: mesh(60, 5, feedbacks=8),
    "mesh_60_dense": lambda: mesh(60, 11, feedbacks=12, reach=30),
    "fan_58": lambda: fan(58),
    "many_ports": many_ports,
    "long_names": long_names,
    "state_1": lambda: states(1),
    "states_40": lambda: states(40),
    "far_feedback": far_feedback,
    "without_model": without_model,
    "disconnected": disconnected,
    "lonely_60": lambda: contract({f"n{i}": node([port("x")], [port("y")]) for i in range(60)}),
    "hostile": hostile,
    "loose": loose,
    "cyclic": cyclic,
}

FACTS: dict[str, dict[str, object]] = {
    "one": {"parameter_counts": {"policy": 184_844}},
    "quadruped": {
        "static_outputs": {"actuation/kp", "actuation/kd"},
        "parameter_counts": {"observation": 0, "actor": 1_284_108, "actuation": 24},
    },
}
