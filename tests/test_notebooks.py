"""What notebooks show: well-formed, escaped, and the facts that a deployer asks for."""

from __future__ import annotations

from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

import leapp
from leapp import GraphConfigs, InferenceManager, TensorSemantics, annotate
from leapp.bundle import open_bundle
from leapp.runtime import Pipeline

HOSTILE = "<script>alert('x')</script>"
VOID = {"br", "hr", "img"}


class Reader(HTMLParser):
    """Collects text and tags, and refuses what is not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data.replace("\N{NO-BREAK SPACE}", " "))


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    leapp.start("shown", save_path=tmp_path)
    meaning = TensorSemantics("q", torch.randn(8), f"state/{HOSTILE}", [f"joint_{i}" for i in range(8)], units="rad")
    q = annotate.input_tensors("policy", meaning)
    h = annotate.state_tensors("policy", {"h": torch.zeros(8)})
    annotate.update_state("policy", {"h": 0.5 * h + q})
    annotate.output_tensors("policy", {"action": q * float(q.max()) + h}, export_with="onnx")  # <b>froze</b>
    leapp.stop()
    leapp.compile_graph(visualize=False, graph_configs=GraphConfigs(frequency=50))
    return tmp_path / "shown" / "shown.yaml"


@pytest.mark.parametrize("opened", [open_bundle, InferenceManager, Pipeline])
def test_bundle_and_runners(opened: Callable[[Path], Any], exported: Path) -> None:
    text = opened(exported)._repr_html_()
    shown = Reader(text)
    assert "script" not in shown.tags
    assert f"state/{HOSTILE}" in shown.words
    for word in ("policy/q", "policy/h_in", "policy/action", "float32 [8]", "rad", "policy.onnx", "onnx"):
        assert word in shown.words
    assert "joint_0, joint_1, joint_2, joint_3, joint_4, joint_5 … 2 more" in shown.words
    assert any("rate 50 Hz" in word and open_bundle(exported).digest[:12] in word for word in shown.words)
    assert "http" not in text


def test_runners_say_in_a_line_what_they_take(exported: Path) -> None:
    assert repr(Pipeline(exported)) == "<Pipeline 'shown': 1 nodes, takes ['policy/q'], returns ['policy/action']>"


def test_report(exported: Path) -> None:
    shown = Reader(leapp.report()._repr_html_())
    assert "b" in shown.tags
    assert any("<b>froze</b>" in word for word in shown.words)
    assert "__float__" in shown.words
    assert any(word.startswith("escapes 1 ") for word in shown.words)
    assert "missing for deployment (1)" in shown.words


def test_session_and_manager(tmp_path: Path) -> None:
    """An open session shows the graph so far; the manager shows it with what was found."""
    states = []
    with leapp.session("shown", save_path=tmp_path, compile={"visualize": False}) as manager:
        for _ in range(2):
            x = annotate.input_tensors("first", {"x": torch.randn(3)})
            y = annotate.output_tensors("first", {"y": 2.0 * x}, export_with="onnx")
            y = annotate.input_tensors("second", {"y": y})
            states.append(Reader(manager._repr_html_()).words[-1])
            annotate.output_tensors("second", {"z": y + 1.0}, export_with="jit")
        shown = Reader(manager.session._repr_html_())
    assert {"img", "table"} <= shown.tags
    assert {"first", "second", "onnx", "jit", "x", "z"} <= set(shown.words)
    assert states == ["open", "finished"]
    done = manager._repr_html_()
    assert {"first.onnx", "second.pt", "traced passes reproduced"} <= set(Reader(done).words)
    assert done.count("<img ") == 1


def test_an_empty_report_has_no_tables() -> None:
    shown = Reader(leapp.tracing.report.Report()._repr_html_())
    assert "table" not in shown.tags
