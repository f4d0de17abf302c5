"""What a terminal shows while a bundle is made, and what a pipe does not."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

import leapp

PROGRAM = """
import sys, torch, leapp
from leapp import annotate
leapp.start("g", save_path=sys.argv[1])
count = [0.0]
for _ in range(2):
    x = annotate.input_tensors("first", {"x": torch.randn(3)})
    scale = float(torch.tensor(1.0) * 2)
    y = annotate.output_tensors("first", {"y": x * 2}, export_with="onnx")
    y = annotate.input_tensors("second [x]", {"y": y})
    count[0] += 1 if sys.argv[2] == "wrong" else 0
    annotate.output_tensors("second [x]", {"z": y.sin() + torch.tensor(count[0])}, export_with="jit")
leapp.stop()
leapp.compile_graph(strict=False)
"""
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(leapp.__file__).parents[1]), "TERM": "xterm-256color", "COLUMNS": "120"}


def on_a_terminal(where: Path, how: str, **environment: str) -> str:
    """Everything the program wrote to a real terminal, as text."""
    main, child = pty.openpty()
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(where), how]
    process = subprocess.Popen(command, stdin=child, stdout=child, stderr=child, env={**ENVIRONMENT, **environment})
    os.close(child)
    chunks = []
    while True:
        try:
            data = os.read(main, 65536)
        except OSError:  # Linux ends a terminal whose program is gone with an error
            break
        chunks.append(data)
    os.close(main)
    assert process.wait(60) == 0
    return b"".join(chunks).decode()


def final_lines(shown: str) -> list[str]:
    """What stays on the screen: the last drawing of every line."""
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    return [line.rstrip() for line in re.split(r"[\r\n]+", text) if line.strip()]


def test_a_terminal_shows_one_line_a_node_with_times(tmp_path: Path) -> None:
    lines = final_lines(on_a_terminal(tmp_path, "right"))
    for node in ("first", "second [x]"):
        last = [line for line in lines if node in line and "export" in line][-1]
        assert re.search(re.escape(node) + r"\s+export \d+\.\d\d s\s+validate \d+\.\d\d s\s+ok", last), last


def test_a_node_that_fails_is_marked(tmp_path: Path) -> None:
    lines = final_lines(on_a_terminal(tmp_path, "wrong"))
    assert any(re.search(r"first\s+export .* ok", line) for line in lines)
    assert any(re.search(r"second \[x\]\s+export .* failed", line) for line in lines)
    # The log's own lines stand above the display, whole.
    assert any(line.startswith("[ERROR]: second [x]/z, sample 1:") for line in lines)


def test_pipes_and_dumb_terminals_see_no_display(tmp_path: Path) -> None:
    assert "validate" not in on_a_terminal(tmp_path / "dumb", "right", TERM="dumb")
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path / "pipe"), "right"]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=120)
    assert done.returncode == 0 and "validate" not in done.stdout + done.stderr and "\x1b" not in done.stdout + done.stderr


NO_CONSOLE = "import sys; sys.stderr = None"
ODD_CONSOLE = "import sys; sys.stderr = type('Window', (), {'write': lambda self, text: None, 'flush': lambda self: None})()"


@pytest.mark.parametrize("stream", [NO_CONSOLE, ODD_CONSOLE])
def test_a_program_needs_no_usual_standard_error(tmp_path: Path, stream: str) -> None:
    """Services have no console, and applications with a window of their own replace the streams."""
    command = [sys.executable, "-W", "ignore", "-c", f"{stream}\n{PROGRAM}", str(tmp_path), "right"]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert {"first.onnx", "second [x].pt", "g.yaml"} <= {path.name for path in (tmp_path / "g").iterdir()}


def test_the_command_needs_no_standard_error(tmp_path: Path) -> None:
    command = ["sh", "-c", f'"{sys.executable}" -m leapp inspect "$0" --json 2>&-', str(tmp_path / "missing.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=120)
    assert done.returncode == 2 and '"error"' in done.stdout and "leapp:" not in done.stdout


LOADS = """
import sys, torch, leapp
from leapp import annotate
leapp.start("g", save_path=sys.argv[1])
for _ in range(2):
    x = annotate.input_tensors("first", {"x": torch.randn(3)})
    y = annotate.output_tensors("first", {"y": eval(sys.argv[2])}, export_with=sys.argv[3])
    y = annotate.input_tensors("second", {"y": y})
    annotate.output_tensors("second", {"z": torch.fft.fft(y).real}, export_with=sys.argv[3])
leapp.stop()
leapp.compile_graph(visualize=False)
"""


@pytest.mark.parametrize(
    ("code", "backend", "named"),
    [("x.sin()", "onnx", "second"), ("torch.fft.fft(x).real", "onnx", "first"), ("x", "pt2", "first")],
)
def test_pipes_are_told_once_when_an_exporter_is_loaded(tmp_path: Path, code: str, backend: str, named: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", LOADS, str(tmp_path), code, backend]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=120)
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if "loading the exporter (once)" in line]
    assert len(told) == 1 and told[0].startswith(f"[SYSTEM]: {named}: "), told
