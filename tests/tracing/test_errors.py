"""Every mistake is refused with its node, its port and the line to change."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import leapp
from leapp import TensorSemantics, annotate
from leapp.errors import AnnotationTypeError, ExportError, LeappError, TraceError

A = annotate
X = torch.arange(3.0)
HERE = r"test_errors\.py:\d+"


@pytest.fixture(autouse=True)
def session(tmp_path: Path) -> Iterator[None]:
    """Each mistake is made in a session of its own."""
    leapp.start("g", save_path=tmp_path)
    yield
    if leapp.ExportManager.interpreting:
        leapp.stop()


def node(name: str = "n", **outputs: Any) -> torch.Tensor:
    """A finished node."""
    x = A.input_tensors(name, {"x": X.clone()})
    y: torch.Tensor = A.output_tensors(name, {"y": x * 2.0}, export_with="jit", **outputs)
    return y


def twice(change: Callable[[int], Any]) -> Callable[[], None]:
    """Two passes, the second of which differs."""

    def run() -> None:
        for number in range(2):
            change(number)

    return run


def later(
    x: Any = X, h: Any = X, new: Any = X, backend: str = "jit", names: tuple[str, str] = ("x", "y")
) -> Callable[[], None]:
    """Three passes, the last of which is given something else. Nobody listens to it any more."""

    def run() -> None:
        for wrong in (False, False, True):
            (given, out), state = names if wrong else ("x", "y"), h if wrong else X
            A.input_tensors("n", {given: x if wrong else X})
            held = A.state_tensors("n", {"h": state})
            A.update_state("n", {"h": new if wrong and new is not X else held + 1.0})
            A.output_tensors("n", {out: held * 2.0}, export_with=backend if wrong else "jit")

    return run


def _missing_later() -> None:
    for wrong in (False, False, True):
        values = {"a": X, "b": X}
        if wrong:
            del values["b"]
        given = A.input_tensors("n", values)
        A.output_tensors("n", {"y": X * 2.0 if wrong else sum(given)}, export_with="jit")


def _outputs_twice() -> None:
    for _ in range(3):
        y = node()
    A.output_tensors("n", {"y": y}, export_with="jit")


class Buffered(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("hidden", torch.zeros(3))


def _same_name_other_line() -> None:
    A.input_tensors("n", {"x": X})
    A.input_tensors("n", {"x": X + 1})


def _state_named_like_input() -> None:
    A.input_tensors("n", {"x": X})
    A.state_tensors("n", {"x": X})


def _state_and_output() -> None:
    x = A.input_tensors("n", {"x": X})
    h = A.state_tensors("n", {"h": X})
    A.update_state("n", {"h": h + x})
    A.output_tensors("n", {"h": x}, export_with="jit")


def _update_other_shape() -> None:
    x = A.input_tensors("n", {"x": X})
    A.state_tensors("n", {"h": X})
    A.update_state("n", {"h": x[:2]})


def _update_plain() -> None:
    A.input_tensors("n", {"x": X})
    A.state_tensors("n", {"h": X})
    A.update_state("n", {"h": torch.ones(3)})


def _update_of_input() -> None:
    x = A.input_tensors("n", {"x": X})
    A.update_state("n", {"x": x + 1.0})


def _update_late() -> None:
    y = node()
    A.update_state("n", {"h": y})


def _register_late() -> None:
    node()
    A.register_buffer("n", {"b": torch.zeros(3)})


def _register_traced() -> None:
    x = A.input_tensors("n", {"x": X})
    A.register_buffer("n", {"b": x})


def _register_twice() -> None:
    A.input_tensors("n", {"x": X})
    A.register_buffer("n", {"x": torch.zeros(3)})


def _module_unknown() -> None:
    A.input_tensors("n", {"x": X})
    A.module("n", Buffered(), buffer_names=["hiden"])


def _module_not_one() -> None:
    A.input_tensors("n", {"x": X})
    A.module("n", object())  # type: ignore[arg-type]


def _plain_output() -> None:
    A.input_tensors("n", {"x": X})
    A.output_tensors("n", {"y": torch.ones(3)}, export_with="jit")


def _frozen_output() -> None:
    x = A.input_tensors("n", {"x": X})
    A.output_tensors("n", {"y": torch.tensor(float(x.sum()))}, export_with="jit")


def _pruned_by_escape() -> None:
    x, z = A.input_tensors("n", {"x": X, "z": X + 1.0})
    A.output_tensors("n", {"y": x * float(z.sum())}, export_with="jit")


def _foreign_output() -> None:
    x = A.input_tensors("m", {"x": X.clone()})
    A.input_tensors("n", {"x": X.clone()})
    A.output_tensors("n", {"y": x + 1.0}, export_with="jit")


def _open_value() -> None:
    x = A.input_tensors("m", {"x": X})
    A.input_tensors("n", {"z": x * 2.0})


def _meeting_values() -> None:
    x = A.input_tensors("m", {"x": X.clone()})
    z = A.input_tensors("n", {"z": X.clone()})
    torch.add(x, z)


def _undeclared_value() -> None:
    y = node("m")
    x = A.input_tensors("n", {"x": X})
    torch.add(x, y)


def _traced_static() -> None:
    x = A.input_tensors("n", {"x": X})
    A.output_tensors("n", {"y": x + 1.0}, static_outputs={"s": x + 2.0}, export_with="jit")


def _static_named_like_output() -> None:
    x = A.input_tensors("n", {"x": X})
    A.output_tensors("n", {"y": x + 1.0}, static_outputs={"y": torch.ones(3)}, export_with="jit")


def _no_output() -> None:
    A.input_tensors("n", {"x": X})
    A.output_tensors("n", {}, export_with="jit")


def _output_twice() -> None:
    y = node()
    A.output_tensors("n", {"y": y}, export_with="jit")


def _source_changes(number: int) -> None:
    y = node("m")
    z = A.input_tensors("n", {"z": y if number == 0 else X.clone()})
    A.output_tensors("n", {"o": z + 1.0}, export_with="jit")


def _complex(change: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> None:
    x = A.input_tensors("n", {"x": x})
    A.output_tensors("n", {"y": change(x)}, export_with="onnx")


def _too_old() -> None:
    old = node("m")
    node("m")
    node("m")
    A.input_tensors("n", {"z": old})


def _run_twice_in_a_pass() -> None:
    one, two = node("m"), node("m")
    A.input_tensors("n", {"one": one, "two": two})


def _missing_input(number: int) -> None:
    given = {"x": X, "z": X} if number == 0 else {"x": X}
    A.input_tensors("n", given)
    A.output_tensors("n", {"y": X + 1.0})


def _new_input(number: int) -> None:
    A.input_tensors("n", {"x": X} if number == 0 else {"w": X})
    A.output_tensors("n", {"y": X + 1.0})


def _missing_output(number: int) -> None:
    A.input_tensors("n", {"x": X})
    A.output_tensors("n", {"y": X, "z": X} if number == 0 else {"y": X})


def _new_output(number: int) -> None:
    A.input_tensors("n", {"x": X})
    A.output_tensors("n", {"y": X} if number == 0 else {"yy": X, "y": X})


def _new_shape(number: int) -> None:
    x = A.input_tensors("n", {"x": torch.ones(3 + number)})
    A.output_tensors("n", {"y": x + 1.0}, export_with="jit")


def _new_dtype(number: int) -> None:
    x = A.input_tensors("n", {"x": X if number == 0 else X.double()})
    A.output_tensors("n", {"y": x + 1.0}, export_with="jit")


def _new_output_shape(number: int) -> None:
    x = A.input_tensors("n", {"x": X})
    A.output_tensors("n", {"y": x[number:] + 1.0}, export_with="jit")


def _state_then_input(number: int) -> None:
    A.input_tensors("n", {})
    h = A.state_tensors("n", {"h": X}) if number == 0 else A.input_tensors("n", {"h": X})
    A.output_tensors("n", {"y": h + 1.0}, export_with="jit")


def _method(**settings: Any) -> Callable[..., Any]:
    def function(x: torch.Tensor) -> Any:
        return x + 1.0, x + 2.0

    return annotate.method(node_name="n", export_with="jit", **settings)(function)


def _returns_none() -> None:
    annotate.method(node_name="n", export_with="jit")(lambda x: None)(X)


NODE, PORT = "'n'", "x"
ROWS: list[tuple[str, Callable[[], Any], type[Exception], list[str]]] = [
    ("bare tensor", lambda: A.input_tensors("n", X), TypeError, [NODE, "bare Tensor", HERE]),
    ("list of tensors", lambda: A.input_tensors("n", [X]), TypeError, [NODE, "list of Tensor", HERE]),
    ("empty list", lambda: A.input_tensors("n", []), TypeError, [NODE, HERE]),
    ("mixed list", lambda: A.input_tensors("n", [TensorSemantics("x", X), X]), TypeError, [NODE, HERE]),
    ("semantics in a dict", lambda: A.input_tensors("n", {"x": TensorSemantics("x", X)}), TypeError, [NODE, "'x'", HERE]),
    ("semantics without a name", lambda: A.input_tensors("n", TensorSemantics(ref=X)), TypeError, [NODE, "needs a name", HERE]),
    ("name twice in a list", lambda: A.input_tensors("n", [TensorSemantics("x", X)] * 2), ValueError, [NODE, "'x'", HERE]),
    ("a line break in a name", lambda: _start(name="a\nb"), ValueError, [r"'a\\nb'", "can be printed"]),
    ("bytes of another encoding", lambda: _start(name="pol\udce9"), ValueError, ["udce9", "can be printed"]),
    ("a long name", lambda: _start(name="g" * 300), ValueError, ["at most 200 characters"]),
    ("number as a name", lambda: A.input_tensors("n", {3: X}), TypeError, [NODE, "port names are strings", HERE]),
    ("slash in a name", lambda: A.input_tensors("n", {"a/b": X}), ValueError, [NODE, "'a/b'", HERE]),
    ("slash in a nested name", lambda: A.input_tensors("n", {"a": {"b/c": X}}), ValueError, [NODE, "b/c", HERE]),
    ("empty name", lambda: A.input_tensors("n", {"": X}), ValueError, [NODE, "empty", HERE]),
    ("line break in a name", lambda: A.input_tensors("n", {"a\nb": X}), ValueError, [NODE, "printed", HERE]),
    ("inputs collide", lambda: A.input_tensors("n", {"a_b": X, "a": {"b": X}}), ValueError, [NODE, "'a_b'", "Rename", HERE]),
    ("duplicate input", _same_name_other_line, ValueError, [NODE, "'x'", HERE, "another name"]),
    ("state like input", _state_named_like_input, ValueError, [NODE, "'x'", HERE]),
    ("state and output", _state_and_output, ValueError, [NODE, "'h'", HERE, "Rename"]),
    ("nested state", lambda: A.state_tensors("n", {"h": [X]}), TypeError, [NODE, "'h'", "flat", HERE]),
    ("state before the node", lambda: A.state_tensors("n", {"h": X}), RuntimeError, [NODE, "input_tensors", HERE]),
    ("module before the node", lambda: A.module("n", Buffered()), RuntimeError, [NODE, "input_tensors", HERE]),
    ("buffer before the node", lambda: A.register_buffer("n", X), RuntimeError, [NODE, "input_tensors", HERE]),
    ("output before the node", lambda: A.output_tensors("n", {"y": X}), RuntimeError, [NODE, "input_tensors", HERE]),
    ("update of another shape", _update_other_shape, ValueError, [NODE, "'h'", r"\[3\]", r"\[2\]", HERE]),
    ("update that is not computed", _update_plain, RuntimeError, [NODE, "'h'", HERE]),
    ("update of an input", _update_of_input, ValueError, [NODE, "'x'", "state_tensors", HERE]),
    ("update after the outputs", _update_late, RuntimeError, ["'n/h'", "after output_tensors", HERE]),
    ("buffer after the outputs", _register_late, RuntimeError, [NODE, "after output_tensors", HERE]),
    ("traced buffer", _register_traced, RuntimeError, [NODE, "'b'", HERE]),
    ("buffer named like an input", _register_twice, ValueError, [NODE, "'x'", HERE]),
    ("unknown module buffer", _module_unknown, ValueError, [NODE, "'hiden'", "'hidden'", HERE]),
    ("not a module", _module_not_one, TypeError, [NODE, "nn.Module", HERE]),
    ("plain output", _plain_output, RuntimeError, [NODE, "'y'", "static_outputs", HERE]),
    ("frozen output", _frozen_output, RuntimeError, [NODE, "'y'", "float", HERE]),
    ("input lost in a number", _pruned_by_escape, RuntimeError, [NODE, "'z'", "float", HERE]),
    ("output of another node", _foreign_output, RuntimeError, [NODE, "'y'", "'m'", HERE]),
    ("value of an open node", _open_value, RuntimeError, [NODE, "'z'", "'m'", HERE]),
    ("values of two open nodes", _meeting_values, RuntimeError, [NODE, "'m'", HERE]),
    ("value of a finished node", _undeclared_value, RuntimeError, [NODE, "'m'", "'y'", HERE]),
    ("traced static output", _traced_static, RuntimeError, [NODE, "'s'", HERE]),
    ("static output like an output", _static_named_like_output, ValueError, [NODE, "'y'", HERE]),
    ("no output", _no_output, ValueError, [NODE, HERE]),
    ("outputs collide", lambda: node(static_outputs={"s_t": X, "s": {"t": X}}), ValueError, [NODE, "'s_t'", HERE]),
    ("output without inputs", _output_twice, RuntimeError, [NODE, HERE, "Each pass"]),
    ("keyword misspelt", lambda: node(export_wth="jit"), TypeError, [NODE, "'export_wth'", "'export_with'", HERE]),
    ("graph output misspelt", lambda: node(graph_outputs=["yy"]), ValueError, [NODE, "'yy'", "'y'", HERE]),
    ("another source", twice(_source_changes), RuntimeError, [NODE, "'z'", "'m/y'", "outside", HERE]),
    ("too old", _too_old, RuntimeError, [NODE, "'z'", "'m/y'", HERE]),
    ("two runs in a pass", _run_twice_in_a_pass, RuntimeError, [NODE, "'one'", "'m/y'", "node_name", HERE]),
    ("missing input", twice(_missing_input), ValueError, [NODE, "'z'", "input", HERE]),
    ("new input", twice(_new_input), ValueError, [NODE, "'w'", HERE]),
    ("missing output", twice(_missing_output), ValueError, [NODE, "'z'", "output", HERE]),
    ("new output", twice(_new_output), ValueError, [NODE, "'yy'", "'y'", HERE]),
    ("new shape", twice(_new_shape), ValueError, [NODE, "'x'", r"\[3\]", r"\[4\]", HERE]),
    ("new dtype", twice(_new_dtype), ValueError, [NODE, "'x'", "float32", "float64", HERE]),
    ("new shape of an output", twice(_new_output_shape), ValueError, [NODE, "'y'", r"\[3\]", r"\[2\]", HERE]),
    ("state, then input", twice(_state_then_input), ValueError, [NODE, "'h'", "a state", "an input", HERE]),
    ("another input later", later(names=("z", "y")), ValueError, [NODE, "'z'", HERE]),
    ("another output later", later(names=("x", "z")), ValueError, [NODE, "'z'", HERE]),
    ("another backend later", later(backend="onx"), LeappError, [NODE, "onx", HERE]),
    ("sparse later", later(x=X.to_sparse()), TypeError, [NODE, "'x'", "sparse", HERE]),
    ("meta later", later(h=X.to("meta")), TypeError, [NODE, "'h'", "meta", HERE]),
    ("nested later", later(x=torch.nested.nested_tensor([X])), TypeError, [NODE, "'x'", "nested", HERE]),
    ("state of another dtype later", later(h=X.double()), ValueError, [NODE, "'h'", "float64", HERE]),
    ("update of another shape later", later(new=X[:2]), ValueError, [NODE, "'h'", r"\[2\]", HERE]),
    ("number later", later(new=1.0), TypeError, [NODE, "'h'", "float", HERE]),
    ("input left out later", _missing_later, ValueError, [NODE, "input 'b'", HERE]),
    ("outputs twice", _outputs_twice, RuntimeError, ["n", "no new inputs", HERE]),
    ("node above the bundle", lambda: A.input_tensors("../evil", {"x": X}), ValueError, [r"'\.\./evil'", "file", HERE]),
    ("absolute node", lambda: A.input_tensors("/evil", {"x": X}), ValueError, ["'/evil'", "file", HERE]),
    ("number as a node", lambda: A.input_tensors(3, {"x": X}), TypeError, ["3", HERE]),  # type: ignore[arg-type]
    ("method returns None", _returns_none, TypeError, [NODE, "None", HERE]),
    ("too few names", lambda: _method(output_names=["a"])(X), ValueError, [NODE, "returned 2", HERE]),
    ("semantics of no output", lambda: _method(output_semantics={"q": {}})(X), ValueError, [NODE, "'q'"]),
    ("mirror of other values", lambda: A.mirror_leapp_tags(node(), X + 7.0), ValueError, ["different values", HERE]),
    ("mirror of another form", lambda: A.mirror_leapp_tags(X, [X]), TypeError, ["structure", HERE]),
    ("mirror of another shape", lambda: A.mirror_leapp_tags(X, X[:2]), ValueError, [r"\[3\]", r"\[2\]", HERE]),
    ("mirror on another device", lambda: A.mirror_leapp_tags(X, X.to("meta")), ValueError, ["on cpu", "on meta", HERE]),
    ("complex input", lambda: _complex(torch.abs, X * 1j), TypeError, [NODE, "'x'", "view_as_real", "'jit'", HERE]),
    ("complex output", lambda: _complex(lambda x: x * 1j, X), TypeError, [NODE, "'y'", "complex64", "view_as_real", HERE]),
    ("warp", lambda: A.warp_op("n"), ImportError, [NODE, HERE]),
]  # fmt: skip


@pytest.mark.parametrize(("mistake", "kind", "wanted"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_mistake(mistake: Callable[[], Any], kind: type[Exception], wanted: list[str]) -> None:
    """The error is leapp's own, of the class a caller expects, and says where."""
    with pytest.raises(kind) as caught:
        mistake()
    assert isinstance(caught.value, LeappError)
    for part in wanted:
        assert re.search(part, str(caught.value)), (part, str(caught.value))


def _coroutine() -> Any:
    async def f(x: torch.Tensor) -> torch.Tensor:
        return x

    return f


def _generator() -> Any:
    def f(x: torch.Tensor) -> Iterator[torch.Tensor]:
        yield x

    return f


@pytest.mark.parametrize("function", [_coroutine(), _generator(), Buffered, 3], ids=["async", "generator", "class", "number"])
def test_functions_that_cannot_be_nodes(function: Any) -> None:
    """What returns before it has run is refused where it is decorated."""
    with pytest.raises(TypeError, match=r"annotate\.method"):
        annotate.method(export_with="jit")(function)


def test_decorator_without_parentheses() -> None:
    """The message shows how to write it."""
    with pytest.raises(TypeError, match=r"parentheses: @annotate\.method"):
        annotate.method(lambda x: x)
    with pytest.raises(TypeError, match="'nodename'.*'node_name'"):
        annotate.method(nodename="n")


@pytest.mark.parametrize(
    "wrong", [lambda: A.input_tensors("n", X), lambda: A.output_tensors("n", [X]), lambda: A.state_tensors("n", {"h": [X]})]
)
def test_forms_are_checked_outside_a_session(wrong: Callable[[], Any]) -> None:
    """What would be wrong in a session is wrong outside it too."""
    leapp.stop()
    with pytest.raises(TypeError):
        wrong()


# -- the calls around a session ----------------------------------------------------------------------------------------


def _start(**given: Any) -> None:
    leapp.start(**{"name": "again", **given})


def _finished(**given: Any) -> None:
    node()
    leapp.stop()
    leapp.compile_graph(visualize=False, **given)


def _own_model(path: str, **params: Any) -> None:
    x = A.input_tensors("n", {"x": X})
    A.output_tensors("n", {"y": x * 2.0}, export_with=None, backend_params={"model_path": path, **params})
    leapp.stop()
    leapp.compile_graph(visualize=False)


def _stop_twice() -> None:
    leapp.stop()
    leapp.stop()


def _compile_open() -> None:
    leapp.compile_graph(visualize=False)


def _unfinished() -> None:
    A.input_tensors("left", {"x": X.clone()})
    A.input_tensors("right", {"x": X.clone()})
    leapp.stop()
    leapp.compile_graph(visualize=False)


def _two_names_taken() -> None:
    x, _ = A.input_tensors("n", {"x": X.clone(), "x_in": X.clone() + 1.0})
    A.output_tensors("n", {"x": x + _}, export_with="onnx")
    leapp.stop()
    leapp.compile_graph(visualize=False)


def _part_of_the_memory() -> None:
    whole = torch.zeros(6)
    x = A.input_tensors("n", {"x": whole[:4]})
    A.output_tensors("n", {"y": x[1:] * whole[2:5]}, export_with="jit")


def _control_flow() -> None:
    x = A.input_tensors("n", {"x": X.clone()})
    torch.cond(x.sum() > 0, lambda v: v + 1.0, lambda v: v - 1.0, (x,))


def _exporter() -> None:
    x = A.input_tensors("n", {"x": X.clone()})
    torch.jit.trace(torch.nn.Linear(3, 3), x)


AROUND: list[tuple[str, Callable[[], Any], type[Exception], list[str]]] = [
    ("no name", lambda: _start(name=""), ValueError, ["does not name a graph"]),
    ("a dot as a name", lambda: _start(name="."), ValueError, ["'.'", "does not name a graph"]),
    ("two dots as a name", lambda: _start(name=".."), ValueError, ["'..'", "does not name a graph"]),
    ("number as a name", lambda: _start(name=3), TypeError, ["int"]),
    ("misspelt", lambda: _start(save_pth="x"), TypeError, ["leapp.start()", "'save_pth'", "'save_path'"]),
    ("misspelt too", lambda: _finished(validte=False), TypeError, ["leapp.compile_graph()", "'validte'", "'validate'"]),
    ("no number of samples", lambda: _start(max_cached_io=None), TypeError, ["max_cached_io", "NoneType"]),
    ("unknown policy", lambda: _start(escapes="loud"), ValueError, ["'loud'", "'warn'"]),
    ("number for node names", lambda: _start(non_traced=3), TypeError, ["non_traced", "int"]),
    ("bare patch", lambda: _start(patching=leapp.FunctionPatch(re, "sub", print)), TypeError, [r"patching=\[FunctionPatch"]),
    ("not a patch", lambda: _start(patching=[3]), TypeError, ["FunctionPatch", "int"]),
    ("patch of no module", lambda: _start(patching=[leapp.FunctionPatch(X, "sub", print)]), TypeError, ["module", "Tensor"]),  # type: ignore[arg-type]
    ("patch of nothing", lambda: _start(patching=[leapp.FunctionPatch(re, "", print)]), ValueError, ["function_name"]),
    ("patch of no function", lambda: _start(patching=[leapp.FunctionPatch(re, "subb", print)]), ValueError, ["re", "'subb'"]),
    ("patch by no function", lambda: _start(patching=[leapp.FunctionPatch(re, "sub", 3)]), TypeError, ["replacement"]),  # type: ignore[arg-type]
    ("patched twice", lambda: _start(patching=[leapp.FunctionPatch(re, "sub", print)] * 2), ValueError, ["re.sub", "twice"]),
    (
        "patches without patching", lambda: _start(patching=[leapp.FunctionPatch(re, "sub", print)], global_patching=False),
        ValueError, ["global_patching"],
    ),
    ("stopped twice", _stop_twice, RuntimeError, ["no session is open", r"leapp\.start"]),
    ("compiled too early", _compile_open, RuntimeError, ["session is open", r"leapp\.stop"]),
    ("unfinished nodes", _unfinished, RuntimeError, ["left, right", "output_tensors"]),
    ("other facts", lambda: _finished(graph_configs={"frequency": 50}), TypeError, ["GraphConfigs", "dict"]),
    ("unknown validation", lambda: _finished(validate="always"), ValueError, ["'always'", "'thorough'"]),
    ("unknown target", lambda: _finished(target="trt"), ValueError, ["'trt'", "'tensorrt'"]),
    ("unknown backend", lambda: _backend("torchscript"), Exception, [NODE, "torchscript", HERE]),
    ("backend in capitals", lambda: _backend("JIT"), Exception, [NODE, "JIT", HERE]),
    ("missing model", lambda: _own_model("nowhere/own.onnx"), FileNotFoundError, [NODE, r"nowhere/own\.onnx"]),
    ("unknown kind of model", lambda: _own_model("own.tflite"), ValueError, [NODE, r"own\.tflite", r"\.onnx"]),
    ("names that ONNX needs", _two_names_taken, ValueError, [NODE, "'x_in'", "taken"]),
    ("sparse tensor", lambda: A.input_tensors("n", {"x": torch.eye(3).to_sparse()}), TypeError, [NODE, "'x'", "sparse", HERE]),
    ("part of the memory", _part_of_the_memory, RuntimeError, [NODE, "part of its memory", "clone", HERE]),
    ("functions as arguments", _control_flow, RuntimeError, [NODE, r"torch\.where", HERE]),
    ("exporter inside a node", _exporter, RuntimeError, [NODE, r"torch\.jit\.trace", HERE]),
]  # fmt: skip


def _backend(name: str) -> None:
    x = A.input_tensors("n", {"x": X})
    A.output_tensors("n", {"y": x * 2.0}, export_with=name)


@pytest.mark.parametrize(("mistake", "kind", "wanted"), [row[1:] for row in AROUND], ids=[row[0] for row in AROUND])
def test_mistake_around_a_session(
    mistake: Callable[[], Any], kind: type[Exception], wanted: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starting, stopping, compiling, and what only shows then."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind) as caught:
        mistake()
    assert isinstance(caught.value, LeappError)
    for part in wanted:
        assert re.search(part, str(caught.value)), (part, str(caught.value))


@pytest.mark.parametrize("form", ["sparse", "meta"])
def test_an_output_without_dense_memory_in_a_later_pass(form: str, tmp_path: Path) -> None:
    leapp.start("g", save_path=tmp_path)
    try:
        for later in (False, True):
            y = A.input_tensors("n", {"x": torch.ones(3)}) * 2.0
            if later:
                y = y.to_sparse() if form == "sparse" else y.to("meta")
                with pytest.raises(AnnotationTypeError, match=f"port 'y' .*test_errors.py:[0-9]+.*{form} tensor"):
                    A.output_tensors("n", {"y": y}, export_with="jit")
            else:
                A.output_tensors("n", {"y": y}, export_with="jit")
    finally:
        leapp.stop()


def test_a_check_of_arguments_by_value_is_told_from_a_branch(tmp_path: Path) -> None:
    """The escapes are the same; the cure is not."""
    deviation = torch.nn.Parameter(torch.ones(3))
    leapp.stop()  # the one of the fixture
    leapp.start("checked", save_path=tmp_path)
    for _ in range(2):
        x = A.input_tensors("n", {"x": torch.randn(3)})
        mean = torch.distributions.Normal(x, deviation * x.exp(), validate_args=True).mean
        A.output_tensors("n", {"y": mean if (x < 100.0).all() else x}, export_with="onnx")
    leapp.stop()
    cures = {"Normal" in e.source: e.cure for e in leapp.report().escapes}
    assert "set_default_validate_args(False)" in cures[True]
    assert "set_default_validate_args" not in cures[False]


@pytest.mark.parametrize("backend", ["jit", "onnx"])
def test_quantised_layers_are_refused_with_the_backend_that_writes_them(backend: str, tmp_path: Path) -> None:
    leapp.stop()  # the one of the fixture
    engine = torch.backends.quantized.engine
    torch.backends.quantized.engine = [e for e in torch.backends.quantized.supported_engines if e != "none"][0]
    try:
        network = torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(torch.nn.Linear(8, 3)).eval(), {torch.nn.Linear})

        def trace(export_with: str) -> None:
            leapp.start("g", save_path=tmp_path)
            for _ in range(2):
                x = A.input_tensors("n", {"x": torch.randn(2, 8)})
                A.output_tensors("n", {"y": network(x)}, export_with=export_with)
            leapp.stop()
            leapp.compile_graph(visualize=False)

        words = rf"(?s)^n: {backend} .*packed weights.*{HERE}.*network\(x\).*export_with='pt2'"
        with pytest.raises(ExportError, match=words) as caught:
            trace(backend)
        assert "'jit'" not in str(caught.value)
        trace("pt2")
        x = torch.randn(2, 8)
        torch.testing.assert_close(leapp.InferenceManager(tmp_path / "g").run_policy({"n/x": x})["n/y"], network(x))
    finally:
        torch.backends.quantized.engine = engine


def test_packed_weights_that_differ_between_passes_are_refused(tmp_path: Path) -> None:
    leapp.stop()  # the one of the fixture
    engine = torch.backends.quantized.engine
    torch.backends.quantized.engine = [e for e in torch.backends.quantized.supported_engines if e != "none"][0]
    try:
        leapp.start("g", save_path=tmp_path)
        for _ in range(2):
            x = A.input_tensors("n", {"x": torch.randn(2, 8)})
            network = torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(torch.nn.Linear(8, 3)), {torch.nn.Linear})
            A.output_tensors("n", {"y": network(x)}, export_with="pt2")
        leapp.stop()
        with pytest.raises(TraceError, match=rf"differs between the passes at \S*{HERE}.*network\(x\)"):
            leapp.compile_graph(visualize=False)
    finally:
        torch.backends.quantized.engine = engine


FLOATS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "nan_to_num": lambda x, k: torch.nan_to_num(x, nan=k),
    "isclose": lambda x, k: torch.where(torch.isclose(x, torch.zeros(4), atol=k), x, 1.0),
    "huber_loss": lambda x, k: torch.nn.functional.huber_loss(x, torch.zeros(4), reduction="none", delta=k),
    "layer_norm": lambda x, k: torch.nn.functional.layer_norm(x, (4,), eps=k),
    "cdist": lambda x, k: torch.cdist(x[:, None], x[None].mT * 0.0, p=k),
    "pad": lambda x, k: torch.nn.functional.pad(x, (1, 1), value=k),
}  # fmt: skip
"""Calls that take a float, given a tensor: the tracers of torch read its value."""


@pytest.mark.parametrize("backend", ["jit", "onnx"])
@pytest.mark.parametrize("name", FLOATS)
def test_a_number_that_a_call_takes_from_a_tensor_is_not_frozen(name: str, backend: str, tmp_path: Path) -> None:
    """Even where no traced output depends on it."""
    leapp.stop()  # the one of the fixture
    leapp.start("g", save_path=tmp_path)
    for number in range(2):
        x, k = A.input_tensors("n", {"x": torch.rand(4), "k": torch.tensor([3.0 + number])})
        A.output_tensors("n", {"y": FLOATS[name](x, k[0]), "used": k * 2.0}, export_with=backend)
    leapp.stop()
    with pytest.raises(LeappError, match=rf"{name}.*{HERE}|{HERE}.*{name}"):
        leapp.compile_graph(visualize=False)


FOLLOWED: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "clamp": lambda x, k: x.clamp(max=k), "add": lambda x, k: torch.add(x, x, alpha=k), "pow": lambda x, k: k**x,
    "full": lambda x, k: x + torch.full((4,), k), "fill": lambda x, k: x.clone().fill_(k),
    "where": lambda x, k: torch.where(x > 0.5, k, 0.0), "type_as": lambda x, k: x.double().type_as(k) * k,
    "a constant": lambda x, k: torch.nan_to_num(x * k, nan=torch.tensor(5.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLLOWED)
def test_a_number_of_a_tensor_that_torchscript_follows(name: str, tmp_path: Path) -> None:
    leapp.stop()  # the one of the fixture
    leapp.start("g", save_path=tmp_path)
    for number in range(2):
        x, k = A.input_tensors("n", {"x": torch.rand(4), "k": torch.tensor([3.0 + number])})
        A.output_tensors("n", {"y": FOLLOWED[name](x, k[0])}, export_with="jit")
    leapp.stop()
    assert leapp.compile_graph(visualize=False) == {"n": True}
    for value in (-2.0, 0.25, float("nan")):
        x, k = torch.rand(4), torch.tensor([value])
        got = leapp.InferenceManager(tmp_path / "g").run_policy({"n/x": x, "n/k": k})["n/y"]
        torch.testing.assert_close(got, FOLLOWED[name](x, k[0]), equal_nan=True)


def _result_read_unseen() -> None:
    x = A.input_tensors("n", {"x": np.arange(3.0)})
    x.sum()
    A.output_tensors("n", {"y": np.float32(x * 2.0)}, export_with="jit")  # END


def _input_read_unseen() -> None:
    x = A.input_tensors("n", {"x": np.arange(3.0)})  # END
    A.output_tensors("n", {"y": np.float32(x)}, export_with="jit")


def _state_read_unseen() -> None:
    A.input_tensors("n", {"x": np.arange(3.0)})
    h = A.state_tensors("n", {"h": np.ones(3, np.float32)})
    A.update_state("n", {"h": np.float32(h * np.full(3, 0.5))})  # END


@pytest.mark.parametrize("code", [_result_read_unseen, _input_read_unseen, _state_read_unseen])
def test_the_line_where_a_trace_ends_unseen(code: Callable[[], None]) -> None:
    """A type of NumPy reads an array as compiled code does. The last recorded call before it is named."""
    with pytest.raises(TraceError, match=rf"(?s)no recorded call reads .*{HERE}.*np\.float32\(array\)") as refused:
        code()
    source = Path(__file__).read_text().splitlines()
    ends = [line for line in str(refused.value).splitlines() if "no recorded call reads" in line]
    lines = {int(number) for end in ends for number in re.findall(r"test_errors\.py:(\d+)", end)}
    assert any("# END" in source[line - 1] for line in lines), ends


def test_a_line_without_source_ends_with_its_number(tmp_path: Path) -> None:
    code = compile("scale = float(x.sum())", "<string>", "exec")
    leapp.start("g", save_path=tmp_path, escapes="error")
    x = A.input_tensors("n", {"x": X.clone()})
    names: dict[str, Any] = {"x": x}
    exec(code, names)
    A.output_tensors("n", {"y": x * names["scale"]}, export_with="jit")
    leapp.stop()
    with pytest.raises(TraceError, match=re.escape("at <string>:1  [frozen: 3.0]")):
        leapp.compile_graph(visualize=False)
