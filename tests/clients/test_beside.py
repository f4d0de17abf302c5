"""A session in a process that has loaded other packages: it opens, exports what eager code computes, and they go on working."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXPORT = """
import numpy as np, torch, leapp
from leapp import annotate, InferenceManager

policy = torch.nn.Linear(4, 2)
leapp.start("beside", save_path=".")
for seed in range(2):
    obs = torch.randn(4, generator=torch.Generator().manual_seed(seed))
    obs = annotate.input_tensors("policy", {"obs": obs})
    {inside}
    annotate.output_tensors("policy", {"action": policy(obs).tanh()}, export_with="onnx")
leapp.stop()
leapp.compile_graph(visualize=False)
obs = torch.tensor([0.5, -1.0, 2.0, 0.25])
answer = InferenceManager("beside/beside.yaml").run_policy({"policy/obs": obs})["policy/action"]
torch.testing.assert_close(answer, policy(obs).tanh())
"""
PACKAGES = {
    "psutil": ("import psutil", "assert psutil.Process().memory_info().rss > 0 and psutil.cpu_count() > 0"),
    "jax": ("import jax, jax.numpy as jnp", "assert float(jax.jit(jnp.sum)(jnp.arange(4.0))) == 6.0"),
}


@pytest.mark.parametrize("name", PACKAGES)
def test_packages(name: str, tmp_path: Path) -> None:
    loaded, used = PACKAGES[name]
    program = "\n".join([loaded, EXPORT.replace("{inside}", used), used])
    run = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
