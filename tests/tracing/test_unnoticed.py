"""What a program can ask about itself while it is traced: the answers are those it gets without leapp."""

from __future__ import annotations

import copy
import datetime
import decimal
import functools
import gc
import hashlib
import importlib
import inspect
import io
import json
import pickle
import random
import statistics
import struct
import subprocess
import sys
import time
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import scipy.ndimage
import torch

import leapp
from leapp import annotate
from leapp.capture.dice import generators
from leapp.capture.replacing.classes import WatchedBuffer

A = annotate
MODULES = [np, np.linalg, np.fft, np.random, np.rec, np.lib.stride_tricks, torch, torch.jit, torch.export, torch.func, json]
MODULES += [statistics, random, time, datetime, decimal, torch.autograd.forward_ad, torch.overrides, scipy.ndimage._nd_image]
CLASSES = [np.ndarray, np.nditer, np.broadcast, np.float64, np.vectorize, memoryview, datetime.timedelta, decimal.Decimal]


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
    """All that is in the modules and classes in which a session replaces anything."""
    modules = {(m.__name__, n): getattr(m, n) for m in MODULES for n in list(vars(m))}
    return modules | {(m.__name__, n): v for m in CLASSES for n, v in list(vars(m).items())}


def asked(value: Any) -> Any:
    """What a program may ask about a function or class."""
    try:
        signature: Any = str(inspect.signature(value))
    except (ValueError, TypeError) as error:
        signature = type(error)
    kinds = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, np.ufunc)
    about = [getattr(value, n, None) for n in ("__name__", "__qualname__", "__module__", "__doc__")]
    return [isinstance(value, k) for k in kinds], callable(value), signature, about


def test_what_is_replaced_looks_the_same(tmp_path: Path) -> None:
    """Classes stay classes, functions keep their kinds, signatures and names, and all of it is put back."""
    before = names()
    answers = {k: asked(v) for k, v in before.items() if k[0] in [m.__name__ for m in MODULES]}
    with node(tmp_path):
        during = names()
        replaced = {k for k in answers if during[k] is not before[k]}
        assert len(replaced) > 300
        changed = {k: (answers[k], asked(during[k])) for k in answers if asked(during[k]) != answers[k]}
        classes = [k for k, v in before.items() if isinstance(v, type) and during[k] is not v]
        unequal = [k for k in replaced if during[k] != before[k] or hash(during[k]) != hash(before[k])]
        modules = [(type(m).__name__, m.__class__, inspect.ismodule(m), repr(m)) for m in MODULES]
    assert changed == {}
    assert classes == []
    assert unequal == []
    assert modules == [("module", types.ModuleType, True, repr(m)) for m in MODULES]
    assert all(type(m) is types.ModuleType for m in MODULES)
    assert {k for k, v in names().items() if k in before and v is not before[k]} == set()


def test_what_is_put_back_by_the_program_is_the_original(tmp_path: Path) -> None:
    """A patch that begins inside a node and ends after the session keeps nothing of the session."""
    sine, norm = np.sin, np.linalg.norm
    with node(tmp_path):
        kept, np.sin = np.sin, np.cos
        assert float(np.sin(0.0)) == 1.0
        np.linalg.norm = np.linalg.norm
    np.sin = sine if kept is sine else kept.__wrapped__
    assert np.linalg.norm is norm


FUNCTIONS: dict[str, Callable[[], Any]] = {
    "np.array": lambda: np.array,
    "np.sin": lambda: np.sin,
    "np.sum": lambda: np.sum,
    "np.full": lambda: np.full,
    "np.linalg.norm": lambda: np.linalg.norm,
    "np.float32": lambda: np.float32,
    "np.nditer": lambda: np.nditer,
    "np.random.normal": lambda: np.random.normal,
    "random.uniform": lambda: random.uniform,
    "json.dumps": lambda: json.dumps,
    "statistics.mean": lambda: statistics.mean,
    "time.time": lambda: time.time,
    "time.sleep": lambda: time.sleep,
    "timedelta": lambda: datetime.timedelta,
    "torch.from_numpy": lambda: torch.from_numpy,
    "torch.load": lambda: torch.load,
    "a compiled function": lambda: scipy.ndimage._nd_image.correlate1d,
}


def bare(function: Any) -> Any:
    """What a name stands for without a session. A bound method is another object each time."""
    found = getattr(function, "__wrapped__", function) if not isinstance(function, type) else function
    return getattr(found, "__func__", found)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_pickled_and_copied(name: str, tmp_path: Path) -> None:
    """Whether the reference was taken before the session, in it or in a node, and wherever it is pickled."""
    before = FUNCTIONS[name]()
    pickles: list[bytes] = []

    def all_ways(function: Any) -> None:
        for dump in (pickle.dumps, pickle._dumps):  # type: ignore[attr-defined]
            pickles.append(dump([function, functools.partial(function, 1)]))
        assert copy.copy(function).__name__ == function.__name__
        assert copy.deepcopy({"f": function})["f"].__name__ == function.__name__

    leapp.start("g", save_path=tmp_path)
    between = FUNCTIONS[name]()
    all_ways(before)
    all_ways(between)
    x = A.input_tensors("n", {"x": np.ones(3)})
    inside = FUNCTIONS[name]()
    for function in (before, between, inside):
        all_ways(function)
    A.output_tensors("n", {"y": x * 2.0}, export_with="jit")
    leapp.stop()
    for function in (before, between, inside):
        all_ways(function)
    for data in pickles:
        function, partial = pickle.loads(data)
        assert bare(function) == bare(before) == bare(partial.func)
        assert b"leapp" not in data


class KnowsModules(pickle.Pickler):
    """Pickles modules by name, as those do that ship functions to other processes."""

    dispatch_table: ClassVar[dict[Any, Any]] = {types.ModuleType: lambda m: (importlib.import_module, (m.__name__,))}


def test_modules_are_pickled_by_those_who_can(tmp_path: Path) -> None:
    data = io.BytesIO()
    with node(tmp_path):
        KnowsModules(data).dump([np, np.linalg, json])
    assert pickle.loads(data.getvalue()) == [np, np.linalg, json]


def test_pickles_are_read_by_another_process(tmp_path: Path) -> None:
    """Which knows nothing of leapp."""
    with node(tmp_path):
        data = pickle.dumps([np.array, np.hypot, json.dumps, time.sleep])
    program = f"import pickle; f, g, h, s = pickle.loads({data!r}); print(f([g(3.0, 4.0)])[0], h([1]), s.__name__)"
    done = subprocess.run([sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}\n{program}"],
                          capture_output=True, text=True, check=True, timeout=120)  # fmt: skip
    assert done.stdout.split() == ["5.0", "[1]", "sleep"]


def test_what_the_program_assigns_stays(tmp_path: Path) -> None:
    """Inside a node, on anything that a session replaces."""

    class Sub(np.ndarray):
        """An array class of the user's own."""

    def mine(*args: Any, **kwargs: Any) -> str:
        return "mine"

    places = [(np, "array"), (np, "sin"), (time, "time"), (json, "dumps"), (torch, "load"), (np.random, "normal")]
    originals = [getattr(*place) for place in places]
    kept = np.random.Generator.normal
    sub = np.zeros(3).view(Sub)
    try:
        with node(tmp_path):
            Sub.__getitem__ = Sub.__len__ = Sub.__add__ = Sub.sum = mine  # type: ignore[method-assign,assignment]
            for place in places:
                setattr(*place, mine)
        assert [getattr(*place) for place in places] == [mine] * len(places)
        assert (sub[0], sub + 1, sub.sum()) == ("mine",) * 3
        assert np.random.Generator.normal is kept
    finally:
        for place, original in zip(places, originals, strict=True):
            setattr(*place, getattr(original, "__wrapped__", original))


READERS: dict[str, Callable[[np.ndarray], Any]] = {
    "not contiguous": lambda x: hashlib.sha1(x.T),
    "only read": lambda x: struct.pack_into("d", np.broadcast_to(x, (2, 2, 3)), 0, 1.0),
    "a type without a buffer": lambda _: memoryview(np.array(["2020"], dtype="M8[s]")),
    "too small": lambda x: struct.unpack_from("99d", x),
}


@pytest.mark.parametrize("name", READERS)
def test_errors_of_buffers_come_through(name: str, tmp_path: Path) -> None:
    """Of a traced array and of a plain one."""
    plain = np.arange(6.0).reshape(2, 3)
    with pytest.raises(Exception) as expected:  # noqa: PT011
        READERS[name](plain)
    with node(tmp_path) as x:
        for array in (x, plain):
            with pytest.raises(type(expected.value)) as found:
                READERS[name](array)
            assert "SystemError" not in repr(found.value)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupt_while_memory_is_asked_for(error: type[BaseException]) -> None:
    def tell(_: Any) -> None:
        raise error("now")

    watched = WatchedBuffer(np.ndarray, tell)
    watched.install()
    try:
        for _ in range(20):
            with pytest.raises(error, match="now"):
                memoryview(np.arange(3.0))
    finally:
        watched.put_back()
    assert memoryview(np.arange(3.0)).tolist() == [0.0, 1.0, 2.0]


def test_numbers_between_nodes_and_after_the_session(tmp_path: Path) -> None:
    """Numbers taken out of traced and published arrays go on being numbers."""
    kept: list[Any] = []
    with node(tmp_path) as x:
        kept.append(x[1, 2])
        assert isinstance(kept[0], float)
        assert not isinstance(kept[0], np.ndarray)
    for number in kept:
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


class Compiled:
    """A class of another package."""


def test_methods_added_to_a_class_later_are_seen(tmp_path: Path) -> None:
    """A class that was looked at in an earlier session has a compiled method now."""
    from leapp.capture.numpy import compiled

    Compiled.__module__ = "elsewhere"
    assert list(compiled._methods(Compiled)) == []
    Compiled.correlate = scipy.ndimage._nd_image.correlate1d  # type: ignore[attr-defined]
    assert list(compiled._methods(Compiled)) == ["correlate"]
    del Compiled.correlate  # type: ignore[attr-defined]
    assert list(compiled._methods(Compiled)) == []
    Compiled.later = None  # type: ignore[attr-defined]
    assert list(compiled._methods(Compiled)) == []
    Compiled.later = scipy.ndimage._nd_image.correlate1d  # type: ignore[attr-defined]
    assert list(compiled._methods(Compiled)) == ["later"]
    del Compiled.later  # type: ignore[attr-defined]


@pytest.mark.parametrize("where", ["base", "class"])
def test_operators_of_array_classes_that_are_set_in_a_node(where: str, tmp_path: Path) -> None:
    class Base:
        pass

    class Mine(Base, np.ndarray):
        note = "as many attributes before and after"

    mine = np.arange(3.0).view(Mine)
    with node(tmp_path):
        owner = Base if where == "base" else Mine
        del Mine.note
        owner.__getitem__ = lambda self, i: f"item {i}"  # type: ignore[attr-defined]
        assert mine[1] == "item 1"
    assert mine[1] == "item 1"


@pytest.mark.parametrize(
    ("owner", "name", "other"),
    [(random, "_inst", random.Random(3)), (np.random.mtrand, "_rand", np.random.RandomState(3))],
)
def test_draws_are_seen_whatever_the_module_calls_its_generator(
    owner: Any, name: str, other: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The functions of the module go on with the one they were made for."""
    draw = {random: random.betavariate, np.random.mtrand: np.random.beta}[owner]
    monkeypatch.setattr(owner, name, other)
    before = generators()
    draw(1.0, 2.0)
    assert generators() != before




def test_what_changed_between_sessions_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the user is not looked through twice, unless it or a class in it is changed meanwhile."""
    mine = types.ModuleType("observations_of_mine")
    monkeypatch.setitem(sys.modules, mine.__name__, mine)
    exec(
        "import numpy as np\n"
        "def scale(): return 2.0\n"
        "def root(a): return np.sqrt(a)\n"
        "def observe(x): return root([x, x])[0] * scale()\n",
        vars(mine),
    )

    def escapes() -> list[str]:
        leapp.start("g", save_path=tmp_path)
        x = A.input_tensors("n", {"x": np.ones(3)})
        A.output_tensors("n", {"y": mine.observe(x)}, export_with="jit")
        leapp.stop()
        assert all(type(v).__name__ != "StandIn" for v in vars(mine).values())
        return [e.kind for e in leapp.report().escapes]

    assert escapes() == []
    mine.scale = time.time
    assert escapes() == ["time.time"]
    mine.scale = lambda: 3.0
    mine.root = np.sqrt
    assert escapes() == []
    mine.scale = random.random
    assert escapes() == ["random.random"]
    assert mine.scale is random.random


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
