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

from leapp.bundle.sidecars import describe_model
from leapp.bundle.staging import Staging
from leapp.bundle.system import system_information
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
    """Told of every recording; takes the clocks when a quarter is done and at the end.

    Args:
        count: How many recordings there are.
        on_ray: Whether workers on Ray do the work, or this process.
    """

    def __init__(self, count: int, on_ray: bool) -> None:
        self._began, self._count, self._on_ray = time.perf_counter(), count, on_ray
        self._moments: list[float] = []
        self._mark: tuple[float, dict[int, float], dict[int, float]] | None = None
        self._first = 0
        self.run: Run | None = None

    def __call__(self) -> None:
        now, done = time.perf_counter(), len(self._moments)
        # Results come a task at a time, so several have the same moment; the count begins after all of these.
        if self._mark is not None and now < self._mark[0] + _SAME:
            self._first = done + 1
        elif self._mark is None and done >= self._count // 4 and now > self._moments[-1] + _SAME:
            self._mark = now, *self._processors()
            self._first = done + 1
        self._moments.append(now)
        if len(self._moments) == self._count:
            self.run = self._finish()

    def _finish(self) -> Run:
        assert self._mark is not None
        done, used = self._count - self._first, []
        for before, after in zip(self._mark[1:], self._processors(), strict=True):
            used.append(sum(seconds - before.get(process, 0.0) for process, seconds in after.items()))
        rate = done / (self._moments[-1] - self._mark[0])
        return Run(self._moments[0] - self._began, rate, used[0] / done, used[1] / done)

    def _processors(self) -> tuple[dict[int, float], dict[int, float]]:
        """The processor seconds of whoever works, and of all that takes part, by process."""
        alone = {os.getpid(): time.process_time()}
        return on_ray() if self._on_ray else (alone, alone)


def plain(bundle: Path, paths: list[Path]) -> Run:
    """What one would write by hand."""
    watch, pipeline = Watch(len(paths), on_ray=False), Pipeline(bundle)
    for path in paths:
        assert pipeline.replay(path).difference is None
        watch()
    assert watch.run is not None
    return watch.run


def fleet(bundle: Path, paths: list[Path], workers: int | None) -> Run:
    """The same by leapp, in this process or on Ray."""
    watch = Watch(len(paths), on_ray=workers is not None)
    options = {} if workers is None else {"engine": "ray", "workers": workers}
    report = replay_fleet(bundle, paths, progress=watch, **options)
    assert report.same
    assert report.recordings == len(paths)
    assert watch.run is not None
    return watch.run


def on_ray() -> tuple[dict[int, float], dict[int, float]]:
    """The processor seconds of the workers, and of this process and all that Ray started, by process."""
    parents, seconds, workers, tick = {}, {}, set(), os.sysconf("SC_CLK_TCK")
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            head, _, rest = (entry / "stat").read_text().rpartition(")")
        except OSError:
            continue
        process, fields = int(entry.name), rest.split()
        parents[process], seconds[process] = int(fields[1]), (int(fields[11]) + int(fields[12])) / tick
        if "(ray::MapWorker" in head:
            workers.add(process)
    mine, found = {os.getpid()}, 0
    while len(mine) > found:
        found = len(mine)
        mine |= {one for one, parent in parents.items() if parent in mine}
    return {one: seconds[one] for one in workers & mine}, {one: seconds[one] for one in mine}


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
        replay_fleet(bundle, paths[:8], engine="ray", workers=2)  # The first use of Ray Data starts processes of its own.
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
