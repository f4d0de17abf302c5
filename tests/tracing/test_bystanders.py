"""Threads beside an open node: they run what they always run, and the node is exported right."""

from __future__ import annotations

import random
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import leapp
from leapp import InferenceManager, annotate
from leapp.tracing.contents import held_again, held_by
from leapp.tracing.opaque_state import WHOLE

W = np.linspace(-1, 1, 12).reshape(3, 4).astype(np.float32)


def compute(x: Any) -> Any:
    """What each node does: NumPy and torch, an array made inside, numbers."""
    out = np.zeros(4, np.float32)
    out[:3] = np.tanh(W @ x)
    out[3] = np.sqrt((x * x).sum())
    return torch.from_numpy(out) * 2.0


def draw(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=4).astype(np.float32)


def numpy_work() -> None:
    a = np.arange(12.0).reshape(3, 4)
    assert type(a) is type(a + 1) is type(np.zeros(3)) is type(np.array([1, 2])) is np.ndarray
    b = np.concatenate([a, np.ones((1, 4))])
    b[0] = np.linspace(0, 1, 4)
    assert type(b) is np.ndarray
    assert np.mean([b, b]) == np.mean(b)
    assert (torch.from_numpy(b).numpy() == b).all()
    assert torch.get_default_dtype() is torch.float32


def random_work() -> None:
    random.random()
    np.random.rand(3)


def threads_that_come_and_go() -> None:
    thread = threading.Thread(target=numpy_work)
    thread.start()
    thread.join()


WORK: dict[str, Callable[[], None]] = {
    "numpy": numpy_work, "random numbers": random_work, "threads that come and go": threads_that_come_and_go,
}  # fmt: skip


class Beside:
    """Threads that work until they are told to stop; what they raise is raised here."""

    def __init__(self, work: Callable[[], None], count: int = 3) -> None:
        self._work, self._stop, self._errors = work, threading.Event(), list[BaseException]()
        self._rounds = 0
        self._threads = [threading.Thread(target=self._run) for _ in range(count)]

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._work()
                self._rounds += 1
        except BaseException as error:
            self._errors.append(error)

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert self._errors == []
        assert self._rounds > 0


def right(path: Path, nodes: list[str]) -> None:
    leapp.compile_graph(visualize=False)
    manager = InferenceManager(str(path / "g" / "g.yaml"))
    for node in nodes:
        x = draw(9)
        got = manager.nodes[node](torch.from_numpy(x))[0]
        torch.testing.assert_close(got, compute(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", WORK)
def test_a_node_beside_other_threads(name: str, tmp_path: Path) -> None:
    with Beside(WORK[name]):
        sessions(tmp_path, 5)
    right(tmp_path, ["n"])


def sessions(path: Path, count: int) -> None:
    for number in range(count):
        leapp.start("g", save_path=path)
        for seed in (number, number + 20):
            y = compute(annotate.input_tensors("n", {"x": draw(seed)}))
            annotate.output_tensors("n", {"y": y}, export_with="jit")
        leapp.stop()


SEEN: set[int] = set()


def variables_that_come_and_go() -> None:
    for i in range(400):
        globals()[f"made_{i % 200}"] = i
        globals().pop(f"made_{(i + 100) % 200}", None)
        SEEN.add(i % 60)
        SEEN.discard((i + 30) % 60)


def test_threads_that_make_variables_while_a_node_looks_at_them(tmp_path: Path) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with Beside(variables_that_come_and_go, 2):
            sessions(tmp_path, 60)
    finally:
        sys.setswitchinterval(interval)
    right(tmp_path, ["n"])


SHARED: list[Any] = [{}, set[int](), deque[int](maxlen=40), list[int]()]


def containers_that_grow_and_shrink() -> None:
    table, numbers, queue, items = SHARED
    for i in range(40):
        table[i] = i
        numbers.add(i)
        queue.append(i)
        items.append(i)
    for each in SHARED:
        each.clear()


def test_containers_that_a_thread_changes_while_they_are_looked_at() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with Beside(containers_that_grow_and_shrink, 2):
            for _ in range(10_000):
                for each in SHARED:
                    held = held_by(each)
                    assert 0 <= held[WHOLE] <= 80
                    held_again(each, held)
    finally:
        sys.setswitchinterval(interval)


def test_three_threads_with_nodes_of_their_own(tmp_path: Path) -> None:
    zeros, dtype, interval = np.zeros, torch.get_default_dtype(), sys.getswitchinterval()
    sys.setswitchinterval(1e-4)  # threads take turns often, so that they meet everywhere
    try:
        for _ in range(10):
            three_nodes(tmp_path)
            assert np.zeros is zeros
            assert torch.get_default_dtype() is dtype
            assert leapp.report().escapes == []
    finally:
        sys.setswitchinterval(interval)
    right(tmp_path, list("abc"))


def three_nodes(path: Path) -> None:
    errors: list[BaseException] = []
    ready = threading.Barrier(3)

    def node(name: str) -> None:
        try:
            for seed in range(2):
                ready.wait(60)
                y = compute(annotate.input_tensors(name, {"x": draw(seed)}))
                annotate.output_tensors(name, {"y": y}, export_with="jit")
        except BaseException as error:
            errors.append(error)
            ready.abort()

    leapp.start("g", save_path=path)
    threads = [threading.Thread(target=node, args=(name,)) for name in "abc"]
    with Beside(numpy_work, 1):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    leapp.stop()
    assert errors == []


def test_objects_among_the_modules_that_have_no_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that cffi wrapped, as cryptography has one, says that it is a module and has no ``__dict__``."""

    class Library:
        __slots__ = ()
        __class__ = property(lambda self: ModuleType)  # type: ignore[assignment]

    library: Any = Library()
    assert isinstance(library, ModuleType) and not hasattr(library, "__dict__")
    monkeypatch.setitem(sys.modules, "_wrapped.lib", library)
    leapp.start("g", save_path=tmp_path)
    x = annotate.input_tensors("n", {"x": torch.ones(3)})
    annotate.output_tensors("n", {"y": x * 2}, export_with="jit")
    leapp.stop()
    leapp.compile_graph(visualize=False)
    assert InferenceManager(tmp_path / "g")({"n/x": torch.full((3,), 4.0)})["n/y"].tolist() == [8.0] * 3
