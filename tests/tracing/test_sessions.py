"""Sessions as people use them: exceptions, several passes, threads, models of one's own, things left out."""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import nn

import leapp
from leapp import GraphConfigs, InferenceManager, TensorSemantics, annotate
from leapp.errors import BundleError, BundleFileError, SessionError, TraceError, ValidationError
from leapp.runtime import Pipeline

A = annotate
Tensor = torch.Tensor


def trace(where: Path, step: Callable[..., Any], passes: int = 1, shape: tuple[int, ...] = (3,), **start: Any) -> None:
    """Run a step a few times in a session."""
    leapp.start("g", save_path=where, **start)
    try:
        with torch.no_grad():
            for _ in range(passes):
                step(torch.randn(shape))
    finally:
        leapp.stop()


def build(**settings: Any) -> Any:
    """Compile without a picture."""
    return leapp.compile_graph(visualize=False, **settings)


def contract(where: Path) -> Any:
    """What the YAML says."""
    return yaml.safe_load((where / "g" / "g.yaml").read_text())


def simple(node: str = "n") -> Callable[[Tensor], Tensor]:
    """A node that doubles."""

    def step(x: Tensor) -> Tensor:
        x = A.input_tensors(node, {"x": x})
        y: Tensor = A.output_tensors(node, {"y": x * 2.0}, export_with="jit")
        return y

    return step


# -- exceptions and retries --------------------------------------------------------------------------------------------


class Hiccup(Exception):
    """Raised by the user's code."""


@pytest.mark.parametrize("failing", [0, 1, 2])
@pytest.mark.parametrize("held", [False, True], ids=["let go", "kept"])
def test_retry_after_an_exception(failing: int, held: bool, tmp_path: Path) -> None:
    """A pass that raised did not happen, whatever it had recorded, and whatever of it is still around."""
    net = nn.GRUCell(3, 3)
    net.register_buffer("h", torch.zeros(1, 3))
    net.register_buffer("seen", torch.zeros(1, 3))
    kept = []

    def attempt(x: Tensor, fail: bool) -> Tensor:
        command, x = A.input_tensors("m", {"command": torch.ones(1, 3), "x": x})
        A.module("m", net)
        net.h = net(x, net.h) * command
        if held:
            kept.append(net.h)
        if fail:
            raise Hiccup
        net.seen.add_(x)
        y = A.output_tensors("m", {"y": net.h + net.seen}, export_with="jit")
        z = A.input_tensors("n", {"y": y})
        out: Tensor = A.output_tensors("n", {"z": z * 2.0}, export_with="jit")
        return out

    leapp.start("g", save_path=tmp_path)
    with torch.no_grad():
        for number in range(4):
            if number == failing:
                before = net.h
                with pytest.raises(Hiccup):
                    attempt(torch.randn(1, 3), fail=True)
                net.h = before
            attempt(torch.randn(1, 3), fail=False)
    leapp.stop()
    build()
    manager = InferenceManager(tmp_path / "g")
    net.h, net.seen = torch.zeros(1, 3), torch.zeros(1, 3)
    for _ in range(20):
        x = torch.randn(1, 3)
        with torch.no_grad():
            want = attempt(x, fail=False)
        torch.testing.assert_close(manager({"m/command": torch.ones(1, 3), "m/x": x})["n/z"], want)


def test_retry_of_a_pass_that_wrote_to_its_input(tmp_path: Path) -> None:
    """What the first attempt wrote is not in the tensor that the second one declares, though its variable still stands."""
    leapp.start("g", save_path=tmp_path)
    given = torch.randn(3)
    for fails in (True, False):
        try:
            x = A.input_tensors("n", {"x": given.clone()})
            x += 1.0
            if fails:
                raise Hiccup
            y = A.output_tensors("n", {"y": x * 2.0}, export_with="jit")
        except Hiccup:
            pass
    leapp.stop()
    build()
    torch.testing.assert_close(y, (given + 1.0) * 2.0)
    torch.testing.assert_close(InferenceManager(tmp_path / "g")({"n/x": torch.ones(3)})["n/y"], torch.full((3,), 4.0))


@pytest.mark.parametrize("apart", [0, 2], ids=["the same", "overlapping"])
def test_inputs_that_share_memory(apart: int, tmp_path: Path) -> None:
    """In a model each is a value of its own: reading them is right; where a write to one shows in the other, it is told."""
    for writes in (False, True):
        leapp.start("g", save_path=tmp_path)
        memory = torch.randn(4 + apart)
        a, b = A.input_tensors("n", {"a": memory[:4], "b": memory[apart:]})
        if writes:
            a.mul_(3.0)
        A.output_tensors("n", {"y": a + b * 2.0}, export_with="jit")
        leapp.stop()
        if writes:
            with pytest.raises(ValidationError, match=r"share memory.*test_sessions\.py:\d+: a\.mul_\(3\.0\)"):
                leapp.compile_graph(visualize=False)
        else:
            build()
            new = {"n/a": torch.randn(4), "n/b": torch.randn(4)}
            torch.testing.assert_close(InferenceManager(tmp_path / "g")(new)["n/y"], new["n/a"] + new["n/b"] * 2.0)


@pytest.mark.parametrize("failing", [0, 1])
def test_retry_of_a_decorated_function(failing: int, tmp_path: Path) -> None:
    """The node of a function that raised is as it was before."""
    state = torch.zeros(3)

    @annotate.method(node_name="n", export_with="jit")
    def function(x: Tensor, fail: bool = False) -> Tensor:
        h = A.state_tensors("n", {"h": state.clone()})
        if fail:
            raise Hiccup
        nxt = A.update_state("n", {"h": h * 0.5 + x})
        state.copy_(nxt)
        return nxt * 2.0

    leapp.start("g", save_path=tmp_path)
    with torch.no_grad():
        for number in range(3):
            if number == failing:
                with pytest.raises(Hiccup):
                    function(torch.randn(3), fail=True)
            function(torch.randn(3))
    leapp.stop()
    assert build() == {"n": True}
    assert contract(tmp_path)["pipeline"]["feedback_flow"] == {"n/h": ["n/h"]}


def test_a_getter_that_declares_its_value_at_every_read(tmp_path: Path) -> None:
    """One port, however often it is read in a pass."""
    position = torch.zeros(3)

    def read() -> Tensor:
        got: Tensor = A.input_tensors("n", {"position": position.clone()})
        return got

    def step(x: Tensor) -> Tensor:
        position.copy_(x)
        first = read()
        y: Tensor = A.output_tensors("n", {"y": first + read().sin() + read().cos()}, export_with="jit")
        return y

    trace(tmp_path, step, passes=3)
    build()
    manager = InferenceManager(tmp_path / "g")
    x = torch.randn(3)
    torch.testing.assert_close(manager({"n/position": x})["n/y"], x + x.sin() + x.cos())


def test_reentry_from_another_line(tmp_path: Path) -> None:
    """A loop may be written out."""
    leapp.start("g", save_path=tmp_path)
    x = A.input_tensors("n", {"x": torch.randn(3)})
    A.output_tensors("n", {"y": x + 1.0}, export_with="jit")
    z = A.input_tensors("n", {"x": torch.randn(3)})
    A.output_tensors("n", {"y": z + 1.0}, export_with="jit")
    leapp.stop()
    assert build() == {"n": True}


# -- samples, and what the passes show ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "kept"), [(3, 3), (1, 1), (0, 1), (-2, 1), (9, 6)])
def test_max_cached_io_counts_the_first_pass(limit: int, kept: int, tmp_path: Path) -> None:
    """N samples are kept of six passes, the first among them."""
    trace(tmp_path, simple(), passes=6, max_cached_io=limit)
    session = leapp.ExportManager().session
    assert session is not None and len(session.nodes["n"].samples) == kept


@pytest.mark.parametrize("grad", [False, True])
def test_samples_are_copies(grad: bool, tmp_path: Path) -> None:
    """What a program does to its tensors after a pass, or in it, is not done to the samples of any pass."""
    h, given = torch.zeros(3, 2), []
    leapp.start("g", save_path=tmp_path)
    with torch.set_grad_enabled(grad):
        for _ in range(5):
            x = torch.randn(2, 3).T
            before = x.clone(), h.clone()
            inside, state = A.input_tensors("n", {"x": x}), A.state_tensors("n", {"h": h})
            inside.mul_(2.0)
            h = A.update_state("n", {"h": state + inside})
            y = A.output_tensors("n", {"y": inside - state}, export_with="jit")
            torch.testing.assert_close(x, before[0] * 2.0)
            given.append([*before, y.clone(), h.clone()])
            y.zero_()
    leapp.stop()
    session = leapp.ExportManager().session
    assert session is not None
    samples = session.nodes["n"].samples
    assert len(samples) == 5
    for sample, wanted in zip(samples, given, strict=True):
        kept = [sample.inputs["x"], sample.inputs["h"], sample.outputs["y"], sample.outputs["h"]]
        torch.testing.assert_close(kept, wanted, rtol=0, atol=0)
        assert all(t.is_contiguous() and not t.requires_grad for t in kept)
    assert build() == {"n": True}


def test_a_reset_in_the_middle(tmp_path: Path) -> None:
    """Feedback that goes back to its first value is a reset, not another source."""
    action = torch.zeros(3)

    def step(x: Tensor) -> Tensor:
        nonlocal action
        x, last = A.input_tensors("n", {"x": x, "last": action})
        action = A.output_tensors("n", {"action": torch.tanh(x + last)}, export_with="jit")
        return action

    leapp.start("g", save_path=tmp_path)
    for number in range(5):
        if number == 3:
            action = torch.zeros(3)
        step(torch.randn(3))
    leapp.stop()
    assert build() == {"n": True}
    assert contract(tmp_path)["pipeline"]["feedback_flow"] == {"n/action": ["n/last"]}


def test_state_that_is_not_carried_over(tmp_path: Path) -> None:
    """A program that throws the update away is not what the bundle would do, and is refused."""

    def step(x: Tensor) -> None:
        x = A.input_tensors("n", {"x": x})
        h = A.state_tensors("n", {"h": torch.randn(3)})
        A.update_state("n", {"h": h + x})
        A.output_tensors("n", {"y": h * x}, export_with="jit")

    trace(tmp_path, step, passes=3)
    with pytest.raises(leapp.errors.ValidationError, match="what differs is what one pass hands to the next"):
        build()


def test_a_buffer_that_others_write_to(tmp_path: Path) -> None:
    """A registered tensor that neither lives on nor starts anew is an input."""
    buffer = torch.zeros(3)

    def step(x: Tensor) -> None:
        x = A.input_tensors("n", {"x": x})
        b = A.register_buffer("n", {"buf": buffer})
        b += x
        A.output_tensors("n", {"y": b * 1.0}, export_with="jit")
        buffer.normal_()

    trace(tmp_path, step, passes=3)
    with pytest.raises(TraceError, match=r"'n'.*'buf'.*test_sessions\.py:\d+.*input_tensors"):
        build()


def _history(h: Tensor, x: Tensor) -> Tensor:
    h[:-1] = h[1:].clone()
    h[-1] = x
    return h.sum(0)


def _counter(h: Tensor, x: Tensor) -> Tensor:
    h.add_(1.0)
    return x * h[0]


def _previous(h: Tensor, x: Tensor) -> Tensor:
    y = x - h[0]
    h[0].copy_(x)
    return y


@pytest.mark.parametrize("update", [_history, _counter, _previous])
@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_undeclared_state_is_reported_or_refused(update: Callable[..., Tensor], mode: str, tmp_path: Path) -> None:
    """One pass gives a warning with the line; a second pass proves that the model would be wrong."""
    for passes in (1, 2):
        kept = torch.zeros(4, 3)

        def step(x: Tensor, kept: Tensor = kept) -> None:
            with getattr(torch, mode)():
                x = A.input_tensors("n", {"x": x})
                A.output_tensors("n", {"y": update(kept, x)}, export_with="jit")

        trace(tmp_path, step, passes=passes)
        if passes == 2:
            with pytest.raises(TraceError, match=r"n: undeclared state.*test_sessions\.py:\d+"):
                build()
        else:
            build()
            assert [e.kind.split(":")[0] for e in leapp.report().escapes] == ["undeclared state"]


def test_scratch_memory_is_no_state(tmp_path: Path) -> None:
    """A pre-allocated buffer that every pass fills anew is fine."""
    obs = torch.zeros(6)

    def step(x: Tensor) -> None:
        x = A.input_tensors("n", {"x": x})
        obs[:3] = x
        obs[3:] = x * 2.0
        A.output_tensors("n", {"y": obs.tanh()}, export_with="jit")

    trace(tmp_path, step)
    build()
    assert leapp.report().escapes == []


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "scaled": lambda t: t * 2.0,
    "one element": lambda t: (t.__setitem__(0, 5.0), t)[1],
    "through a view": lambda t: (t[1:].zero_(), t)[1],
    "cast and back": lambda t: t.to(torch.int64).float(),
    "in place": lambda t: t.add_(1.0),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_glue_breaks_the_edge_and_is_reported(change: Callable[[Tensor], Tensor], mode: str, tmp_path: Path) -> None:
    """What is done to an output between the nodes is in no model, so the consumer's input is the graph's."""

    def step(x: Tensor) -> None:
        with getattr(torch, mode)():
            y = change(simple("m")(x))
            z = A.input_tensors("n", {"z": y})
            A.output_tensors("n", {"o": z + 1.0}, export_with="jit")

    trace(tmp_path, step, passes=2)
    build()
    found = contract(tmp_path)["pipeline"]
    assert found["data_flow"] == {} and found["inputs"] == {"m": ["x"], "n": ["z"]}
    assert [g.source for g in leapp.report().glue] == ["m/y"]


# -- left out, or brought along ----------------------------------------------------------------------------------------


def two_nodes(**first: Any) -> Callable[[Tensor], Tensor]:
    """Two nodes in a row with a loop around them."""
    last = torch.zeros(3)

    def step(x: Tensor) -> Tensor:
        nonlocal last
        x, p = A.input_tensors("one", {"x": x, "last": last})
        y = A.output_tensors("one", {"y": x + p}, **({"export_with": "jit"} | first))
        z = A.input_tensors("two", {"y": y})
        last = A.output_tensors("two", {"z": torch.tanh(z)}, export_with="jit")
        return last

    return step


@pytest.mark.parametrize("how", ["start", "compile"])
def test_dry_run(how: str, tmp_path: Path) -> None:
    """Everything is described, nothing exported."""
    trace(tmp_path, two_nodes(), passes=2, **({"dry_run": True} if how == "start" else {}))
    assert build(**({"dry_run": True} if how == "compile" else {})) is True
    found = contract(tmp_path)
    assert {n: m["parameters"]["model_path"] for n, m in found["models"].items()} == {"one": None, "two": None}
    assert found["pipeline"]["feedback_flow"] == {"two/z": ["one/last"]} and "initial_values" not in found["pipeline"]
    assert sorted(p.name for p in (tmp_path / "g").iterdir()) == ["g.yaml", "log.txt"]


def test_nodes_that_are_not_traced(tmp_path: Path) -> None:
    """They are wired and described; the others are exported. Code that cannot be traced may stand in them."""

    def step(x: Tensor) -> None:
        x = A.input_tensors("one", {"x": x})
        y = torch.tensor([float(v) + 1.0 for v in x])
        A.output_tensors("one", {"y": y}, export_with="jit")
        z = A.input_tensors("two", {"y": y})
        A.output_tensors("two", {"z": z * 2.0}, export_with="jit")

    trace(tmp_path, step, passes=2, non_traced="one")
    assert build() == {"one": True, "two": True}
    found = contract(tmp_path)
    assert found["models"]["one"]["parameters"]["backend"] is None
    assert found["pipeline"]["data_flow"] == {"one/y": ["two/y"]}


def own_model(path: Path, copy: bool, name: str = "own") -> Callable[[Tensor], None]:
    """A node whose model the user brings; the code in it is a stand-in."""

    def step(x: Tensor) -> None:
        A.input_tensors(name, {"x": x})
        placeholder = torch.zeros(3)
        A.output_tensors(name, {"y": placeholder}, backend_params={"model_path": str(path), "copy_original_model": copy})

    return step


@pytest.mark.parametrize(
    ("suffix", "backend"), [(".pt", "jit"), (".onnx", "onnx"), (".pt2", "pt2"), (".engine", "trt"), (".plan", "trt")]
)
@pytest.mark.parametrize("copy", [False, True])
def test_a_model_of_ones_own(suffix: str, backend: str, copy: bool, tmp_path: Path) -> None:
    """It is recorded, or copied, and not compared with the stand-in."""
    model = tmp_path / f"mine{suffix}"
    if suffix == ".pt":
        torch.jit.trace(nn.Linear(3, 3), torch.zeros(3)).save(str(model))  # type: ignore[no-untyped-call]
    elif suffix == ".pt2":
        torch.export.save(torch.export.export(nn.Linear(3, 3), (torch.zeros(3),)), str(model))
    elif suffix == ".onnx":
        linear_onnx(model, 2.0)
    else:
        model.write_bytes(b"a model")
    trace(tmp_path, own_model(model, copy), passes=2)
    assert build(strict=True) == {"own": True}
    parameters = contract(tmp_path)["models"]["own"]["parameters"]
    assert parameters["backend"] == backend and len(parameters["sha256sum"]) == 64
    assert (tmp_path / "g" / model.name).exists() == copy
    if suffix == ".pt" and copy:
        x = torch.randn(3)
        want = torch.jit.load(str(model))(x)  # type: ignore[no-untyped-call]
        torch.testing.assert_close(InferenceManager(tmp_path / "g")({"own/x": x})["own/y"], want)


def test_a_missing_model_is_refused_by_name(tmp_path: Path) -> None:
    trace(tmp_path, own_model(tmp_path / "nowhere.onnx", False))
    with pytest.raises(BundleFileError, match=r"'own'.*nowhere\.onnx"):
        build()


def linear_onnx(path: Path, factor: float, external: bool = False) -> None:
    """``y = factor * x``, with the factor in the file beside it if ``external``."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    path.parent.mkdir(exist_ok=True)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy"]
    weight = numpy_helper.from_array(np.full(3, factor, np.float32), "k")
    graph = helper.make_graph([helper.make_node("Mul", ["x", "k"], ["y"])], "g", ends[:1], ends[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 9
    onnx.save_model(
        model, str(path), save_as_external_data=external, location=f"{path.name}.data" if external else None, size_threshold=0
    )


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("exported_first", [False, True])
def test_brought_models_with_one_file_name_are_kept_apart(external: bool, exported_first: bool, tmp_path: Path) -> None:
    """From two folders, and with the name that the file of an exported node has, whichever comes first."""
    linear_onnx(tmp_path / "a" / "n.onnx", 2.0, external)
    linear_onnx(tmp_path / "b" / "N.onnx", 3.0, external)
    brought = [own_model(tmp_path / "a" / "n.onnx", True, "first"), own_model(tmp_path / "b" / "N.onnx", True, "second")]

    def exported(x: Tensor) -> None:
        x = A.input_tensors("n", {"x": x})
        A.output_tensors("n", {"y": torch.sin(x)}, export_with="onnx")

    def step(x: Tensor) -> None:
        for part in [exported, *brought] if exported_first else [*brought, exported]:
            part(x)

    trace(tmp_path, step)
    build()
    shutil.rmtree(tmp_path / "a")
    shutil.rmtree(tmp_path / "b")
    shutil.copytree(tmp_path / "g", tmp_path / "elsewhere" / "g")
    for place in (tmp_path / "g", tmp_path / "elsewhere" / "g"):
        x = torch.randn(3)
        found = InferenceManager(place)({f"{name}/x": x for name in ("n", "first", "second")})
        torch.testing.assert_close(found["n/y"], torch.sin(x))
        torch.testing.assert_close(found["first/y"], 2.0 * x)
        torch.testing.assert_close(found["second/y"], 3.0 * x)
    trace(tmp_path, simple())
    build()
    left = {path.name for path in (tmp_path / "g").iterdir()}
    assert not left & {"first", "second", "n.onnx"}, "files of the earlier export stay behind"


@pytest.mark.parametrize("external", [False, True])
def test_a_model_that_stays_where_it_is_runs_until_it_changes(external: bool, tmp_path: Path) -> None:
    path = tmp_path / "models" / "m.onnx"
    linear_onnx(path, 2.0, external)
    trace(tmp_path, own_model(path, False))
    build()
    x = torch.randn(3)
    torch.testing.assert_close(InferenceManager(tmp_path / "g")({"own/x": x})["own/y"], 2.0 * x)
    np.testing.assert_allclose(Pipeline(tmp_path / "g")({"own/x": x.numpy()})["own/y"], 2.0 * x.numpy())
    linear_onnx(path, 5.0, external)
    with pytest.raises(BundleError, match="checksum"):
        Pipeline(tmp_path / "g")


def test_an_axis_without_names_is_an_empty_list(tmp_path: Path) -> None:
    """The C++ reader of Isaac ROS Deploy takes a list of text for each axis, and nothing else."""

    def step(x: Tensor) -> None:
        joints = TensorSemantics("x", x.reshape(1, 3), element_names=[None, ["a", "b", "c"]])
        x = A.input_tensors("n", joints)
        A.output_tensors("n", TensorSemantics("y", x * 2.0, element_names=[None, ["a", "b", "c"]]), export_with="onnx")

    trace(tmp_path, step)
    build()
    ports = contract(tmp_path)["models"]["n"]
    assert [port["element_names"] for port in (*ports["inputs"], *ports["outputs"])] == [[[], ["a", "b", "c"]]] * 2
    assert Pipeline(tmp_path / "g").bind(inputs={"n/x": ["c", "a", "b"]})


def test_nodes_that_were_never_finished_are_named(tmp_path: Path) -> None:
    """In the log at stop(), and in the error at compile_graph()."""
    trace(tmp_path, lambda x: A.input_tensors("begun", {"x": x}))
    assert "'begun'" in (tmp_path / "g" / "log.txt").read_text()
    with pytest.raises(SessionError, match="begun"):
        build()


def test_a_session_as_a_block(tmp_path: Path) -> None:
    """It is compiled at the end, and only closed if the block raised."""
    with leapp.session("g", save_path=tmp_path, compile={"visualize": False}):
        simple()(torch.randn(3))
    assert (tmp_path / "g" / "n.pt").exists()
    with pytest.raises(Hiccup), leapp.session("h", save_path=tmp_path):
        raise Hiccup
    assert not leapp.ExportManager.interpreting and not (tmp_path / "h" / "h.yaml").exists()


# -- threads and processes ---------------------------------------------------------------------------------------------


def test_work_in_other_threads_is_recorded(tmp_path: Path) -> None:
    """In threads that are started, and in pools that were there before."""
    with ThreadPoolExecutor(2) as pool:
        pool.submit(int).result()

        def step(x: Tensor) -> Tensor:
            x = A.input_tensors("n", {"x": x})
            box: list[Tensor] = []
            worker = threading.Thread(target=lambda: box.append(torch.sin(x) * 2.0))
            worker.start()
            worker.join()
            parts = list(pool.map(lambda k: torch.cos(x * k), range(1, 5)))
            y: Tensor = A.output_tensors("n", {"y": box[0] + sum(parts)}, export_with="jit")
            return y

        start = threading.Thread.start
        trace(tmp_path, step, passes=2)
        assert threading.Thread.start is start
        build()
        assert leapp.report().escapes == []
        x = torch.randn(3)
        torch.testing.assert_close(InferenceManager(tmp_path / "g")({"n/x": x})["n/y"], step(x))


def test_the_order_in_which_threads_ran_is_no_difference(tmp_path: Path) -> None:
    """Each pass lets its threads run in another order; a number that does differ is refused with its line."""
    orders = itertools.cycle([(0, 1, 2), (2, 0, 1)])

    def step(factor: float) -> Callable[[Tensor], Tensor]:
        def run(x: Tensor) -> Tensor:
            x = A.input_tensors("n", {"x": x})
            kept, parts = x * 0.0, [x] * 3

            def work(k: int) -> None:
                parts[k] = torch.cos(x * float(k + 1)).mul_(factor if k == 1 else 2.0)  # HERE

            for k in next(orders):
                worker = threading.Thread(target=work, args=(k,))
                worker.start()
                worker.join()
            kept.add_(parts[0] - parts[1])
            y: Tensor = A.output_tensors("n", {"y": kept / (parts[2] + 3.0)}, export_with="jit")
            return y

        return run

    trace(tmp_path, step(2.0), passes=2)
    build()
    x = torch.randn(3)
    torch.testing.assert_close(InferenceManager(tmp_path / "g")({"n/x": x})["n/y"], step(2.0)(x))
    leapp.start("h", save_path=tmp_path)
    for factor in (2.0, 3.0):
        step(factor)(torch.randn(3))
    leapp.stop()
    with pytest.raises(TraceError, match=r"# HERE  \[frozen: 2.0\] -- differs between passes: 3.0"):
        build()


def test_nodes_in_several_threads(tmp_path: Path) -> None:
    """Each thread may have nodes of its own at the same time."""

    def run(name: str) -> None:
        for _ in range(3):
            x = A.input_tensors(name, {"x": torch.randn(3)})
            for _ in range(50):
                x = torch.sin(x) + 1.0
            A.output_tensors(name, {"y": x}, export_with="jit")

    leapp.start("g", save_path=tmp_path)
    threads = [threading.Thread(target=run, args=(f"n{k}",)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    leapp.stop()
    assert build() == {f"n{k}": True for k in range(4)}


def test_a_session_that_another_thread_ends(tmp_path: Path) -> None:
    """Nothing is recorded any more, and the next call of leapp leaves this thread as it was."""
    leapp.start("g", save_path=tmp_path)
    x = A.input_tensors("n", {"x": torch.randn(3)})
    kept = A.output_tensors("n", {"y": x * 2.0}, export_with="jit")
    A.input_tensors("open", {"x": torch.randn(3)})
    ending = threading.Thread(target=leapp.stop)
    ending.start()
    ending.join()
    assert torch.add(kept, torch.ones(3)).tolist() == (x * 2.0 + 1.0).tolist()
    leapp.start("g", save_path=tmp_path)
    simple()(torch.randn(3))
    leapp.stop()
    assert torch._C._len_torch_function_stack() == torch._C._len_torch_dispatch_stack() == 0
    assert build() == {"n": True}


def test_a_forked_child_is_clean(tmp_path: Path) -> None:
    """The child is in no session, and what it logs does not reach the parent's log."""
    leapp.start("g", save_path=tmp_path)
    x = torch.randn(3)
    assert A.input_tensors("n", {"x": x}) is not x
    child = os.fork()
    if child == 0:
        clean = (
            A.input_tensors("n", {"x": x}) is x
            and not leapp.ExportManager.interpreting
            and torch._C._len_torch_function_stack() == 0
            and torch._C._len_torch_dispatch_stack() == 0
            and threading.Thread.start.__module__ == "threading"
        )
        os._exit(0 if clean else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert leapp.ExportManager.interpreting


# -- meaning -----------------------------------------------------------------------------------------------------------


def test_what_is_missing_for_deployment(tmp_path: Path) -> None:
    """The report lists what a deployer would have to guess, and nothing once it is told."""

    def bare(x: Tensor) -> None:
        q = A.input_tensors("n", {"joint_pos": x})
        A.output_tensors("n", TensorSemantics("command", q * 2.0, kind="target/joint/position"), export_with="jit")

    trace(tmp_path, bare)
    build()
    missing = "\n".join(leapp.report().missing)
    assert "frequency" in missing and "input 'n/joint_pos' has no kind" in missing
    assert "output 'n/command' does not name its joints" in missing
    assert missing in (tmp_path / "g" / "log.txt").read_text().replace("\n  ", "\n")

    def told(x: Tensor) -> None:
        names = ["hip", "knee", "foot"]
        q = A.input_tensors("n", TensorSemantics("joint_pos", x, kind="state/joint/position", element_names=names))
        A.output_tensors(
            "n", TensorSemantics("command", q * 2.0, kind="target/joint/position", element_names=names), export_with="jit"
        )

    trace(tmp_path, told)
    build(graph_configs=GraphConfigs(frequency=50))
    assert leapp.report().missing == []


def test_semantics_on_states_and_methods(tmp_path: Path) -> None:
    """They reach the YAML like those of any port."""

    @annotate.method(
        node_name="n", export_with="jit", input_semantics={"x": {"kind": "state/vector3d", "units": "m"}},
        output_semantics={"out": {"element_names": ["a", "b", "c"]}},
    )  # fmt: skip
    def function(x: Tensor) -> Tensor:
        h = A.state_tensors("n", [TensorSemantics("h", torch.zeros(3), kind="state/memory")])
        A.update_state("n", {"h": h + x})
        out = h * x
        return out

    trace(tmp_path, function)
    build()
    node = contract(tmp_path)["models"]["n"]
    ports = {p["name"] + side: p for side in ("inputs", "outputs") for p in node[side]}
    assert ports["xinputs"]["kind"] == "state/vector3d" and ports["xinputs"]["units"] == "m"
    assert ports["hinputs"]["kind"] == ports["houtputs"]["kind"] == "state/memory"
    assert ports["outoutputs"]["element_names"] == [["a", "b", "c"]]


def test_names_that_onnx_cannot_have_twice(tmp_path: Path) -> None:
    """Files say ``_in`` and ``_out``; the name that was declared works too. A clash is refused."""

    def step(x: Tensor, extra: str = "other") -> None:
        x, _ = A.input_tensors("n", {"x": x, extra: x + 1.0})
        h = A.state_tensors("n", {"h": torch.zeros(3)})
        A.update_state("n", {"h": h + x})
        A.output_tensors("n", {"y": h * 1.0 + _}, export_with="onnx")

    trace(tmp_path, step)
    build()
    assert contract(tmp_path)["pipeline"]["feedback_flow"] == {"n/h_out": ["n/h_in"]}
    manager = InferenceManager(tmp_path / "g")
    manager.set_input_value("n", "h", torch.ones(3))
    torch.testing.assert_close(manager({"n/x": torch.zeros(3), "n/other": torch.zeros(3)})["n/y"], torch.ones(3))
    trace(tmp_path, lambda x: step(x, "h_in"))
    with pytest.raises(ValueError, match="'n'.*'h'.*'h_in'"):
        build()


def test_return_values_inside_and_outside_a_session(tmp_path: Path) -> None:
    """One value comes back as it is, several as a tuple, in both worlds."""
    x = torch.randn(3)
    for inside in (False, True):
        if inside:
            leapp.start("g", save_path=tmp_path)
        assert A.input_tensors("n", {}) == ()
        assert isinstance(A.input_tensors("n", {"a": x}), Tensor)
        assert isinstance(A.input_tensors("n", {"b": x, "c": x}), tuple)
        assert isinstance(A.register_buffer("n", [torch.ones(3)]), Tensor)
        assert isinstance(A.register_buffer("n", (torch.ones(3), torch.ones(3))), tuple)
        assert isinstance(A.state_tensors("n", {"h": x}), Tensor)
        assert A.mirror_leapp_tags(x, x) is x


def test_the_callers_tensors_stay_as_they_are(tmp_path: Path) -> None:
    """Class, identity and content of what was declared."""
    x = torch.randn(3)
    kept, kind = x.clone(), type(x)
    leapp.start("g", save_path=tmp_path)
    got = A.input_tensors("n", {"x": x})
    assert got is not x and type(x) is kind
    y = got * 2.0
    assert A.output_tensors("n", {"y": y}, export_with="jit") is y
    leapp.stop()
    assert torch.equal(x, kept) and type(y) is Tensor


def test_the_log_takes_any_name(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A file name need not be text: Python spells the bytes of it with half characters."""
    where = tmp_path / os.fsdecode(b"odd-\xff")
    trace(where, simple())
    logging.getLogger("leapp").warning("in %s", where)
    assert "odd-\\udcff" in (where / "g" / "log.txt").read_text()
    assert "Traceback" not in capfd.readouterr().err


def test_an_empty_session_leaves_the_bundle_alone(tmp_path: Path) -> None:
    leapp.start("g", save_path=tmp_path)
    for _ in range(2):
        x = annotate.input_tensors("n", {"x": torch.randn(3)})
        annotate.output_tensors("n", {"y": x * 2.0}, export_with="onnx")
    leapp.stop()
    leapp.compile_graph(visualize=False)
    files = {path: path.read_bytes() for path in (tmp_path / "g").iterdir() if path.name != "log.txt"}
    for options in ({}, {"strict": False}, {"dry_run": True}):
        leapp.start("g", save_path=tmp_path)
        leapp.stop()
        with pytest.raises(SessionError, match="nothing was traced"):
            leapp.compile_graph(visualize=False, **options)
    assert files == {path: path.read_bytes() for path in (tmp_path / "g").iterdir() if path.name != "log.txt"}
    given = torch.randn(3)
    assert torch.equal(InferenceManager(tmp_path / "g" / "g.yaml").run_policy({"n/x": given})["n/y"], given * 2.0)


@pytest.mark.parametrize("backend", ["jit", "onnx", "pt2"])
def test_nested_buffers(tmp_path: Path, backend: str) -> None:
    """Each tensor of a container is a buffer, named after its path."""

    def memory() -> dict[str, Any]:
        return {"sum": torch.zeros(2), "last": [torch.ones(2), (torch.full((2,), 3.0),)]}

    def step(x: torch.Tensor, kept: dict[str, Any]) -> torch.Tensor:
        x = annotate.input_tensors("n", {"x": x})
        kept = annotate.register_buffer("n", {"kept": kept})
        kept["sum"] += x
        before = kept["last"][0] * 2.0 + kept["last"][1][0]
        kept["last"][1][0].copy_(kept["last"][0])
        kept["last"][0].copy_(x)
        return annotate.output_tensors("n", {"y": kept["sum"] + before}, export_with=backend)

    leapp.start("g", save_path=tmp_path)
    kept = memory()
    for _ in range(3):
        step(torch.randn(2), kept)
    leapp.stop()
    leapp.compile_graph(visualize=False)
    runner, kept = InferenceManager(tmp_path / "g" / "g.yaml"), memory()
    assert runner.inputs == ["n/x"]
    assert {name.split("/")[1].removesuffix("_in") for name in runner.state()} == {"kept_sum", "kept_last_0", "kept_last_1_0"}
    for _ in range(4):
        x = torch.randn(2)
        torch.testing.assert_close(runner.run_policy({"n/x": x})["n/y"], step(x, kept))
