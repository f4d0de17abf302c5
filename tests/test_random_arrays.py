"""Random NumPy programs of pure, view and in-place steps: tracing changes no bit, and the export equals NumPy on new inputs."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import leapp
from leapp import annotate
from leapp.runtime import Pipeline

Array = np.ndarray[Any, Any]
Step = Callable[[list[Array]], "Array | None"]
SOAK = bool(os.environ.get("LEAPP_SOAK"))


def pure(r: random.Random, pool: list[Array]) -> Step:
    i = r.randrange(len(pool))
    j = r.choice([k for k, other in enumerate(pool) if other.shape == pool[i].shape])
    c = round(r.uniform(-2, 2), 2)
    return r.choice(
        [
            lambda v: v[i] * c + v[j],
            lambda v: np.sin(v[i]) - v[j],
            lambda v: np.where(v[i] > c, v[i], v[j]),
            lambda v: np.clip(v[i], -abs(c), abs(c)),
            lambda v: v[i] - v[i].mean(),
            lambda v: np.concatenate([v[i], v[j]]),
            lambda v: np.maximum(v[i], v[j]) / (np.abs(v[i]).max() + 1.0),
            lambda v: np.roll(v[i], 1, axis=0),
            lambda v: np.cumsum(v[i], axis=0) * np.float32(0.3),
            lambda v: np.tanh(v[i] @ v[i].T) if v[i].ndim == 2 else np.cos(v[i]),
            lambda v: v[i].copy(),
            lambda v: np.zeros_like(v[i]),
            lambda v: np.stack([v[i], v[j]]).sum(axis=0),
        ]
    )


def view(r: random.Random, pool: list[Array]) -> Step:
    i = r.randrange(len(pool))
    a = r.random()
    return r.choice(
        [
            lambda v: v[i][int(a * v[i].shape[0])],
            lambda v: v[i][int(a * v[i].shape[0]) :],
            lambda v: v[i].T,
            lambda v: v[i].reshape(-1),
            lambda v: v[i][..., ::2],
            lambda v: v[i][::-1],
            lambda v: v[i][None],
            lambda v: np.swapaxes(v[i], 0, -1),
        ]
    )


def in_place(r: random.Random, pool: list[Array]) -> Step:
    i = r.randrange(len(pool))
    j = r.choice([k for k, other in enumerate(pool) if other.shape == pool[i].shape])
    c = round(r.uniform(-1, 1), 2)
    a = r.random()

    def add(v: list[Array]) -> None:
        v[i] += v[j]

    def scale(v: list[Array]) -> None:
        v[i] *= c

    def assign(v: list[Array]) -> None:
        v[i][int(a * v[i].shape[0])] = c + v[j].mean()

    def assign_half(v: list[Array]) -> None:
        v[i][..., : max(1, v[i].shape[-1] // 2)] = v[j][..., : max(1, v[i].shape[-1] // 2)] * 0.5

    def assign_mask(v: list[Array]) -> None:
        v[i][v[j] > c] = 0.25

    def out(v: list[Array]) -> None:
        np.add(v[i], c, out=v[j])

    def copy(v: list[Array]) -> None:
        v[i][...] = v[j] * 0.9

    return r.choice([add, scale, assign, assign_half, assign_mask, out, copy])


class Program:
    """Steps that ran without an error on one set of inputs; each result joins the pool that later steps draw from."""

    def __init__(self, seed: int, length: int) -> None:
        r = random.Random(seed)
        self.seed = seed
        self.steps: list[Step] = []
        pool = self.with_constants(self.pool(0))
        while len(self.steps) < length:
            step = r.choice([pure, view, in_place, in_place])(r, pool)
            trial = self.trial([*self.steps, step])
            if trial is not None and sum(t.size for t in trial) < 3000:
                self.steps.append(step)
                pool = trial

    def pool(self, seed: int) -> list[Array]:
        g = np.random.default_rng(1000 * self.seed + seed)
        return [g.standard_normal(s).astype(np.float32) for s in ((3, 4), (4,), (3, 4))]

    @staticmethod
    def with_constants(inputs: list[Array]) -> list[Array]:
        """Plain arrays of the program's own, one of them a view of another."""
        base = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
        return [*inputs, base, base[1], np.ones(4, np.float32)]

    def trial(self, steps: list[Step]) -> list[Array] | None:
        pool = self.with_constants(self.pool(0))
        try:
            for step in steps:
                out = step(pool)
                if out is not None:
                    pool.append(out)
        except (ValueError, IndexError, TypeError):
            return None
        good = all(isinstance(t, np.ndarray) and t.size and t.dtype == np.float32 and np.abs(t).max() < 1e3 for t in pool)
        return pool if good else None

    def __call__(self, inputs: list[Array]) -> dict[str, Array]:
        pool = self.with_constants(inputs)
        for step in self.steps:
            out = step(pool)
            if out is not None:
                pool.append(out)
        return {f"o{i}": t for i, t in enumerate(pool)}


def depends(program: Program, name: str) -> bool:
    a, b = (program(program.pool(seed))[name] for seed in (1, 2))
    return not np.array_equal(a, b)


def trace_all(programs: list[Program], backend: str, directory: Path) -> Pipeline:
    leapp.start("arrays", save_path=directory, escapes="error")
    done: list[tuple[int, dict[Any, Array], dict[Any, Array]]] = []
    try:
        for n, program in enumerate(programs):
            plain, held = program.pool(1), program.pool(1)
            wanted = {k: t.copy() for k, t in program(plain).items()}
            names = [k for k in wanted if depends(program, k)]
            declared = annotate.input_tensors(f"n{n}", {f"x{i}": held[i] for i in range(3)})
            outputs = program(list(declared))
            annotate.output_tensors(f"n{n}", {k: outputs[k] for k in names} or {"x0": declared[0]}, export_with=backend)
            done.append((program.seed, outputs, wanted))
            done.append((program.seed, dict(enumerate(held)), dict(enumerate(plain))))
    finally:
        leapp.stop()
    for seed, got, want in done:
        for name, value in want.items():
            assert np.array_equal(got[name], value), f"program {seed}: tracing changed {name}"
    leapp.compile_graph(visualize=False)
    return Pipeline(directory / "arrays" / "arrays.yaml")


def compare(programs: list[Program], pipeline: Pipeline) -> None:
    inputs: dict[str, Array] = {}
    expected: dict[str, Array] = {}
    for n, program in enumerate(programs):
        pool = program.pool(7)
        inputs |= {f"n{n}/x{i}": pool[i].copy() for i in range(3)}
        expected |= {f"n{n}/{k}": t for k, t in program(pool).items()}
    for key, got in pipeline({k: v for k, v in inputs.items() if k in pipeline.inputs}).items():
        if key in expected:
            np.testing.assert_allclose(got, expected[key], rtol=1e-4, atol=1e-4, err_msg=key)


@pytest.mark.parametrize("backend", ["jit", "onnx", "pt2"])
@settings(
    max_examples=20 if SOAK else 2,
    deadline=None,
    derandomize=not SOAK,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seeds=st.lists(st.integers(0, 10**6), min_size=4, max_size=6, unique=True), length=st.integers(4, 14))
def test_random_arrays(backend: str, seeds: list[int], length: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    programs = [Program(seed, length) for seed in seeds]
    with torch.no_grad():
        compare(programs, trace_all(programs, backend, tmp_path_factory.mktemp("arrays")))
