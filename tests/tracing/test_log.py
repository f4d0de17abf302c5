"""The lines of log.txt that users of 0.7 search for."""

from __future__ import annotations

import re
from pathlib import Path

import torch

import leapp
from leapp import annotate


def test_the_log_tells_programs_connections_and_statistics(tmp_path: Path) -> None:
    h = torch.zeros(3)
    leapp.start("g", save_path=tmp_path)
    for _ in range(2):
        x, gain = annotate.input_tensors("first", {"x": torch.randn(3), "gain": torch.randn(3)})
        h = annotate.state_tensors("first", {"h": h})
        h = h + x
        annotate.update_state("first", {"h": h})
        y = annotate.output_tensors("first", {"y": x * gain + h}, export_with="jit")
        z = annotate.input_tensors("second", {"z": y})
        annotate.output_tensors("second", {"a": torch.tanh(z), "b": z + 1}, export_with="onnx")
    leapp.stop()
    leapp.compile_graph(visualize=False)
    text = (tmp_path / "g" / "log.txt").read_text()
    lines = text.splitlines()

    assert "[INFO]: Discovered 2 nodes" in lines
    programs = {
        "first": (r"%3 = \S*add\(%2, %0\)\n%4 = \S*mul\(%0, %1\)\n%5 = \S*add\(%4, %3\)\nreturn %5, %3", "x, gain, h", "y, h"),
        "second": (r"%1 = \S*tanh\(%0\)\n%2 = \S*add\(%0, 1\)\nreturn %1, %2", "z", "a, b"),
    }
    for node, (calls, inputs, outputs) in programs.items():
        logged = rf"^\[DEBUG\]: Compiled graph module for {node}:\n{calls}\ninputs: {inputs}\noutputs: {outputs}$"
        assert re.search(logged, text, re.MULTILINE)
        assert f"[SECTION]: Compiling {node}" in lines
    assert re.findall(r"^\[INFO\]: Success: (\S+) in [\d.]+ s$", text, re.MULTILINE) == ["first.pt", "second.onnx"]
    assert "[INFO]: Found connection: first/y -> second/z" in lines
    assert "[INFO]: Found feedback connection: first/h -> first/h" in lines
    counts = dict(re.findall(r"^\[INFO\]: ((?:Computation|Dangling|Internal|Total) \w+): (\d+)$", text, re.MULTILINE))
    expected = {"Computation nodes": "2", "Dangling inputs": "2", "Dangling outputs": "2"}
    assert counts == {**expected, "Internal connections": "2", "Total edges": "6"}
