"""What a program can notice of a session: nothing outside of a node, and inside one a table of replaced functions."""

from __future__ import annotations

import copy
import copyreg
import datetime
import decimal
import functools
import gc
import inspect
import io
import json
import math
import pickle
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.ndimage
import torch

import leapp
import leapp.tracing.lifecycle
from leapp import annotate

A = annotate
OWNERS: list[Any] = [
    np, np.linalg, np.fft, np.random, np.lib.stride_tricks, np.ndarray, np.ufunc, torch, torch.Tensor, torch.jit, torch.export,
    torch.func, torch.overrides, torch.autograd.forward_ad, torch.utils.dlpack, time, random, json, json.JSONEncoder,
    threading.Thread, ThreadPoolExecutor, scipy.ndimage, memoryview,
]  # fmt: skip


@contextmanager
def node(where: Path) -> Iterator[np.ndarray]:
    """An open node with an array in it."""
    leapp.start("g", save_path=where)
    try:
        x = A.input_tensors("n", {"x": np.arange(6.0).reshape(2, 3)})
        yield x
        A.output_tensors("n", {"y": x * 2.0}, export_with="jit")
    finally:
        leapp.stop()


def names() -> dict[tuple[str, str], Any]:
    """All that is in the modules and classes in which a node replaces anything, and in some others."""
    held = {(getattr(m, "__name__", ""), n): v for m in OWNERS for n, v in list(vars(m).items())}
    return held | {("copyreg", k.__name__): v for k, v in copyreg.dispatch_table.items()}


def changed(before: dict[tuple[str, str], Any]) -> list[tuple[str, str]]:
    """What is another object than before. Torch loads parts of itself meanwhile, which are new."""
    now = names()
    added = {("Tensor", "__array_function__"), ("copyreg", "Tensor")}
    return sorted(k for k in before.keys() | added if before.get(k) is not now.get(k))


def test_nothing_is_replaced_outside_of_a_node(tmp_path: Path) -> None:
    """Between start() and the first input, between two nodes, after the session; inside, the functions of the table are.

    That copyreg knows tensors lets copies be followed from one node to the next.
    """
    copies = [("copyreg", "Tensor")]
    before = names()
    dtype = torch.get_default_dtype()
    leapp.start("g", save_path=tmp_path)
    assert changed(before) == copies
    x = A.input_tensors("n", {"x": np.arange(3.0)})
    inside = changed(before)
    assert ("numpy", "zeros") in inside and ("torch", "from_numpy") in inside and len(inside) < 110
    elsewhere = [k for k in inside if k[0] in ("time", "random", "json", "JSONEncoder", "numpy.random", "ndarray", "ufunc")]
    readers = [("time", name) for name in ("ctime", "gmtime", "localtime", "sleep")]
    assert elsewhere == [("JSONEncoder", "iterencode"), ("numpy.random", "default_rng"), *readers]
    y = A.output_tensors("n", {"y": np.sqrt(x * x + 1)}, export_with="jit")
    assert changed(before) == copies
    A.output_tensors("m", {"z": A.input_tensors("m", {"y": y}) * 2}, export_with="jit")
    assert changed(before) == copies
    leapp.stop()
    assert changed(before) == []
    assert torch.get_default_dtype() is dtype


def test_a_replaced_function_looks_the_same(tmp_path: Path) -> None:
    before = names()

    def asked(value: Any) -> Any:
        try:
            signature = str(inspect.signature(value))
        except (ValueError, TypeError):
            signature = ""
        return signature, [getattr(value, n, None) for n in ("__name__", "__doc__")]

    with node(tmp_path):
        now = names()
        for key in changed(before):
            if key[0] in ("numpy", "torch") and key in before:
                assert asked(now[key]) == asked(before[key])


FUNCTIONS: dict[str, Callable[[], Any]] = {
    "np.array": lambda: np.array, "np.full": lambda: np.full, "np.zeros": lambda: np.zeros, "np.sin": lambda: np.sin,
    "torch.from_numpy": lambda: torch.from_numpy, "torch.load": lambda: torch.load,
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_pickled_and_copied(name: str, tmp_path: Path) -> None:
    """Inside a node, by name; another process reads the original."""
    before = FUNCTIONS[name]()
    with node(tmp_path):
        inside = FUNCTIONS[name]()
        data = pickle.dumps([inside, functools.partial(inside, 1)])
        assert copy.deepcopy(inside) is inside
    function, partial = pickle.loads(data)
    assert function is partial.func is before
    assert b"leapp" not in data


def test_what_the_program_assigns_stays(tmp_path: Path) -> None:
    """Inside a node, on a function that is replaced there."""

    def mine(*args: Any, **kwargs: Any) -> str:
        return "mine"

    places = [(np, "array"), (torch, "load"), (threading.Thread, "start")]
    originals = [getattr(*place) for place in places]
    try:
        with node(tmp_path):
            for place in places:
                setattr(*place, mine)
        assert [getattr(*place) for place in places] == [mine] * len(places)
    finally:
        for place, original in zip(places, originals, strict=True):
            setattr(*place, original)


def test_a_module_imported_in_a_node_keeps_the_originals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taken_late.py").write_text("from numpy import zeros\nfrom torch import from_numpy as tensor\n")
    monkeypatch.syspath_prepend(tmp_path)
    with node(tmp_path):
        import taken_late  # type: ignore[import-not-found]
    assert taken_late.zeros is np.zeros
    assert taken_late.tensor is torch.from_numpy


def test_numbers_after_the_session(tmp_path: Path) -> None:
    """Numbers taken out of traced and published arrays go on being numbers."""
    with node(tmp_path) as x:
        number: Any = x[1, 2]
        assert isinstance(number, float)
        assert not isinstance(number, np.ndarray)
    assert number + 1 == 6.0
    assert round(number) == 5
    assert f"{number:.1f}" == "5.0"
    assert {5.0: "found"}[number] == "found"
    assert isinstance(number, np.float64)
    assert not isinstance(number, (np.ndarray, torch.SymFloat))
    assert (torch.ones(2) * number).tolist() == [5.0, 5.0]
    assert pickle.loads(pickle.dumps(number)) == 5.0
    assert np.float32(number) == np.float32(5)
    assert json.dumps(float(number)) == "5.0"


READERS: dict[str, Callable[[Any], Any]] = {
    "json": lambda r: json.dumps({"r": [r, 1.0], "n": None}),
    "json, indented": lambda r: json.dumps({r: r}, indent=1, sort_keys=True),
    "json, to a file": lambda r: (file := io.StringIO(), json.dump([r], file), file.getvalue())[-1],
    "json, an encoder": lambda r: json.JSONEncoder(default=str).encode((r, np.ones(1))),
    "sleep": lambda r: time.sleep(r * 1e-6),
    "localtime": lambda r: time.localtime(r),
    "seed": lambda r: np.random.default_rng(np.int64(5) + r.astype(np.int64)).random(),
    "mean": lambda r: statistics.mean([r, r]),
    "its type": lambda r: (np.issubdtype(type(r), np.floating), np.dtype(type(r)), type(r)("2.5")),
}  # fmt: skip


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_code_that_wants_real_numbers(read: Callable[[Any], Any], tmp_path: Path) -> None:
    """It gives what it gives without leapp, and that the value left is known, with the line."""
    with node(tmp_path) as x:
        assert read(x[1, 2]) == read(np.float64(5.0))
        tape = leapp.ExportManager().session.nodes["n"].tape
        assert read is READERS["its type"] or any(e.where.file == __file__ for e in tape.escapes)


SIZES: dict[str, Callable[[Any], Any]] = {
    "zeros": lambda n: np.zeros(n), "full": lambda n: np.full(n, 2.0), "ndarray": lambda n: np.ndarray(n).shape,
    "broadcast_to": lambda n: np.broadcast_to(1.0, n), "random numbers": lambda n: np.random.default_rng(0).normal(size=n),
    "a choice": lambda n: np.random.RandomState(0).choice(9, n), "iterable": lambda n: np.iterable(n), "bytes": bytes,
    "__iter__": lambda n: hasattr(n, "__iter__"),
}  # fmt: skip


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_a_number_as_a_size(size: Callable[[Any], Any], tmp_path: Path) -> None:
    """NumPy takes what can be iterated over for a shape."""
    with node(tmp_path) as x:
        np.testing.assert_array_equal(size(x[1, 0].astype(np.int64)), size(np.int64(3)))


@pytest.mark.parametrize("ask", [list, iter, sum, set, lambda n: 1 in n, lambda n: [*n], lambda n: [].extend(n)])
def test_a_number_has_no_items(ask: Callable[[Any], Any], tmp_path: Path) -> None:
    with node(tmp_path) as x:
        for number in (np.float64(3.0), x[1, 0]):
            with pytest.raises(TypeError, match="iterable"):
                ask(number)
        assert x[1, 0][()] == 3.0


@pytest.mark.parametrize("refuses", [decimal.Decimal, lambda r: datetime.timedelta(seconds=r)])
def test_types_in_c_say_how_to_convert_a_number(refuses: Callable[[Any], Any], tmp_path: Path) -> None:
    with node(tmp_path) as x:
        with pytest.raises(TypeError, match=r"float64 \(a number that leapp follows: convert it with float\(\) first\)"):
            refuses(x[1, 2])
        assert refuses(float(x[1, 2])) == refuses(5.0)
        assert type(x[1, 2]).__name__ == "float64"


def test_a_session_leaves_no_cycle_around_its_tapes(tmp_path: Path) -> None:
    """The weights a tape holds are free as soon as the next session begins, not when Python looks for garbage."""
    gc.collect()
    gc.disable()
    try:
        with node(tmp_path):
            pass
        tape = weakref.ref(leapp.ExportManager().session.nodes["n"].tape)
        with node(tmp_path):
            pass
        assert tape() is None
    finally:
        gc.enable()


# -- interrupts --------------------------------------------------------------------------------------------------------


def interrupted(seconds: float, block: Callable[[], None]) -> None:
    """Run a block with Ctrl-C at that instant, if it takes so long."""
    armed = [True]

    def interrupt(*_: object) -> None:
        if armed:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            block()
        finally:
            armed.clear()
    except KeyboardInterrupt:
        pass
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def step() -> None:
    """One pass of a node with arrays in it."""
    x = A.input_tensors("n", {"x": np.arange(4, dtype=np.float32)})
    observation = np.zeros(6, np.float32)
    observation[:4] = np.tanh(x)
    A.output_tensors("n", {"y": observation * 2}, export_with="jit")


def test_interrupts_leave_nothing_replaced(tmp_path: Path) -> None:
    """In a process of its own: an interrupt can leave a lock of Python's logging taken, and other threads wait for it."""
    program = f"from pathlib import Path; from {__name__} import interrupt; interrupt(Path({str(tmp_path)!r}))"
    root = Path(__file__).parent.parent.parent
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]


def interrupt(tmp_path: Path) -> None:
    """At 300 instants of a session; the next one is right."""
    import torch._dynamo  # what is loaded later than its functions are compared would count as changed
    import torch.onnx  # noqa: F401

    def session() -> None:
        leapp.start("g", save_path=tmp_path)
        step()
        step()
        leapp.stop()

    session()
    begun = time.perf_counter()
    session()
    whole, before, chance = time.perf_counter() - begun, names(), random.Random(4)
    for number in range(300):
        interrupted(chance.uniform(1e-5, whole), session)
        if leapp.tracing.lifecycle.ExportManager.interpreting:
            leapp.stop()
        assert (changed(before), number) == ([], number)
        assert torch._C._len_torch_function_stack() == torch._C._len_torch_dispatch_stack() == 0, number
        assert torch._C._is_torch_function_enabled(), number
    session()
    assert leapp.compile_graph(visualize=False) == {"n": True}
    new = np.array([0.5, -2, 3, 1], np.float32)
    got = leapp.InferenceManager(str(tmp_path / "g" / "g.yaml"))({"n/x": torch.from_numpy(new)})["n/y"]
    np.testing.assert_allclose(got.numpy(), np.concatenate([np.tanh(new) * 2, np.zeros(2, np.float32)]), rtol=1e-5)


# -- beside other packages ---------------------------------------------------------------------------------------------


def test_another_process_reads_functions_pickled_in_a_node(tmp_path: Path) -> None:
    with node(tmp_path):
        data = pickle.dumps([np.array, np.hypot])
    program = f"import pickle; f, g = pickle.loads({data!r}); print(f([g(3.0, 4.0)])[0])"
    done = subprocess.run([sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}\n{program}"],
                          capture_output=True, text=True, check=True, timeout=120)  # fmt: skip
    assert done.stdout.split() == ["5.0"]


def test_replaced_functions_as_attributes_of_a_class(tmp_path: Path) -> None:
    """A function in C does not become a method there."""
    signature = np.arange.__text_signature__
    with node(tmp_path):

        class Maker:
            array, sin, mean = np.array, math.sin, staticmethod(np.mean)

        assert Maker().array([1.0, 2.0], dtype=np.float32).tolist() == [1.0, 2.0]
        assert Maker().sin(0.0) == 0.0 and Maker().mean([1.0, 3.0]) == 2.0
        assert np.arange.__text_signature__ == signature
        assert copy.deepcopy(np.zeros) is np.zeros and pickle.loads(pickle.dumps(np.arange)) is np.arange
