"""Long runs: no growth in memory, the last steps bit for bit those of a fresh runner, and no wrong answer to any thread.

``LEAPP_SOAK=1`` runs 10,000,000 steps and 1,000,000 calls from four threads; a plain run takes 20,000 and 6,000.
"""

from __future__ import annotations

import os
import resource
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from leapp.runtime import Pipeline
from leapp.runtime.inference_manager import InferenceManager
from tests.runtime.bundles import array, chain, loop

SOAK = bool(os.environ.get("LEAPP_SOAK"))
STEPS = 10_000_000 if SOAK else 20_000
CALLS = 1_000_000 if SOAK else 6_000
TAIL = 1000
APIS: dict[str, Any] = {"Pipeline": Pipeline, "InferenceManager": InferenceManager}
LOOPS = [("Pipeline", ("onnx", "onnx")), ("InferenceManager", ("jit", "onnx")), ("InferenceManager", ("jit", "jit"))]
SHARED = [(api, backends) for api in APIS for backends in (("onnx", "onnx"), ("jit", "onnx"), ("jit", "jit"))]


def peak() -> float:
    """The most memory this process ever had, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def many_steps(directory: Path, api: str, backends: tuple[str, str], steps: int) -> float:
    """Run a loop for long and compare its end with a fresh runner. Returns the growth of the process in megabytes."""
    path = loop(directory, *backends)
    runner = APIS[api](path)
    generator = torch.Generator().manual_seed(0)
    given: list[Any] = [torch.randn(2, generator=generator) for _ in range(64)]
    if api == "Pipeline":
        given = [value.numpy() for value in given]
    for k in range(steps // 10):
        runner({"p/obs": given[k % 64]})
    before = peak()
    for k in range(steps - steps // 10 - TAIL):
        runner({"p/obs": given[k % 64]})
    growth = peak() - before
    fresh = APIS[api](path)
    fresh.load_state(runner.state())
    seen = set()
    for k in range(TAIL):
        made, want = runner({"p/obs": given[k % 64]}), fresh({"p/obs": given[k % 64]})
        for key, value in want.items():
            np.testing.assert_array_equal(array(made[key]), array(value))
        seen.add(array(want["f/mo"]).tobytes())
    assert len(seen) > 60
    return growth


def many_threads(directory: Path, api: str, backends: tuple[str, str], calls: int) -> int:
    """Share a runner between four threads. Returns how many of all calls came out wrong."""
    path, modules = chain(directory, list(backends))
    runner = APIS[api](path)
    given = [torch.randn(2, 8) for _ in range(4)]
    want = [array(runner({"n0/x": x})["n1/y"]) for x in given]
    assert not np.array_equal(want[0], want[1])
    torch.testing.assert_close(torch.from_numpy(want[0]), modules[1](modules[0](given[0])))
    right = [0] * 4

    def work(i: int) -> None:
        inputs = {"n0/x": given[i] if api == "InferenceManager" else given[i].numpy()}
        for _ in range(calls // 4):
            right[i] += np.array_equal(array(runner(inputs)["n1/y"]), want[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return calls // 4 * 4 - sum(right)


@pytest.mark.parametrize(("api", "backends"), LOOPS)
def test_many_steps(tmp_path, api, backends):
    growth = many_steps(tmp_path, api, backends, STEPS)
    # A short run only sees what one step would leak; pools of the process itself move by a few megabytes.
    assert growth < max(8.0, STEPS / 1e6), f"{growth:.1f} MB"


@pytest.mark.parametrize(("api", "backends"), SHARED)
def test_a_shared_runner_is_never_wrong(tmp_path, api, backends):
    assert many_threads(tmp_path, api, backends, CALLS) == 0
