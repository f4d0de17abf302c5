"""The walk over what a node's code can reach: it runs no code of the user's, raises nothing and finds what counts."""

from __future__ import annotations

import cProfile
import enum
import gc
import sys
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import leapp
from leapp import InferenceManager, annotate
from leapp.tracing import attributes

Tensor = torch.Tensor
asked: list[str] = []
"""What code of the user's was run that the user did not run."""


def trace(where: Path, function: Callable[[Tensor], Tensor], passes: int = 2) -> leapp.Report:
    """Trace a function as the one node of a graph, and run the file on values that are new to it."""
    leapp.start("g", save_path=where)
    try:
        for number in range(passes):
            x = annotate.input_tensors("n", {"x": torch.full((3,), 1.0 + number)})
            annotate.output_tensors("n", {"y": function(x)}, export_with="jit")
    finally:
        leapp.stop()
    leapp.compile_graph(visualize=False)
    x = torch.tensor([3.0, -4.0, 5.0])
    assert torch.equal(InferenceManager(str(where / "g" / "g.yaml"))({"n/x": x})["n/y"], function(x))
    found = leapp.report()
    assert found is not None
    return found


class Base:
    __slots__ = ("value",)


class Property(Base):
    @property
    def value(self) -> int:  # type: ignore[override]
        asked.append("property")
        raise RuntimeError


class Proxy:
    def __getattribute__(self, name: str) -> Any:
        asked.append(f"__getattribute__({name})")
        raise RuntimeError


class OtherDict:
    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        asked.append("__dict__")
        return 3


class LazyDict(dict):
    def __len__(self) -> int:
        asked.append("dict.__len__")
        raise RuntimeError

    def items(self) -> Any:
        asked.append("dict.items")
        raise RuntimeError


class LazyList(list):
    def __len__(self) -> int:
        asked.append("list.__len__")
        return 10**9

    def __reversed__(self) -> Any:
        asked.append("list.__reversed__")
        raise RuntimeError


class LazyTuple(tuple):
    def __getitem__(self, key: Any) -> Any:
        asked.append("tuple.__getitem__")
        raise RuntimeError


class LazySet(set):
    def __iter__(self) -> Any:
        asked.append("set.__iter__")
        raise RuntimeError


class Key:
    def __repr__(self) -> str:
        asked.append("repr")
        raise RuntimeError


class Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        asked.append(f"of the class: {name}")
        return type.__getattribute__(cls, name)


class OfMeta(metaclass=Meta):
    pass


class Same(type):
    """Its classes can be compared, so they cannot be hashed."""

    def __eq__(cls, other: object) -> bool:
        asked.append("of the class: ==")
        return cls is other


class OfSame(metaclass=Same):
    count = 0


class Closed:
    """A sequence that has no length any more."""

    def __init__(self) -> None:
        self.closed = False

    def __len__(self) -> int:
        if self.closed:
            raise RuntimeError
        return 3

    def __getitem__(self, i: int) -> int:
        return i


def iterator_of_a_closed_sequence() -> Any:
    found = Closed()
    iterator = reversed(found)  # type: ignore[call-overload]
    found.closed = True
    return iterator


class NotMadeYet(torch.nn.Module):
    def __init__(self) -> None:  # torch's is not called
        self.scale = 1.0


OBJECTS: dict[str, Callable[[], Any]] = {
    "a property over a slot": Property,
    "a proxy": Proxy,
    "a property __dict__": OtherDict,
    "a dict that loads": lambda: LazyDict(a=1),
    "a list that loads": lambda: LazyList([1]),
    "a tuple that loads": lambda: LazyTuple((1, 2)),
    "a set that loads": lambda: LazySet({1}),
    "a key with a repr": lambda: {Key(): [1]},
    "a tensor as a key": lambda: {torch.ones(3): [1]},
    "an odd class of a class": OfMeta,
    "an object whose class cannot be hashed": OfSame,
    "a class that cannot be hashed": lambda: OfSame,
    "an iterator over what is closed": iterator_of_a_closed_sequence,
    "a module without torch's __init__": NotMadeYet,
    "a class without a module": lambda: type("NoModule", (), {"__module__": None})(),
    "a class with a list for a module": lambda: type("NoModule", (), {"__module__": []})(),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_looking_at_an_object_runs_no_code_of_its_class(name: str, tmp_path: Path) -> None:
    thing = OBJECTS[name]()
    asked.clear()

    def function(x: Tensor) -> Tensor:
        return x * 2 if thing is not None else x

    report = trace(tmp_path, function)
    assert not asked
    assert not report.escapes


class OneSlot:
    __slots__ = "count"  # noqa: PLC0205

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, x: Tensor) -> Tensor:
        self.count += 1
        return x * 2 if self.count < 1000 else x


class PrivateSlot:
    __slots__ = ("__count",)

    def __init__(self) -> None:
        self.__count = 0

    def __call__(self, x: Tensor) -> Tensor:
        self.__count += 1
        return x * 2 if self.__count < 1000 else x


class Leg(enum.Enum):
    LEFT = 1


class ByLeg:
    def __init__(self) -> None:
        self.steps = {Leg.LEFT: 0}

    def __call__(self, x: Tensor) -> Tensor:
        self.steps[Leg.LEFT] += 1
        return x * 2 if self.steps[Leg.LEFT] < 1000 else x


@pytest.mark.parametrize(
    ("kind", "name"),
    [(OneSlot, "OneSlot.count"), (PrivateSlot, "PrivateSlot._PrivateSlot__count"), (ByLeg, "ByLeg.steps[Leg.LEFT]")],
)
def test_a_counter_is_found_wherever_it_is_kept(kind: type, name: str, tmp_path: Path) -> None:
    (found,) = trace(tmp_path, kind()).escapes
    assert found.kind.startswith(f"{name} changes from call to call (1, then 2)")


class Link:
    def __init__(self, below: Link | None, value: int) -> None:
        self.below, self.value = below, value


class Chain:
    """Links that are made anew in every call, more of them than Python's stack has room for."""

    def __init__(self) -> None:
        self.calls = 0
        self.link()

    def link(self) -> None:
        self.top: Link | None = None
        for _ in range(3000):
            self.top = Link(self.top, self.calls)

    def __call__(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.link()
        assert self.top is not None
        return x * 2 if self.top.value < 1000 else x


def test_a_chain_longer_than_the_stack(tmp_path: Path) -> None:
    found = [e.kind for e in trace(tmp_path, Chain()).escapes]
    assert any(kind.startswith("Link.value changes from call to call") for kind in found)


class Strict(float):
    """A number that refuses to be compared."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("compared")

    __hash__ = float.__hash__


def test_a_program_of_many_modules_is_looked_at_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each module names a function of the next. The nearest is seen to count, and the work does not grow with the rest."""
    modules = [types.ModuleType(f"part_{i}_of_many") for i in range(300)]
    for module, after in zip(modules, [*modules[1:], modules[0]], strict=True):
        monkeypatch.setitem(sys.modules, module.__name__, module)
        module.after = after  # type: ignore[attr-defined]
        exec("count = 0\ndef step(x):\n    global count\n    count += 1\n    return x * (1 if count < 9 else 2)", vars(module))
        vars(module).update({f"table_{i}": {"a": [i]} for i in range(20)})
    for module, after in zip(modules, modules[1:], strict=False):
        module.following = after.step  # type: ignore[attr-defined]
    first, looked = modules[0].step, [0]
    real = attributes.held_by

    def counted(thing: Any) -> Any:
        looked[0] += 1
        return real(thing)

    monkeypatch.setattr(attributes, "held_by", counted)
    leapp.start("g", save_path=tmp_path)
    for seed in range(2):
        x = annotate.input_tensors("n", {"x": torch.full((3,), seed + 1.0)})
        annotate.output_tensors("n", {"y": first(x)}, export_with="jit")
    leapp.stop()
    assert any("count" in str(e) for e in leapp.report().escapes)
    assert looked[0] < 12_000


ROBOT = """
from leapp import annotate
count = 0
history = []
def step(x):
    global count
    x = annotate.input_tensors("n", {"x": x})
    count += 1
    history.append(count)
    y = x * (1.0 + 0.1 * count) + len(history)
    return annotate.output_tensors("n", {"y": y}, export_with="jit")
"""


@pytest.mark.parametrize("passes", [1, 2])
def test_a_variable_of_a_module_is_reported_once(passes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code that opens the node is found in the module by its caller too, which imported the module."""
    robot = types.ModuleType("robot_that_counts")
    monkeypatch.setitem(sys.modules, robot.__name__, robot)
    exec(ROBOT, vars(robot))
    leapp.start("g", save_path=tmp_path)
    for number in range(passes):
        robot.step(torch.full((3,), 1.0 + number))
    leapp.stop()
    found = [e.kind for e in leapp.report().escapes if "state" in e.kind or "changes" in e.kind]
    assert len([kind for kind in found if "count is 1" in kind]) == 1, found
    assert not [kind for kind in found if "robot_that_counts." in kind]


def test_a_number_that_cannot_be_compared_raises_nothing(tmp_path: Path) -> None:
    class Gain:
        unit = Strict(1.0)

    gain = Gain()

    def function(x: Tensor) -> Tensor:
        gain.unit = Strict(gain.unit)
        return x * 2.0

    trace(tmp_path, function)


def test_the_users_classes_are_not_kept(tmp_path: Path) -> None:
    class Local:
        pass

    def session(held: list[Any]) -> None:
        trace(tmp_path, lambda x: x * len(held))

    known = weakref.ref(Local)
    session([Local()])
    leapp.start("next", save_path=tmp_path)
    leapp.stop()
    del Local, session
    gc.collect()
    assert known() is None


def calls_for_changes(lines: int, where: Path) -> int:
    """How many calls the changes of twenty numbers add to the pass of a node with some lines of code."""
    code = [
        "def step(x, change):",
        "    x = annotate.input_tensors('n', {'x': x})",
        *["    x = x + 1.0"] * lines,
        "    if change:",
        *[f"        counts.number_{i} += 1" for i in range(20)],
        "    annotate.output_tensors('n', {'y': x}, export_with='jit')",
    ]
    counts = types.SimpleNamespace(**{f"number_{i}": 0 for i in range(20)})
    names: dict[str, Any] = {"__name__": "counting", "annotate": annotate, "counts": counts}
    exec("\n".join(code), names)

    def calls(change: bool) -> int:
        profile = cProfile.Profile()
        leapp.start("g", save_path=where)
        try:
            profile.runcall(names["step"], torch.ones(3), change)
        finally:
            leapp.stop()
        return sum(entry.callcount for entry in profile.getstats())

    calls(True)  # the first call fills caches
    return calls(True) - calls(False)


def test_a_change_costs_the_same_in_long_code(tmp_path: Path) -> None:
    """A number that a pass changes is looked up in the code of the node, not searched for in each of its instructions."""
    short, long = (calls_for_changes(lines, tmp_path) for lines in (10, 500))
    assert short > 200  # the changes were found
    assert long - short < 490 * 20


def calls_for_arrays(arrays: int, functions: int, where: Path) -> int:
    """How many function calls leapp makes for two passes of a program that holds arrays, in code with so many functions."""
    code = [
        *[line for i in range(functions) for line in (f"def add_{i}(x):", f"    return x + {i}.0")],
        "def step(x):",
        "    x = annotate.input_tensors('n', {'x': x})",
        *[f"    x = add_{i}(x)" for i in range(functions)],
        "    annotate.output_tensors('n', {'y': x}, export_with='jit')",
    ]
    held = types.SimpleNamespace(**{f"array_{i}": np.zeros(3) for i in range(arrays)})
    names: dict[str, Any] = {"__name__": "holding", "annotate": annotate, "held": held}
    exec("\n".join(code), names)
    profile = cProfile.Profile()
    leapp.start("g", save_path=where)
    try:
        for _ in range(2):
            profile.runcall(names["step"], torch.ones(3))
    finally:
        leapp.stop()
    return sum(entry.callcount for entry in profile.getstats())


def test_an_array_costs_the_same_in_much_code(tmp_path: Path) -> None:
    """An array is looked up in the code of the node that names it, not in each function that ran."""
    calls_for_arrays(1, 5, tmp_path)  # the first call fills caches
    little, much = (calls_for_arrays(60, n, tmp_path) - calls_for_arrays(10, n, tmp_path) for n in (5, 50))
    assert little > 50  # the arrays were found
    assert much - little < 45 * 50
