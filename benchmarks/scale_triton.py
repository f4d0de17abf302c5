"""What a call to a Triton server costs over a step of the local runtime, with 1, 8 and 32 clients at the same time.

    make test-triton                                                   # once, to have the venv with the server
    .venv-triton/bin/python benchmarks/scale_triton.py [--steps N] [--rounds N]

The bundle is the one of the tests: two small nodes with state and feedback, so that the figures show the way there and back
rather than a model. Each client is a thread with a connection and a sequence of its own that asks again as soon as it is
answered. All take turns, the local runtime among them, and of every figure the median of the rounds is shown.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from calls import CLIENTS, WARM, Step, take_turns, timed, timed_at_once
from tests.deploy.bundles import arm, arm_inputs
from tests.scale.triton.clients import Client
from tests.scale.triton.server import serving

from leapp.deploy import TritonOptions, deploy_triton
from leapp.runtime import Pipeline


def served(url: str, clients: int, steps: int) -> Any:
    def make(number: int) -> tuple[Step, list[Any]]:
        inputs, one = arm_inputs(number, steps + WARM), Client(url, "arm", number + 1)
        one.step(inputs[0], start=True)
        return one.step, inputs

    return timed_at_once(make, clients)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="steps of each client in a round (default: 300)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each number of clients is measured (default: 3)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bundle = arm(folder / "arm")
        deploy_triton(bundle, folder / "repository", TritonOptions(backend="python", idle_seconds=10))
        with serving(folder / "repository", folder / "work") as server:
            ways = {"local runtime": lambda: timed(Pipeline(bundle), arm_inputs(0, 5 * arguments.steps + WARM))}
            for clients in CLIENTS:
                ways[f"Triton, {clients} client{'s'[: clients - 1]}"] = partial(served, server.url, clients, arguments.steps)
            take_turns(ways, arguments.rounds)
            server.stop()


if __name__ == "__main__":
    main()
