"""Random programs in NumPy."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leapp.runtime import Pipeline
from tests.random_programs.programs import Step, examples, partner, prove

Array = np.ndarray[Any, Any]


def pure(r: random.Random, pool: list[Array]) -> Step:
    i = r.randrange(len(pool))
    j = partner(r, pool, i)
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
    j = partner(r, pool, i)
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


class NumPy:
    """Programs over arrays of float32."""

    draws = (pure, view, in_place, in_place)
    most = 3000

    def inputs(self, seed: int) -> list[Array]:
        g = np.random.default_rng(seed)
        return [g.standard_normal(s).astype(np.float32) for s in ((3, 4), (4,), (3, 4))]

    def constants(self) -> list[Array]:
        base = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
        return [base, base[1], np.ones(4, np.float32)]

    def size(self, value: Array) -> int:
        return value.size

    def usable(self, value: Array) -> bool:
        return bool(isinstance(value, np.ndarray) and value.size and value.dtype == np.float32 and np.abs(value).max() < 1e3)

    def copy(self, value: Array) -> Array:
        return value.copy()

    def same(self, a: Array, b: Array) -> bool:
        return np.array_equal(a, b)

    def assert_close(self, got: Array, want: Array, key: str) -> None:
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4, err_msg=key)

    def open(self, path: Path) -> Pipeline:
        return Pipeline(path)


@pytest.mark.parametrize("backend", ["jit", "onnx", "pt2"])
@examples(some=2, many=20)
@given(seeds=st.lists(st.integers(0, 10**6), min_size=4, max_size=6, unique=True), length=st.integers(4, 14))
def test_random_arrays(backend: str, seeds: list[int], length: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    with torch.no_grad():
        prove(NumPy(), backend, seeds, length, tmp_path_factory.mktemp("arrays"))
