"""Long runs: no growth in memory, and the last steps are bit for bit those of a fresh runner.

``LEAPP_SOAK=1`` runs 10,000,000 steps; a plain run takes 20,000.
"""

from __future__ import annotations

import os
import resource

import numpy as np
import pytest
import torch

from leapp.runtime import Pipeline
from leapp.runtime.inference_manager import InferenceManager
from tests.runtime.bundles import array, loop

STEPS = 10_000_000 if os.environ.get("LEAPP_SOAK") else 20_000
TAIL = 1000


def peak() -> float:
    """The most memory this process ever had, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.parametrize(
    ("face", "backends"),
    [(Pipeline, ("onnx", "onnx")), (InferenceManager, ("jit", "onnx")), (InferenceManager, ("jit", "jit"))],
)
def test_many_steps(tmp_path, face, backends):
    path = loop(tmp_path, *backends)
    runner = face(path)
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(2, generator=generator) for _ in range(64)]
    if face is Pipeline:
        given = [value.numpy() for value in given]
    for k in range(STEPS // 10):
        runner({"p/obs": given[k % 64]})
    before = peak()
    for k in range(STEPS - STEPS // 10 - TAIL):
        runner({"p/obs": given[k % 64]})
    growth = peak() - before
    # A short run only sees what one step would leak; pools of the process itself move by a few megabytes.
    assert growth < max(8.0, STEPS / 1e6), f"{growth:.1f} MB"
    fresh = face(path)
    fresh.load_state(runner.state())
    seen = set()
    for k in range(TAIL):
        made, want = runner({"p/obs": given[k % 64]}), fresh({"p/obs": given[k % 64]})
        for key, value in want.items():
            np.testing.assert_array_equal(array(made[key]), array(value))
        seen.add(array(want["f/mo"]).tobytes())
    assert len(seen) > 60
