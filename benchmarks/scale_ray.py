"""What a call to a bundle on Ray Serve costs over a step of the local runtime, with 1, 8 and 32 clients at the same time.

    make test-ray                                                      # once, to have the venv with Ray
    .venv-ray/bin/python benchmarks/scale_ray.py [--steps N] [--rounds N] [--replicas N]

The bundle is a small policy with state, so that the figures show the way there and back rather than a model. Each client is
a thread with a session of its own that asks again as soon as it is answered. All ways take turns, the local runtime among them,
and of every figure the median of the rounds is shown: a machine changes while this lasts.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from calls import CLIENTS, WARM, Step, take_turns, timed, timed_at_once
from tests.fleet.fleets import write_policy

from leapp.client import Client
from leapp.runtime import Pipeline
from leapp.serve import Options
from leapp.serve.cluster import Cluster


def inputs(count: int, seed: int) -> list[dict[str, np.ndarray]]:
    values = np.random.default_rng(seed).standard_normal((count, 1, 3)).astype(np.float32)
    return [{"policy/q": value} for value in values]


class Json:
    """Steps over HTTP, with the state in the caller's hands."""

    def __init__(self, url: str) -> None:
        self._url, self._state = f"{url}/v1/step", None

    def __call__(self, values: dict[str, np.ndarray]) -> None:
        body = {"inputs": {k: v.tolist() for k, v in values.items()}, "state": self._state}
        with urllib.request.urlopen(self._url, json.dumps(body).encode(), timeout=60) as answer:
            self._state = json.loads(answer.read())["state"]

    def close(self) -> None:
        """There is nothing to end: the server remembers nothing."""


def served(open_one: Callable[[], Any], clients: int, steps: int) -> np.ndarray:
    with ExitStack() as stack:

        def make(number: int) -> tuple[Step, list[Any]]:
            one, given = open_one(), inputs(steps + WARM, number)
            stack.callback(one.close)
            one(given[0])
            return one, given

        return timed_at_once(make, clients)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=150, help="steps of each client in a round (default: 150)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each way is measured (default: 3)")
    parser.add_argument("--replicas", type=int, default=1)
    arguments = parser.parse_args()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        bundle = write_policy(Path(directory) / "leg")
        options = Options(str(bundle), port=port)
        with Cluster(options, replicas=arguments.replicas, resources={"num_cpus": 0.5}) as cluster:
            session, steps = partial(Client, cluster.url, timeout=120), arguments.steps
            ways = {"local runtime": lambda: timed(Pipeline(bundle), inputs(5 * steps + WARM, 0))}
            for clients in CLIENTS:
                ways[f"websocket, {clients} client{'s'[: clients - 1]}"] = partial(served, session, clients, steps)
            ways["websocket, resume=False"] = partial(served, partial(session, resume=False), 1, steps)
            ways["JSON over HTTP"] = partial(served, partial(Json, cluster.url), 1, steps)
            take_turns(ways, arguments.rounds)


if __name__ == "__main__":
    main()
