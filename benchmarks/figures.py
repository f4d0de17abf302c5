"""The figures that matter to users, measured against the best code that does the same by hand.

    python benchmarks/figures.py [start] [off] [trace] [export] [step]
"""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import leapp
from leapp import annotate


def best(run: Callable[[], object], rounds: int = 5, clock: Callable[[], float] = time.perf_counter) -> float:
    """The shortest of a few runs, in seconds."""
    found = float("inf")
    for _ in range(rounds):
        gc.collect()
        gc.disable()
        began = clock()
        run()
        found = min(found, clock() - began)
        gc.enable()
    return found


def row(name: str, value: str, ratio: float | None = None, against: str = "") -> None:
    """One line of the table."""
    print(f"{name:<34} {value:>16}" + (f"   {ratio:5.2f}x {against}" if ratio is not None else ""))


def policy_bundle(directory: Path, backend: str = "onnx", nodes: int = 3) -> Path:
    """A chain of small layers, the last with state."""
    layers = [torch.nn.Sequential(torch.nn.Linear(48, 48), torch.nn.ELU()) for _ in range(nodes)]
    leapp.start("bench", save_path=directory)
    x, h = torch.randn(1, 48), torch.zeros(1, 48)
    with torch.no_grad():
        for i, layer in enumerate(layers):
            v = annotate.input_tensors(f"n{i}", {"x": x})
            if i == nodes - 1:
                s = annotate.state_tensors(f"n{i}", {"h": h})
                h = torch.tanh(v + s)
                annotate.update_state(f"n{i}", {"h": h})
                v = v + h
            x = layer(v)
            annotate.output_tensors(f"n{i}", {"y": x}, export_with=backend)
    leapp.stop()
    leapp.compile_graph(visualize=False)
    return directory / "bench" / "bench.yaml"


def off() -> None:
    """Annotations outside a session."""
    x = torch.zeros(4)

    def hand_back(node: str, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        for value in tensors.values():
            return value
        raise ValueError

    decorated = annotate.method(node_name="n")(lambda v: v)

    def loop(call: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(20_000):
                call()

        return run

    empty = best(loop(lambda: None))
    plain = best(loop(lambda: hand_back("n", {"x": x}))) - empty
    marked = best(loop(lambda: annotate.input_tensors("n", {"x": x}))) - empty
    row("annotation outside a session", f"{marked / 20_000 * 1e9:.0f} ns", marked / plain, "a plain call")
    row("decorated method outside a session", f"{(best(loop(lambda: decorated(x))) - empty) / 20_000 * 1e9:.0f} ns")


def trace() -> None:
    """Cost per recorded op."""

    def chain(v: torch.Tensor, ops: int) -> torch.Tensor:
        for _ in range(ops // 2):
            v = v * 1.0001
            v = v + 0.001
        return v

    x = torch.randn(1, 16)
    with tempfile.TemporaryDirectory() as directory, torch.no_grad():

        def session(ops: int) -> None:
            leapp.start("chain", save_path=directory)
            y = chain(annotate.input_tensors("n", {"x": x}), ops)
            annotate.output_tensors("n", {"y": y}, export_with="jit")
            leapp.stop()

        session(100)
        for ops in (100, 1_000, 2_000, 20_000):
            traced = best(lambda n=ops: session(n), 3, time.process_time) / ops
            eager = best(lambda n=ops: chain(x, n), 3, time.process_time) / ops
            row(f"traced op, chain of {ops}", f"{traced * 1e6:.1f} us", traced / eager, "eager")


def export() -> None:
    """Ten small nodes on each backend."""
    for backend in ("jit", "onnx", "pt2"):
        with tempfile.TemporaryDirectory() as directory:
            policy_bundle(Path(directory), backend, 1)  # first use of a backend loads its exporter
            leapp.start("ten", save_path=directory)
            for i in range(10):
                v = annotate.input_tensors(f"n{i}", {"x": torch.randn(1, 16)})
                annotate.output_tensors(f"n{i}", {"y": torch.tanh(v) * 2 + 1}, export_with=backend)
            leapp.stop()
            took = best(lambda: leapp.compile_graph(visualize=False, validate=False), 3)
            row(f"compile 10 nodes, {backend}", f"{took:.3f} s")


def step() -> None:
    """One step of three ONNX nodes."""
    import onnxruntime

    with tempfile.TemporaryDirectory() as directory:
        path = policy_bundle(Path(directory))
        from leapp.runtime import Pipeline

        pipeline = Pipeline(path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        sessions = [
            onnxruntime.InferenceSession(str(path.parent / f"n{i}.onnx"), options, providers=["CPUExecutionProvider"])
            for i in range(3)
        ]
        x, key = np.random.randn(1, 48).astype(np.float32), pipeline.inputs[0]

        def by_hand() -> None:
            h = np.zeros((1, 48), np.float32)
            for _ in range(2_000):
                v = sessions[0].run(None, {"x": x})[0]
                v = sessions[1].run(None, {"x": v})[0]
                _, h = sessions[2].run(None, {"x": v, "h_in": h})

        def with_leapp() -> None:
            for _ in range(2_000):
                pipeline({key: x})

        hand, ours = best(by_hand), best(with_leapp)
        row("step, 3 ONNX nodes with state", f"{ours / 2_000 * 1e6:.1f} us", ours / hand, "three sessions by hand")


def start() -> None:
    """Fresh interpreter to first step."""
    with tempfile.TemporaryDirectory() as directory:
        path = policy_bundle(Path(directory), nodes=1)
        report = "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
        ours = (
            f"import numpy as np; from leapp.runtime import Pipeline; p = Pipeline({str(path)!r}); "
            f"p({{'n0/x': np.zeros((1, 48), np.float32)}}); {report}"
        )
        bare = (
            f"import numpy as np, onnxruntime; s = onnxruntime.InferenceSession({str(path.parent / 'n0.onnx')!r}); "
            f"s.run(None, {{'x': np.zeros((1, 48), np.float32), 'h_in': np.zeros((1, 48), np.float32)}}); {report}"
        )

        def run(code: str) -> tuple[float, int]:
            began = time.perf_counter()
            out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
            return time.perf_counter() - began, int(out) // 1024

        for code in (ours, bare):
            run(code)
        (t_ours, m_ours), (t_bare, m_bare) = (min(run(code) for _ in range(5)) for code in (ours, bare))
        row("start to first step", f"{t_ours:.2f} s", t_ours / t_bare, "NumPy + onnxruntime")
        row("peak memory of that", f"{m_ours} MB", m_ours / m_bare, f"({m_bare} MB)")


FIGURES = {"start": start, "off": off, "trace": trace, "export": export, "step": step}

if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or FIGURES:
        FIGURES[name]()
