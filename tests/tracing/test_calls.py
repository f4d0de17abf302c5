"""How much work a further node is when a session is compiled, counted in calls, which do not depend on the machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import leapp
from leapp import InferenceManager, annotate


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x)) + x


def compiling(layers: list[Layer], backend: str, name: str, folder: Path) -> int:
    """Trace a chain of nodes and compile it. Returns how many calls compiling takes."""
    leapp.start(name, save_path=str(folder))
    x = torch.randn(1, 8)
    for number, layer in enumerate(layers):
        given = annotate.input_tensors(f"n{number}", {"x": x})
        x = annotate.output_tensors(f"n{number}", {"y": layer(given)}, export_with=backend)
    leapp.stop()
    count = [0]

    def profile(frame, event, arg) -> None:
        count[0] += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        leapp.compile_graph(visualize=False)
    finally:
        sys.setprofile(None)
    return count[0]


@pytest.mark.pinned("other versions of Python, torch and onnx make other calls")
@pytest.mark.parametrize(("backend", "most"), [("jit", 2600), ("onnx", 3300)])
def test_calls_for_each_further_node(tmp_path, backend, most):
    layers = [Layer().eval() for _ in range(8)]
    with torch.no_grad():
        compiling(layers[:1], backend, "first", tmp_path)  # loads the exporter
        few = compiling(layers[:4], backend, "few", tmp_path)
        many = compiling(layers, backend, "many", tmp_path)
        x = torch.randn(1, 8)
        (got,) = InferenceManager(tmp_path / "many")({"n0/x": x}).values()
        for layer in layers:
            x = layer(x)
    torch.testing.assert_close(torch.as_tensor(got), x, rtol=1e-4, atol=1e-5)
    assert (many - few) / 4 <= most
