"""What the first export of a process loads. A module of torch's compiler or exporter takes longer than the export itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import leapp

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(leapp.__file__).parents[1])}

SLOW = ("torch._dynamo", "torch._inductor", "sympy", "onnxscript", "onnx_ir", "torch.onnx")

PROGRAM = """
import sys
import torch
import leapp
from leapp import annotate
from torch import nn
from torch.nn import functional as F

class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ELU(), nn.LayerNorm(16), nn.Linear(16, 8), nn.SiLU(), nn.Linear(8, 6))
        self.cell, self.gru = nn.GRUCell(8, 8), nn.GRU(8, 8, batch_first=True)
        self.head = nn.MultiheadAttention(8, 2, batch_first=True)

def mlp(p, x): return p.net(x).clamp(-1.0, 1.0) * 0.25 + torch.linspace(-1, 1, 6)
def cell(p, x): return p.cell(x, torch.zeros(4, 8)).tanh()
def gru(p, x): return p.gru(x.unsqueeze(1))[0].squeeze(1)
def attention(p, x): return p.head(x[None], x[None], x[None], need_weights=False)[0][0]
def masked(p, x): return torch.where(x > 0, x, x.abs().sqrt()).masked_fill(x.isnan(), 0.0).softmax(-1)
def turned(p, x):
    q = F.normalize(x[:, :4], dim=-1)
    v, xyz = x[:, 4:7], q[:, :3]
    return v * (2 * q[:, 3:] ** 2 - 1) - torch.cross(xyz, v, dim=-1) * 2 + xyz * (xyz * v).sum(-1, keepdim=True)
def history(p, x):
    rows = torch.stack([x, x.flip(0)], 1)
    return torch.cat([rows[:, 1:], x.unsqueeze(1)], 1).reshape(4, -1).mean(0, keepdim=True).expand(4, -1)

torch.manual_seed(0)
step, policy, before = globals()[sys.argv[2]], Policy().eval(), set(sys.modules)
with torch.no_grad():
    leapp.start("g", save_path=sys.argv[1])
    for _ in range(2):
        x = annotate.input_tensors("policy", {"x": torch.randn(4, 8)})
        annotate.output_tensors("policy", {"y": step(policy, x)}, export_with=sys.argv[3])
    leapp.stop()
    leapp.compile_graph()
from leapp.runtime import Pipeline
x = torch.randn(4, 8)
got, want = torch.as_tensor(Pipeline(sys.argv[1] + "/g")({"policy/x": x})["policy/y"]), step(policy, x).detach()
assert got.shape == want.shape and torch.allclose(got, want, 1e-4, 1e-5)
print(len(set(sys.modules) - before), *(name for name in sys.argv[4:] if name in sys.modules))
"""


@pytest.mark.parametrize(
    ("step", "backend"),
    [
        *((s, "onnx") for s in ("mlp", "cell", "gru", "attention", "masked", "turned", "history")),
        ("mlp", "jit"),
    ],
)
def test_a_first_export_of_a_common_policy_loads_neither_compiler_nor_exporter(step: str, backend: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path), step, backend, *SLOW]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=120)
    assert done.returncode == 0, done.stderr
    count, *loaded = done.stdout.split()
    assert loaded == [] and int(count) < 450, (count, loaded, done.stderr)
