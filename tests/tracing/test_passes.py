"""The second pass is recorded and compared with the first: what differs is refused with its line and a remedy."""

from __future__ import annotations

import datetime
import gc
import itertools
import random
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import leapp
from leapp import InferenceManager, annotate
from leapp.errors import AnnotationError, TraceError, ValidationError
from tests.warm import run_python

A = annotate
Tensor = torch.Tensor
Step = Callable[[Tensor], Tensor]


def values(number: int) -> Tensor:
    """What the pass of that number gets."""
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(number))


def trace(
    where: Path, step: Step, passes: int = 2, backend: str = "jit", draw: Callable[[int], Tensor] = values, **start: Any
) -> None:
    """Trace a function as the one node of a graph."""
    leapp.start("g", save_path=where, **start)
    try:
        for number in range(passes):
            x = A.input_tensors("n", {"x": draw(number)})
            A.output_tensors("n", {"y": step(x)}, export_with=backend)
    finally:
        leapp.stop()


def exported(where: Path, x: Tensor) -> Tensor:
    """What the written bundle gives."""
    return InferenceManager(str(where / "g" / "g.yaml"))({"n/x": x})["n/y"]


# -- what differs ------------------------------------------------------------------------------------------------------


def _counter() -> Step:
    count = itertools.count()
    return lambda x: x * float(next(count))  # HERE


def _clock() -> Step:
    return lambda x: x + time.perf_counter()  # HERE


def _branch_in_python() -> Step:
    count = itertools.count()

    def step(x: Tensor) -> Tensor:
        first = next(count) == 0
        y = x * 2
        return y.sin() if first else y.cos()  # HERE

    return step


def _one_call_more() -> Step:
    count = itertools.count()

    def step(x: Tensor) -> Tensor:
        for _ in range(next(count) + 1):
            x = x.tanh()  # HERE
        return x

    return step


def _size() -> Step:
    count = itertools.count(1)
    return lambda x: x[:, : next(count)].sum(1, keepdim=True) + x  # HERE


def _state() -> Step:
    h = torch.zeros(3, 4)

    def step(x: Tensor) -> Tensor:
        nonlocal h
        h = 0.9 * h + x  # HERE
        return h * 2

    return step


def _state_seen_through_a_view() -> Step:
    kept = {"h": torch.zeros(3, 4)}

    def step(x: Tensor) -> Tensor:
        y = x + kept["h"][0]  # HERE
        kept["h"] = x * 1.0
        return y

    return step


def _buffer_written_between() -> Step:
    gain = torch.ones(4)

    def step(x: Tensor) -> Tensor:
        y = x * gain  # HERE
        gain.data.add_(1)
        return y

    return step


def _weights_trained_between() -> Step:
    layer = nn.Linear(4, 4)

    def step(x: Tensor) -> Tensor:
        y = layer(x)  # HERE
        with torch.no_grad():
            layer.weight.mul_(1.5)
        return y

    return step


def _random() -> Step:
    generator = torch.Generator()
    return lambda x: x + torch.rand(4, generator=generator)  # HERE


def _numpy() -> Step:
    generator = np.random.default_rng(0)
    return lambda x: x * float(generator.normal())  # HERE


DIFFERS: dict[str, tuple[Callable[[], Step], str]] = {
    "a counter": (_counter, "a number that differs.*keep it a tensor, or declare it"),
    "a clock": (_clock, "a number that differs.*keep it a tensor"),
    "a branch": (_branch_in_python, "run different calls.*sin.*cos.*torch.where"),
    "a loop": (_one_call_more, "run different calls"),
    "a size": (_size, "a number that differs"),
    "state": (_state, r"undeclared state.*state_tensors\(\) and update_state\(\)"),
    "state through a view": (_state_seen_through_a_view, "undeclared state"),
    "a buffer": (_buffer_written_between, r"undeclared state.*register_buffer\(\)"),
    "weights": (_weights_trained_between, "weight.*without training"),
    "a random constant": (_random, r"random numbers, drawn once and frozen.*input_tensors\(\)"),
    "a generator": (_numpy, "a number that differs"),
}


@pytest.mark.parametrize("name", DIFFERS)
def test_what_differs_between_the_passes_is_refused_with_its_line(name: str, tmp_path: Path) -> None:
    """The line, what it was in each pass, and what to do about it."""
    make, words = DIFFERS[name]
    trace(tmp_path, make())
    with pytest.raises(TraceError, match=rf"(?s){words}") as caught:
        leapp.compile_graph(visualize=False)
    assert "# HERE" in str(caught.value) and "test_passes.py:" in str(caught.value)
    assert "in the second" in str(caught.value)
    assert not (tmp_path / "g" / "g.yaml").exists()


# -- what does not matter ----------------------------------------------------------------------------------------------


def _logged() -> Step:
    seen: list[float] = []

    def step(x: Tensor) -> Tensor:
        y = x.tanh()
        seen.append(y.norm().item())
        print(f"{time.time()} {y.mean():.3f}")
        return y

    return step


def _uninitialised() -> Step:
    count = itertools.count()

    def step(x: Tensor) -> Tensor:
        y = torch.full((3, 4), float(next(count)))  # as torch.empty() leaves it: something else each time
        y[:2], y[2:] = x[:2], x[2:] * 2
        return y

    return step


def _mask_made_once() -> Step:
    kept: dict[str, Tensor] = {}

    def step(x: Tensor) -> Tensor:
        if "mask" not in kept:
            kept["mask"] = torch.ones_like(x).tril()
        return x * kept["mask"]

    return step


def _calls_of_no_consequence() -> Step:
    count = itertools.count()

    def step(x: Tensor) -> Tensor:
        if next(count):
            (x * 3).sum()
        return x.exp()

    return step


def _getter_in_training() -> Step:
    norm = nn.BatchNorm1d(4)  # uses the statistics of the batch, and only writes those of all passes
    return lambda x: norm(x)


def _part_of_a_kept_buffer() -> Step:
    buffer = torch.ones(3, 6)

    def step(x: Tensor) -> Tensor:
        buffer[:, :4] = x
        return buffer * 2

    return step


SAME: dict[str, Callable[[], Step]] = {
    "logged": _logged,
    "uninitialised memory": _uninitialised,
    "a part that is overwritten": _part_of_a_kept_buffer,
    "computed once": _mask_made_once,
    "reaches no output": _calls_of_no_consequence,
    "statistics": _getter_in_training,
}


@pytest.mark.parametrize("backend", ["jit", "onnx"])
@pytest.mark.parametrize("name", SAME)
def test_what_reaches_no_output_may_differ(name: str, backend: str, tmp_path: Path) -> None:
    """The export is right on new inputs."""
    trace(tmp_path, SAME[name](), 3, backend)
    leapp.compile_graph(visualize=False)
    torch.testing.assert_close(exported(tmp_path, values(9)), SAME[name]()(values(9)).detach(), rtol=1e-4, atol=1e-5)


def test_declared_state_and_buffers_are_no_difference(tmp_path: Path) -> None:
    """Their values change from pass to pass, as they should."""

    def program() -> Callable[[Tensor], Tensor]:
        h, ring, module = torch.zeros(4), torch.zeros(2, 4), nn.Module()
        module.register_buffer("total", torch.zeros(4))

        def step(x: Tensor) -> Tensor:
            nonlocal h
            x = A.input_tensors("n", {"x": x})
            h = A.state_tensors("n", {"h": h})
            A.register_buffer("n", {"ring": ring})
            A.module("n", module)
            ring[1:] = ring[:-1].clone()
            ring[0] = x[0]
            module.total = module.total + x[1]
            h = h * 0.5 + x[2]
            A.update_state("n", {"h": h})
            y = h + ring.sum(0) + module.total
            A.output_tensors("n", {"y": y}, export_with="jit")
            return y

        return step

    leapp.start("g", save_path=tmp_path)
    step = program()
    for number in range(3):
        step(values(number))
    leapp.stop()
    leapp.compile_graph(visualize=False)
    assert leapp.report().escapes == []
    manager, step = InferenceManager(str(tmp_path / "g" / "g.yaml")), program()
    for number in range(20, 26):
        torch.testing.assert_close(manager({"n/x": values(number)})["n/y"], step(values(number)))


def _loop(where: Path, wrong: bool, first: bool) -> nn.Module:
    """A network whose output is its next state. The state needs gradients in the second pass, or in the first only."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.ELU(), nn.Linear(8, 2))
    state = torch.zeros(1, 2, requires_grad=first)
    gains = iter([1.0, 2.0])
    leapp.start("g", save_path=where)
    try:
        for _ in range(2):
            x = A.input_tensors("n", {"x": torch.randn(1, 4)})
            h = A.state_tensors("n", {"h": state})
            y = network(x) + 0.1 * h
            if wrong:
                y = y * next(gains)  # HERE
            state = A.update_state("n", {"h": y.detach() if first else y})
            A.output_tensors("n", {"y": y}, export_with="jit")
    finally:
        leapp.stop()
    return network


@pytest.mark.parametrize("first", [False, True], ids=["second", "first"])
def test_a_state_that_brings_gradients_along_is_no_difference(first: bool, tmp_path: Path) -> None:
    network = _loop(tmp_path, wrong=False, first=first)
    leapp.compile_graph()
    manager, h = InferenceManager(str(tmp_path / "g" / "g.yaml")), torch.zeros(1, 2)
    for x in torch.randn(4, 1, 4):
        with torch.no_grad():
            h = network(x) + 0.1 * h
        torch.testing.assert_close(manager({"n/x": x})["n/y"], h)


@pytest.mark.parametrize("first", [False, True], ids=["second", "first"])
def test_gradients_do_not_hide_what_differs(first: bool, tmp_path: Path) -> None:
    _loop(tmp_path, wrong=True, first=first)
    with pytest.raises(TraceError, match=r"a number that differs between the passes at .*# HERE"):
        leapp.compile_graph()


def test_a_branch_taken_alike_in_both_passes_is_reported(tmp_path: Path) -> None:
    def step(x: Tensor) -> Tensor:
        if x.sum() > -1000:  # HERE
            return x * 2
        return x

    trace(tmp_path, step)
    leapp.compile_graph(visualize=False)
    (found,) = leapp.report().escapes
    assert "bool" in found.kind and "# HERE" in found.source and not found.varies
    trace(tmp_path, step, escapes="error")
    with pytest.raises(TraceError, match="# HERE"):
        leapp.compile_graph(visualize=False)


def _integrator_at_rest() -> Step:
    keeps = _Keeps()
    keeps.value = torch.zeros(3, 4)

    def step(x: Tensor) -> Tensor:
        keeps.value = keeps.value + torch.relu(x - 50)  # HERE
        return x + keeps.value

    return step


def _latch_in_a_closure() -> Step:
    on = np.zeros((3, 4), bool)

    def step(x: Tensor) -> Tensor:
        nonlocal on
        on = on | (x.numpy() > 50)  # HERE
        return x * torch.from_numpy(np.where(on, np.float32(0), np.float32(1)))

    return step


def _written_first(write: Callable[[Tensor, Tensor], object]) -> Callable[[], Step]:
    """Memory that a step writes to before it reads it, under a condition that no traced pass meets."""

    def make() -> Step:
        total = torch.zeros(3, 4)

        def step(x: Tensor) -> Tensor:
            write(total, x)  # a model that begins each call with zeros would be wrong
            return x + total

        step.total = total  # type: ignore[attr-defined]
        return step

    return make


def _latch_that_begins_with_none() -> Step:
    keeps = _Keeps()
    keeps.value = None

    def step(x: Tensor) -> Tensor:
        y = x if keeps.value is None else x + keeps.value  # HERE
        keeps.value = torch.relu(x - 50)
        return y * 2

    return step


def _latch(write: Callable[[Tensor, Tensor], object]) -> Callable[[], Step]:
    """Memory that a step reads first and writes to under a condition that no traced pass meets."""

    def make() -> Step:
        mask = torch.zeros(3, 4)

        def step(x: Tensor) -> Tensor:
            y = x + mask.clone()  # HERE
            write(mask, x)
            return y

        return step

    return make


LATCHES: dict[str, Callable[[], Step]] = {
    "an integrator at rest": _integrator_at_rest,
    "a buffer at rest": _written_first(lambda t, x: t.add_(torch.relu(x - 50))),  # HERE
    "a mask": _written_first(lambda t, x: t.__setitem__(x > 50, 1.0)),  # HERE
    "a largest value": _written_first(lambda t, x: torch.maximum(t, (x > 50).float(), out=t)),  # HERE
    "a mask through .numpy()": _written_first(lambda t, x: t.numpy().__setitem__((x > 50).numpy(), 1.0)),  # HERE
    "in a closure": _latch_in_a_closure,
    "begins with None": _latch_that_begins_with_none,
    "a number under a mask": _latch(lambda m, x: m.__setitem__(x > 50, 1.0)),
    "through a view": _latch(lambda m, x: m.view(-1).__setitem__((x > 50).view(-1), 1.0)),
    "through a slice": _latch(lambda m, x: m[1:].__setitem__(x[1:] > 50, 1.0)),
    "through .data": _latch(lambda m, x: m.data.__setitem__(x > 50, 1.0)),
    "an element": _latch(lambda m, x: m.__setitem__(0, (x[0] > 50).float())),
    "masked_fill_": _latch(lambda m, x: m.masked_fill_(x > 50, 1.0)),
    "out=": _latch(lambda m, x: torch.maximum(m, (x > 50).float(), out=m)),
}


@pytest.mark.parametrize("name", LATCHES)
def test_state_that_is_the_same_in_both_passes_is_refused(name: str, tmp_path: Path) -> None:
    """The second pass reads what the first one made. That it was equal so far is chance."""
    trace(tmp_path, LATCHES[name]())
    with pytest.raises(TraceError, match="undeclared state.*# HERE.*the same in both passes.*state_tensors|register_buffer"):
        leapp.compile_graph(visualize=False)


def test_memory_that_no_second_pass_reads_again_is_reported(tmp_path: Path) -> None:
    """It is other memory in every call, so that no pass proves it to be state."""

    def program() -> Step:
        totals = [torch.zeros(3, 4) for _ in range(3)]
        unused = list(totals)

        def step(x: Tensor) -> Tensor:
            return x + unused.pop().add_(torch.relu(x - 50))  # HERE

        step.totals = totals  # type: ignore[attr-defined]
        return step

    kept = [program(), program()]
    trace(tmp_path, kept[0])
    leapp.compile_graph(visualize=False)
    (found,) = leapp.report().escapes
    assert found.kind.startswith("undeclared state") and "# HERE" in found.source and "state_tensors" in str(found)
    trace(tmp_path, kept[1], escapes="error")
    with pytest.raises(TraceError, match="undeclared state.*# HERE"):
        leapp.compile_graph(visualize=False)


def test_scratch_memory_with_the_same_content_in_both_passes_is_no_state(tmp_path: Path) -> None:
    """Every step writes all that it reads."""
    scratch = torch.zeros(2, 3, 4)

    def step(x: Tensor) -> Tensor:
        scratch[0] = x
        scratch[1] = (x > 50).float()
        return scratch.sum(0)

    trace(tmp_path, step)
    leapp.compile_graph(visualize=False)
    assert leapp.report().escapes == []
    torch.testing.assert_close(exported(tmp_path, values(9) * 30), step(values(9) * 30))


def test_state_that_begins_with_the_first_value_is_named(tmp_path: Path) -> None:
    """The first pass runs other lines than the second; what the user has to know is that the value is state."""
    keeps = _Keeps()
    keeps.value = None

    def step(x: Tensor) -> Tensor:
        if keeps.value is None:
            keeps.value = x * 1
        keeps.value = keeps.value * 0.9 + x * 0.1
        return keeps.value + 1

    trace(tmp_path, step)
    with pytest.raises(TraceError, match="undeclared state: the value that the pass before made"):
        leapp.compile_graph(visualize=False)


def test_a_history_is_told_once_with_the_line_that_reads_it(tmp_path: Path) -> None:
    """Its elements are one state to the user, and what two passes show is not said to be for a second pass to tell."""
    keeps = _Keeps()
    keeps.value = deque(maxlen=3)

    def step(x: Tensor) -> Tensor:
        if not keeps.value:
            keeps.value.extend(torch.zeros_like(x) for _ in range(3))
        keeps.value.append(x * 2)
        return torch.cat(list(keeps.value))

    trace(tmp_path, step)
    with pytest.raises(TraceError) as refused:
        leapp.compile_graph(visualize=False)
    told = str(refused.value)
    assert told.count("_Keeps.value[") == 1
    assert "a second pass tells" not in told
    assert "is read at" in told
    assert "torch.cat(list(keeps.value))" in told


def test_a_frozen_size_that_does_not_fit_the_second_pass(tmp_path: Path) -> None:
    """Replaying the first pass on the second one's inputs fails inside torch; the line is named all the same."""

    def step(x: Tensor) -> Tensor:
        chosen = x[x > 0]
        padded = torch.cat([chosen, torch.zeros(12 - len(chosen))])  # HERE
        return x + padded.reshape(3, 4) * float(x.sum() > 0)

    trace(tmp_path, step, 3)
    with pytest.raises(TraceError, match="# HERE"):
        leapp.compile_graph(visualize=False)


# -- how many passes ---------------------------------------------------------------------------------------------------


def warnings(where: Path) -> str:
    return (where / "g" / "log.txt").read_text()


def test_one_pass_is_said_to_prove_nothing(tmp_path: Path) -> None:
    trace(tmp_path, lambda x: x * 2, 1)
    leapp.compile_graph(visualize=False)
    assert warnings(tmp_path).count("'n' was traced in one pass only") == 1 and "min_passes=2" in warnings(tmp_path)


def test_min_passes_refuses_fewer(tmp_path: Path) -> None:
    trace(tmp_path, lambda x: x * 2, 1, min_passes=2)
    with pytest.raises(TraceError, match=r"min_passes=2.*'n' \(1\)"):
        leapp.compile_graph(visualize=False)
    assert not (tmp_path / "g" / "g.yaml").exists()
    trace(tmp_path, lambda x: x * 2, 2, min_passes=2)
    leapp.compile_graph(visualize=False)
    assert "one pass" not in warnings(tmp_path)
    for wrong in (0, -1, 1.5, True, "2"):
        with pytest.raises(AnnotationError, match="min_passes"):
            leapp.start("g", save_path=tmp_path, min_passes=wrong)  # type: ignore[arg-type]


def test_passes_on_the_same_inputs_are_told(tmp_path: Path) -> None:
    trace(tmp_path, lambda x: x * 2, draw=lambda _: torch.ones(3, 4))
    leapp.compile_graph(visualize=False)
    assert "'n' had the same inputs in every pass" in warnings(tmp_path)


@pytest.mark.parametrize("delay", [3, 9])
def test_what_changes_less_often_than_every_pass(delay: int, tmp_path: Path) -> None:
    """The recorded passes agree; a later one that is compared at its ports does not, and that is said."""
    (tmp_path / "gains").write_text("1.0\n" * delay + "2.0\n" * 8)
    with (tmp_path / "gains").open() as gains:
        trace(tmp_path, lambda x: x * float(next(gains)), delay + 8)
    with pytest.raises(ValidationError, match="first two passes were recorded and agree.*more passes"):
        leapp.compile_graph(visualize=False)


def test_an_iterator_that_a_later_pass_shows_is_named(tmp_path: Path) -> None:
    gains = itertools.chain([1.0] * 3, itertools.repeat(2.0))
    trace(tmp_path, lambda x: x * next(gains), 5)
    with pytest.raises(TraceError, match=r"gains of <lambda>\(\) is different after the pass.*next\(gains\)"):
        leapp.compile_graph(visualize=False)


def test_a_second_pass_that_raised_is_run_again(tmp_path: Path) -> None:
    """What the attempt had recorded is dropped."""
    leapp.start("g", save_path=tmp_path)
    for number in (0, 1, 2):
        x = A.input_tensors("n", {"x": values(number)})
        y = x.sin() if number == 1 else x * 2
        if number == 1:
            continue  # as after an exception: no outputs
        A.output_tensors("n", {"y": y}, export_with="jit")
    leapp.stop()
    leapp.compile_graph(visualize=False)
    torch.testing.assert_close(exported(tmp_path, values(9)), values(9) * 2)


# -- values that outlive their pass ------------------------------------------------------------------------------------

KEPT_GLOBALLY: deque[Tensor] = deque(maxlen=2)


class _Keeps:
    """Something that remembers."""

    def __init__(self) -> None:
        self.h, self.queue, self.table = torch.zeros(3, 4), deque([torch.zeros(3, 4)] * 3), {"last": torch.zeros(3, 4)}
        self.nothing: Tensor | None = None
        self.actions: list[Tensor] = []


class _Slotted:
    __slots__ = ("h",)

    def __init__(self) -> None:
        self.h = torch.zeros(3, 4)


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.h  # READ
        self.h = x * 0.5  # MADE
        return y


def _predicts_then_corrects(k: _Keeps, x: Tensor) -> Tensor:
    k.h = 0.9 * k.h  # READ
    k.h = k.h + 0.5 * (x - k.h)  # MADE
    return k.h * 2.0


def _difference_of_inputs(k: _Keeps, x: Tensor) -> Tensor:
    y, k.h = x - k.h, x * 1.0  # MADE
    return y


def _starts_with_nothing(k: _Keeps, x: Tensor) -> Tensor:
    y = x if k.nothing is None else x + k.nothing  # READ
    k.nothing = x * 0.5  # MADE
    return y * 2.0


def _action_queue(k: _Keeps, x: Tensor) -> Tensor:
    if not k.actions:
        k.actions = list((x[:, None] * torch.arange(1.0, 4.0)[None, :, None]).unbind(1))  # MADE
    return k.actions.pop(0) * 1.0  # READ


def _history(k: _Keeps, x: Tensor) -> Tensor:
    k.queue.append(x * 1.0)  # MADE
    k.queue.popleft()
    return torch.stack(list(k.queue)).sum(0) + x  # READ


def _in_a_dict(k: _Keeps, x: Tensor) -> Tensor:
    y = x + k.table["last"]  # READ
    k.table["last"] = x * 2.0  # MADE
    return y


def _through_data(k: _Keeps, x: Tensor) -> Tensor:
    y = x + k.h  # READ
    k.h.data = x * 2.0  # MADE
    return y


def _in_slots(k: _Slotted, x: Tensor) -> Tensor:
    y = x + k.h  # READ
    k.h = x * 0.5  # MADE
    return y


class _KeepsArrays:
    """Something that remembers in NumPy."""

    def __init__(self) -> None:
        self.h, self.queue = np.zeros((3, 4), np.float32), deque([np.zeros((3, 4), np.float32)] * 2, maxlen=2)
        self.mean: Any = np.float32(0)


def _array_attribute(k: _KeepsArrays, x: Tensor) -> Tensor:
    k.h = k.h + np.float32(0.1) * x.numpy()  # MADE
    return torch.from_numpy(k.h * 2)


def _array_queue(k: _KeepsArrays, x: Tensor) -> Tensor:
    k.queue.append(x.numpy() * 0.5)  # MADE
    return torch.from_numpy(k.queue[0] + k.queue[1])


def _numpy_number(k: _KeepsArrays, x: Tensor) -> Tensor:
    k.mean = k.mean * np.float32(0.9) + x.numpy().mean()  # MADE
    return x - torch.from_numpy(np.asarray(k.mean))


def _in_a_global(_: Any, x: Tensor) -> Tensor:
    KEPT_GLOBALLY.append(x * 1.0)  # MADE
    return KEPT_GLOBALLY[0] + x  # READ


OUTLIVES: dict[str, tuple[Callable[[], Any], Callable[[Any, Tensor], Tensor]]] = {
    "a filter that predicts, then corrects": (_Keeps, _predicts_then_corrects),
    "the input of the last call": (_Keeps, _difference_of_inputs),
    "an attribute that was empty": (_Keeps, _starts_with_nothing),
    "an action queue": (_Keeps, _action_queue),
    "a history": (_Keeps, _history),
    "a dict": (_Keeps, _in_a_dict),
    "through .data": (_Keeps, _through_data),
    "slots": (_Slotted, _in_slots),
    "a module's buffer": (_Layer, lambda layer, x: layer(x)),
    "a global queue": (KEPT_GLOBALLY.clear, _in_a_global),
    "an array": (_KeepsArrays, _array_attribute),
    "a queue of arrays": (_KeepsArrays, _array_queue),
    "a NumPy number": (_KeepsArrays, _numpy_number),
}


@pytest.mark.parametrize("name", OUTLIVES)
def test_a_value_that_outlives_its_pass(name: str, tmp_path: Path) -> None:
    """One pass reports it with the line that made it or reads it; a second one that reads it refuses the export."""
    make, step = OUTLIVES[name]
    kept = make()
    trace(tmp_path, lambda x: step(kept, x), 1)
    found = leapp.report().escapes
    assert found and all(not e.varies for e in found), found
    assert any("# MADE" in e.source or "# READ" in e.source for e in found), found
    kept = make()
    trace(tmp_path, lambda x: step(kept, x), 2)
    place = r"(# (READ|MADE)|made at .*test_passes\.py:\d+ is read)"
    with pytest.raises(TraceError, match=rf"(undeclared state|differs between the passes).*{place}"):
        leapp.compile_graph(visualize=False)


def test_a_delay_that_two_passes_do_not_read(tmp_path: Path) -> None:
    """What it holds is reported with the line and the holder; passes enough to read it refuse the export."""

    def delayed() -> Step:
        keeps = _Keeps()

        def step(x: Tensor) -> Tensor:
            keeps.queue.append(x * 1.0)  # MADE
            return keeps.queue.popleft() + x

        return step

    held = delayed()
    trace(tmp_path, held, 2)
    found = [e for e in leapp.report().escapes if "# MADE" in e.source]
    assert found and "outlives its pass: _Keeps.queue" in found[0].kind, leapp.report()
    trace(tmp_path, delayed(), 5)
    with pytest.raises(TraceError, match="undeclared state.*popleft"):
        leapp.compile_graph(visualize=False)


INFO: dict[str, Tensor] = {}


def test_variables_of_the_script_are_no_memory(tmp_path: Path) -> None:
    """Neither those of running functions, nor global ones, nor what is published or declared."""
    global INFO
    leapp.start("g", save_path=tmp_path)
    h, last = torch.zeros(3, 4), torch.zeros(3, 4)
    for number in range(1):
        x, before = A.input_tensors("n", {"x": values(number), "last": last})
        h = A.state_tensors("n", {"h": h})
        inner = x.tanh() + before
        INFO = {"inner": inner, "list": [inner * 2]}  # type: ignore[dict-item]
        h = h + inner
        A.update_state("n", {"h": h})
        last = h * 2
        A.output_tensors("n", {"y": last}, export_with="jit")
    leapp.stop()
    assert leapp.report().escapes == []


_GONE = """
import sys, torch, leapp
from leapp import annotate

names = [f"gone_{number}" for number in range(400)]
for number in range(10):
    globals().update({name: {} for name in names})
    leapp.start("g", save_path=sys.argv[1])
    x = annotate.input_tensors("n", {"x": torch.randn(3)})
    inner = x.tanh()
    info = {"inner": inner, "list": [inner * 2]}
    globals().update(dict.fromkeys(names))
    annotate.output_tensors("n", {"y": inner + 1}, export_with="jit")
    leapp.stop()
    assert leapp.report().escapes == [], leapp.report()
"""


def test_a_container_in_the_place_of_one_that_is_gone_is_not_older(tmp_path: Path) -> None:
    """Global containers that a pass lets go of leave their places in memory to other ones, leapp's own among them."""
    (tmp_path / "program.py").write_text(_GONE)
    done = run_python(tmp_path / "program.py", tmp_path)
    assert done.returncode == 0, done.stderr


def test_what_a_second_pass_drops_or_declares_is_cleared(tmp_path: Path) -> None:
    keeps = _Keeps()
    leapp.start("g", save_path=tmp_path)
    for number in range(2):
        x, before = A.input_tensors("n", {"x": values(number), "before": keeps.h})
        keeps.nothing = x * 3.0  # replaced in every pass, read in none
        keeps.h = x * 0.5
        A.output_tensors("n", {"y": x + before}, export_with="jit")
    leapp.stop()
    assert [e for e in leapp.report().escapes if "outlives" in e.kind] == []


def test_a_value_that_only_a_variable_refers_to_is_searched_for_once(tmp_path: Path) -> None:
    """Each search looks at every object of the process. leapp's own containers must not lead to further ones."""
    searches = 0

    def count(_: Any, event: str, called: Any) -> None:
        nonlocal searches
        searches += event == "c_call" and called is gc.get_referrers

    leapp.start("g", save_path=tmp_path)
    x = A.input_tensors("n", {"x": values(0)})
    y = x * 2.0
    A.output_tensors("n", {"y": y + 1.0}, export_with="jit")
    leapp.stop()
    sys.setprofile(count)
    try:
        assert leapp.report().escapes == []
    finally:
        sys.setprofile(None)
    assert searches == 1


class _Remembers(nn.Module):
    """Keeps a buffer. torch keeps this module, with the first tensor of the buffer, beside the scripted one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(3, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h = self.h * 0.9 + x
        return self.h * 2


def test_the_first_tensor_of_a_tracked_buffer_is_no_memory(tmp_path: Path) -> None:
    module = torch.jit.script(_Remembers())

    def step(x: Tensor) -> Tensor:
        A.module("n", module)
        return module(x)  # type: ignore[no-any-return]

    trace(tmp_path, step)
    assert leapp.compile_graph(visualize=False) == {"n": True}
    assert leapp.report().escapes == []
    manager, eager = InferenceManager(str(tmp_path / "g" / "g.yaml")), _Remembers()
    for number in range(7, 10):
        torch.testing.assert_close(manager({"n/x": values(number)})["n/y"], eager(values(number)))


def test_garbage_in_a_cycle_holds_nothing(tmp_path: Path) -> None:
    """A transform and its inverse refer to each other: without a collection they live on, with the values they cache."""

    def step(x: Tensor) -> Tensor:
        squash = torch.distributions.TanhTransform(cache_size=1)
        y = squash(0.5 * x)
        return y + squash.inv(y) + squash.log_abs_det_jacobian(0.5 * x, y)

    gc.collect()
    gc.disable()
    try:
        trace(tmp_path, step)
        assert leapp.compile_graph(visualize=False) == {"n": True}
    finally:
        gc.enable()
    assert leapp.report().escapes == []
    torch.testing.assert_close(exported(tmp_path, values(7)), step(values(7)))


CACHED: dict[str, tuple[Step, bool]] = {
    "zeros_like": (torch.zeros_like, False),
    "new_ones": (lambda x: x.new_ones(x.shape) * 2, False),
    "a mask": (lambda x: torch.ones_like(x).tril(), False),
    "zero for small inputs": (lambda x: torch.relu(x - 50.0), True),
}


@pytest.mark.parametrize("name", CACHED)
def test_a_constant_that_the_first_pass_keeps(name: str, tmp_path: Path) -> None:
    """Two passes clear what no input changes, and nothing else."""
    make, refused = CACHED[name]
    keeps = _Keeps()

    def step(x: Tensor) -> Tensor:
        if keeps.nothing is None:
            keeps.nothing = make(x)
        return x + keeps.nothing

    trace(tmp_path, step, 2)
    assert bool(leapp.report().escapes) is refused, leapp.report().escapes
    with pytest.raises(TraceError, match="other inputs") if refused else nullcontext():
        leapp.compile_graph(visualize=False)


TABLE = np.linspace(0.0, 1.0, 12, dtype=np.float32).reshape(3, 4)


def test_a_row_that_another_number_chooses(tmp_path: Path) -> None:
    """The table did not change: another part of it is read. What the message advises is right on new inputs."""

    def draw(number: int) -> Tensor:
        return torch.eye(3, 4).roll(number, 0)

    trace(tmp_path, lambda x: torch.from_numpy(x.numpy() + TABLE[np.argmax(x.numpy()[:, 0])]), draw=draw)
    with pytest.raises(TraceError, match=r"(?s)test_passes\.py:\d+.*np\.take\(table, index\)") as refused:
        leapp.compile_graph(visualize=False)
    assert "register_buffer" not in str(refused.value)

    def step(x: Tensor) -> Tensor:
        return x + torch.from_numpy(np.take(TABLE, np.argmax(x.numpy()[:, 0]), axis=0))

    trace(tmp_path, step, draw=draw)
    leapp.compile_graph(visualize=False)
    x = torch.eye(3, 4).roll(2, 0)
    torch.testing.assert_close(exported(tmp_path, x), step(x))


# -- what one pass can tell --------------------------------------------------------------------------------------------

GENERATOR, STATE, PYTHON = np.random.default_rng(0), np.random.RandomState(0), random.Random(0)

NAMED: dict[str, tuple[Step, str]] = {
    "clock": (lambda x: x * (time.time() % 1), "time"),
    "calendar": (lambda x: x * datetime.datetime.now().microsecond, "time"),
    "imported by name": (lambda x: x * (monotonic() % 1), "time"),
    "random": (lambda x: x * random.random(), "random"),
    "np.random": (lambda x: x * np.random.rand(), "random"),
    "a generator": (lambda x: x * GENERATOR.normal(), "random"),
    "a state": (lambda x: x * STATE.rand(), "random"),
    "a generator of Python": (lambda x: x * PYTHON.random(), "random"),
}


@pytest.mark.parametrize("name", NAMED)
def test_clocks_and_generators_are_named_after_one_pass(name: str, tmp_path: Path) -> None:
    """Nothing replaces them: the code of the node is read. Two passes tell whether the number matters."""
    step, word = NAMED[name]
    trace(tmp_path, step, 1)
    found = [e for e in leapp.report().escapes if word in e.kind]
    assert len(found) == 1 and found[0].line == step.__code__.co_firstlineno and not found[0].varies, found
    trace(tmp_path, step, 2)
    with pytest.raises(TraceError, match=rf"test_passes\.py:{step.__code__.co_firstlineno}"):
        leapp.compile_graph(visualize=False)


def test_a_clock_that_reaches_no_output_is_cleared_by_two_passes(tmp_path: Path) -> None:
    def step(x: Tensor) -> Tensor:
        began = time.perf_counter()
        y = x * 2
        print(time.perf_counter() - began, random.random())
        return y

    trace(tmp_path, step, 2)
    leapp.compile_graph(visualize=False)
    assert leapp.report().escapes == []


def _drops() -> Step:
    return lambda x: x * 0.0 if random.random() < 1e-9 else x * 1.0  # HERE


def _ramps_by_the_clock() -> Step:
    began = time.monotonic()

    def step(x: Tensor) -> Tensor:
        passed = time.monotonic() - began  # HERE
        if passed < 3600:
            return x * 0.5
        return x * 1.0

    return step


class Timer:
    """Reads the clock in methods that make no recorded call."""

    def __init__(self) -> None:
        self.began = time.monotonic()

    def passed(self) -> float:
        return time.monotonic() - self.began

    def is_over(self) -> bool:
        return self.passed() > 3600  # HERE

    @property
    def gain(self) -> float:
        return 0.5 if time.monotonic() - self.began < 3600 else 1.0  # HERE

    @staticmethod
    def century() -> float:
        return 0.5 if datetime.datetime.now().year < 2100 else 1.0  # HERE


def _gain_of_the_hour() -> float:
    return 0.5 if time.time() > 0 else 1.0  # HERE


def _asks_a_function() -> Step:
    return lambda x: x * _gain_of_the_hour()


def _asks_in_a_generator() -> Step:
    return lambda x: x * sum(_gain_of_the_hour() for _ in range(2))


def _asks_a_method() -> Step:
    timer = Timer()
    return lambda x: x * (1.0 if timer.is_over() else 0.5)


def _asks_a_property() -> Step:
    timer = Timer()
    return lambda x: x * timer.gain


def _asks_a_static_method() -> Step:
    return lambda x: x * Timer.century()


DECIDING = [
    _drops, _ramps_by_the_clock, _asks_a_function, _asks_in_a_generator, _asks_a_method, _asks_a_property,
    _asks_a_static_method,
]  # fmt: skip


@pytest.mark.parametrize("make", DECIDING)
def test_a_clock_that_decides_is_reported(make: Callable[[], Step], tmp_path: Path) -> None:
    """The passes agree, as they made the same choice."""
    trace(tmp_path, make(), 2)
    leapp.compile_graph(visualize=False)
    (found,) = leapp.report().escapes
    assert "which decides something" in found.kind and "# HERE" in found.source and not found.varies, found
    assert ("torch.rand" if make is _drops else "measure the time outside of the node") in found.cure


@pytest.mark.parametrize("passes", [1, 2])
def test_a_clock_before_and_after_a_node_is_not_reported(passes: int, tmp_path: Path) -> None:
    leapp.start("g", save_path=tmp_path)
    for number in range(passes):
        late = _gain_of_the_hour() > 1 or Timer().is_over()
        x = annotate.input_tensors("n", {"x": torch.full((3,), 1.0 + number)})
        annotate.output_tensors("n", {"y": x * 2.0}, export_with="jit")
        assert not late and random.random() < Timer().gain + 1
    leapp.stop()
    assert leapp.report().escapes == []


# -- gradients ---------------------------------------------------------------------------------------------------------


def _by_grad(net: nn.Module, x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    return torch.autograd.grad(net(x).square().sum(), x)[0]


def _by_backward(net: nn.Module, x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    net(x).square().sum().backward()  # the weights accumulate gradients from pass to pass; no output reads them
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize("size", [8, 200])
@pytest.mark.parametrize("gradient", [_by_grad, _by_backward])
def test_gradients_through_small_and_large_weights(gradient: Any, size: int, tmp_path: Path) -> None:
    """A weight of more than 64 KiB is held by reference; that nothing wrote to it must be seen."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, size), nn.Tanh(), nn.Linear(size, size), nn.ELU(), nn.Linear(size, 2))
    trace(tmp_path, lambda x: gradient(net, x), 2)
    leapp.compile_graph(visualize=False)
    torch.testing.assert_close(exported(tmp_path, values(9)), _by_grad(net, values(9)), rtol=1e-4, atol=1e-5)
