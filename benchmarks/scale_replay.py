"""Replay throughput of a fleet: Ray with 1 and 2 workers against two loops over the same files.

    .venv-ray/bin/python benchmarks/scale_replay.py [recordings] [steps] [rounds]

The plain loop calls ``Pipeline.replay`` file by file: it runs and compares, and keeps no figures. The local engine is what
``leapp replay`` does without Ray: it runs, compares, counts, and keeps a journal, which is the work that is done on Ray.

The four take turns, because a machine changes while they last; ratios are those within a round, and of all figures the median
of the rounds is shown. Starting is timed apart: a fleet takes hours, so rates are taken over the last three quarters, when
every worker is at work. Processor time per recording tells the same on a machine that others use too: that of the workers is
what a recording costs, that of all includes the process that collects and Ray's own.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

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


@dataclass
class Run:
    """One pass over all recordings.

    Attributes:
        start: Seconds from the call to the first result.
        rate: Recordings a second by the wall clock.
        worker: Processor seconds of the workers for one recording.
        all: Processor seconds of all processes for one recording.
    """

    start: float
    rate: float
    worker: float
    all: float


_SAME = 0.005
"""Results of one task come closer together than this, in seconds."""


class Watch:
    """Told of every recording; takes the clocks when a quarter is done and at the end."""

    def __init__(self, count: int) -> None:
        self._began, self._count, self._moments = time.perf_counter(), count, []
        self._marks: list[tuple[float, float, float]] = []
        self._first = 0

    def __call__(self) -> None:
        now, done = time.perf_counter(), len(self._moments)
        # Results come a task at a time, so several have the same moment; the count begins after all of these.
        if self._marks and now < self._marks[0][0] + _SAME:
            self._first = done + 1
        elif not self._marks and done >= self._count // 4 and now > self._moments[-1] + _SAME:
            self._marks.append((now, *processor_seconds()))
            self._first = done + 1
        self._moments.append(now)

    @property
    def complete(self) -> bool:
        """Whether all recordings are done."""
        return len(self._moments) == self._count

    def finish(self) -> Run:
        """The figures, when the last recording is done."""
        self._marks.append((self._moments[-1], *processor_seconds()))
        (wall, worker, whole), done = (b - a for a, b in zip(*self._marks, strict=True)), self._count - self._first
        return Run(self._moments[0] - self._began, done / wall, worker / done, whole / done)


def plain(bundle: Path, paths: list[Path]) -> Run:
    """What one would write by hand."""
    watch, pipeline = Watch(len(paths)), Pipeline(bundle)
    for path in paths:
        assert pipeline.replay(path).difference is None
        watch()
    return watch.finish()


def fleet(bundle: Path, paths: list[Path], workers: int | None) -> Run:
    """The same by leapp, in this process or on Ray."""
    watch = Watch(len(paths))
    options = {} if workers is None else {"engine": "ray", "workers": workers}
    found: list[Run] = []

    def done() -> None:
        watch()
        # Workers live as long as the replay does, and their processor time with them.
        if watch.complete:
            found.append(watch.finish())

    report = replay_fleet(bundle, paths, progress=done, **options)
    assert report.same
    assert report.recordings == len(paths)
    return found[0]


def processor_seconds() -> tuple[float, float]:
    """The processor time of the workers on Ray, or of this process if there are none, and that of all that Ray started too."""
    parents, seconds, workers, tick = {}, {}, set(), os.sysconf("SC_CLK_TCK")
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            head, _, rest = (entry / "stat").read_text().rpartition(")")
        except OSError:
            continue
        fields = rest.split()
        parents[entry.name], seconds[entry.name] = fields[1], (int(fields[11]) + int(fields[12])) / tick
        if "(ray::MapWorker" in head:
            workers.add(entry.name)
    mine, found = {str(os.getpid())}, 0
    while len(mine) > found:
        found = len(mine)
        mine |= {one for one, parent in parents.items() if parent in mine}
    return sum(seconds[one] for one in workers & mine or {str(os.getpid())}), sum(seconds[one] for one in mine)


def main() -> None:
    """Measure and print."""
    count, steps, rounds = (int(word) for word in (*sys.argv[1:], *("300", "1000", "3")[len(sys.argv) - 1 :]))
    # Ray's workers are nice to other programs by default, which would measure those.
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    with tempfile.TemporaryDirectory() as directory:
        bundle = write_policy(Path(directory) / "policy")
        paths = record(bundle, Path(directory) / "runs", count, steps)
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        began = time.perf_counter()
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
        cluster = time.perf_counter() - began
        fleet(bundle, paths[:8], 2)  # The first use of Ray Data starts processes of its own.
        found: list[dict[str, Run]] = []
        for _ in range(rounds):
            runs = {"plain loop": plain(bundle, paths), "local engine": fleet(bundle, paths, None)}
            found.append(runs | {"Ray, 1 worker": fleet(bundle, paths, 1), "Ray, 2 workers": fleet(bundle, paths, 2)})
        ray.shutdown()
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    print(f"{count} recordings of {steps} steps, median of {rounds} rounds; {load}; starting Ray took {cluster:.1f} s")
    heads = ("recordings/s", "to plain", "cpu ms", "to plain", "all cpu ms", "first after s")
    print(" " * 16 + "".join(f"{head:>14}" for head in heads))
    for name in found[0]:
        runs = [(one[name], one["plain loop"]) for one in found]
        figures = (
            [run.rate for run, _ in runs],
            [run.rate / base.rate for run, base in runs],
            [run.worker * 1e3 for run, _ in runs],
            [run.worker / base.worker for run, base in runs],
            [run.all * 1e3 for run, _ in runs],
            [run.start for run, _ in runs],
        )
        print(f"{name:<16}" + "".join(f"{median(column):>14.2f}" for column in figures))
    most = median(2 * one["plain loop"].worker / one["Ray, 2 workers"].all for one in found)
    print(f"By processor time two free cores can do {most:.2f} times what the plain loop does.")


if __name__ == "__main__":
    main()
