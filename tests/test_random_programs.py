"""Random programs of pure, view and in-place ops: tracing changes no bit, and the export equals eager code on new inputs."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import leapp
from leapp import InferenceManager, annotate

Tensor = torch.Tensor
Step = Callable[[list[Tensor]], "Tensor | None"]
SOAK = bool(os.environ.get("LEAPP_SOAK"))


def _same_shape(pool: list[Tensor], t: Tensor, r: random.Random) -> int:
    fits = [i for i, other in enumerate(pool) if other.shape == t.shape]
    return r.choice(fits)


def pure(r: random.Random, pool: list[Tensor]) -> Step:
    i = r.randrange(len(pool))
    j = _same_shape(pool, pool[i], r)
    c = round(r.uniform(-2, 2), 2)
    return r.choice(
        [
            lambda v: v[i] * c + v[j],
            lambda v: torch.sin(v[i]) - v[j],
            lambda v: torch.tanh(v[i] @ v[i].mT) if v[i].dim() == 2 else v[i].cos(),
            lambda v: torch.where(v[i] > c, v[i], v[j]),
            lambda v: v[i].clamp(-abs(c), abs(c)),
            lambda v: v[i] - v[i].mean(),
            lambda v: torch.cat([v[i], v[j]]) if v[i].dim() else v[i] + 1,
            lambda v: v[i].flip(0) if v[i].dim() else -v[i],
            lambda v: v[i].roll(1, 0) if v[i].dim() else v[i].abs(),
            lambda v: v[i].cumsum(0) * 0.3 if v[i].dim() else v[i].exp().clamp(max=3),
            lambda v: v[i].clone(),
            lambda v: torch.zeros_like(v[i]),
            lambda v: torch.full(v[i].shape, c),
        ]
    )


def view(r: random.Random, pool: list[Tensor]) -> Step:
    i = r.randrange(len(pool))
    a, b = r.random(), r.random()

    def index(t: Tensor, dim: int) -> int:
        return int(a * t.shape[dim])

    return r.choice(
        [
            lambda v: v[i][index(v[i], 0)],
            lambda v: v[i][index(v[i], 0) :],
            lambda v: v[i].T if v[i].dim() <= 2 else v[i].transpose(0, 1),
            lambda v: v[i].view(-1),
            lambda v: v[i].narrow(-1, 0, max(1, int(b * v[i].shape[-1]))),
            lambda v: v[i].unbind(0)[index(v[i], 0)],
            lambda v: v[i].chunk(2)[0],
            lambda v: v[i][..., ::2],
            lambda v: v[i].unsqueeze(0),
            lambda v: v[i].diagonal() if v[i].dim() >= 2 else v[i][None],
            lambda v: v[i].expand(2, *v[i].shape),
            lambda v: v[i].detach(),
            lambda v: v[i].data,
            lambda v: v[i].reshape(v[i].shape[::-1]),
            lambda v: v[i].permute(*reversed(range(v[i].dim()))),
            lambda v: next(iter(v[i])),
        ]
    )


def in_place(r: random.Random, pool: list[Tensor]) -> Step:
    i = r.randrange(len(pool))
    j = _same_shape(pool, pool[i], r)
    c = round(r.uniform(-1, 1), 2)
    a = r.random()

    def write(f: Callable[[list[Tensor]], object]) -> Step:
        def step(v: list[Tensor]) -> None:
            f(v)

        return step

    def assign(v: list[Tensor]) -> None:
        v[i][int(a * v[i].shape[0])] = c + v[j].mean()

    def assign_nested(v: list[Tensor]) -> None:
        v[i][0][int(a * v[i].shape[1])] = v[j].sum() * 0.1

    def assign_slice(v: list[Tensor]) -> None:
        v[i][..., : max(1, v[i].shape[-1] // 2)] *= c

    def assign_mask(v: list[Tensor]) -> None:
        v[i][v[j] > c] = 0.25

    def augmented(v: list[Tensor]) -> None:
        t = v[i]
        t += v[j] * 0.5

    return r.choice(
        [
            write(lambda v: v[i].add_(v[j])),
            write(lambda v: v[i].mul_(c)),
            write(lambda v: v[i].copy_(v[j] * 0.9)),
            write(lambda v: v[i].zero_()),
            write(lambda v: v[i].clamp_(-1, 1)),
            write(lambda v: v[i].masked_fill_(v[j] > 0, c)),
            write(lambda v: torch.add(v[i], c, out=v[j])),
            write(lambda v: v[i].tanh_()),
            write(lambda v: v[i].addcmul_(v[j], v[j], value=0.1)),
            write(assign),
            write(assign_nested),
            write(assign_slice),
            write(assign_mask),
            write(augmented),
        ]
    )


class Program:
    """Steps that ran without an error on one set of inputs; each result joins the pool that later steps draw from."""

    def __init__(self, seed: int, length: int) -> None:
        r = random.Random(seed)
        self.seed = seed
        self.steps: list[Step] = []
        pool = self.pool(0)
        while len(self.steps) < length:
            step = r.choice([pure, view, view, in_place, in_place])(r, pool)
            trial = Program.run_steps([*self.steps, step], self.pool(0))
            if trial is not None and sum(t.numel() for t in trial) < 4000:
                self.steps.append(step)
                pool = trial

    def inputs(self, seed: int) -> list[Tensor]:
        g = torch.Generator().manual_seed(1000 * self.seed + seed)
        return [torch.randn(3, 4, generator=g), torch.randn(4, generator=g), torch.randn(3, 4, generator=g)]

    def constants(self) -> list[Tensor]:
        base = torch.linspace(-1, 1, 12).view(3, 4).clone()
        return [base, base[1], torch.ones(4)]

    def pool(self, seed: int) -> list[Tensor]:
        return [*self.inputs(seed), *self.constants()]

    @staticmethod
    def run_steps(steps: list[Step], pool: list[Tensor]) -> list[Tensor] | None:
        try:
            for step in steps:
                out = step(pool)
                if out is not None:
                    pool.append(out)
        except (RuntimeError, IndexError, TypeError, ValueError):
            return None
        return pool if all(torch.isfinite(t).all() and t.abs().max() < 1e3 for t in pool if t.numel()) else None

    def __call__(self, pool: list[Tensor]) -> dict[str, Tensor]:
        for step in self.steps:
            out = step(pool)
            if out is not None:
                pool.append(out)
        return {f"o{i}": t for i, t in enumerate(pool) if t.numel()}


def trace_all(programs: list[Program], backend: str, directory: Path) -> InferenceManager:
    leapp.start("programs", save_path=directory, escapes="error")
    done: list[tuple[int, dict[Any, Tensor], dict[Any, Tensor]]] = []
    try:
        for n, program in enumerate(programs):
            plain, held = program.pool(1), program.pool(1)
            wanted = {k: t.clone() for k, t in program(plain).items()}
            names = [k for k in wanted if depends(program, k)]
            declared = annotate.input_tensors(f"n{n}", {f"x{i}": held[i] for i in range(3)})
            held[3:] = program.constants()  # made in the node: older ones that it changes would be state
            outputs = program([*declared, *held[3:]])
            live = {k: outputs[k] for k in names} or {"x0": declared[0]}
            annotate.output_tensors(f"n{n}", live, export_with=backend)
            done.append((program.seed, outputs, wanted))
            done.append((program.seed, dict(enumerate(held)), dict(enumerate(plain[: len(held)]))))
    finally:
        leapp.stop()
    # Comparing during the session would itself be a value leaving the graph.
    for seed, got, want in done:
        for name, value in want.items():
            assert torch.equal(got[name], value), f"program {seed}: tracing changed {name}"
    leapp.compile_graph(visualize=False)
    return InferenceManager(directory / "programs" / "programs.yaml")


def depends(program: Program, name: str) -> bool:
    """Whether an output changes with the inputs: constants are no outputs of a node."""
    a, b = (program(program.pool(seed))[name] for seed in (1, 2))
    return not torch.equal(a, b)


def compare(programs: list[Program], manager: InferenceManager) -> None:
    inputs: dict[str, Tensor] = {}
    expected: dict[str, Tensor] = {}
    for n, program in enumerate(programs):
        pool = program.pool(7)
        inputs |= {f"n{n}/x{i}": pool[i].clone() for i in range(3)}
        expected |= {f"n{n}/{k}": t for k, t in program(pool).items()}
    given = {k: v for k, v in inputs.items() if k in manager.inputs}
    for key, got in manager(given).items():
        if key in expected:
            torch.testing.assert_close(got, expected[key], rtol=1e-4, atol=1e-4, msg=lambda m, k=key: f"{k}: {m}")


@pytest.mark.parametrize("backend", ["jit", "onnx", "pt2"])
@settings(
    max_examples=40 if SOAK else 3,
    deadline=None,
    derandomize=not SOAK,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seeds=st.lists(st.integers(0, 10**6), min_size=6, max_size=10, unique=True), length=st.integers(4, 24))
def test_random_programs(backend: str, seeds: list[int], length: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    programs = [Program(seed, length) for seed in seeds]
    with torch.no_grad():
        manager = trace_all(programs, backend, tmp_path_factory.mktemp("random"))
        compare(programs, manager)
