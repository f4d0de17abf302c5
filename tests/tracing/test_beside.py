"""Programs beside the ordinary: memory with two storages, classes of the user's own, payloads that compute, profilers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import leapp
from leapp import InferenceManager, annotate
from leapp.errors import AnnotationTypeError, TraceError

A = annotate
Tensor = torch.Tensor


def compiled(where: Path, function: Callable[[Any], Any], x: Tensor, backend: str = "jit", **options: Any) -> InferenceManager:
    """A bundle of one node, traced in one pass."""
    leapp.start("g", save_path=where, **options)
    y = function(A.input_tensors("n", {"x": x}))
    A.output_tensors("n", {"y": y}, export_with=backend)
    leapp.stop()
    leapp.compile_graph(visualize=False)
    return InferenceManager(str(where / "g" / "g.yaml"))


# -- one memory, two storages --------------------------------------------------------------------------------------------


def test_a_tensor_over_the_memory_of_a_written_array_is_refused(tmp_path: Path) -> None:
    buffer = np.zeros((2, 3), np.float32)
    over = torch.from_numpy(buffer)

    def program(x: Tensor) -> Tensor:
        torch.from_numpy(buffer).copy_(x)
        return over + x

    with pytest.raises(TraceError, match=r"test_beside.py:\d+ a tensor of shape \[2, 3\] shares memory"):
        compiled(tmp_path, program, torch.randn(2, 3))


def made_again(x: Tensor) -> Tensor:
    buffer = np.zeros((2, 3), np.float32)
    buffer[:] = x.numpy() * 3
    return torch.from_numpy(buffer) + x


def round_trip(x: Tensor) -> Tensor:
    mine = torch.zeros(2, 3)
    again = torch.from_numpy(mine.numpy())
    mine.copy_(x)
    return again + x


@pytest.mark.parametrize("backend", ["jit", "onnx", "pt2"])
@pytest.mark.parametrize("program", [made_again, round_trip])
def test_a_tensor_made_again_from_the_array_follows_it(program: Any, backend: str, tmp_path: Path) -> None:
    manager = compiled(tmp_path, program, torch.randn(2, 3), backend)
    new = torch.randn(2, 3)
    torch.testing.assert_close(manager({"n/x": new})["n/y"], program(new))


# -- inference mode ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["jit", "onnx", "pt2"])
def test_functions_that_write_in_place_in_inference_mode(backend: str, tmp_path: Path) -> None:
    relu, elu = torch.nn.ReLU(inplace=True), torch.nn.ELU(inplace=True)

    def program(x: Tensor) -> Tensor:
        y = relu(x * 2)
        z = x - 1
        elu(z)
        return y + z

    with torch.inference_mode():
        manager = compiled(tmp_path, program, torch.rand(2, 3) + 0.1, backend)
        new = torch.randn(2, 3)
        torch.testing.assert_close(manager({"n/x": new})["n/y"], program(new.clone()))


# -- classes of the user's own -------------------------------------------------------------------------------------------


class Degrees(Tensor):
    """Angles in degrees."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.sin:
            return torch.sin(torch.deg2rad(args[0].as_subclass(Tensor)) * args[0].scale)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_tensor_class_stays_what_it_is(tmp_path: Path) -> None:
    def given(x: Tensor) -> Tensor:
        made = x.as_subclass(Degrees)
        made.scale = 2.0
        return made

    x = torch.rand(3) * 90
    seen = []

    def program(value: Tensor) -> Tensor:
        seen.append(type(value))
        return torch.sin(value).as_subclass(Tensor) + 1

    expected = program(given(x.clone()))
    manager = compiled(tmp_path, program, given(x))
    assert seen == [Degrees, Degrees]
    torch.testing.assert_close(manager({"n/x": x})["n/y"], expected)
    new = torch.rand(3) * 90
    torch.testing.assert_close(manager({"n/x": new})["n/y"], program(given(new)))


class Wrapped(Tensor):
    """A tensor without memory of its own."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapped:
        return Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError


def test_a_tensor_without_memory_is_refused(tmp_path: Path) -> None:
    leapp.start("g", save_path=tmp_path)
    with pytest.raises(AnnotationTypeError, match="a Wrapped tensor cannot be a port"):
        A.input_tensors("n", {"x": Wrapped(torch.ones(3))})


NO_PORT = {
    "sparse": lambda x: x.to_sparse(),
    "nested": lambda x: torch.nested.nested_tensor([x[0], x[1]]),
    "meta": lambda x: x.to("meta"),
    "complex32": lambda x: x.to(torch.complex32),
    "quint8": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8),
}


@pytest.mark.parametrize("kind", NO_PORT)
@pytest.mark.parametrize("side", ["input", "output", "static output", "state"])
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_a_tensor_that_no_bundle_can_hold_is_refused_at_its_line(tmp_path: Path, kind: str, side: str) -> None:
    value = NO_PORT[kind](torch.ones(2, 3))
    leapp.start("g", save_path=tmp_path)
    with pytest.raises(AnnotationTypeError, match=rf"port 'v' \(at .*test_beside.py:\d+\): .*{kind}.* cannot be a port"):
        if side == "input":
            A.input_tensors("n", {"v": value})
        x = A.input_tensors("n", {"x": torch.ones(2, 3)})
        if side == "state":
            A.state_tensors("n", {"v": value})
        outputs = {"v": NO_PORT[kind](x)} if side == "output" else {"y": x * 2}
        A.output_tensors("n", outputs, static_outputs={"v": value} if side == "static output" else None)


def test_a_state_that_becomes_sparse_is_refused_at_its_line(tmp_path: Path) -> None:
    leapp.start("g", save_path=tmp_path)
    x = A.input_tensors("n", {"x": torch.ones(2, 3)})
    A.state_tensors("n", {"h": torch.zeros(2, 3)})
    A.update_state("n", {"h": x.to_sparse()})
    with pytest.raises(AnnotationTypeError, match="port 'h' .*a sparse tensor cannot be a port"):
        A.output_tensors("n", {"y": x * 2})


class Metres(np.float64):
    """A number with a name."""

    def __new__(cls, value: float) -> Metres:
        return super().__new__(cls, value)


def test_number_classes_work_inside_a_node(tmp_path: Path) -> None:
    def program(x: Tensor) -> Tensor:
        return x * float(Metres(1.5))

    manager = compiled(tmp_path, program, torch.randn(3))
    new = torch.randn(3)
    torch.testing.assert_close(manager({"n/x": new})["n/y"], program(new))


class Asked:
    """Says that it is an array, and counts how often it is asked."""

    def __init__(self) -> None:
        self.count = 0

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        self.count += 1
        return np.arange(3.0)


def test_an_object_is_asked_for_its_array_as_often_as_without_leapp(tmp_path: Path) -> None:
    def program() -> int:
        asked = Asked()
        np.sum(asked)
        np.add(asked, 1)
        np.shape(asked)
        return asked.count

    wanted = program()
    leapp.start("g", save_path=tmp_path)
    between = program()
    A.input_tensors("n", {"x": torch.ones(3)})
    assert (between, program()) == (wanted, wanted)


# -- payloads that compute -----------------------------------------------------------------------------------------------


class Lazy(Mapping[str, Any]):
    """Computes what it is asked for."""

    def __init__(self, parts: dict[str, Callable[[], Any]]) -> None:
        self.parts = parts

    def __getitem__(self, key: str) -> Any:
        return self.parts[key]()

    def __iter__(self) -> Iterator[str]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)


def test_what_a_payload_computes_is_part_of_the_node(tmp_path: Path) -> None:
    leapp.start("g", save_path=tmp_path)
    x = A.input_tensors("n", {"x": torch.randn(3)})
    A.output_tensors("n", Lazy({"y": lambda: x * 3}), export_with="onnx")
    leapp.stop()
    leapp.compile_graph(visualize=False)
    new = torch.randn(3)
    torch.testing.assert_close(InferenceManager(str(tmp_path / "g" / "g.yaml"))({"n/x": new})["n/y"], new * 3)


def test_what_a_payload_computes_between_nodes_is_glue(tmp_path: Path) -> None:
    leapp.start("g", save_path=tmp_path)
    x = A.input_tensors("n", {"x": torch.randn(3)})
    y = A.output_tensors("n", {"y": x * 2}, export_with="jit")
    z = A.input_tensors("m", Lazy({"z": lambda: y * 3}))
    A.output_tensors("m", {"w": z + 1}, export_with="jit")
    leapp.stop()
    leapp.compile_graph(visualize=False)
    assert [g.source for g in leapp.report().glue] == ["n/y"]


# -- what others do meanwhile --------------------------------------------------------------------------------------------


def test_memory_made_for_any_batch_is_no_escape(tmp_path: Path) -> None:
    def program(x: Tensor) -> Tensor:
        return x + torch.zeros(x.shape[0], 1) * 2

    manager = compiled(tmp_path, program, torch.randn(4, 3), "onnx", dynamic_batch=True, escapes="error")
    new = torch.randn(7, 3)
    torch.testing.assert_close(manager({"n/x": new})["n/y"], program(new))
