"""What a call to a bundle on Ray Serve costs over a step of the local runtime, with 1, 8 and 32 clients at the same time.

    make test-ray                                                      # once, to have the venv with Ray
    .venv-ray/bin/python benchmarks/scale_ray.py [--steps N] [--replicas N]

The bundle is a small policy with state, so that the figures show the way there and back rather than a model. Each client is
a thread with a session of its own that asks again as soon as it is answered; local steps run in between, on the same inputs.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.fleet.fleets import write_policy

from leapp.client import Client
from leapp.runtime import Pipeline
from leapp.serve import Options
from leapp.serve.cluster import Cluster

CLIENTS = (1, 8, 32)
WARM = 20


def inputs(count: int, seed: int) -> list[dict[str, np.ndarray]]:
    values = np.random.default_rng(seed).standard_normal((count, 1, 3)).astype(np.float32)
    return [{"policy/q": value} for value in values]


def timed(step: Any, given: list[Any]) -> list[float]:
    """The seconds of each step after the first few."""
    found = []
    for values in given:
        began = time.perf_counter()
        step(values)
        found.append(time.perf_counter() - began)
    return found[WARM:]


class Json:
    """Steps over HTTP, with the state in the caller's hands."""

    def __init__(self, url: str) -> None:
        self._url, self._state = f"{url}/v1/step", None

    def __call__(self, values: dict[str, np.ndarray]) -> None:
        body = {"inputs": {k: v.tolist() for k, v in values.items()}, "state": self._state}
        with urllib.request.urlopen(self._url, json.dumps(body).encode(), timeout=60) as answer:
            self._state = json.loads(answer.read())["state"]


def served(make: Any, clients: int, steps: int) -> tuple[list[float], float]:
    gate = threading.Barrier(clients)

    def drive(index: int) -> list[float]:
        given, step = inputs(steps + WARM, index), make()
        step(given[0])
        gate.wait()
        return timed(step, given)

    with ThreadPoolExecutor(clients) as pool:
        began = time.perf_counter()
        found = [value for part in pool.map(drive, range(clients)) for value in part]
        return found, clients * (steps + WARM) / (time.perf_counter() - began)


def row(name: str, seconds: list[float], local: float, rate: float | None) -> None:
    p50, p99 = np.percentile(seconds, [50, 99]) * 1e3
    calls = f"{rate:10.0f}" if rate else " " * 10
    print(f"{name:32} {p50:9.3f} {p99:9.3f} {p50 - local:9.3f} {calls}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--replicas", type=int, default=1)
    arguments = parser.parse_args()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        bundle = write_policy(Path(directory) / "leg")
        options = Options(str(bundle), port=port)
        with Cluster(options, replicas=arguments.replicas, resources={"num_cpus": 0.5}) as cluster:
            print(f"{'milliseconds':32} {'p50':>9} {'p99':>9} {'p50 over':>9} {'calls/s':>10}")
            local = timed(Pipeline(bundle), inputs(5 * arguments.steps, 0))
            base = float(np.percentile(local, 50)) * 1e3
            row("local runtime", local, base, None)
            ways = {
                "websocket": lambda: Client(cluster.url, timeout=120),
                "websocket, resume=False": lambda: Client(cluster.url, timeout=120, resume=False),
                "JSON over HTTP": lambda: Json(cluster.url),
            }
            for name, make in ways.items():
                for clients in CLIENTS if name == "websocket" else CLIENTS[:1]:
                    row(f"{name}, {clients} clients", *shifted(served(make, clients, arguments.steps), base))
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {arguments.replicas} replicas")


def shifted(found: tuple[list[float], float], base: float) -> tuple[list[float], float, float]:
    return found[0], base, found[1]


if __name__ == "__main__":
    main()
