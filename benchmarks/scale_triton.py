"""What a call to a Triton server costs over a step of the local runtime, with 1, 8 and 32 clients at the same time.

    make test-triton                                                   # once, to have the venv with the server
    .venv-triton/bin/python benchmarks/scale_triton.py [--steps N] [--rate HZ]

The bundle is the one of the tests: two small nodes with state and feedback, so that the figures show the way there and back
rather than a model. Each client is a thread with a connection and a sequence of its own; without a rate it sends as fast as it
is answered.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.deploy.bundles import arm, arm_inputs
from tests.scale.triton.clients import Client
from tests.scale.triton.server import serving

from leapp.deploy import TritonOptions, deploy_triton
from leapp.runtime import Pipeline

CLIENTS = (1, 8, 32)
WARM = 20


def timed(step: Any, inputs: list[Any], rate: float | None) -> list[float]:
    """The seconds of each step after the first few."""
    found, due = [], time.perf_counter()
    for values in inputs:
        if rate is not None:
            due += 1 / rate
            time.sleep(max(0.0, due - time.perf_counter()))
        began = time.perf_counter()
        step(values)
        found.append(time.perf_counter() - began)
    return found[WARM:]


def served(url: str, clients: int, steps: int, rate: float | None) -> list[float]:
    gate = threading.Barrier(clients)

    def drive(index: int) -> list[float]:
        inputs, one = arm_inputs(index, steps + WARM), Client(url, "arm", index + 1)
        one.step(inputs[0], start=True)
        gate.wait()
        found = timed(one.step, inputs, rate)
        one.step(inputs[0], end=True)
        return found

    with ThreadPoolExecutor(clients) as pool:
        return [second for times in pool.map(drive, range(clients)) for second in times]


def row(name: str, times: list[float], base: float | None = None) -> float:
    p50, p99 = np.percentile(times, [50, 99]) * 1e6
    over = "" if base is None else f"   {p50 - base:9.0f} us over the local p50"
    print(f"{name:<24} p50 {p50:9.0f} us   p99 {p99:9.0f} us{over}", flush=True)
    return float(p50)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500, help="steps of each client (default: 500)")
    parser.add_argument("--rate", type=float, help="steps a second of each client (default: as many as it gets)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bundle = arm(folder / "arm")
        base = row("local runtime", timed(Pipeline(bundle), arm_inputs(0, arguments.steps + WARM), arguments.rate))
        deploy_triton(bundle, folder / "repository", TritonOptions(backend="python"))
        with serving(folder / "repository", folder / "work") as server:
            for clients in CLIENTS:
                row(f"triton, {clients} clients", served(server.url, clients, arguments.steps, arguments.rate), base)
            server.stop()


if __name__ == "__main__":
    main()
