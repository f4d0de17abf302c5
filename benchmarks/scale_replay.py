"""Replay throughput of a fleet: Ray with 1 and 2 workers against two loops over the same files.

    .venv-ray/bin/python benchmarks/scale_replay.py [recordings] [steps] [rounds]

The plain loop calls ``Pipeline.replay`` file by file: it runs and compares, and keeps no figures. The local engine is what
``leapp replay`` does without Ray: it runs, compares, counts, and keeps a journal, which is the work that is done on Ray. The
runs alternate, because a shared machine changes while they last. Rates are taken when every worker is at work, so opening
engines and starting workers do not count. Beside the wall clock stands the processor time of all that takes part: the workers,
this process, which collects, and Ray's own. On a machine that others use too, it tells what a free one could do at best.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import ray
from onnx import TensorProto, helper, numpy_helper

from leapp.bundle import Staging, describe_model, system_information
from leapp.fleet import replay_fleet
from leapp.graph.contract import Contract, Node, Port
from leapp.graph.contract import Pipeline as Wiring
from leapp.runtime import Pipeline

SIZES = (48, 256, 128, 12)


def write_policy(directory: Path) -> Path:
    """A policy as robots have them: three layers, the last action fed back."""
    generator = np.random.default_rng(0)
    nodes = [helper.make_node("Concat", ["obs", "last"], ["x0"], axis=1)]
    weights = []
    for i, (rows, columns) in enumerate(zip((SIZES[0] + SIZES[-1], *SIZES[1:-1]), SIZES[1:], strict=True)):
        weights.append(numpy_helper.from_array(generator.normal(0, rows**-0.5, (rows, columns)).astype(np.float32), f"w{i}"))
        nodes.append(helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"y{i}"]))
        nodes.append(helper.make_node("Tanh", [f"y{i}"], [f"x{i + 1}"]))
    nodes[-1].output[0] = "action"
    shapes = {"obs": (1, SIZES[0]), "last": (1, SIZES[-1]), "action": (1, SIZES[-1])}
    forms = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()}
    graph = helper.make_graph(nodes, "policy", [forms["obs"], forms["last"]], [forms["action"]], weights)
    ports = {name: Port(name=name, dtype="float32", shape=shape) for name, shape in shapes.items()}
    with Staging(directory) as staging:
        path = staging.path / "policy.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        model = describe_model(path, staging.path, "onnx")
        node = Node(inputs=(ports["obs"], ports["last"]), outputs=(ports["action"],), model=model)
        flow = {"policy/action": ("policy/last",)}
        wiring = Wiring(feedback_flow=flow, inputs={"policy": ("obs",)}, outputs={"policy": ("action",)})
        staging.commit("policy", Contract(nodes={"policy": node}, pipeline=wiring, system=system_information()))
    return directory


def record(bundle: Path, directory: Path, count: int, steps: int) -> list[Path]:
    """Recordings of random observations."""
    directory.mkdir()
    pipeline, generator = Pipeline(bundle), np.random.default_rng(1)
    for number in range(count):
        pipeline.reset()
        with pipeline.record(directory / f"run{number:04}.npz") as step:
            for obs in generator.standard_normal((steps, 1, SIZES[0])).astype(np.float32):
                step({"policy/obs": obs})
    return sorted(directory.iterdir())


Moments = list[tuple[float, float]]
"""When each recording was done, by the wall clock and in processor time."""


def plain(bundle: Path, paths: list[Path]) -> Moments:
    """What one would write by hand."""
    pipeline, moments = Pipeline(bundle), []
    for path in paths:
        assert pipeline.replay(path).difference is None
        moments.append((time.perf_counter(), time.process_time()))
    return moments


def fleet(bundle: Path, paths: list[Path], workers: int | None) -> Moments:
    """The same by leapp, in this process or on Ray."""
    moments: Moments = []
    options = {} if workers is None else {"engine": "ray", "workers": workers}
    used = time.process_time if workers is None else all_seconds
    report = replay_fleet(bundle, paths, progress=lambda: moments.append((time.perf_counter(), used())), **options)
    assert report.same
    assert report.recordings == len(paths)
    return moments


def rates(moments: Moments) -> tuple[float, float]:
    """Recordings a second by both clocks, over the second half: by then every worker is at work."""
    first = len(moments) // 2
    # Results arrive a task at a time, so several have the same moment; the count begins after all of them.
    while moments[first + 1][0] < moments[first][0] + 0.01:
        first += 1
    (wall, cpu), (wall_end, cpu_end) = moments[first], moments[-1]
    done = len(moments) - 1 - first
    return done / (wall_end - wall), done / (cpu_end - cpu)


def all_seconds() -> float:
    """The processor time of this process and of all that Ray started for it."""
    parents, seconds, tick = {}, {}, os.sysconf("SC_CLK_TCK")
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[entry.name], seconds[entry.name] = fields[1], (int(fields[11]) + int(fields[12])) / tick
    mine, found = {str(os.getpid())}, 0
    while len(mine) > found:
        found = len(mine)
        mine |= {one for one, parent in parents.items() if parent in mine}
    return sum(seconds[one] for one in mine)


def main() -> None:
    """Measure and print."""
    count, steps, rounds = (int(word) for word in (*sys.argv[1:], *("200", "1000", "3")[len(sys.argv) - 1 :]))
    # Ray's workers are nice to other programs by default, which would measure those.
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    with tempfile.TemporaryDirectory() as directory:
        bundle = write_policy(Path(directory) / "policy")
        paths = record(bundle, Path(directory) / "runs", count, steps)
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
        found: dict[str, list[tuple[float, float]]] = {}
        for _ in range(rounds):
            found.setdefault("plain loop", []).append(rates(plain(bundle, paths)))
            for name, workers in (("local engine", None), ("ray, 1 worker", 1), ("ray, 2 workers", 2)):
                found.setdefault(name, []).append(rates(fleet(bundle, paths, workers)))
        ray.shutdown()
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    print(f"{count} recordings of {steps} steps, best of {rounds} rounds; {load}")
    heads = ["recordings/s", "to plain", "to local", "recordings/cpu s", "to plain", "to local"]
    print(" " * 18 + "".join(f"{head:>{width}}" for head, width in zip(heads, (14, 10, 10, 20, 10, 10), strict=True)))
    best = {name: [max(column) for column in zip(*measured, strict=True)] for name, measured in found.items()}
    for name, (wall, cpu) in best.items():
        text = f"{name:<18}{wall:>14.1f}"
        for number, width in ((wall, 0), (cpu, 20)):
            text += f"{number:>{width}.1f}" if width else ""
            text += "".join(f"{number / best[base][bool(width)]:>10.2f}" for base in ("plain loop", "local engine"))
        print(text)


if __name__ == "__main__":
    main()
