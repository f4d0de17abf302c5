"""What one pass makes suspicious is reported with its line; a second pass proves it or clears it."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import enum
import functools
import importlib
import io
import itertools
import operator
import queue
import random
import re
import sys
import threading
import weakref
from collections import OrderedDict, UserDict, deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import leapp
from leapp import InferenceManager, annotate
from leapp.errors import TraceError, ValidationError

A = annotate
Tensor = torch.Tensor
HERE = "test_suspicions.py"


def trace(where: Path, step: Callable[[int], Any], passes: int, **start: Any) -> None:
    """Run a step a few times, each time on other values."""
    leapp.start("g", save_path=where, **start)
    try:
        with torch.no_grad():
            for number in range(passes):
                step(number)
    finally:
        leapp.stop()


def values(number: int) -> Tensor:
    """What the pass of that number gets."""
    return torch.arange(3.0) + number


def suspected(where: Path, make: Callable[[], Callable[[int], Any]], word: str) -> None:
    """One pass gives a warning with the line; two passes refuse the export, naming it."""
    step = make()
    trace(where, step, 1)
    leapp.compile_graph(visualize=False)
    escapes = leapp.report().escapes
    assert len(escapes) == 1 and word in escapes[0].kind and not escapes[0].varies, escapes
    assert escapes[0].file.endswith(HERE) and escapes[0].line > 0
    trace(where, make(), 2)
    with pytest.raises(TraceError, match=f"{re.escape(word)}.*{HERE}:{escapes[0].line}"):
        leapp.compile_graph(visualize=False)


def harmless(where: Path, step: Callable[[int], Any]) -> None:
    """One pass is enough to see that nothing is wrong."""
    trace(where, step, 1)
    leapp.compile_graph(visualize=False)
    assert leapp.report().escapes == []


# -- arrays ------------------------------------------------------------------------------------------------------------

MADE: dict[str, Callable[[], Any]] = {
    "linspace": lambda: np.linspace(0, 1, 3, dtype=np.float32),
    "ones": lambda: np.ones(3, np.float32),
    "arange": lambda: np.arange(3, dtype=np.float32),
    "computed": lambda: np.array([1, 2, 3], np.float32) * 2,
    "joined": lambda: np.concatenate([np.ones(2, np.float32), np.zeros(1, np.float32)]),
    "part": lambda: np.eye(3, dtype=np.float32)[0],
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
@pytest.mark.parametrize("torch_too", [False, True])
def test_arrays_made_in_the_pass_are_no_state(make: Callable[[], Any], torch_too: bool, tmp_path: Path) -> None:
    """They are new in every call, whatever is written to them."""

    def step(number: int) -> None:
        x = A.input_tensors("n", {"x": values(number).numpy()})
        a = make()
        y = x * (torch.from_numpy(a).numpy() if torch_too else a)
        a += 1
        a[0] = 5
        A.output_tensors("n", {"y": y * a}, export_with="jit")

    harmless(tmp_path, step)


OLD: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "read, then changed": lambda a, x: (torch.from_numpy(x.numpy() + a), a.__iadd__(1))[0],
    "from_numpy": lambda a, x: (x + (t := torch.from_numpy(a)), t.add_(1))[0],
    "as_tensor": lambda a, x: (x + (t := torch.as_tensor(a)), t.add_(1))[0],
    "as_tensor, traced": lambda a, x: torch.as_tensor(a).add_(x) * 1.0,
    "two tensors over it": lambda a, x: (x + torch.from_numpy(a), torch.from_numpy(a).add_(1))[0],
}


@pytest.mark.parametrize("update", OLD.values(), ids=OLD)
def test_arrays_that_are_older_than_the_node(update: Callable[[Any, Tensor], Tensor], tmp_path: Path) -> None:
    """An array that is read and changed is state, also through tensors over its memory."""

    def make() -> Callable[[int], None]:
        kept = np.zeros(3, np.float32)

        def step(number: int) -> None:
            x = A.input_tensors("n", {"x": values(number)})
            A.output_tensors("n", {"y": update(kept, x)}, export_with="jit")

        return step

    suspected(tmp_path, make, "undeclared state")


# -- attributes --------------------------------------------------------------------------------------------------------


class Keeper(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(3))
        self.kept, self.count, self.gain = torch.zeros(3), 1, 1.0
        self.history = [torch.zeros(3)]
        self.table = {"last": torch.zeros(3)}
        self.window = deque([torch.zeros(3)] * 2, maxlen=2)
        self.empty: Tensor | None = None
        self.past: list[Tensor] = []


def _buffer(k: Keeper, x: Tensor) -> Tensor:
    k.h = k.h + x
    return k.h * 2.0


def _attribute(k: Keeper, x: Tensor) -> Tensor:
    y, k.kept = x + k.kept, x * 1.0
    return y


def _view(k: Keeper, x: Tensor) -> Tensor:
    y, k.kept = x + k.kept[0], x * 1.0 + 1.0
    return y


def _list(k: Keeper, x: Tensor) -> Tensor:
    y = x + k.history[-1]
    k.history.append(x * 1.0)
    return y


def _dict(k: Keeper, x: Tensor) -> Tensor:
    y, k.table["last"] = x + k.table["last"], x * 1.0
    return y


def _deque(k: Keeper, x: Tensor) -> Tensor:
    y = x + k.window[0]
    k.window.append(x * 1.0 + 1.0)
    k.window.append(x * 1.0 + 2.0)
    return y


def _count(k: Keeper, x: Tensor) -> Tensor:
    k.count += 1
    return x * k.count


def _gain(k: Keeper, x: Tensor) -> Tensor:
    y = x * k.gain
    k.gain *= 0.5
    return y


def _none(k: Keeper, x: Tensor) -> Tensor:
    k.empty = x * 1.0 if k.empty is None else x + k.empty
    return k.empty * 2.0


def _empty_list(k: Keeper, x: Tensor) -> Tensor:
    y = x + sum(k.past)
    k.past.append(x * 1.0 + 1.0)
    return y


def _no_name(k: Keeper, x: Tensor) -> Tensor:
    y = x + getattr(k, "late", 0.0)
    k.late = x * 1.0 + 1.0
    return y


ATTRIBUTES = [_none, _empty_list, _no_name, _buffer, _attribute, _view, _list, _dict, _deque, _count, _gain]


@pytest.mark.parametrize("update", ATTRIBUTES)
@pytest.mark.parametrize("how", ["module", "method"])
def test_attributes_that_a_pass_leaves_changed(update: Callable[..., Tensor], how: str, tmp_path: Path) -> None:
    """What an object keeps for its next call is state, even if only its name moved on to another tensor or number."""

    def make() -> Callable[[int], None]:
        class Net(Keeper):
            def forward(self, x: Tensor) -> Tensor:
                return update(self, x)

            @A.method(node_name="n", export_with="jit")
            def run(self, x: Tensor) -> Tensor:
                return update(self, x)

        net = Net()

        def step(number: int) -> None:
            if how == "method":
                net.run(values(number))
            else:
                x = A.input_tensors("n", {"x": values(number)})
                A.output_tensors("n", {"y": net(x)}, export_with="jit")

        return step

    suspected(tmp_path, make, "undeclared state")


@pytest.mark.parametrize("plainly", [False, True])
def test_any_tensor_that_the_program_lets_go_of(plainly: bool, tmp_path: Path) -> None:
    """An old tensor that the pass reads, or computes with, and then drops has been replaced by another."""

    def make() -> Callable[[int], None]:
        last = torch.zeros(3)

        def step(number: int) -> None:
            nonlocal last
            x = A.input_tensors("n", {"x": values(number)})
            y = x + (last * 0.9 if plainly else last)
            last = y * 0.5
            A.output_tensors("n", {"y": y}, export_with="jit")

        return step

    suspected(tmp_path, make, "undeclared state")


@torch.jit.script
def _signed(a: float, b: Tensor) -> Tensor:
    return torch.tensor(a, device=b.device, dtype=torch.float).repeat(b.shape[0]).abs() * b.sign()


PASSING: dict[str, Callable[[Tensor], Tensor]] = {
    "scripted": lambda x: _signed(2.0, x),
    "old constructor": lambda x: x * (torch.FloatTensor([1.0, 2.0, 3.0]) * 2),
    "buffer": lambda x: x * (torch.frombuffer(bytearray(12), dtype=torch.float32) + 1),
    "dlpack": lambda x: x * (torch.from_dlpack(np.ones(3, np.float32)) * 2),
    "in a transform": lambda x: torch.vmap(lambda row: row * torch.tensor(2.0))(x),
}


@pytest.mark.parametrize("node", PASSING.values(), ids=PASSING)
def test_tensors_that_unseen_code_makes_for_one_call(node: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    """They are gone after it, and no state."""

    def step(number: int) -> None:
        x = A.input_tensors("n", {"x": values(number)})
        A.output_tensors("n", {"y": node(x)}, export_with="jit")

    harmless(tmp_path, step)


def test_attributes_that_the_node_does_not_use(tmp_path: Path) -> None:
    """A counter for the log is suspicious after one pass; the second pass clears it."""

    class Net(nn.Module):
        calls = 0

        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x * 2.0

    net = Net()

    def step(number: int) -> None:
        x = A.input_tensors("n", {"x": values(number)})
        A.output_tensors("n", {"y": net(x)}, export_with="jit")

    trace(tmp_path, step, 2)
    leapp.compile_graph(visualize=False)
    assert leapp.report().escapes == []


# -- between nodes -----------------------------------------------------------------------------------------------------

READS: dict[str, Callable[[Tensor], Any]] = {
    "float": lambda y: float(y[1]),
    "item": lambda y: y.sum().item(),
    "tolist": lambda y: y.tolist()[2],
    "numpy": lambda y: float(y.numpy()[1]),
    "int": lambda y: int(y.max()),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_number_read_out_between_nodes(read: Callable[[Tensor], Any], tmp_path: Path) -> None:
    """The number is a constant of the node that follows."""

    def make() -> Callable[[int], None]:
        def step(number: int) -> None:
            x = A.input_tensors("a", {"x": values(number)})
            y = A.output_tensors("a", {"y": x * 2.0}, export_with="jit")
            gain = read(y)
            z = A.input_tensors("b", {"z": values(number)})
            A.output_tensors("b", {"w": z * gain}, export_with="jit")

        return step

    suspected(tmp_path, make, "'a/y', read out before the node")


def test_a_number_between_nodes_that_only_chooses_is_told_though_the_passes_agree(tmp_path: Path) -> None:
    """Both passes take one branch, so that their outputs prove nothing of the other."""

    def step(number: int) -> None:
        x = A.input_tensors("a", {"x": values(number)})
        y = A.output_tensors("a", {"y": x.tanh()}, export_with="jit")
        gain = 2.0 if y.max().item() > 1.5 else 1.0  # CHOOSES
        z = A.input_tensors("b", {"z": y})
        A.output_tensors("b", {"w": z * gain}, export_with="jit")

    trace(tmp_path, step, 2)
    leapp.compile_graph(visualize=False)
    (told,) = leapp.report().escapes
    assert told.node == "b" and "# CHOOSES" in told.source and "'a/y', read out before the node, which decides" in told.kind


def test_numbers_for_the_log_are_cleared_by_a_second_pass(tmp_path: Path) -> None:
    """And what is read after the last node concerns none."""

    def step(number: int) -> None:
        x = A.input_tensors("a", {"x": values(number)})
        y = A.output_tensors("a", {"y": x * 2.0}, export_with="jit")
        y.tolist()
        print(y)
        z = A.input_tensors("b", {"z": y})
        A.output_tensors("b", {"w": z + 1.0}, export_with="jit").tolist()

    trace(tmp_path, step, 2)
    leapp.compile_graph(visualize=False)
    assert leapp.report().escapes == []
    trace(tmp_path, _only_last, 1)
    leapp.compile_graph(visualize=False)
    assert leapp.report().escapes == []


def _only_last(number: int) -> None:
    x = A.input_tensors("a", {"x": values(number)})
    A.output_tensors("a", {"y": x * 2.0}, export_with="jit").tolist()


# -- state after the outputs -------------------------------------------------------------------------------------------


class Carrier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.h = self.h + x
        return self.h * 2.0


@pytest.mark.parametrize("how", ["new", "in place", "module"])
def test_state_changed_after_the_outputs(how: str, tmp_path: Path) -> None:
    """What is done to a state between two passes is in no model."""

    def make() -> Callable[[int], None]:
        h, net = torch.zeros(3), Carrier()

        def step(number: int) -> None:
            nonlocal h
            x = A.input_tensors("n", {"x": values(number)})
            if how == "module":
                A.module("n", net)
                A.output_tensors("n", {"y": net(x)}, export_with="jit")
                net.h *= 0.5
                return
            old = A.state_tensors("n", {"h": h})
            new = old + x if how == "new" else old.add_(x)
            A.update_state("n", {"h": new})
            A.output_tensors("n", {"y": new * 2.0}, export_with="jit")
            h = new.mul_(0.5) if how == "new" else h.mul_(0.5)

        return step

    suspected(tmp_path, make, "state 'h' changed after output_tensors() by mul_")


# -- many passes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [1, 5])
def test_later_passes_are_compared_with_the_record(kept: int, tmp_path: Path) -> None:
    """Samples are kept of the first passes only; a later one that is compared and contradicts the record is kept as well."""

    def branch(number: int) -> None:
        x = A.input_tensors("n", {"x": values(0 if number < 7 else -10)})
        A.output_tensors("n", {"y": x * 2.0 if x.sum() > 0 else x * 3.0}, export_with="jit")

    def constant(number: int) -> None:
        x = A.input_tensors("n", {"x": values(number)})
        A.output_tensors("n", {"y": x * (torch.ones(3) if number < 7 else torch.zeros(3))}, export_with="jit")

    trace(tmp_path, branch, 9, max_cached_io=kept)
    with pytest.raises(TraceError, match=f"__bool__ at .*{HERE}"):
        leapp.compile_graph(visualize=False)
    trace(tmp_path, constant, 9, max_cached_io=kept)
    with pytest.raises(ValidationError, match=rf"the first two passes were recorded and agree(?s:.*){HERE}"):
        leapp.compile_graph(visualize=False)
    assert len(leapp.ExportManager().session.nodes["n"].samples) == kept + 1  # type: ignore[union-attr]


@pytest.mark.parametrize("kept", [1, 2])
@pytest.mark.parametrize("held", ["dict", "attribute"])
def test_what_the_first_pass_keeps_needs_no_second_sample(held: str, kept: int, tmp_path: Path) -> None:
    """Both passes were recorded, however many samples are kept: a constant is no state, and state is refused."""
    for make, right in ((torch.zeros_like, True), (torch.clone, False)):
        holder = Held()
        CACHE.clear()

        def step(number: int, holder: Held = holder, make: Callable[[Tensor], Tensor] = make) -> None:
            x = A.input_tensors("n", {"x": values(number)})
            owner = CACHE if held == "dict" else vars(holder)
            if "pad" not in owner:
                owner["pad"] = make(x)
            A.output_tensors("n", {"y": x + owner["pad"]}, export_with="jit")

        trace(tmp_path, step, 2, max_cached_io=kept)
        if right:
            assert leapp.compile_graph(visualize=False) == {"n": True}
            assert not leapp.report().escapes
        else:
            with pytest.raises((TraceError, ValidationError)):
                leapp.compile_graph(visualize=False)


CACHE: dict[str, Tensor] = {}


class Held:
    """An object with attributes."""


# -- the caller's own objects ------------------------------------------------------------------------------------------


@dataclass
class Reading:
    value: Tensor
    other: Tensor


class Pair(NamedTuple):
    left: Tensor
    more: dict[str, Tensor]


def change(d: dict[str, Tensor], r: Reading, items: list[Tensor], pair: Pair) -> Tensor:
    """Do to the arguments what can be done to them."""
    d["new"] = d["u"] * 2.0
    d["u"] = d["u"] + 1.0
    d["kept"].mul_(2.0)
    r.value = r.value * 3.0
    items.append(items.pop(0) + d["u"])
    pair.more["k"] = pair.left + pair.more.pop("q")
    out = d["new"] + r.value + items[-1] + pair.more["k"] + d["kept"] + r.other
    return out


def test_a_decorated_function_changes_the_callers_objects(tmp_path: Path) -> None:
    """Traced or not, the program goes on with the same containers and the same tensors in them."""
    decorated = A.method(node_name="n", export_with="onnx")(change)

    def after(number: int) -> dict[str, Any]:
        kept, other = values(number), values(number) + 5.0
        d, r, items = {"u": values(number), "kept": kept}, Reading(values(number) + 1.0, other), [values(number) - 2.0]
        pair = Pair(values(number) * 0.5, {"q": values(number) * 7.0})
        out = decorated(d, r, items, pair)
        assert d["kept"] is kept and r.other is other
        return {"d": d, "r": [r.value, r.other], "items": items, "pair": pair.more, "out": out}

    plain = [after(n) for n in range(3)]
    traced: list[dict[str, Any]] = []
    trace(tmp_path, lambda n: traced.append(after(n)), 3)
    for one, two in zip(plain, traced, strict=True):
        torch.testing.assert_close(one, two)
    leapp.compile_graph(visualize=False)
    given = {"d_u": values(9), "d_kept": values(8), "r_value": values(7), "r_other": values(6), "items_0": values(5)}
    given |= {"pair_left": values(4), "pair_more_q": values(3)}
    got = InferenceManager(str(tmp_path / "g" / "g.yaml"))({f"n/{k}": v.clone() for k, v in given.items()})
    wanted = change(
        {"u": given["d_u"], "kept": given["d_kept"].clone()}, Reading(given["r_value"], given["r_other"]),
        [given["items_0"]], Pair(given["pair_left"], {"q": given["pair_more_q"]}),
    )  # fmt: skip
    torch.testing.assert_close(got["n/out"], wanted)


def test_a_decorated_function_that_raises_gives_the_tensors_back(tmp_path: Path) -> None:
    """What it had done by then stays done."""

    @A.method(export_with="jit")
    def fails(d: dict[str, Tensor]) -> Tensor:
        d["half"] = d["u"] * 0.5
        raise KeyError("no such joint")

    u = values(0)
    d = {"u": u}
    leapp.start("g", save_path=tmp_path)
    with pytest.raises(KeyError):
        fails(d)
    assert d["u"] is u and sorted(d) == ["half", "u"]


# -- torch's own exporters ---------------------------------------------------------------------------------------------

EXPORTERS: dict[str, Callable[..., Any]] = {
    "torch.jit.trace": lambda net, x: torch.jit.trace(net, (x,)),
    "torch.export.export": lambda net, x: torch.export.export(net, (x,)).module(),
}


@pytest.mark.parametrize("name", EXPORTERS)
def test_exporters_inside_and_between_nodes(name: str, tmp_path: Path) -> None:
    """Inside a node they are refused; between nodes they work, and what they give runs inside a node."""
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh()).eval()
    made: list[Any] = []

    def step(inside: bool) -> None:
        y = A.output_tensors("a", {"y": A.input_tensors("a", {"x": torch.randn(3)}) * 2.0}, export_with="onnx")
        if not made and not inside:
            made.append(EXPORTERS[name](net, y))
        y = A.input_tensors("b", {"y": y})
        out = EXPORTERS[name](net, y)(y) if inside else made[0](y)
        A.output_tensors("b", {"out": out}, export_with="onnx")

    with pytest.raises(TraceError, match=rf"'b': {name}\(\) at .*{HERE}:\d+"):
        trace(tmp_path, lambda _: step(True), 1)
    trace(tmp_path, lambda _: step(False), 3)
    leapp.compile_graph(visualize=False)
    x = torch.randn(3)
    got = InferenceManager(str(tmp_path / "g" / "g.yaml"))({"a/x": x})["b/out"]
    torch.testing.assert_close(got, net(x * 2.0).detach())
    with torch.no_grad():
        copied = copy.deepcopy(EXPORTERS[name](net, x))
        torch.testing.assert_close(copied(x), net(x))


# -- objects and arrays that the code can name --------------------------------------------------------------------------

KEPT_ARRAY = np.zeros(3, np.float32)


class Policy:
    """No module, and nothing of it is decorated."""

    def __init__(self) -> None:
        self.obs, self.table = np.zeros(6, np.float32), {"last": np.zeros(3, np.float32)}
        self.over = torch.from_numpy(self.obs)
        self.count, self.calls, self.mode, self.history = 0, 0, "warm", [0]

    def step(self, number: int, compute: Callable[[Policy, Any], Any], register: bool = False) -> None:
        x = A.input_tensors("n", {"x": values(number).numpy()})
        if register:
            self.obs = A.register_buffer("n", {"obs": self.obs})
        A.output_tensors("n", {"y": compute(self, x)}, export_with="jit")

    def attribute(self, x: Any) -> Any:
        self.obs[:3] = x
        return self.obs * 2 + np.r_[x, x]  # READ

    def tensor_over_it(self, x: Any) -> Any:
        self.obs[3:] = x
        return torch.from_numpy(self.obs) * 2 + torch.from_numpy(np.r_[x, x])  # READ

    def in_a_dict(self, x: Any) -> Any:
        self.table["last"][:] = x
        return x + self.table["last"]  # READ

    def under_a_mask(self, x: Any) -> Any:
        y = x + self.table["last"]
        self.table["last"][x > 50] = 1.0  # WRITE
        return y

    def where(self, x: Any) -> Any:
        y = x + self.obs[:3]
        self.obs[:3] = np.where(x > 50, 1.0, self.obs[:3])  # WRITE
        return y

    def computed_with(self, x: Any) -> Any:
        self.obs[:3][x > 50] = 1.0  # WRITE
        return x * (1 - self.obs[:3])

    def under_a_tensor(self, x: Any) -> Any:
        self.obs[:3][x > 50] = 1.0  # WRITE
        return torch.from_numpy(x) + self.over[:3]

    def reset(self) -> None:
        self.obs[:] = 0.0

    def only_read(self, x: Any) -> Any:
        return x + self.obs[:3]

    def in_a_global(self, x: Any) -> Any:
        KEPT_ARRAY[:] = x
        return x + KEPT_ARRAY  # READ

    def counter(self, x: Any) -> Any:
        self.count += 1
        return x * (3.0 if self.count > 10 else 2.0)  # READ

    def text(self, x: Any) -> Any:
        self.mode = self.mode + "er"
        return x * (3.0 if self.mode == "warmererer" else 2.0)  # READ

    def in_a_closure(self, x: Any) -> Any:
        return in_a_closure(x)

    def in_a_list_of_a_closure(self, x: Any) -> Any:
        return in_a_list(x)

    def global_number(self, x: Any) -> Any:
        global calls_so_far
        calls_so_far += 1
        return x * (3.0 if calls_so_far > 100 else 2.0)  # READ

    def for_the_log(self, x: Any) -> Any:
        self.calls += 1
        self.history.append(len(self.history))
        return x * 2.0


calls_so_far = 0


def _counting() -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    number, numbers = 0, [0]

    def alone(x: Any) -> Any:
        nonlocal number
        number += 1
        return x * (3.0 if number > 100 else 2.0)  # READ

    def listed(x: Any) -> Any:
        numbers[0] += 1
        return x * (3.0 if numbers[0] > 100 else 2.0)  # READ

    return alone, listed


in_a_closure, in_a_list = _counting()


class Timer:
    """Counts without computing anything."""

    total = 0

    def __init__(self) -> None:
        self.left, self.fast = 100, np.int64(0)

    def tick(self) -> bool:
        self.left -= 1
        return self.left <= 0  # READ

    def tick_numpy(self) -> bool:
        self.fast += 1
        return bool(self.fast > 100)  # READ

    @classmethod
    def tick_class(cls) -> bool:
        cls.total += 1
        return cls.total > 100  # READ


class Slotted:
    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 0

    def tick(self) -> bool:
        self.n += 1
        return self.n > 100  # READ


@dataclass(frozen=True)
class Phase:
    n: int = 0


class Replaced:
    """Every tick puts another object in its place."""

    def __init__(self) -> None:
        self.phase = Phase()

    def tick(self) -> bool:
        self.phase = Phase(self.phase.n + 1)  # READ
        return self.phase.n > 100  # READ


def _of_a_function() -> bool:
    _of_a_function.n += 1  # type: ignore[attr-defined]
    return bool(_of_a_function.n > 100)  # type: ignore[attr-defined]  # READ


_of_a_function.n = 0  # type: ignore[attr-defined]


def _in_a_closure_alone() -> Callable[[], bool]:
    n = 0

    def tick() -> bool:
        nonlocal n
        n += 1
        return n > 100  # READ

    return tick


def _generator() -> Iterator[bool]:
    n = 0
    while True:
        n += 1
        yield n > 100  # READ


def _one_of_ten() -> Iterator[bool]:
    while True:
        yield from (False, False, False, False, False, False, False, False, False, True)


def _unrolled() -> Iterator[bool]:
    while True:
        yield False
        yield False
        yield False
        yield True


def _in_bytes(count: bytearray) -> Callable[[], bool]:
    def tick() -> bool:
        count[0] += 1
        return count[0] > 100  # READ

    return tick


def _in_a_set(now: set[int]) -> Callable[[], bool]:
    def tick() -> bool:
        last = max(now)  # READ
        now.discard(last)
        now.add(last + 1)
        return last > 100

    return tick


def _in_a_context(count: ContextVar[int]) -> Callable[[], bool]:
    def tick() -> bool:
        count.set(count.get() + 1)  # READ
        return count.get() > 100

    return tick


def _in_a_tensor(count: Tensor) -> Callable[[], bool]:
    def tick() -> bool:
        count.add_(1)
        return int(count) > 100  # READ

    return tick


def _hooked(layer: nn.Module) -> Callable[[Policy, Any], Any]:
    count = [0]

    def hook(module: nn.Module, given: Any, result: Tensor) -> Tensor:
        count[0] += 1
        return result * 3.0 if count[0] > 100 else result  # READ

    layer.register_forward_hook(hook)
    return lambda policy, x: layer(torch.from_numpy(x))


def _in_a_default(count: list[int] = [0]) -> bool:  # noqa: B006
    count[0] += 1
    return count[0] > 100  # READ


def _of_an_argument(count: dict[str, int]) -> bool:
    count["n"] += 1
    return count["n"] > 100  # READ


def _local_class() -> Any:
    seen: list[int] = []

    class Local:
        def tick(self) -> bool:
            seen.append(0)
            return len(seen) > 100  # READ

    return Local


TICKS, STATE = 0, {"n": 0}


def _global_ticks() -> bool:
    global TICKS
    TICKS += 1
    return TICKS > 100  # READ


def _in_a_global_dict() -> bool:
    STATE["n"] += 1
    return STATE["n"] > 100  # READ


class Mode(enum.Enum):
    WAIT = 1
    STAND = 2
    SETTLE = 3
    WALK = 4


class Machine:
    """Goes on to something else with each tick, in one of many ways."""

    def __init__(self) -> None:
        self.mode, self.state, self.now = Mode.WAIT, Waiting(), self.first
        self.seen: frozenset[str] = frozenset()
        self.frame, self.phasor, self.left, self.time = b"\0", 1 + 0j, range(100), datetime(2024, 1, 1)
        self.due = {9: "walk"}
        self.recent = OrderedDict.fromkeys("abcz")

    def by_mode(self) -> bool:
        self.mode = list(Mode)[min(self.mode.value, 3)]  # READ
        return self.mode is Mode.WALK  # READ

    def by_state(self) -> bool:
        self.state = self.state.following()  # READ
        return isinstance(self.state, list)  # READ

    def first(self) -> bool:
        self.now = self.second
        return False

    def second(self) -> bool:
        self.now = self.third
        return False

    def third(self) -> bool:
        return True

    def by_method(self) -> bool:
        return self.now()  # READ

    def by_items(self) -> bool:
        name = next((n for n in "abcde" if n not in self.seen), "")  # READ
        self.seen = self.seen | {name}
        return not name

    def by_bytes(self) -> bool:
        self.frame = bytes([self.frame[0] + 1])  # READ
        return self.frame > b"\x64"  # READ

    def by_complex(self) -> bool:
        self.phasor *= 1j
        return self.phasor.real > 2  # READ

    def by_range(self) -> bool:
        self.left = self.left[1:]
        return not self.left  # READ

    def by_date(self) -> bool:
        self.time += timedelta(seconds=1)
        return self.time > datetime(2025, 1, 1)  # READ

    def by_key(self) -> bool:
        self.due = {key - 1: value for key, value in self.due.items()}  # READ
        return 0 in self.due  # READ

    def by_order(self) -> bool:
        self.recent.move_to_end(next(iter(self.recent)))  # READ
        return next(iter(self.recent)) == "z"  # READ


class ByName:
    """Reads what it counts by a text, by a pattern, or under another name."""

    def __init__(self) -> None:
        self.count = 0

    def by_getattr(self) -> bool:
        self.count += 1
        return bool(getattr(self, "count") > 100)  # READ # noqa: B009

    def by_attrgetter(self) -> bool:
        self.count += 1
        return bool(operator.attrgetter("count")(self) > 100)  # READ

    def by_vars(self) -> bool:
        vars(self)["count"] += 1
        return bool(vars(self)["count"] > 100)  # READ

    def by_one_of_several_names(self) -> bool:
        self.count += 1
        return all(vars(self)[name] > 100 for name in ("count",))  # READ

    def by_pattern(self) -> bool:
        self.count += 1
        match self:
            case ByName(count=101):  # READ
                return True
        return False


class Config:
    """As legged_gym nests its settings."""

    class env:  # noqa: N801
        level = 0

    def tick(self) -> bool:
        Config.env.level += 1
        return Config.env.level > 100  # READ


def _imported() -> bool:
    from tests.tracing.test_suspicions import TICKS as ticks  # noqa: N811, PLW0406  # READ

    _global_ticks()
    return ticks > 100


class Waiting:
    def following(self) -> Any:
        return Standing()


class Standing:
    def following(self) -> Any:
        return Settling()


class Settling:
    def following(self) -> Any:
        return []


def _never() -> bool:
    return False


def _not_yet() -> bool:
    return False


def _in_turn(functions: deque[Callable[[], bool]]) -> Callable[[], bool]:
    def tick() -> bool:
        functions.rotate(1)
        return functions[0]()  # READ

    return tick


def _from_a_queue(waiting: Any) -> Callable[[], bool]:
    for value in (False, False, False, True):
        waiting.put(value)

    def tick() -> bool:
        now = waiting.get()  # READ
        waiting.put(now)
        return bool(now)

    return tick


class Awaited:
    def __await__(self) -> Iterator[None]:
        yield


async def _awaiting(done: list[bool]) -> None:
    n = 0
    while True:
        n += 1
        if n > 100:  # READ
            done.append(True)
        await Awaited()


async def _yielding() -> Any:
    n = 0
    while True:
        n += 1
        yield n > 100  # READ


def _next_of(generator: Any) -> bool:
    try:
        generator.__anext__().send(None)
    except StopIteration as stop:
        return bool(stop.value)
    raise RuntimeError


class Owned:
    def __init__(self, owner: Slotted | Timer) -> None:
        self.owner = weakref.ref(owner)

    def tick(self) -> bool:
        owner = self.owner()
        return owner is not None and owner.tick()


TIMERS = [Timer()]


class Frame(ctypes.Structure):
    _fields_ = (("tick", ctypes.c_uint32),)


def _in_memory(frame: Frame) -> Callable[[], bool]:
    def tick() -> bool:
        frame.tick += 1  # READ
        return frame.tick > 100  # READ

    return tick


def _in_one_element(held: Any) -> Callable[[], bool]:
    def tick() -> bool:
        held[0] += 1
        return bool(held[0] > 100)  # READ

    return tick


class OfObject:
    """A descriptor with a table of its own."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def __get__(self, thing: Any, kind: Any = None) -> int:
        return self.counts.get("n", 0)  # READ

    def __set__(self, thing: Any, value: int) -> None:
        self.counts["n"] = value


class Described:
    count = OfObject()

    def tick(self) -> bool:
        self.count = self.count + 1
        return self.count > 100


class Numbered:
    """Counts the objects that are made of it."""

    made = 0

    def __init__(self) -> None:
        Numbered.made += 1
        self.number = Numbered.made  # READ

    def late(self) -> bool:
        return self.number > 100


class Hidden(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self._calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self._calls += 1
        return x * 3.0 if self._calls > 100 else x  # READ


def _ticking(make: Callable[[], Callable[[], bool]]) -> Callable[[], Callable[[Policy, Any], Any]]:
    """A policy that asks something else whether its time has come, and computes nothing until then."""

    def compute() -> Callable[[Policy, Any], Any]:
        tick = make()
        return lambda policy, x: x * 3.0 if tick() else x

    return compute


COUNTERS: dict[str, Callable[[], Callable[[Policy, Any], Any]]] = {
    **{f.__name__: (lambda f=f: f) for f in (  # type: ignore[misc]
        Policy.counter, Policy.text, Policy.in_a_closure, Policy.in_a_list_of_a_closure, Policy.global_number,
    )},  # fmt: skip
    "a method": _ticking(lambda: Timer().tick),
    "a number of NumPy": _ticking(lambda: Timer().tick_numpy),
    "in an object": _ticking(lambda: (lambda t: lambda: t.tick())(Timer())),
    "deep in other objects": _ticking(lambda: (lambda o: lambda: o.d["a"][0].tick())(SimpleNamespace(d={"a": [Timer()]}))),
    "of a class": _ticking(lambda: Timer.tick_class),
    "in a slot": _ticking(lambda: Slotted().tick),
    "in an object that is replaced": _ticking(lambda: Replaced().tick),
    "of a function": _ticking(lambda: _of_a_function),
    "of a closure that computes nothing": _ticking(_in_a_closure_alone),
    "of a generator": _ticking(lambda: functools.partial(next, _generator())),
    "itertools.count": _ticking(lambda: (lambda c: lambda: next(c) > 100)(itertools.count())),  # READ
    "an iterator": _ticking(lambda: (lambda i: lambda: next(i) > 100)(iter(range(1000)))),  # READ
    "itertools.cycle": _ticking(lambda: (lambda c: lambda: next(c) > 1)(itertools.cycle([0, 0, 0, 2]))),  # READ
    "itertools.chain": _ticking(lambda: (lambda c: lambda: next(c))(itertools.chain([False] * 9, [True]))),  # READ
    "map": _ticking(lambda: (lambda m: lambda: next(m))(map((9).__lt__, itertools.count()))),  # READ
    "zip": _ticking(lambda: (lambda z: lambda: next(z)[0] > 9)(zip(range(20), range(20), strict=True))),  # READ
    "enumerate": _ticking(lambda: (lambda e: lambda: next(e)[0] > 9)(enumerate("a" * 20))),  # READ
    "the loop of a generator": _ticking(lambda: (lambda g: lambda: next(g))(_one_of_ten())),  # READ
    "the place in a generator": _ticking(lambda: (lambda g: lambda: next(g))(_unrolled())),  # READ
    "the size of a set": _ticking(lambda: (lambda a: lambda: a.add(len(a)) or len(a) > 9)(set())),  # READ
    "bytes": _ticking(lambda: _in_bytes(bytearray(1))),
    "a default value": _ticking(lambda: _in_a_default),
    "an argument of a partial": _ticking(lambda: functools.partial(_of_an_argument, {"n": 0})),
    "random.Random": _ticking(lambda: (lambda r: lambda: r.random() > 1.0)(random.Random(0))),  # READ
    "a generator of NumPy": _ticking(lambda: (lambda r: lambda: r.random() > 1.0)(np.random.default_rng(0))),  # READ
    "the length of a list, in a method": _ticking(lambda: _local_class()().tick),
    "the items of a set": _ticking(lambda: _in_a_set({0})),
    "a context variable": _ticking(lambda: _in_a_context(ContextVar("count", default=0))),
    "a plain tensor": _ticking(lambda: _in_a_tensor(torch.zeros((), dtype=torch.long))),
    "a hook of a module": lambda: _hooked(nn.Identity()),
    "a global number that another function counts": _ticking(lambda: _global_ticks),
    "in a global dict": _ticking(lambda: _in_a_global_dict),
    **{f"{f.__name__} of a machine": _ticking(lambda f=f: functools.partial(f, Machine())) for f in (  # type: ignore[misc]
        Machine.by_mode, Machine.by_state, Machine.by_method, Machine.by_items, Machine.by_bytes, Machine.by_complex,
        Machine.by_range, Machine.by_date, Machine.by_key, Machine.by_order,
    )},  # fmt: skip
    **{f"{f.__name__} of an object": _ticking(lambda f=f: functools.partial(f, ByName())) for f in (  # type: ignore[misc]
        ByName.by_getattr, ByName.by_attrgetter, ByName.by_vars, ByName.by_one_of_several_names, ByName.by_pattern,
    )},  # fmt: skip
    "a class in a class": _ticking(lambda: Config().tick),
    "a global number that is imported under another name": _ticking(lambda: _imported),
    "functions in turn": _ticking(lambda: _in_turn(deque([_never, _never, _not_yet]))),
    "a queue": _ticking(lambda: _from_a_queue(queue.Queue())),
    "a simple queue": _ticking(lambda: _from_a_queue(queue.SimpleQueue())),
    "a coroutine": _ticking(lambda: (lambda done, c: lambda: bool(c.send(None) or done))(d := [], _awaiting(d))),
    "an asynchronous generator": _ticking(lambda: functools.partial(_next_of, _yielding())),
    "behind a weak reference": _ticking(lambda: Owned(TIMERS[0]).tick),
    "a structure in memory": _ticking(lambda: _in_memory(Frame())),
    "a view of memory": _ticking(lambda: _in_one_element(memoryview(bytearray(1)))),
    "an array of objects": _ticking(lambda: _in_one_element(np.array([0, None]))),
    "an iterator over an array": _ticking(lambda: (lambda i: lambda: bool(next(i)))(np.zeros(99).flat)),  # READ
    "a descriptor": _ticking(lambda: Described().tick),
    "objects made so far": _ticking(lambda: lambda: Numbered().late()),
    "a private attribute of a module": lambda: (lambda net: lambda policy, x: net(torch.from_numpy(x)))(Hidden()),
    "a semaphore": _ticking(lambda: (lambda s: lambda: not s.acquire(blocking=False))(threading.Semaphore(5))),  # READ
    "a list that grows on the line that reads it": _ticking(
        lambda: (lambda log: lambda: bool(log.append(0) or len(log) > 100))([])  # READ
    ),
}
WRITTEN = [Policy.attribute, Policy.tensor_over_it, Policy.in_a_dict, Policy.in_a_global]


@pytest.mark.parametrize("compute", WRITTEN)
def test_a_write_into_an_older_array(compute: Callable[[Policy, Any], Any], tmp_path: Path) -> None:
    """One pass reports the line that reads it, and the remedy; two passes refuse it."""
    policy = Policy()
    trace(tmp_path, lambda number: policy.step(number, compute), 1)
    found = leapp.report().escapes
    assert len(found) == 1 and "# READ" in found[0].source and "register_buffer('n'" in found[0].cure, found
    policy = Policy()
    trace(tmp_path, lambda number: policy.step(number, compute), 2)
    with pytest.raises(TraceError, match=rf"{HERE}:{found[0].line}.*register_buffer"):
        leapp.compile_graph(visualize=False)


@pytest.mark.parametrize("compute", [Policy.under_a_mask, Policy.where, Policy.computed_with, Policy.under_a_tensor])
def test_a_write_that_no_pass_shows(compute: Callable[[Policy, Any], Any], tmp_path: Path) -> None:
    """The array is as it was after both passes. That the node writes to what it reads is reported with the line."""
    policy = Policy()
    trace(tmp_path, lambda number: policy.step(number, compute), 2)
    leapp.compile_graph(visualize=False)
    (found,) = leapp.report().escapes
    assert "is written to" in found.kind and "# WRITE" in found.source and "register_buffer('n'" in found.cure, found
    trace(tmp_path, lambda number: policy.step(number, Policy.only_read), 2)
    assert leapp.report().escapes == []


def test_an_older_array_that_only_takes_values(tmp_path: Path) -> None:
    """The output is not computed from the inputs as far as leapp sees: the line that wrote them into the array is named."""
    held = SimpleNamespace(obs=np.zeros(6, np.float32))

    def step(number: int) -> None:
        x = A.input_tensors("n", {"x": values(number).numpy()})
        held.obs[:3] = x  # WRITE
        A.output_tensors("n", {"y": held.obs * 2}, export_with="jit")

    line = next(i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "held.obs[:3] = x" in text)
    with pytest.raises(TraceError, match=rf"(?s)left the graph on the way:.*register_buffer\('n'.*{HERE}:{line}: "):
        trace(tmp_path, step, 1)


def test_a_tensor_that_the_node_only_counts_with(tmp_path: Path) -> None:
    """Undeclared state that no pass shows: both passes compare it, and get the same."""
    policy = SimpleNamespace(count=torch.zeros(()), calls=torch.zeros(()))

    def step(number: int) -> None:
        x = A.input_tensors("n", {"x": values(number)})
        policy.count += 1
        policy.calls.add_(1)
        y = torch.where(policy.count > 100, x * 2, x)  # READ
        A.output_tensors("n", {"y": y}, export_with="jit")

    trace(tmp_path, step, 2)
    leapp.compile_graph(visualize=False)
    (found,) = leapp.report().escapes
    assert "count changes from call to call" in found.kind and "# READ" in found.source, found


def test_a_variable_with_the_name_of_a_declared_array(tmp_path: Path) -> None:
    """What is written to is a copy of the state."""
    held = SimpleNamespace(on=np.zeros(3, np.float32))

    def step(number: int) -> None:
        x = A.input_tensors("n", {"x": values(number).numpy()})
        on = A.state_tensors("n", {"on": held.on}).copy()
        on[x > 50] = 1.0
        held.on = on
        A.update_state("n", {"on": on})
        A.output_tensors("n", {"y": x * (1 - on)}, export_with="jit")

    trace(tmp_path, step, 2)
    assert leapp.compile_graph(visualize=False) == {"n": True}
    assert leapp.report().escapes == []


def _declared_in_a_dict() -> Callable[[int], Any]:
    held = {"window": np.zeros((3, 3), np.float32)}

    def step(number: int) -> Any:
        x = A.input_tensors("n", {"x": values(number).numpy()})
        window = A.state_tensors("n", {"window": held["window"]})
        held["window"] = np.concatenate([window[1:], x[None]])
        A.update_state("n", {"window": held["window"]})
        return A.output_tensors("n", {"y": held["window"].mean(0)}, export_with="onnx")

    return step


def _declared_in_a_nested_list() -> Callable[[int], Any]:
    held = {"rows": [np.zeros((3, 3), np.float32)]}

    def step(number: int) -> Any:
        x = A.input_tensors("n", {"x": values(number).numpy()})
        window = A.state_tensors("n", {"window": held["rows"][0]})
        held["rows"][0] = np.concatenate([window[1:], x[None]])
        A.update_state("n", {"window": held["rows"][0]})
        return A.output_tensors("n", {"y": held["rows"][0].mean(0)}, export_with="onnx")

    return step


@pytest.mark.parametrize("make", [_declared_in_a_dict, _declared_in_a_nested_list])
def test_a_declared_array_whose_place_in_a_container_gets_another(
    make: Callable[[], Callable[[int], Any]], tmp_path: Path
) -> None:
    """Setting the element of the container that holds it writes nothing into the array.

    A second program of the same code, which ran before, is at hand to compare with. Its array is not declared.
    """
    eager = make()
    computed = [eager(5)]
    trace(tmp_path, make(), 2)
    assert leapp.compile_graph(visualize=False) == {"n": True}
    assert leapp.report().escapes == []
    manager = InferenceManager(tmp_path / "g")
    computed += map(eager, (3, 9, 1))
    for number, y in zip((5, 3, 9, 1), computed, strict=True):
        torch.testing.assert_close(manager({"n/x": values(number)})["n/y"], torch.from_numpy(y))


def test_an_array_that_is_written_to_outside_of_the_node(tmp_path: Path) -> None:
    """The caller keeps its last action, and declares what it reads of it."""
    last = np.zeros(3, np.float32)

    def step(number: int) -> None:
        given = last + values(number).numpy()
        y = A.output_tensors("n", {"y": A.input_tensors("n", {"x": given}) * 2.0}, export_with="jit")
        last[:] = np.tanh(y)

    trace(tmp_path, step, 2)
    assert leapp.compile_graph(visualize=False) == {"n": True}
    assert leapp.report().escapes == []


@pytest.mark.parametrize("compute", [Policy.attribute, Policy.tensor_over_it])
def test_a_write_into_an_older_array_that_is_registered(compute: Callable[[Policy, Any], Any], tmp_path: Path) -> None:
    policy = Policy()
    trace(tmp_path, lambda number: policy.step(number, compute, True), 2)
    leapp.compile_graph(visualize=False)
    assert leapp.report().escapes == []
    x = values(7)
    got = InferenceManager(str(tmp_path / "g" / "g.yaml"))({"n/x": x})["n/y"]
    torch.testing.assert_close(got, torch.as_tensor(compute(Policy(), x.numpy())))


@pytest.mark.parametrize("name", COUNTERS)
def test_a_counter_that_acts_later(name: str, tmp_path: Path) -> None:
    """Passes that agree do not clear a number that changes in each of them, if some code reads it."""
    policy, compute = Policy(), COUNTERS[name]()
    trace(tmp_path, lambda number: policy.step(number, compute), 2)
    leapp.compile_graph(visualize=False)
    found = leapp.report().escapes
    assert len(found) == 1 and "changes from call to call" in found[0].kind and "# READ" in found[0].source, found
    policy.calls = 0
    trace(tmp_path, lambda number: policy.step(number, Policy.for_the_log), 2)
    assert leapp.report().escapes == []


class Totals:
    """Counts by a text for somebody else to read."""

    def __init__(self) -> None:
        self.steps = 0

    def by_vars(self) -> bool:
        vars(self)["steps"] += 1
        return False

    def by_its_dict(self) -> bool:
        self.__dict__["steps"] = self.__dict__.pop("ste" + "ps") + 1
        return False


@pytest.mark.parametrize("tick", [Totals.by_vars, Totals.by_its_dict])
def test_a_counter_that_is_only_written_by_its_name(tick: Callable[[Totals], Any], tmp_path: Path) -> None:
    policy, totals = Policy(), Totals()
    trace(tmp_path, lambda number: policy.step(number, lambda _, x: x * 3.0 if tick(totals) else x), 2)
    leapp.compile_graph(visualize=False)
    assert totals.steps == 2 and leapp.report().escapes == []


class Unnamed:
    """Counts in a place that no code names."""

    calls = None

    def __init__(self) -> None:
        self.leg_0 = 0

    def by_setattr(self) -> bool:
        for name in [f"leg_{i}" for i in range(1)]:
            setattr(self, name, getattr(self, name) + 1)
        return bool(getattr(self, "_".join(("leg", "0"))) > 100)

    def by_vars(self) -> bool:
        name = "_".join(("leg", "0"))
        vars(self)[name] += 1
        return bool(vars(self)[name] > 100)


class InInstance:
    """A descriptor that counts in the object that it belongs to."""

    def __get__(self, thing: Any, kind: Any = None) -> int:
        found = thing.__dict__
        found["_" + "n"] = found.get("_" + "n", 0) + 1
        return int(found["_" + "n"])


class Instance:
    count = InInstance()

    def tick(self) -> bool:
        return self.count > 100


class Registry(UserDict[str, int]):
    def tick(self) -> bool:
        self["n"] = self.get("n", 0) + 1
        return self["n"] > 100


UNNAMED: dict[str, Callable[[], Callable[[], bool]]] = {
    "setattr": lambda: Unnamed().by_setattr,
    "vars": lambda: Unnamed().by_vars,
    "a descriptor": lambda: Instance().tick,
    "UserDict": lambda: Registry(n=0).tick,
}


@pytest.mark.parametrize("name", UNNAMED)
def test_a_counter_that_no_code_names(name: str, tmp_path: Path) -> None:
    """The line that uses its object is told."""
    policy, tick = Policy(), UNNAMED[name]()

    def compute(policy: Policy, x: Any) -> Any:
        return x * 3.0 if tick() else x  # USES

    trace(tmp_path, lambda number: policy.step(number, compute), 2)
    leapp.compile_graph(visualize=False)
    (found,) = leapp.report().escapes
    assert "changes from call to call" in found.kind and "# USES" in found.source, found


CLOCK = """
ticks, history, state = 0, [], {"n": 0}

def tick():
    global ticks
    ticks += 1
    return ticks > 100  # READ

def grow():
    history.append(0)
    return len(history) > 100  # READ

def count():
    state["n"] += 1
    return state["n"] > 100  # READ

class Clock:
    def tick(self):
        return tick()
"""


@pytest.mark.parametrize("call", ["clock.tick()", "clock.grow()", "clock.count()", "tick()", "made.tick()"])
def test_a_counter_in_another_module(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The global variables of the modules that the node's code uses are its memory as well."""
    (tmp_path / "robot_clock.py").write_text(CLOCK)
    monkeypatch.syspath_prepend(str(tmp_path))
    clock = importlib.import_module("robot_clock")
    names: dict[str, Any] = {"clock": clock, "made": clock.Clock(), "tick": clock.tick}
    exec(f"def compute(policy, x):\n    return x * 3.0 if {call} else x", names)
    policy = Policy()
    try:
        trace(tmp_path, lambda number: policy.step(number, names["compute"]), 2)
        leapp.compile_graph(visualize=False)
        (found,) = leapp.report().escapes
        assert found.kind.startswith("robot_clock.") and found.file.endswith("robot_clock.py"), found
        assert "# READ" in found.source
    finally:
        sys.modules.pop("robot_clock")


def test_the_second_round_of_a_cycle(tmp_path: Path) -> None:
    """It does not tell its place, so every use of it is reported."""
    policy, gains = Policy(), itertools.cycle([1.0, 1.0, 1.0, 2.0])
    for _ in range(4):
        next(gains)
    trace(tmp_path, lambda number: policy.step(number, lambda policy, x: x * next(gains)), 2)
    leapp.compile_graph(visualize=False)
    (found,) = leapp.report().escapes
    assert found.kind.startswith("gains of <lambda>() changes from call to call") and "next(gains)" in found.source


def test_an_array_that_counts_as_an_argument(tmp_path: Path) -> None:
    """No element of it is set: a function is given the array to write to."""
    count = np.zeros((), np.int64)

    def compute(policy: Policy, x: Any) -> Any:
        np.add(count, 1, out=count)  # WRITE
        return x * (3.0 if count > 100 else 2.0)

    policy = Policy()
    trace(tmp_path, lambda number: policy.step(number, compute), 2)
    leapp.compile_graph(visualize=False)
    (found,) = leapp.report().escapes
    assert "is written to" in found.kind and "# WRITE" in found.source, found


def test_a_file_that_the_node_reads(tmp_path: Path) -> None:
    (tmp_path / "gains").write_text("1.0\n1.0\n1.0\n2.0\n")
    policy = Policy()
    with (tmp_path / "gains").open() as gains:
        trace(tmp_path, lambda number: policy.step(number, lambda policy, x: x * float(gains.readline())), 2)
    leapp.compile_graph(visualize=False)
    (found,) = leapp.report().escapes
    assert found.kind.startswith("gains of <lambda>() changes from call to call") and "gains.readline()" in found.source


def test_what_is_printed_is_not_blamed(tmp_path: Path) -> None:
    """What leapp itself warns of in the first pass goes into the user's stream, and is not the cause of what is wrong."""

    def step(number: int) -> None:
        whole = torch.arange(6.0) + number
        x, part = A.input_tensors("n", {"x": whole, "part": whole[:3]})
        x[0] = 5.0
        A.output_tensors("n", {"y": x * 2.0, "z": part + 1.0}, export_with="jit")

    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        trace(tmp_path, step, 2)
        with pytest.raises(ValidationError, match="share memory"):
            leapp.compile_graph(visualize=False)
    assert "[WARNING]" in said.getvalue()


def test_looking_at_variables_keeps_nothing_alive(tmp_path: Path) -> None:
    """A tensor that a running function lets go of is free."""
    large = torch.zeros(1000)
    gone = weakref.ref(large)
    leapp.start("g", save_path=tmp_path)
    x = A.input_tensors("n", {"x": values(0)})
    del large
    assert gone() is None
    A.output_tensors("n", {"y": x * 2}, export_with="jit")


@pytest.mark.parametrize("where", ["a variable", "a list"])
def test_an_input_that_the_node_writes_to_is_followed(where: str, tmp_path: Path) -> None:
    """The caller's own array was declared, so what the node writes to it is recorded: nothing is frozen."""
    given = np.arange(3.0)
    held = [given]
    if where == "a list":
        del given
    leapp.start("g", save_path=tmp_path, escapes="error")
    x = annotate.input_tensors("n", {"x": held[0]})
    x += 1.0
    annotate.output_tensors("n", {"y": x * 2.0}, export_with="jit")
    leapp.stop()
    leapp.compile_graph(visualize=False)
    got = leapp.InferenceManager(tmp_path / "g")({"n/x": torch.tensor([4.0, 5.0, 6.0], dtype=torch.float64)})["n/y"]
    assert got.tolist() == [10.0, 12.0, 14.0]
    assert held[0].tolist() == [1.0, 2.0, 3.0]


SIZED_BY_NUMBERS: dict[str, Callable[[Tensor], Tensor]] = {
    "one_hot": lambda x: (lambda h: h.reshape(h.shape[0], -1).float() * 2.0)(nn.functional.one_hot(x.long(), 20)),
    "one_hot of a NumPy number": lambda x: nn.functional.one_hot(x.long(), np.int64(20)).unflatten(-1, (4, -1)).size(1) * x,
    "repeat_interleave": lambda x: (lambda y: y.view(y.shape[0], -1) + 1.0)(x[:, None].repeat_interleave(3, dim=1)),
    "torch.repeat_interleave": lambda x: (lambda y: y + torch.zeros(y.size()))(torch.repeat_interleave(x, 2)),
    "repeat_interleave of a size": lambda x: (lambda y: y.reshape(y.numel()) + 1.0)(
        torch.repeat_interleave(x, torch.tensor([1, 2, 1]), output_size=4)
    ),
}


@pytest.mark.parametrize("name", SIZED_BY_NUMBERS)
def test_a_shape_that_numbers_fix(name: str, tmp_path: Path) -> None:
    """Other calls of these functions have shapes that depend on values; to read the shape of these ones is no escape."""
    function = SIZED_BY_NUMBERS[name]

    def step(number: int) -> None:
        x = A.input_tensors("n", {"x": values(number)})
        A.output_tensors("n", {"y": function(x)}, export_with="jit")

    trace(tmp_path, step, 2)
    assert leapp.compile_graph(visualize=False) == {"n": True}
    assert leapp.report().escapes == []
    torch.testing.assert_close(InferenceManager(tmp_path / "g")({"n/x": values(9)})["n/y"], function(values(9)))


@pytest.mark.parametrize("absent", [lambda x: x == None, lambda x: x != None, lambda x: x in (None, "none")])  # noqa: E711
def test_a_comparison_with_none(absent: Callable[[Any], bool], tmp_path: Path) -> None:
    """Tensors leave it to Python, which compares identities: no value is read."""

    def step(number: int) -> None:
        x = A.input_tensors("n", {"x": values(number)})
        A.output_tensors("n", {"y": x * (2.0 if absent(x) else 3.0)}, export_with="jit")

    trace(tmp_path, step, 2)
    assert leapp.compile_graph(visualize=False) == {"n": True}
    assert leapp.report().escapes == []
    factor = 2.0 if absent(values(9)) else 3.0
    torch.testing.assert_close(InferenceManager(tmp_path / "g")({"n/x": values(9)})["n/y"], values(9) * factor)
