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
import os
import sys
import traceback
import torch
import leapp
from leapp import annotate
from torch import nn
from torch.nn import functional as F

BORDERS = torch.linspace(-1, 1, 5)

class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ELU(), nn.LayerNorm(16), nn.Linear(16, 8), nn.SiLU(), nn.Linear(8, 6))
        self.cell, self.gru = nn.GRUCell(8, 8), nn.GRU(8, 8, batch_first=True)
        self.head = nn.MultiheadAttention(8, 2, batch_first=True)
        self.eyes = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 1), nn.GroupNorm(2, 4),
            nn.Mish(), nn.Upsample(scale_factor=2), nn.ConvTranspose2d(4, 4, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.RMSNorm(4))

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
def written(p, x):
    observation = torch.zeros(4, 20)
    observation[:, :8] = x
    observation[:, 8:16:2] = x[:, 4:].clamp_(-1.0, 1.0)
    observation[0, 17:] += 0.5
    past = x.reshape(4, 2, 4).clone()
    past[:, :-1] = past[:, 1:].clone()
    past[x.reshape(4, 2, 4) > 1] = 0.0
    past[:, -1].copy_(F.elu(x[:, :4] * 2, inplace=True))
    grid = torch.zeros(12)
    grid.as_strided((2, 2), (5, 1), 1).copy_(x[:2, :2])
    return torch.cat([observation, past.flatten(1), grid.expand(4, 12)], 1)
def image(p, x): return p.eyes(F.interpolate(x.reshape(1, 1, 4, 8), size=(6, 6), mode="bilinear", antialias=True))
def moved(p, x):
    late = torch.roll(x, 1, 1).lerp(x, 0.3) % (2 * torch.pi)
    place = torch.bucketize(late, BORDERS).clamp(max=3)
    return torch.nan_to_num(late[place[:, 0], place[:, 1]] + F.one_hot(place, 4).sum(2).logsumexp(1))

def export(step, backend, where):
    torch.manual_seed(0)
    policy, before = Policy().eval(), set(sys.modules)
    with torch.no_grad():
        leapp.start("g", save_path=where)
        for _ in range(2):
            x = annotate.input_tensors("policy", {"x": torch.randn(4, 8)})
            annotate.output_tensors("policy", {"y": step(policy, x)}, export_with=backend)
        leapp.stop()
        leapp.compile_graph()
    from leapp.runtime import Pipeline
    x = torch.randn(4, 8)
    got, want = torch.as_tensor(Pipeline(where + "/g")({"policy/x": x})["policy/y"]), step(policy, x).detach()
    assert got.shape == want.shape and torch.allclose(got, want, 1e-4, 1e-5)
    print(step.__name__, backend, len(set(sys.modules) - before), *(name for name in slow if name in sys.modules), flush=True)

torch.set_num_threads(1)  # a process with threads is not forked
where, slow, cases = sys.argv[1], sys.argv[2].split(), sys.argv[3:]
for case in cases:
    step, backend = case.split()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            export(globals()[step], backend, f"{where}/{step}-{backend}")
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.waitpid(child, 0)
"""

STEPS = ("mlp", "cell", "gru", "attention", "masked", "turned", "history", "image", "moved", "written")
CASES = [*(f"{step} onnx" for step in STEPS), "mlp jit"]


@pytest.fixture(scope="module")
def first_exports(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[list[str]], str]:
    """What each export printed. A process imports torch and forks for each: none has seen an export."""
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, tmp_path_factory.mktemp("first"), " ".join(SLOW), *CASES]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=600)
    return [line.split() for line in done.stdout.splitlines()], done.stderr


@pytest.mark.parametrize("case", CASES)
def test_a_first_export_of_a_common_policy_loads_neither_compiler_nor_exporter(
    case: str, first_exports: tuple[list[list[str]], str]
) -> None:
    printed, errors = first_exports
    found = [rest for step, backend, *rest in printed if f"{step} {backend}" == case]
    assert len(found) == 1, errors
    count, *loaded = found[0]
    assert loaded == [] and int(count) < 450, (count, loaded, errors)
