"""Modules left in training mode, and nodes that draw random numbers: warned of with the module, its path and the line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leapp
from leapp import InferenceManager, annotate
from leapp.errors import TraceError, ValidationError


class Normaliser(nn.Module):
    """Running statistics, as reinforcement learning libraries keep them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.centred(x)

    def centred(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return x - self.mean


class Scaler(nn.Module):
    """Statistics that an argument decides about, as skrl's preprocessor has them: ``.eval()`` changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.ones(3))

    def forward(self, x: Tensor, train: bool = False) -> Tensor:
        if train:
            self.running_mean = 0.9 * self.running_mean + 0.1 * x.mean(0)
        return x - self.running_mean


class Policy(nn.Module):
    """A module around another one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 3), inner)

    def forward(self, x: Tensor) -> Any:
        y = self.body(x)  # INNER
        return y[0] if isinstance(y, tuple) else y


SENSITIVE: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "Dropout": (lambda: nn.Dropout(0.4), "at random"),
    "AlphaDropout": (lambda: nn.AlphaDropout(0.4), "at random"),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(3), "statistics of the batch"),
    "GRU": (lambda: nn.GRU(3, 3, num_layers=2, dropout=0.3), "at random between its layers"),
    "RReLU": (nn.RReLU, "slope"),
    "Normaliser": (Normaliser, "reads self.training"),
}
INDIFFERENT: dict[str, Callable[[], nn.Module]] = {
    "Linear": lambda: nn.Linear(3, 3),
    "Dropout of nothing": lambda: nn.Dropout(0.0),
    "LayerNorm": lambda: nn.LayerNorm(3),
    "Scaler": Scaler,
    "GRU of one layer": lambda: nn.GRU(3, 3),
    "BatchNorm without statistics": lambda: nn.BatchNorm1d(3, track_running_stats=False),
}


def compiled(tmp_path: Path, code: Callable[[Tensor], Tensor], backend: str = "jit", passes: int = 2, **kwargs: Any) -> Any:
    """Trace a node in a few passes, and compile it."""
    leapp.start("g", save_path=tmp_path)
    for _ in range(passes):
        x = annotate.input_tensors("n", {"x": torch.randn(4, 3)})
        annotate.output_tensors("n", {"y": code(x)}, export_with=backend)
    leapp.stop()
    return leapp.compile_graph(visualize=False, **{"strict": False, **kwargs})


@pytest.mark.parametrize("name", SENSITIVE)
def test_modules_in_training_mode_are_named_with_path_line_and_cure(name: str, tmp_path: Path, capsys: Any) -> None:
    make, effect = SENSITIVE[name]
    policy = Policy(make())
    compiled(tmp_path, policy)
    (line,) = [t for t in capsys.readouterr().err.splitlines() if "is in training mode" in t]
    for words in ("[WARNING]: n: ", f"Policy.body.1 ({name})", "test_training.py:", "# INNER", effect, ".eval() on the Policy"):
        assert words in line
    assert leapp.report().training == [line.removeprefix("[WARNING]: ")]
    compiled(tmp_path, policy.eval())
    assert "training mode" not in capsys.readouterr().err and leapp.report().training == []


SPECTRAL: dict[str, Callable[[nn.Linear], nn.Module]] = {
    "parametrization": nn.utils.parametrizations.spectral_norm,
    "hook": nn.utils.spectral_norm,
}


@pytest.mark.parametrize("name", SPECTRAL)
def test_a_weight_that_changes_in_training_mode_is_refused_with_eval_as_cure(name: str, tmp_path: Path) -> None:
    layer = nn.Linear(3, 3)
    with torch.no_grad():
        layer.weight.copy_(torch.diag(torch.tensor([1.0, 0.97, 0.94])))  # so close that the iteration takes many calls
    policy = Policy(SPECTRAL[name](layer))
    with pytest.raises(TraceError, match=r"(?s)# INNER.*differs between passes.*is in training mode.*\.eval\(\) on the Policy"):
        compiled(tmp_path, policy, strict=True)
    compiled(tmp_path, policy.eval(), strict=True)
    x = torch.randn(4, 3)
    torch.testing.assert_close(InferenceManager(tmp_path / "g").run_policy({"n/x": x})["n/y"], policy(x).detach())


STATISTICS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "BatchNorm1d": (lambda: nn.BatchNorm1d(6), (4, 6)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(2), (3, 2, 4, 4)),
    "InstanceNorm1d": (lambda: nn.InstanceNorm1d(3, track_running_stats=True, affine=True), (2, 3, 5)),
}


@pytest.mark.parametrize("backend", ["jit", "onnx", "pt2"])
@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("name", STATISTICS)
def test_statistics_that_a_layer_only_writes_are_kept(name: str, calls: int, backend: str, tmp_path: Path) -> None:
    """The schema of the operator does not say that it writes them, and nothing uses its result."""
    make, shape = STATISTICS[name]

    def step(norm: nn.Module, x: Tensor) -> Tensor:
        norm.train()
        for _ in range(calls):
            norm(x)
        return norm.eval()(x)  # type: ignore[no-any-return]

    traced, eager = make(), make()
    leapp.start("g", save_path=tmp_path)
    for _ in range(2):
        x = annotate.input_tensors("n", {"x": torch.randn(shape)})
        annotate.module("n", traced)
        annotate.output_tensors("n", {"y": step(traced, x)}, export_with=backend)
    leapp.stop()
    leapp.compile_graph(visualize=False)
    manager = InferenceManager(tmp_path / "g")
    for _ in range(4):
        x = torch.randn(shape) * 3 + 1
        torch.testing.assert_close(manager.run_policy({"n/x": x})["n/y"], step(eager, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", INDIFFERENT)
def test_modules_that_compute_the_same_in_both_modes_are_not_named(name: str, tmp_path: Path, capsys: Any) -> None:
    compiled(tmp_path, Policy(INDIFFERENT[name]()))
    assert "training mode" not in capsys.readouterr().err


def dropped(x: Tensor) -> Tensor:
    noisy = nn.functional.dropout(x, 0.5)  # DRAWS
    return noisy * 2.0


def noisy(x: Tensor) -> Tensor:
    noise = torch.randn_like(x)  # DRAWS
    scaled = noise * 0.1
    return x + scaled


def sampled(x: Tensor) -> Tensor:
    chosen = torch.normal(x, torch.ones_like(x))  # DRAWS
    return chosen.clamp(-1.0, 1.0)


def whole_features_dropped(x: Tensor) -> Tensor:
    return nn.functional.dropout1d(x.repeat(9, 1, 1), 0.5)  # DRAWS


def soft_choice(x: Tensor) -> Tensor:
    return nn.functional.gumbel_softmax(x) + 1.0  # DRAWS


@pytest.mark.parametrize("code", [dropped, noisy, sampled, whole_features_dropped, soft_choice])
def test_a_node_that_draws_is_not_simply_true(code: Callable[[Tensor], Tensor], tmp_path: Path, capsys: Any) -> None:
    """A warning with the line that draws, and a result that is false and tells why. The bundle is written and draws."""
    results = compiled(tmp_path, code, strict=True)
    told = capsys.readouterr().err
    assert results["n"] is not True and not results["n"] and "DRAWS" in str(results["n"])
    (line,) = [t for t in told.splitlines() if "draws random numbers" in t]
    assert line.startswith("[WARNING]: node 'n'") and "# DRAWS" in line and "allow_random=True" in line
    manager, x = InferenceManager(tmp_path / "g"), torch.randn(4, 3)
    assert not torch.equal(manager({"n/x": x})["n/y"], manager({"n/x": x})["n/y"])

    assert compiled(tmp_path, code, strict=True, allow_random=True) == {"n": True}
    assert "draws random numbers" not in capsys.readouterr().err
    assert compiled(tmp_path, code, strict=False) == {"n": True}


WEIGHTS = torch.full((3,), 0.5)


def uniform(x: Tensor) -> Tensor:
    noise = torch.rand(3)  # DRAWS
    shifted = noise - 0.5
    return x + shifted


def scaled(x: Tensor) -> Tensor:
    noise = torch.randn(4, 3)  # DRAWS
    return x + noise.mul(0.1)[:, :3]


def of_the_same_shape(x: Tensor) -> Tensor:
    noise = torch.normal(0.0, 1.0, tuple(x.shape))  # DRAWS
    return x * noise


def of_plain_tensors(x: Tensor) -> Tensor:
    noise = torch.distributions.Normal(WEIGHTS, WEIGHTS).sample()  # DRAWS
    return x * noise


def whole_numbers(x: Tensor) -> Tensor:
    chosen = torch.randint(0, 1000, (4, 3))  # DRAWS
    return x + chosen


@pytest.mark.parametrize("passes", [2, 4])
@pytest.mark.parametrize("backend", ["jit", "onnx", "pt2"])
@pytest.mark.parametrize("code", [uniform, scaled, of_the_same_shape, of_plain_tensors, whole_numbers])
def test_a_draw_without_a_traced_tensor_is_drawn_by_the_model(
    code: Callable[[Tensor], Tensor], backend: str, passes: int, tmp_path: Path, capsys: Any
) -> None:
    results = compiled(tmp_path, code, backend, passes, strict=True)
    told = capsys.readouterr().err
    assert results["n"] is not True and not results["n"] and "# DRAWS" in str(results["n"])
    (line,) = [t for t in told.splitlines() if "draws random numbers" in t]
    assert line.startswith("[WARNING]: node 'n'") and "# DRAWS" in line and "allow_random=True" in line
    manager, x = InferenceManager(tmp_path / "g"), torch.ones(4, 3)
    assert not torch.equal(manager({"n/x": x})["n/y"], manager({"n/x": x})["n/y"])
    assert compiled(tmp_path, code, backend, passes, strict=True, allow_random=True) == {"n": True}


def test_one_pass_freezes_what_it_drew(tmp_path: Path) -> None:
    """Nothing shows yet that the next call draws other numbers. The result is false and names the line."""
    results = compiled(tmp_path, uniform, "onnx", passes=1, strict=True)
    assert not results["n"] and "frozen" in str(results["n"]) and "# DRAWS" in str(results["n"])
    manager, x = InferenceManager(tmp_path / "g"), torch.ones(4, 3)
    assert torch.equal(manager({"n/x": x})["n/y"], manager({"n/x": x})["n/y"])


def test_drawn_uniform_numbers_keep_their_distribution(tmp_path: Path) -> None:
    """The model draws from [-0.5, 0.5), as the code does."""
    for backend in ("jit", "onnx", "pt2"):
        compiled(tmp_path, uniform, backend)
        manager, x = InferenceManager(tmp_path / "g"), torch.zeros(4, 3)
        drawn = torch.stack([manager({"n/x": x})["n/y"] for _ in range(200)])
        assert drawn.min() >= -0.5 and drawn.max() < 0.5 and drawn.mean().abs() < 0.1 and 0.2 < drawn.std() < 0.4


class Projection:
    """Random numbers that the first call draws and every call uses."""

    def __init__(self, noise: bool = False) -> None:
        self.matrix: Tensor | None = None
        self.noise = noise

    def __call__(self, x: Tensor) -> Tensor:
        if self.matrix is None:
            self.matrix = torch.randn(3, 3) if self.noise else torch.randn(3, 3) * 0.5
        return x @ self.matrix + (torch.rand(3) if self.noise else 0.0)


@pytest.mark.parametrize("backend", ["jit", "onnx", "pt2"])
def test_random_numbers_that_the_program_keeps_are_constants(backend: str, tmp_path: Path) -> None:
    code, x = Projection(), torch.randn(4, 3)
    assert compiled(tmp_path, code, backend, strict=True) == {"n": True}
    torch.testing.assert_close(InferenceManager(tmp_path / "g")({"n/x": x})["n/y"], code(x))


def test_one_node_may_keep_random_numbers_and_draw_others(tmp_path: Path) -> None:
    code, x = Projection(noise=True), torch.randn(4, 3)
    assert compiled(tmp_path, code, "onnx", passes=3, strict=True, allow_random=True) == {"n": True}
    assert code.matrix is not None
    manager = InferenceManager(tmp_path / "g")
    noise = torch.stack([manager({"n/x": x})["n/y"] - x @ code.matrix for _ in range(50)])
    assert noise.min() > -1e-4 and noise.max() < 1.0001 and noise.std() > 0.2


@pytest.mark.parametrize("backend", ["jit", "onnx", "pt2"])
def test_random_numbers_after_a_seed_in_the_node_are_constants(backend: str, tmp_path: Path) -> None:
    def seeded(x: Tensor) -> Tensor:
        torch.manual_seed(7)
        return x + torch.rand(3)

    x = torch.randn(4, 3)
    assert compiled(tmp_path, seeded, backend, strict=True) == {"n": True}
    torch.testing.assert_close(InferenceManager(tmp_path / "g")({"n/x": x})["n/y"], seeded(x))


def test_a_draw_that_is_equal_in_both_passes_by_chance_is_a_draw(tmp_path: Path) -> None:
    """A draw of few values is often the same twice; only a seed makes it a constant."""

    def code(x: Tensor) -> Tensor:
        return x + torch.randint(0, 1, (1,))

    assert not compiled(tmp_path, code, "jit", strict=True)["n"]


def test_random_ports_are_not_draws_of_the_node_that_is_open(tmp_path: Path, capsys: Any) -> None:
    """Inputs, states and buffers may be drawn while a node is open."""
    buffer = None
    leapp.start("g", save_path=tmp_path)
    for _ in range(2):
        x = annotate.input_tensors("n", {"x": torch.randn(3)})
        y = annotate.input_tensors("n", {"y": torch.randn(3) * 0.1})
        z = annotate.input_tensors("m", {"z": torch.rand(3).sub(0.5)})
        buffer = annotate.register_buffer("n", {"b": torch.rand(3) if buffer is None else buffer})
        buffer.add_(x)
        annotate.output_tensors("n", {"a": x + y + buffer}, export_with="jit")
        annotate.output_tensors("m", {"c": z * 2.0}, export_with="jit")
    leapp.stop()
    assert leapp.compile_graph(visualize=False) == {"n": True, "m": True}
    told = capsys.readouterr().err
    assert "value of the node itself" not in told and "random numbers" not in told


def frozen(x: Tensor) -> Tensor:
    noise = torch.empty(3).uniform_()  # DRAWS
    shifted = noise - 0.5
    return x + shifted


def test_random_numbers_that_are_frozen_are_named_where_they_are_drawn(tmp_path: Path, capsys: Any) -> None:
    """One pass warns and does not say true; the second pass refuses. Both name the line that draws."""
    results = compiled(tmp_path, frozen, passes=1, strict=True)
    told = capsys.readouterr().err
    assert not results["n"] and "# DRAWS" in str(results["n"]) and "# DRAWS" in told and "shifted = " not in told
    with pytest.raises(TraceError, match=r"random numbers, drawn once and frozen.*# DRAWS"):
        compiled(tmp_path, frozen, strict=True)


def test_numbers_that_were_drawn_before_the_node_may_be_constants(tmp_path: Path) -> None:
    """A random projection is drawn once, and belongs to the model."""
    leapp.start("g", save_path=tmp_path)
    projection = torch.randn(3, 3)
    x = annotate.input_tensors("n", {"x": torch.randn(4, 3)})
    annotate.output_tensors("n", {"y": x @ projection}, export_with="onnx")
    leapp.stop()
    assert leapp.compile_graph(visualize=False) == {"n": True}


def test_draws_that_reach_no_output_do_not_count(tmp_path: Path) -> None:
    """A policy that samples for its logs and returns its mean is proven like any other."""

    def code(x: Tensor) -> Tensor:
        mean = x * 2.0
        torch.normal(mean, 1.0)
        return mean

    assert compiled(tmp_path, code, strict=True) == {"n": True}


def test_a_model_that_does_not_draw_what_the_node_drew_is_refused_with_that_line(tmp_path: Path) -> None:
    """ONNX has dropout of its own, which its engine may leave out."""
    network = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Linear(3, 3))

    def code(x: Tensor) -> Tensor:
        y: Tensor = network(x)  # DRAWS
        return y

    with pytest.raises(ValidationError, match=r"cause: the node draws random numbers at .*# DRAWS(.|\n)*\.eval\(\)"):
        compiled(tmp_path, code, "onnx", strict=True)
