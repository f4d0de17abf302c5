"""Models that users bring: opened, checked against their nodes, run on every sample, compared where the code computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import leapp
from leapp import InferenceManager, annotate
from leapp.cli import main
from leapp.errors import ExportError, LeappError, ValidationError

KINDS = ["pt", "pt2"]


class Model(nn.Module):
    """A model that does what it is told."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


class TwoInputs(nn.Module):
    """A model with two arguments of one form."""

    def forward(self, q: Tensor, target: Tensor) -> Tensor:
        return 2.0 * q - target


def save(model: nn.Module, path: Path, *example: Tensor) -> Path:
    """Write a model as its suffix says."""
    example = example or (torch.randn(3),)
    if path.suffix == ".pt":
        torch.jit.trace(model, example, check_trace=False).save(str(path))  # type: ignore[no-untyped-call]
    elif path.suffix == ".pt2":
        torch.export.save(torch.export.export(model, example), str(path))
    else:
        names = {"input_names": ["x"], "output_names": ["y"]}
        torch.onnx.export(model, example, path, dynamo=True, external_data=False, verbose=False, **names)  # type: ignore[arg-type]
    return path


def doubled(x: Tensor) -> Tensor:
    return x * 2.0


def export(
    tmp_path: Path, model: Path, code: Callable[[Tensor], Tensor] = doubled, passes: int = 2, copy: bool = False, **kwargs: Any
) -> Any:
    """Trace a node whose code is ``code`` and whose model is ``model``, and then a node that reads it."""
    leapp.start("g", save_path=tmp_path)
    for _ in range(passes):
        x = annotate.input_tensors("own", {"x": torch.randn(3)})
        y = code(x)
        params = {"model_path": str(model), "copy_original_model": copy}
        annotate.output_tensors("own", {"y": y}, export_with=None, backend_params=params)
        z = annotate.input_tensors("after", {"y": y})
        annotate.output_tensors("after", {"z": z + 1.0}, export_with="onnx")
    leapp.stop()
    return leapp.compile_graph(visualize=False, **kwargs)


WRONG: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "another value": (lambda x: x * 3.0, r"(?s)own/y, sample 0: 3 of 3 values.*mine\.{kind} computes something else"),
    "another shape": (lambda x: (x * 2.0)[:2], r"mine\.{kind} fails: .*\[2\].*\[3\]"),
    "another dtype": (lambda x: (x * 2.0).double(), r"mine\.{kind} fails: .*float64.*float32"),
    "another count": (lambda x: (x * 2.0, x + 1.0), r"mine\.{kind} fails: .*returns 2"),
    "written inputs": (lambda x: x.mul_(2.0) + 0.0, r"mine\.{kind} fails: it writes to its input 'x' \(sample 0\)"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("placeholder", [False, True])
def test_what_does_not_fit_fails_the_node(wrong: str, kind: str, placeholder: bool, tmp_path: Path) -> None:
    """The bundle on disk stays; without ``strict`` the node is false in the answer."""
    function, words = WRONG[wrong]
    model = save(Model(function), tmp_path / f"mine.{kind}")
    if placeholder and wrong == "another value":
        return
    code = (lambda x: torch.zeros(3)) if placeholder else doubled
    good = save(Model(doubled), tmp_path / "good.pt")
    assert export(tmp_path, good) == {"own": True, "after": True}
    before = (tmp_path / "g" / "g.yaml").read_bytes()
    with pytest.raises(ValidationError, match=words.replace("{kind}", kind)):
        export(tmp_path, model, code)
    assert (tmp_path / "g" / "g.yaml").read_bytes() == before
    results = export(tmp_path, model, code, strict=False)
    assert not results["own"] and results["after"] is True


@pytest.mark.parametrize("kind", ["pt", "pt2", "onnx"])
@pytest.mark.parametrize("copy", [False, True])
def test_a_model_that_computes_the_same_passes(kind: str, copy: bool, tmp_path: Path, capsys: Any) -> None:
    """It is compared like any other node, on inputs that were never traced too, and runs in the bundle."""
    model = save(Model(doubled), tmp_path / f"mine.{kind}")
    assert export(tmp_path, model, copy=copy) == {"own": True, "after": True}
    assert "not compared" not in capsys.readouterr().err
    x = torch.randn(3)
    torch.testing.assert_close(InferenceManager(tmp_path / "g", allow_outside=True)({"own/x": x})["after/z"], 2.0 * x + 1.0)


PLACEHOLDERS: dict[str, Callable[[Tensor], Tensor]] = {
    "the input": lambda x: x,
    "a part of the input": lambda x: x.view(3, 1)[:, 0],
    "a copy of the input": lambda x: x.clone(),
    "a constant": lambda x: torch.zeros(3),
    "zeros of the form of the input": torch.zeros_like,
    "random numbers": torch.rand_like,
    "random numbers without the input": lambda x: torch.rand(3),
}


@pytest.fixture(scope="module")
def tripled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For ONNX Runtime, which ``leapp verify`` loads in its other process much faster than torch."""
    return save(Model(lambda x: x * 3.0), tmp_path_factory.mktemp("tripled") / "mine.onnx")


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("code", PLACEHOLDERS)
def test_placeholders_are_not_compared_and_it_is_said(
    code: str, passes: int, tripled: Path, tmp_path: Path, capsys: Any
) -> None:
    """Nor does the bundle carry their values: ``leapp verify`` has nothing to compare with either."""
    assert export(tmp_path, tripled, PLACEHOLDERS[code], passes, copy=True) == {"own": True, "after": True}
    assert f"mine.onnx ran on {passes} sample(s); values not compared for 'y'" in capsys.readouterr().err
    assert main(["verify", str(tmp_path / "g")]) == 0
    assert "no values to compare with" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("kind", ["pt", "pt2", "onnx"])
@pytest.mark.parametrize("validate", [True, False])
@pytest.mark.parametrize("strict", [True, False])
def test_junk_is_refused_by_node_and_path(kind: str, validate: bool, strict: bool, tmp_path: Path) -> None:
    """Whatever is asked for: no engine could open such a bundle."""
    model = tmp_path / f"mine.{kind}"
    model.write_bytes(b"a model")
    with pytest.raises(ExportError, match=rf"node 'own': the model .*mine\.{kind} cannot be used"):
        export(tmp_path, model, validate=validate, strict=strict)
    assert not (tmp_path / "g" / "g.yaml").exists()


def test_ports_are_checked_without_validation_too(tmp_path: Path) -> None:
    model = save(Model(lambda x: (x, x + 1.0)), tmp_path / "mine.pt")
    with pytest.raises(ExportError, match=r"'own': the model .*mine\.pt cannot be used: .*returns 2 tensors"):
        export(tmp_path, model, validate=False)


def test_a_model_that_crashes_fails_the_node(tmp_path: Path) -> None:
    """With the model's own words."""

    class Crashing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if bool(x.abs().sum() >= 0.0):
                raise RuntimeError("out of coffee")
            return x * 2.0

    torch.jit.script(Crashing()).save(str(tmp_path / "mine.pt"))
    with pytest.raises(ValidationError, match=r"(?s)mine\.pt fails: .*out of coffee"):
        export(tmp_path, tmp_path / "mine.pt")


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_in_another_order_are_found_by_their_names(kind: str, tmp_path: Path) -> None:
    """Even if the node is a placeholder: a model takes its inputs by position."""
    model = save(TwoInputs(), tmp_path / f"mine.{kind}", torch.randn(3), torch.randn(3))

    def run(*names: str) -> Any:
        leapp.start("g", save_path=tmp_path)
        for _ in range(2):
            annotate.input_tensors("own", {name: torch.randn(3) for name in names})
            annotate.output_tensors("own", {"y": torch.zeros(3)}, backend_params={"model_path": model})
        leapp.stop()
        return leapp.compile_graph(visualize=False)

    assert run("q", "target") == {"own": True}
    assert run("joints", "goal") == {"own": True}
    with pytest.raises(ValidationError, match=r"order q, target, but the node declares target, q"):
        run("target", "q")


def test_onnx_names_and_forms_are_checked(tmp_path: Path) -> None:
    model = save(Model(doubled), tmp_path / "mine.onnx")
    cases: list[tuple[str, str, Tensor, str]] = [
        ("x", "scores", torch.randn(3), "has the outputs"),
        ("obs", "y", torch.randn(3), "has the inputs"),
        ("x", "y", torch.randn(4), r"\[4\].*\[3\]"),
        ("x", "y", torch.randn(3).double(), "float64"),
    ]
    for entering, leaving, x, words in cases:
        leapp.start("g", save_path=tmp_path)
        value = annotate.input_tensors("own", {entering: x})
        annotate.output_tensors("own", {leaving: value * 2.0}, backend_params={"model_path": str(model)})
        leapp.stop()
        with pytest.raises(LeappError, match=rf"(?s)mine\.onnx fails: .*{words}"):
            leapp.compile_graph(visualize=False)


def test_a_model_that_gives_nan_fails_the_node(tmp_path: Path) -> None:
    """Only the file has them, so no tolerance helps."""
    model = save(Model(lambda x: x * float("nan")), tmp_path / "mine.pt")
    with pytest.raises(ValidationError, match=r"own/y, sample 0.*NaN"):
        export(tmp_path, model)


def test_engines_that_are_not_here_are_said_not_to_run(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "mine.engine").write_bytes(np.zeros(3).tobytes())
    assert export(tmp_path, tmp_path / "mine.engine") == {"own": True, "after": True}
    assert "mine.engine was neither opened nor run: values not compared" in capsys.readouterr().err
