"""Ctrl-C in the middle: a step, a reset and a restored state are done as a whole or not at all.

An interrupt is raised before each instruction of the runtime that a call executes, one after the other: what a signal can do
and more. Real signals come at random instants. With ``LEAPP_SOAK=1`` each pair of backends meets an interrupt at each
instruction; otherwise each meets every third one, and the pairs begin at different ones.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

import leapp
from leapp.runtime import Pipeline
from leapp.runtime.inference_manager import InferenceManager
from tests.runtime.bundles import array, held, loop
from tests.tracing.test_unnoticed import changed, names
from tests.warm import run_python

SOURCES = Path(leapp.__file__).parent
FACES = (Pipeline, InferenceManager)
SOAK = bool(os.environ.get("LEAPP_SOAK"))
PAIRS = [("jit", "jit"), ("pt2", "pt2"), ("onnx", "onnx"), ("onnx", "jit"), ("jit", "onnx"), ("pt2", "onnx")]
Runner = Any


class Interrupter:
    """Raises KeyboardInterrupt before the given instruction of some modules; counts their instructions if there is none."""

    def __init__(self, at: int = -1, modules: str = "runtime") -> None:
        self.at, self.count = at, 0
        self.places = (str(SOURCES / modules), "<leapp")

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(self.places) or frame.f_code.co_name == "call":
            return None  # call() of lifecycle.py ends with instructions before which no signal is handled
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.count += 1
            if self.count - 1 == self.at:
                raise KeyboardInterrupt
        return self

    def run(self, call: Callable[[], object]) -> bool:
        """Whether the call was interrupted."""
        before = sys.gettrace()
        sys.settrace(self)
        try:
            call()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


def inputs(seed: int, face: type) -> dict[str, Any]:
    value = torch.randn(2, generator=torch.Generator().manual_seed(seed))
    return {"p/obs": value if face is InferenceManager else value.numpy()}


CALLS: dict[str, Callable[[Runner, type], object]] = {
    "a step": lambda runner, face: runner(inputs(1, face)),
    "a step from a given state": lambda runner, face: runner({**inputs(1, face), "p/mem": torch.tensor([7.0, 8.0])}),
    "a reset": lambda runner, face: runner.reset(),
    "a state restored": lambda runner, face: runner.load_state({"p/mem": [5.0, 6.0], "f/prev": [7.0, 8.0]}),
}


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_before_any_instruction(tmp_path: Path, pair: tuple[str, str], face: type, name: str) -> None:
    stride = 1 if SOAK else 3
    places = slice(PAIRS.index(pair) % stride, None, stride)
    assert interrupt_everywhere(tmp_path, pair, face, name, places)["old"] > 20 // stride


def interrupt_everywhere(
    tmp_path: Path, pair: tuple[str, str], face: type, name: str, places: slice = slice(None)
) -> dict[str, int]:
    """How often the state was the old one and the new one; anything else fails. ``places`` selects the instructions."""
    runner, reference = (face(loop(tmp_path, *pair)) for _ in range(2))
    for runs in (runner, reference):
        runs(inputs(0, face))
    old, grad = runner.state(), torch.is_grad_enabled()
    before = held(runner)
    counted = Interrupter()
    assert not counted.run(lambda: CALLS[name](reference, face))
    after = held(reference)
    assert not same(before, after), "otherwise nothing is shown"
    reference.load_state(old)
    follows = {}
    for kind in ("old", "new"):
        follows[kind] = {k: array(v) for k, v in reference(inputs(2, face)).items()}
        reference.load_state(old)
        CALLS[name](reference, face)
    seen = {"old": 0, "new": 0}
    for at in range(counted.count)[places]:
        interrupted = Interrupter(at).run(lambda: CALLS[name](runner, face))
        torch.set_grad_enabled(grad)
        found = held(runner)
        kind = "old" if same(found, before) else "new" if same(found, after) else None
        assert kind is not None, f"instruction {at} of {counted.count}: {found}, was {before}, would be {after}"
        assert interrupted or kind == "new"
        seen[kind] += 1
        made = {k: array(v) for k, v in runner(inputs(2, face)).items()}
        assert same(made, follows[kind]), f"instruction {at}: the next step is another one"
        runner.load_state(old)
        assert same(held(runner), before)
    return seen


PROGRAM = """
import sys
from pathlib import Path
from tests.attacks.test_interrupts import signals
signals(Path(sys.argv[1]), sys.argv[2:4], sys.argv[4], int(sys.argv[5]))
"""


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
@pytest.mark.parametrize("pair", [("jit", "jit"), ("pt2", "pt2"), ("onnx", "jit")], ids="-".join)
def test_real_signals(tmp_path: Path, pair: tuple[str, str], face: type) -> None:
    """In a process of its own: besides the state, no lock stays taken and autograd is as it was."""
    tries = "1000" if SOAK else "150"
    done = run_python("-c", PROGRAM, tmp_path, *pair, face.__name__, tries)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[0]) > int(tries) // 4, done.stdout


def signals(folder: Path, pair: list[str], face_name: str, tries: int) -> None:
    """Interrupt steps by signals of another thread, at random instants."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets programs in the background ignore it
    face = next(face for face in FACES if face.__name__ == face_name)
    runner = face(loop(folder, *pair))
    given = inputs(1, face)
    start = runner.state()
    states = {0: held(runner)}
    for number in range(1, 400):  # the loop comes to rest before that
        runner(given)
        states[number] = held(runner)
    order = np.random.default_rng(0)
    me, hits, free = threading.main_thread().ident, 0, []
    began = time.perf_counter()
    for _ in range(50):
        runner(given)
    one = (time.perf_counter() - began) / 50
    for _ in range(tries):
        runner.load_state(start)
        pause = order.uniform(0, 20 * one)
        sender = threading.Thread(target=lambda p=pause: (time.sleep(p), signal.pthread_kill(me, signal.SIGINT)))
        count = 0
        try:
            sender.start()
            for _ in range(2000):
                runner(given)
                count += 1
            sender.join()
        except KeyboardInterrupt:
            hits += 1
        sender.join()
        found = held(runner)
        near = [states[min(n, 399)] for n in (count, count + 1)]
        assert any(same(found, state) for state in near), (count, found, near)
        assert torch.is_grad_enabled()
        other = threading.Thread(target=lambda: free.append(taken(runner)))
        other.start()
        other.join()
        assert free.pop(), "a lock stayed taken"
    print(hits, "of", tries)


def taken(runner: Runner) -> bool:
    """Whether another thread can run a step."""
    if not runner._lock.acquire(timeout=5):
        return False
    runner._lock.release()
    return True


START = """
import sys
from tests.attacks.test_interrupts import starts, stops
stops(sys.argv[1]) if sys.argv[2] == "stop" else starts(sys.argv[1], sys.argv[2])
"""


@pytest.mark.parametrize("way", ["start", "session", "stop"])
def test_an_interrupt_inside_start_or_stop_leaves_no_session(tmp_path: Path, way: str) -> None:
    """In a process of its own: an interrupt can leave a lock of Python's logging taken."""
    done = run_python("-c", START, tmp_path, way)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 150, done.stdout


def starts(folder: str, way: str) -> None:
    """Interrupt the opening of a session before each instruction of its module, until the block is entered."""

    def open_it() -> None:
        if way == "start":
            leapp.start("g", save_path=folder)
        else:
            with leapp.session("g", save_path=folder):
                reached.append(first.count)
                raise StopIteration

    def counted(interrupter: Interrupter) -> bool:
        try:
            return interrupter.run(open_it)
        except (StopIteration, RuntimeError):
            return False

    manager = leapp.ExportManager()
    first, reached = Interrupter(modules="tracing/lifecycle.py"), []
    for _ in range(2):
        first.count = 0
        assert not counted(first)
        if manager.interpreting:
            leapp.stop()
    last = reached[-1] if reached else first.count
    for at in range(last):
        if counted(Interrupter(at, "tracing/lifecycle.py")):
            assert not manager.interpreting, f"instruction {at} of {last}"
        elif manager.interpreting:
            leapp.stop()
        assert leapp.annotate._session is None
        assert torch._C._len_torch_function_stack() == torch._C._len_torch_dispatch_stack() == 0
    print(last)


def stops(folder: str) -> None:
    """Interrupt the end of a session before each instruction. It has ended whole, or is open and can be ended."""

    def open_node() -> None:
        leapp.start("g", save_path=folder)
        leapp.annotate.input_tensors("n", {"x": np.arange(4.0)})

    open_node()
    leapp.stop()
    before, manager = names(), leapp.ExportManager()
    at, interrupted = 0, True
    while interrupted:
        open_node()
        interrupted = Interrupter(at, "tracing").run(leapp.stop)
        ended = not manager.interpreting
        assert not ended or changed(before) == [], f"instruction {at}: {changed(before)}"
        if not ended:
            leapp.stop()
        assert changed(before) == [], f"instruction {at}: {changed(before)}"
        assert leapp.annotate._session is None
        assert torch._C._len_torch_function_stack() == torch._C._len_torch_dispatch_stack() == 0
        at += 1
    print(at)
