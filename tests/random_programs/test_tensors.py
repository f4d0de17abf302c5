"""Random programs in torch."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leapp import InferenceManager
from tests.random_programs.programs import Step, examples, partner, prove

Tensor = torch.Tensor


def pure(r: random.Random, pool: list[Tensor]) -> Step:
    i = r.randrange(len(pool))
    j = partner(r, pool, i)
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
    j = partner(r, pool, i)
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

    def apart(t: Tensor) -> Tensor:
        if 0 in t.stride():  # torch warns of some writes to repeated elements, and refuses the others
            raise RuntimeError
        return t

    def assign_mask(v: list[Tensor]) -> None:
        apart(v[i])[v[j] > c] = 0.25

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
            write(lambda v: apart(v[i]).masked_fill_(v[j] > 0, c)),
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


class Torch:
    """Programs over tensors."""

    draws = (pure, view, view, in_place, in_place)
    most = 4000

    def inputs(self, seed: int) -> list[Tensor]:
        g = torch.Generator().manual_seed(seed)
        return [torch.randn(3, 4, generator=g), torch.randn(4, generator=g), torch.randn(3, 4, generator=g)]

    def constants(self) -> list[Tensor]:
        base = torch.linspace(-1, 1, 12).view(3, 4).clone()
        return [base, base[1], torch.ones(4)]

    def size(self, value: Tensor) -> int:
        return value.numel()

    def usable(self, value: Tensor) -> bool:
        return not value.numel() or bool(torch.isfinite(value).all() and value.abs().max() < 1e3)

    def copy(self, value: Tensor) -> Tensor:
        return value.clone()

    def same(self, a: Tensor, b: Tensor) -> bool:
        return torch.equal(a, b)

    def assert_close(self, got: Tensor, want: Tensor, key: str) -> None:
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4, msg=lambda text: f"{key}: {text}")

    def open(self, path: Path) -> InferenceManager:
        return InferenceManager(path)


@pytest.mark.parametrize("backend", ["jit", "onnx", "pt2"])
@examples(some=3, many=40)
@given(seeds=st.lists(st.integers(0, 10**6), min_size=6, max_size=10, unique=True), length=st.integers(4, 24))
def test_random_tensors(backend: str, seeds: list[int], length: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    with torch.no_grad():
        prove(Torch(), backend, seeds, length, tmp_path_factory.mktemp("tensors"))
