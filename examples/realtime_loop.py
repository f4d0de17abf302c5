"""A control loop that keeps its deadlines: one core, a real-time priority, locked memory, no garbage collection.

Runs the same bundle at a fixed rate, with one measure more each time, and prints how late each step was done. What the machine
does not allow is left out and named. Linux only.

    python examples/realtime_loop.py [output directory] [steps]
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import leapp
from leapp import annotate
from leapp.runtime import Pipeline

RATE = 200.0


def export(directory: Path) -> Path:
    torch.manual_seed(4)
    network = torch.nn.Sequential(torch.nn.Linear(48, 256), torch.nn.ELU(), torch.nn.Linear(256, 128), torch.nn.ELU())
    head = torch.nn.Linear(128, 12)
    with leapp.session("realtime", save_path=directory, compile={"visualize": False}), torch.no_grad():
        for _ in range(2):
            observation = annotate.input_tensors("policy", {"observation": torch.randn(1, 48)})
            annotate.output_tensors("policy", {"action": head(network(observation))}, export_with="onnx")
    return directory / "realtime"


def pin() -> None:
    """This thread, and those it starts, on the last core; keep interrupts and other programs off it (isolcpus=, taskset)."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def lock_memory() -> None:
    """No page of this process is written to disk or dropped, now or later: a page fault costs milliseconds."""
    libc = ctypes.CDLL(None, use_errno=True)
    current, future = 1, 2
    if libc.mlockall(current | future):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def prefer() -> None:
    """Before every ordinary program. Below 50, where the kernel's own threads for interrupts run."""
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(40))


def collect_no_garbage() -> None:
    """A step makes no cycles, so nothing piles up."""
    gc.collect()
    gc.freeze()
    gc.disable()


MEASURES: dict[str, Callable[[], None]] = {
    "one core": pin, "locked memory": lock_memory, "SCHED_FIFO": prefer, "no garbage collection": collect_no_garbage,
}  # fmt: skip


def run(pipeline: Pipeline, steps: int) -> np.ndarray:
    """How many microseconds after its due time each step was done."""
    inputs = [pipeline.get_mock_input() for _ in range(32)]
    late = np.zeros(steps)
    pipeline.warm_up()
    due = time.perf_counter() + 0.01
    for i in range(steps):
        time.sleep(max(0.0, due - time.perf_counter()))
        pipeline(inputs[i % len(inputs)])
        late[i] = 1e6 * (time.perf_counter() - due)
        due += 1.0 / RATE
    return late


def show(name: str, late: np.ndarray) -> None:
    p50, p99, p999 = np.percentile(late, [50, 99, 99.9])
    print(f"{name:24} {p50:8.0f} {p99:8.0f} {p999:8.0f} {late.max():8.0f}")


def main() -> None:
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "exports")
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 2000
    pipeline = Pipeline(export(directory))
    print(f"{f'µs after due, {RATE:.0f} Hz':24} {'50 %':>8} {'99 %':>8} {'99.9 %':>8} {'longest':>8}")
    show("as it is", run(pipeline, steps))
    for name, take in MEASURES.items():
        try:
            take()
        except OSError as error:
            print(f"{'+ ' + name:24} not allowed here: {error.strerror}")
            continue
        show(f"+ {name}", run(pipeline, steps))


if __name__ == "__main__":
    main()
