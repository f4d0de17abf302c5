"""How long the first bundle of a process takes, and how compiling grows. Writes the table of ``docs/performance.md``.

    python benchmarks/growth.py [--rounds 3] [--peer PYTHON_WITH_LEAPP_0_7] [--write]

Each figure is the processor time of a fresh process, the least of some rounds; the rounds of all figures take turns. Figures of
one table are compared with each other, never with those of another run.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CASES = {
    "import torch": ("torch", 0, 0),
    "first bundle of a process, onnx": ("onnx", 1, 4),
    "first bundle of a process, jit": ("jit", 1, 4),
    "compile 1,000 ops, onnx": ("onnx", 1, 1000),
    "compile 5,000 ops, onnx": ("onnx", 1, 5000),
    "compile 1,000 ops, jit": ("jit", 1, 1000),
    "compile 5,000 ops, jit": ("jit", 1, 5000),
    "compile 1,000 ops, pt2": ("pt2", 1, 1000),
    "compile 5,000 ops, pt2": ("pt2", 1, 5000),
    "compile 10 nodes, onnx": ("onnx", 10, 4),
    "compile 200 nodes, onnx": ("onnx", 200, 4),
    "compile 10 nodes, jit": ("jit", 10, 4),
    "compile 200 nodes, jit": ("jit", 200, 4),
}
"""For each figure the backend, the number of nodes and the operators in each."""

GROWTH = {
    "compile 5,000 ops, onnx": "compile 1,000 ops, onnx", "compile 5,000 ops, jit": "compile 1,000 ops, jit",
    "compile 5,000 ops, pt2": "compile 1,000 ops, pt2",
    "compile 200 nodes, onnx": "compile 10 nodes, onnx", "compile 200 nodes, jit": "compile 10 nodes, jit",
}  # fmt: skip

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
PATIENCE = 60
"""The seconds after which a figure of the peer is given up."""
MARK = "<!-- written by benchmarks/growth.py -->"


def measure(case: str) -> float:
    """The processor time of one figure, in this process."""
    import torch

    backend, nodes, ops = CASES[case]
    if backend == "torch":
        return time.process_time()
    import leapp
    from leapp import annotate

    layers = [torch.nn.Linear(16, 16).eval() for _ in range(nodes)]

    def run(directory: str) -> float:
        leapp.start("bench", save_path=directory)
        with torch.no_grad():
            for _ in range(2):
                x = torch.randn(1, 16)
                for number, layer in enumerate(layers):
                    x = layer(annotate.input_tensors(f"n{number}", {"x": x}))
                    for _ in range(ops // 4):
                        x = torch.tanh(x * 0.999 + 0.001) - 0.0005
                    x = annotate.output_tensors(f"n{number}", {"y": x}, export_with=backend)
        leapp.stop()
        began = time.process_time()
        leapp.compile_graph(visualize=False)
        return time.process_time() - began

    if not case.startswith("first"):
        with tempfile.TemporaryDirectory() as directory:
            ops, kept = 4, ops
            run(directory)
            ops = kept
    with tempfile.TemporaryDirectory() as directory:
        took = run(directory)
    return time.process_time() if case.startswith("first") else took


def in_process(python: str, case: str) -> float | None:
    """The same in a fresh process of an interpreter; ``None`` if it fails, or if the peer takes longer than ``PATIENCE``."""
    command = [python, "-W", "ignore", __file__, "--case", case]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    patience = None if python == sys.executable else PATIENCE
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience, env=environment, check=True)
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        return None
    return float(done.stdout.split()[-1])


def processor() -> str:
    """The model of the processor."""
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text(encoding="utf-8").splitlines() if facts.exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())


def table(rounds: int, peer: str | None) -> str:
    """The measured table as Markdown."""
    import torch

    sides = [sys.executable, *([peer] if peer else [])]
    least: dict[tuple[str, str], float] = {}
    failed: set[tuple[str, str]] = set()
    for _ in range(rounds):
        for case in CASES:
            for side in sides:
                took = None if (side, case) in failed else in_process(side, case)
                if took is None:
                    failed.add((side, case))
                else:
                    least[side, case] = min(took, least.get((side, case), took))
    head = ["figure", "processor time", "compared", *(["leapp 0.7.2"] if peer else [])]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for case in CASES:
        own = least[sys.executable, case]
        against = "import torch" if case.startswith("first") else GROWTH.get(case)
        times = f"{own / least[sys.executable, against]:.2f}x {against}" if against else ""
        entry = [case, f"{own:.3f} s", times]
        if peer:
            entry.append(f"{least[peer, case]:.3f} s" if (peer, case) in least else f"over {PATIENCE} s or refused")
        lines.append(f"| {' | '.join(entry)} |")
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    where = f"{versions}, {os.cpu_count()} cores ({processor()}), load {os.getloadavg()[0]:.1f}, least of {rounds} rounds"
    return f"{MARK}\n\nMeasured with {where}.\n\n" + "\n".join(lines) + f"\n\n{MARK}"


def main() -> None:
    """Print the table, or put it into the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--case")
    given = parser.parse_args()
    if given.case:
        print(measure(given.case))
        return
    made = table(given.rounds, given.peer)
    if given.write:
        before, _, after = PAGE.read_text(encoding="utf-8").split(MARK)
        PAGE.write_text(before + made + after, encoding="utf-8")
    print(made)


if __name__ == "__main__":
    main()
