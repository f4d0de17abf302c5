"""Numbers that change from pass to pass, in the node or in its caller, and that the code of the node reads."""

from __future__ import annotations

import contextlib
import dataclasses
import operator
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch

import leapp
from leapp import InferenceManager
from leapp import annotate as A

Tensor = torch.Tensor
Step = Callable[[Tensor], Tensor]
counted = 0


def opened(x: Tensor) -> Tensor:
    """Open the node in a function of its own."""
    return A.input_tensors("n", {"x": x})  # type: ignore[no-any-return]


def closed(y: Tensor) -> Tensor:
    """Close it."""
    A.output_tensors("n", {"y": y}, export_with="jit")
    return y


def counts_in_an_argument() -> Step:
    """The loop variable of the caller."""
    steps = iter(range(100))

    def act(x: Tensor, step: int) -> Tensor:
        x = opened(x)
        return closed(x * 3 if step % 4 == 3 else x * 2)  # READ

    return lambda x: act(x, next(steps))


def counts_in_an_attribute() -> Step:
    class Policy:
        time = 0

        def step(self, x: Tensor) -> Tensor:
            self.time += 1
            return self.act(x)

        def act(self, x: Tensor) -> Tensor:
            x = A.input_tensors("n", {"x": x})
            return closed(x * self.gain())

        def gain(self) -> float:
            return 3.0 if self.time > 3 else 2.0  # READ

    return Policy().step


def counts_in_a_dict() -> Step:
    context = {"length": 0}

    def step(x: Tensor) -> Tensor:
        context["length"] += 1
        x = opened(x)
        return closed(x * (3.0 if context["length"] > 3 else 2.0))  # READ

    return step


def counts_in_a_global_variable() -> Step:
    global counted
    counted = 0

    def step(x: Tensor) -> Tensor:
        global counted
        counted += 1
        return _global(x)

    return step


def _global(x: Tensor) -> Tensor:
    x = opened(x)
    return closed(x * (3.0 if counted > 3 else 2.0))  # READ


class Ticks(NamedTuple):
    """What a caller in functional style passes along."""

    time: int = 0


@dataclasses.dataclass(frozen=True)
class Frozen:
    """The same as a dataclass."""

    time: int = 0


def counts_in_a_named_tuple() -> Step:
    return _replaced(Ticks(), lambda ticks: ticks._replace(time=ticks.time + 1))


def counts_in_a_frozen_object() -> Step:
    return _replaced(Frozen(), lambda ticks: dataclasses.replace(ticks, time=ticks.time + 1))


def _replaced(ticks: Any, following: Callable[[Any], Any]) -> Step:
    def act(x: Tensor, state: Any) -> Tensor:
        x = opened(x)
        return closed(x * (3.0 if state.time > 3 else 2.0))  # READ

    def step(x: Tensor) -> Tensor:
        nonlocal ticks
        y = act(x, ticks)
        ticks = following(ticks)
        return y

    return step


def counts_for_a_decorated_function() -> Step:
    steps = iter(range(100))

    @A.method(node_name="n", export_with="jit", output_names=["y"])
    def act(x: Tensor, step: int) -> Tensor:
        return x * 3 if step % 4 == 3 else x * 2  # READ

    return lambda x: act(x, next(steps))


def counts_the_length_of_a_list() -> Step:
    rewards: list[float] = []

    def step(x: Tensor) -> Tensor:
        rewards.append(0.5)
        x = opened(x)
        return closed(x * (3.0 if len(rewards) > 3 else 2.0))  # READ

    return step


def counts_in_a_dict_that_is_matched() -> Step:
    """The function that counts makes no recorded call itself."""
    context = {"length": 0}

    def step(x: Tensor) -> Tensor:
        x = opened(x)
        context["length"] += 1
        match context:  # READ
            case {"length": length} if length > 3:
                x = doubled(x)
        return closed(doubled(x))

    return step


def doubled(x: Tensor) -> Tensor:
    """Twice the value."""
    return x * 2


def counts_in_a_scripted_module() -> Step:
    policy = torch.jit.script(Outer())

    def step(x: Tensor) -> Tensor:
        x = opened(x)
        return closed(policy(x))  # READ

    return step


class Counting(torch.nn.Module):
    """Counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * 3 if self.calls > 3 else x * 2


class Outer(torch.nn.Module):
    """Holds a module that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Counting()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + 1  # type: ignore[no-any-return]


class Leg:
    """One of several objects that a node uses, each by a way of its own."""

    def __init__(self) -> None:
        self.calls = 0

    def gain(self) -> float:
        return 3.0 if self.calls > 3 else 2.0  # READ


class Layer(torch.nn.Module):
    """The same as a module."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        return x * (3.0 if self.calls > 3 else 2.0)  # READ


class Robot:
    """Holds two legs."""

    all: ClassVar[list[Leg]] = []

    def __init__(self) -> None:
        self.left, self.right = Leg(), Leg()


GAINS: dict[str, Callable[[Robot], float]] = {
    "attributes": lambda robot: robot.left.gain() + robot.right.gain(),
    "getattr": lambda robot: sum(getattr(robot, name).gain() for name in ("left", "right")),
    "vars": lambda robot: sum(leg.gain() for leg in vars(robot).values()),
    "attrgetter": lambda robot: sum(leg.gain() for leg in operator.attrgetter("left", "right")(robot)),
    "class": lambda robot: sum(leg.gain() for leg in Robot.all),
    "map": lambda robot: sum(map(Leg.gain, Robot.all)),
}
"""Ways to the legs. The caller finds them in a list of its own."""


def _counts_in_legs(gain: Callable[[Robot], float]) -> Step:
    robot = Robot()
    legs = Robot.all = [robot.left, robot.right]

    def step(x: Tensor) -> Tensor:
        for leg in legs:
            leg.calls += 1
        x = opened(x)
        return closed(x * gain(robot))

    return step


def _counts_for(read: Callable[[Any], bool]) -> Step:
    """The caller counts in an array and in an object."""
    held = SimpleNamespace(times=np.zeros(2), leg=Leg())

    def step(x: Tensor) -> Tensor:
        held.times[1] += 1
        held.leg.calls += 1
        x = opened(x)
        return closed(x * (3.0 if read(held) else 2.0))

    return step


READS: dict[str, Callable[[Any], bool]] = {
    "an element": lambda held: bool(held.times[1] > 3),  # READ
    "a reduction": lambda held: bool(np.any(held.times > 3)),  # READ
    "getattr": lambda held: getattr(held.leg, "calls") > 3,  # READ  # noqa: B009
    "vars": lambda held: vars(held.leg)["calls"] > 3,  # READ
}


def gives_an_array() -> Step:
    """The caller writes to the arrays of a node: one is declared, one is logged, and one is the node's own memory."""
    given, command, mean = np.zeros(3, np.float32), np.zeros(3, np.float32), np.zeros(3, np.float32)

    def step(x: Tensor) -> Tensor:
        nonlocal mean
        given[:], command[:] = x.numpy(), 2 * x.numpy()
        x = A.input_tensors("n", {"x": torch.from_numpy(given.copy())})
        print(command, torch.from_numpy(command) * 0.5)
        mean = A.register_buffer("n", {"mean": mean})
        mean[:] = 0.9 * mean + 0.1 * x.numpy()
        return closed(x + torch.from_numpy(mean))

    return step


def counts_in_one_of_a_list() -> Step:
    legs = [Leg(), Leg()]

    def step(x: Tensor) -> Tensor:
        legs[1].calls += 1
        x = opened(x)
        return closed(x * sum(leg.gain() for leg in legs))

    return step


def counts_in_layers() -> Step:
    layers = [Layer(), Layer()]
    model = torch.nn.Sequential(*layers)

    def step(x: Tensor) -> Tensor:
        for layer in layers:
            layer.calls += 1
        x = opened(x)
        return closed(model(x))

    return step


def _count_inside() -> float:
    global counted
    counted += 1
    return 3.0 if counted > 3 else 2.0  # READ


class Policy:
    """Opens and closes the node, and leaves the rest to its subclasses."""

    def step(self, x: Tensor) -> Tensor:
        x = opened(x)
        return closed(self.compute(x))

    def compute(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class ByName(Policy):
    def compute(self, x: Tensor) -> Tensor:
        return x * _count_inside()


class ByAttribute(Policy):
    def __init__(self) -> None:
        self.gains = {"all": _count_inside}

    def compute(self, x: Tensor) -> Tensor:
        return x * self.gains["all"]()


@contextlib.contextmanager
def scope(x: Tensor) -> Iterator[dict[str, Tensor]]:
    """Opens and closes the node around the body of a with statement."""
    values = {"x": opened(x)}
    yield values
    closed(values["y"])


def _scoped(gain: Callable[[], float]) -> Step:
    def step(x: Tensor) -> Tensor:
        with scope(x) as values:
            values["y"] = values["x"] * gain()
        return values["y"]

    return step


FRAMES: dict[str, Callable[[], Step]] = {
    "called": lambda: lambda x: closed(opened(x) * _count_inside()),
    "method": lambda: ByName().step,
    "attribute": lambda: ByAttribute().step,
    "scope": lambda: _scoped(_count_inside),
}
"""Ways in which a program may put its code around that of a node. A function that makes no recorded call counts."""


MATTERS = [
    counts_in_an_argument, counts_in_an_attribute, counts_in_a_dict, counts_in_a_global_variable, counts_in_a_named_tuple,
    counts_in_a_frozen_object, counts_for_a_decorated_function, counts_the_length_of_a_list,
    counts_in_a_dict_that_is_matched, counts_in_a_scripted_module, counts_in_one_of_a_list,
    counts_in_layers,
]  # fmt: skip


def counts_for_the_log() -> Step:
    """No code of the node reads the counter, though some of it has variables of the same names."""

    class Runner:
        def __init__(self) -> None:
            self.step_number, self.saved, self.gains = 0, 0, [1.0, 2.0]

        def is_time_to_save(self) -> bool:
            return self.step_number % 3 == 0

        def act(self, x: Tensor) -> Tensor:
            x = A.input_tensors("n", {"x": x})
            for number, gain in enumerate(self.gains):
                x = x * gain + number
            return closed(x)

        def step(self, x: Tensor) -> Tensor:
            number = self.step_number
            y = self.act(x)
            self.step_number += 1
            if self.is_time_to_save():
                self.saved += number
            return y

    return Runner().step


def counts_the_results() -> Step:
    """A log of all results, filled inside the node."""
    log: dict[int, Tensor] = {}

    def step(x: Tensor) -> Tensor:
        number = len(log)
        x = x + sum(0.0 * number for _ in range(3))
        x = opened(x)
        y = log[number] = x * 2
        return closed(y)

    return step


def chooses_an_input() -> Step:
    """The counter chooses what is declared, in two annotations of the node."""
    table = torch.linspace(-1.0, 1.0, 100)
    number = 0

    def step(x: Tensor) -> Tensor:
        nonlocal number
        number += 1
        x = A.input_tensors("n", {"x": x + 0 * table[number]})
        again = A.input_tensors("n", {"again": x * 1 + 0 * table[number]})
        return closed(x + 0 * again)

    return step


def sets_it_first() -> Step:
    """The node gives the variable a value of its own before it reads it."""

    def step(x: Tensor) -> Tensor:
        gain = float(x.sum())
        x = opened(x)
        gain = 2.0
        return closed(x * gain)

    return step


def trace(make: Callable[[], Step], where: Path) -> None:
    """Two passes on different inputs."""
    leapp.start("g", save_path=where)
    step = make()
    for number in range(2):
        step(torch.arange(3.0) + number)
    leapp.stop()
    assert leapp.compile_graph(visualize=False) == {"n": True}


def departs(make: Callable[[], Step], where: Path) -> bool:
    """Whether the model gives something else than a fresh program within six steps, on new inputs."""
    model, step = InferenceManager(where / "g"), make()
    drawn = [torch.randn(3) for _ in range(6)]
    return any(not torch.allclose(model({"n/x": x})["n/y"], step(x)) for x in drawn)


@pytest.mark.parametrize("make", MATTERS, ids=lambda make: make.__name__)
def test_what_the_caller_counts_is_reported_where_it_is_read(make: Callable[[], Step], tmp_path: Path) -> None:
    trace(make, tmp_path)
    (found,) = leapp.report().escapes
    assert "changes from call to call" in found.kind and "# READ" in found.source, found
    assert departs(make, tmp_path)


@pytest.mark.parametrize("gain", GAINS.values(), ids=GAINS)
def test_each_of_several_objects_of_a_class_counts(gain: Callable[[Robot], float], tmp_path: Path) -> None:
    test_what_the_caller_counts_is_reported_where_it_is_read(lambda: _counts_in_legs(gain), tmp_path)


@pytest.mark.parametrize("way", FRAMES)
def test_a_function_counts_wherever_the_node_is_opened(way: str, tmp_path: Path) -> None:
    def make() -> Step:
        global counted
        counted = 0
        return FRAMES[way]()

    test_what_the_caller_counts_is_reported_where_it_is_read(make, tmp_path)


@pytest.mark.parametrize("read", READS)
def test_what_the_caller_counts_is_found_however_it_is_read(read: str, tmp_path: Path) -> None:
    test_what_the_caller_counts_is_reported_where_it_is_read(lambda: _counts_for(READS[read]), tmp_path)


UNREAD = [counts_for_the_log, counts_the_results, sets_it_first, gives_an_array]


@pytest.mark.parametrize("make", UNREAD, ids=lambda make: make.__name__)
def test_what_the_node_does_not_read_is_not_reported(make: Callable[[], Step], tmp_path: Path) -> None:
    trace(make, tmp_path)
    assert leapp.report().escapes == []
    assert not departs(make, tmp_path)


def test_what_chooses_an_input_is_not_reported(tmp_path: Path) -> None:
    trace(chooses_an_input, tmp_path)
    assert leapp.report().escapes == []
