"""Models that draw: every run draws anew, each element by itself, from the distribution that eager draws from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import leapp
from leapp import annotate
from leapp.export import ExportJob, ExportResult, export_node

from .running import run

COUNT = 4000


def columns(x: Tensor) -> Tensor:
    """The weights of three classes in every row."""
    return torch.stack([x + 1.0, x + 3.0, x + 0.1], -1)


DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "bernoulli": lambda x: torch.bernoulli(torch.sigmoid(x - 1.0)),
    "bernoulli in place": lambda x: (x + 0.0).bernoulli_(torch.sigmoid(x + 1.0)),
    "bernoulli of whole numbers": lambda x: (x + 0.0).to(torch.int64).bernoulli_(torch.sigmoid(x + 1.0)).float(),
    "a Bernoulli policy": lambda x: torch.distributions.Bernoulli(logits=x + 1.0, validate_args=False).sample(),
    "a Categorical policy": lambda x: torch.distributions.Categorical(columns(x), validate_args=False).sample().float(),
    "a Normal policy": lambda x: torch.distributions.Normal(x + 1.0, x + 2.0, validate_args=False).sample(),
    "normal of tensors": lambda x: torch.normal(x + 2.0, x + 3.0),
    "normal of a smaller mean": lambda x: torch.normal(x[:1] + 2.0, x + 3.0),
    "normal of a smaller deviation": lambda x: torch.normal(x + 2.0, x[:1] + 3.0),
    "normal of a tensor and a number": lambda x: torch.normal(x, 2.0),
    "normal of a number and a tensor": lambda x: torch.normal(2.0, x + 1.0),
    "normal in place": lambda x: (x + 0.0).normal_(1.0, 2.0),
    "uniform in place": lambda x: (x + 0.0).uniform_(-2.0, 3.0),
    "multinomial": lambda x: torch.multinomial(columns(x), 1)[:, 0].float(),
    "multinomial without replacement": lambda x: torch.multinomial(columns(x), 2)[:, 1].float(),
    "multinomial with replacement": lambda x: torch.multinomial(columns(x), 2, True)[:, 1].float(),
    "dropout": lambda x: F.dropout(x + 1.0, 0.3, True),
    "randn without a generator": lambda x: torch.randn(x.shape, generator=None) + x,
    "rand without a generator": lambda x: torch.rand(COUNT, generator=None) + x,
    "randint without a generator": lambda x: torch.randint(2, 9, (COUNT,), generator=None) + x,
    "the difference of two draws": lambda x: torch.randn_like(x) - torch.randn_like(x),
}


def export(
    draw: Callable[[Tensor], Tensor], backend: str, directory: Path, dtype: torch.dtype = torch.float32
) -> ExportResult:
    class Node(torch.nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor]:
            return (draw(x),)

    example = torch.zeros(COUNT, dtype=dtype)
    return export_node(ExportJob("node", Node(), (example,), ["x"], ["y"], backend, {}), directory)


def facts(drawn: Tensor) -> Tensor:
    """Mean, deviation, and how an element follows from the one before."""
    neighbours = torch.corrcoef(torch.stack([drawn[1:], drawn[:-1]]))[0, 1]
    return torch.stack([drawn.mean(), drawn.std(), neighbours])


def check(result: ExportResult, draw: Callable[[Tensor], Tensor], x: Tensor) -> None:
    (got,) = run(result, (x,))
    torch.manual_seed(0)
    want = draw(x)
    assert got.dtype == want.dtype and got.shape == want.shape
    spread = want.float().std().item()
    torch.testing.assert_close(facts(got.float()), facts(want.float()), rtol=0.0, atol=0.12 * max(1.0, spread))
    assert got.unique().numel() > 0.9 * want.unique().numel()


@pytest.mark.parametrize("backend", ["onnx", "jit", "pt2"])
@pytest.mark.parametrize("name", DRAWS)
def test_the_distribution_is_that_of_eager(name: str, backend: str, tmp_path: Path) -> None:
    result, x = export(DRAWS[name], backend, tmp_path), torch.zeros(COUNT)
    check(result, DRAWS[name], x)
    if backend != "onnx":  # a fresh engine of ONNX Runtime may begin with the same seed
        assert not torch.equal(run(result, (x,))[0], run(result, (x,))[0])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("name", [name for name in DRAWS if not name.startswith(("dropout", "rand", "the difference"))])
def test_other_types_than_float32(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    check(export(DRAWS[name], "onnx", tmp_path, dtype), DRAWS[name], torch.zeros(COUNT, dtype=dtype))


def test_no_class_is_drawn_twice_without_replacement(tmp_path: Path) -> None:
    result = export(lambda x: torch.multinomial(columns(x), 3).sort(-1).values.sum(0).float(), "onnx", tmp_path)
    (got,) = run(result, (torch.zeros(COUNT),))
    assert got.tolist() == [0, COUNT, 2 * COUNT]


def test_compiling_draws_no_numbers_of_the_program(tmp_path: Path) -> None:
    leapp.start("g", save_path=tmp_path)
    x = annotate.input_tensors("n", {"x": torch.zeros(COUNT)})
    annotate.output_tensors("n", {"y": torch.rand_like(x) + x}, export_with="onnx")
    leapp.stop()
    before = torch.get_rng_state()
    leapp.compile_graph(visualize=False)
    assert torch.equal(before, torch.get_rng_state())
