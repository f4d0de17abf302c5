"""State that nothing updates or reads, names that are misspelt, one tensor for two nodes: said with the lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import leapp
from leapp import InferenceManager, annotate
from leapp.errors import AnnotationError, TraceError


def warned(capsys: Any) -> list[str]:
    """The warnings on the console, without the one about one pass."""
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("[WARNING]: ")]
    return [line for line in lines if "one pass only" not in line]


@pytest.mark.parametrize("passes", [1, 2])
def test_a_state_that_is_never_updated_became_an_input(passes: int, tmp_path: Path, capsys: Any) -> None:
    leapp.start("g", save_path=tmp_path)
    for _ in range(passes):
        x = annotate.input_tensors("n", {"x": torch.randn(3)})
        h = annotate.state_tensors("n", {"h": torch.randn(3)})  # DECLARED
        annotate.output_tensors("n", {"y": x + h}, export_with="onnx")
    leapp.stop()
    assert leapp.compile_graph(visualize=False) == {"n": True}
    (line,) = warned(capsys)
    here = Path(__file__).read_text().splitlines()
    number = next(i for i, text in enumerate(here, 1) if text.endswith("# DECLARED"))
    assert f"state 'h' (declared at {__file__}:{number})" in line and "it became a constant input" in line
    assert "update_state('n', {'h': ...})" in line and line.endswith(leapp.report().notes[0])
    assert sorted(InferenceManager(tmp_path / "g").inputs) == ["n/h", "n/x"]


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("slip", ["hisotry", "History", "historry"])
def test_a_misspelt_state_is_refused_with_the_nearest_name(slip: str, passes: int, tmp_path: Path) -> None:
    """At once, in the first pass and in the second."""
    leapp.start("g", save_path=tmp_path)
    for number in range(passes):
        x = annotate.input_tensors("n", {"x": torch.randn(3)})
        history = annotate.state_tensors("n", {"history": torch.zeros(3)})
        if number == passes - 1:
            words = rf"no state '{slip}' \(update_state\(\) at .*test_notes\.py:\d+\).*Did you mean 'history'"
            with pytest.raises(AnnotationError, match=words):
                annotate.update_state("n", {slip: history + x})
            break
        annotate.update_state("n", {"history": history + x})
        annotate.output_tensors("n", {"y": x + history}, export_with="onnx")
    leapp.stop()


def test_a_node_that_runs_less_often_than_its_source(tmp_path: Path, capsys: Any) -> None:
    """A bundle has one rate. Without the note the policy would run at each step."""

    def trace(every: int) -> None:
        leapp.start("g", save_path=tmp_path)
        for number in range(4):
            x = annotate.input_tensors("estimator", {"x": torch.randn(3)})
            z = annotate.output_tensors("estimator", {"z": x * 2}, export_with="onnx")
            if number % every == 0:
                z = annotate.input_tensors("policy", {"z": z})  # SLOWER
                annotate.output_tensors("policy", {"a": z.tanh()}, export_with="onnx")
        leapp.stop()
        leapp.compile_graph(visualize=False)

    trace(2)
    (line,) = warned(capsys)
    here = Path(__file__).read_text().splitlines()
    number = next(i for i, text in enumerate(here, 1) if text.endswith("# SLOWER"))
    assert "'policy' ran 2 time(s) and 'estimator'" in line and f"{__file__}:{number}" in line
    trace(1)
    assert not warned(capsys)


def test_a_node_with_state_that_runs_less_often_than_others(tmp_path: Path, capsys: Any) -> None:
    """Its state changes in every step of the bundle. Nodes that are traced one after the other run as often as they like."""

    def fast() -> None:
        x = annotate.input_tensors("fast", {"x": torch.randn(3)})
        annotate.output_tensors("fast", {"y": x * 2}, export_with="onnx")

    def slow(h: torch.Tensor) -> torch.Tensor:
        x = annotate.input_tensors("slow", {"x": torch.randn(3)})
        h = annotate.update_state("slow", {"h": x + annotate.state_tensors("slow", {"h": h})})  # KEPT
        annotate.output_tensors("slow", {"y": h * 2}, export_with="onnx")
        return h

    def trace(passes: list[bool]) -> None:
        h = torch.zeros(3)
        leapp.start("g", save_path=tmp_path)
        for both in passes:
            h = slow(h) if both else h
            fast()
        leapp.stop()
        leapp.compile_graph(visualize=False)

    trace([True, False] * 3)
    (line,) = warned(capsys)
    here = Path(__file__).read_text().splitlines()
    number = next(i for i, text in enumerate(here, 1) if text.endswith("# KEPT"))
    assert "'slow', which keeps 'h'" in line and f"{__file__}:{number}" in line
    for passes in ([True, True, False, False], [False, False, True, True], [True, True]):
        trace(passes)
        assert not warned(capsys)


def test_a_node_that_runs_twice_for_each_value(tmp_path: Path) -> None:
    """Its source did not run again: a second port would not help."""
    leapp.start("g", save_path=tmp_path)
    x = annotate.input_tensors("slow", {"x": torch.randn(3)})
    y = annotate.output_tensors("slow", {"y": x * 2}, export_with="onnx")
    z = annotate.input_tensors("fast", {"y": y})
    annotate.output_tensors("fast", {"z": z + 1}, export_with="onnx")
    with pytest.raises(TraceError, match="run 'slow' and 'fast' once in every pass"):
        annotate.input_tensors("fast", {"y": y})
    leapp.stop()


def test_names_that_differ_on_purpose_are_no_slips(tmp_path: Path) -> None:
    """A first value without a declaration stays possible beside other states, whatever they are called."""
    leapp.start("g", save_path=tmp_path)
    history: Any = None
    h1, other = torch.zeros(3), torch.zeros(3)
    for _ in range(3):
        x = annotate.input_tensors("n", {"x": torch.randn(3)})
        h1 = annotate.state_tensors("n", {"history_1": h1})
        other = annotate.state_tensors("n", {"historic": other})
        history = torch.zeros(3) if history is None else annotate.state_tensors("n", {"history_2": history})
        history = annotate.update_state("n", {"history_2": history * 0.5 + x})
        h1, other = annotate.update_state("n", {"history_1": h1 + x, "historic": other - x})
        annotate.output_tensors("n", {"y": history + h1 + other}, export_with="onnx")
    leapp.stop()
    assert leapp.compile_graph(visualize=False) == {"n": True}


def test_a_state_that_nothing_declares_is_said_to_be_unread(tmp_path: Path, capsys: Any) -> None:
    leapp.start("g", save_path=tmp_path)
    for _ in range(2):
        x = annotate.input_tensors("n", {"x": torch.randn(3)})
        annotate.update_state("n", {"memory": x * 2.0})
        annotate.output_tensors("n", {"y": x + 1.0}, export_with="onnx")
    leapp.stop()
    leapp.compile_graph(visualize=False)
    (line,) = [t for t in warned(capsys) if "nothing reads it" in t]
    assert "state 'memory' is updated at" in line and "test_notes.py" in line and "Declare it" in line


@pytest.mark.parametrize("go_on", [False, True], ids=["the tensor itself", "what the first node returned"])
def test_one_tensor_for_two_nodes_is_noted(go_on: bool, tmp_path: Path, capsys: Any) -> None:
    """They are two graph inputs; publishing the tensor makes it one."""
    leapp.start("g", save_path=tmp_path)
    for _ in range(2):
        obs = torch.randn(3)
        a = annotate.input_tensors("a", {"obs": obs})
        annotate.output_tensors("a", {"y": a * 2.0}, export_with="onnx")
        b = annotate.input_tensors("b", {"observation": a if go_on else obs})
        annotate.output_tensors("b", {"z": b + 1.0}, export_with="onnx")
    leapp.stop()
    assert leapp.compile_graph(visualize=False) == {"a": True, "b": True}
    (line,) = warned(capsys)
    assert "'a/obs'" in line and "'b/observation'" in line and "two graph inputs" in line and "output_tensors('a', ...)" in line
    assert line.count("test_notes.py:") == 2
    assert sorted(InferenceManager(tmp_path / "g").inputs) == ["a/obs", "b/observation"]


def test_a_tensor_that_is_published_is_one_graph_input(tmp_path: Path, capsys: Any) -> None:
    """What the note advises works."""
    leapp.start("g", save_path=tmp_path)
    for _ in range(2):
        obs = annotate.input_tensors("a", {"obs": torch.randn(3)})
        shared, _ = annotate.output_tensors("a", {"shared": obs.clone(), "y": obs * 2.0}, export_with="onnx")
        shared = annotate.input_tensors("b", {"obs": shared})
        annotate.output_tensors("b", {"z": shared + 1.0}, export_with="onnx")
    leapp.stop()
    assert leapp.compile_graph(visualize=False) == {"a": True, "b": True}
    assert warned(capsys) == []
    manager, x = InferenceManager(tmp_path / "g"), torch.randn(3)
    assert manager.inputs == ["a/obs"]
    torch.testing.assert_close(manager({"a/obs": x})["b/z"], x + 1.0)
