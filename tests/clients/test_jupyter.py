"""A session in a real Jupyter kernel: traced, exported, shown, and the lines of cells named as the notebook names them."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

SETUP = """
import torch, leapp
from leapp import annotate
policy = torch.nn.Linear(4, 2)
"""
TRACE = """
def step(obs):
    obs = annotate.input_tensors("policy", {"obs": obs})
    scale = 1.0 + float((obs > LIMIT).any())
    return annotate.output_tensors("policy", {"action": policy(obs) * scale}, export_with="onnx")

leapp.start("noted", save_path="bundles")
for seed in range(3):
    step(torch.randn(4, generator=torch.Generator().manual_seed(seed)))
leapp.stop()
"""
COMPILE = "leapp.compile_graph()"
RUN = """
runner = leapp.InferenceManager("bundles/noted/noted.yaml")
obs = torch.tensor([0.5, -1.0, 2.0, 0.25])
print(torch.allclose(runner.run_policy({"policy/obs": obs})["policy/action"], policy(obs), atol=1e-6))
"""


def run(cells: list[str], directory: Path) -> list[Any]:
    """The cells of a notebook after a kernel of its own ran them from the top."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text.strip()) for text in cells])
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(directory)}}).execute()
    return notebook.cells


def shown(cell: Any, kind: str = "text/html") -> str:
    """What a cell displays, and what it printed."""
    return "".join(o.get("text", "") + o.get("data", {}).get(kind, "") for o in cell.outputs)


def test_export_and_run(tmp_path: Path) -> None:
    cells = run([SETUP, TRACE.replace("LIMIT", "100.0"), COMPILE, "leapp.report()", RUN, "runner"], tmp_path)
    assert "cell 2, line 3" in shown(cells[3]) and "scale = 1.0 + float((obs &gt; 100.0).any())" in shown(cells[3])
    assert "ipykernel" not in shown(cells[3])
    assert shown(cells[4]) == "True\n"
    assert "policy/obs" in shown(cells[5]) and "policy/action" in shown(cells[5])
    bundle = tmp_path / "bundles" / "noted"
    log, page = (bundle / "log.txt").read_text(), next(bundle.glob("*.html")).read_text()
    assert "cell 2, line 3" in log and "ipykernel" not in log
    assert '"cell 2"' in page and "ipykernel" not in page


SESSION = """
def step(obs):
    obs = annotate.input_tensors("policy", {"obs": obs})
    return annotate.output_tensors("policy", {"action": policy(obs).tanh()}, export_with="onnx")

leapp.start("noted", save_path="bundles")
for _ in range(2):
    step(torch.randn(4))
leapp.ExportManager().session
"""
OPENED = """
from leapp.bundle import open_bundle
from leapp.runtime import Pipeline
leapp.stop()
results = leapp.compile_graph()
"""


def test_what_a_cell_ends_with_is_shown_as_tables_with_the_picture(tmp_path: Path) -> None:
    ends = [
        "leapp.report()", "leapp.ExportManager()", "leapp.InferenceManager('bundles/noted')", "Pipeline('bundles/noted')",
        "open_bundle('bundles/noted')",
    ]  # fmt: skip
    cells = run([SETUP, SESSION, OPENED, *ends], tmp_path)
    for cell in (cells[1], *cells[3:]):
        html = shown(cell)
        assert html.count("<img ") == 1, cell.source
        picture = base64.b64decode(re.search(r'src="data:image/svg\+xml;base64,([^"]+)"', html)[1]).decode()
        assert ElementTree.fromstring(picture).tag.endswith("svg")
        assert all(word in picture for word in ("policy", "obs", "action", "[4] float32"))
        assert "<table>" in html and "<script" not in html
    assert "policy.onnx" in shown(cells[3]) and "traced passes reproduced" in shown(cells[3])


def test_errors_name_the_cell(tmp_path: Path) -> None:
    with pytest.raises(CellExecutionError, match=r"cell 2, line 3: scale = 1.0 \+ float\(\(obs > 1.0\).any\(\)\)") as failure:
        run([SETUP, TRACE.replace("LIMIT", "1.0"), COMPILE], tmp_path)
    said = re.sub(r"\x1b\[[0-9;]*m", "", str(failure.value))
    assert "ipykernel" not in said[said.index("cell 2, line 3") :]
