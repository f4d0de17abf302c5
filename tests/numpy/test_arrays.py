"""Traced arrays behave as arrays, and what they do is recorded."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial import ConvexHull

import leapp
from leapp import FunctionPatch, annotate
from leapp.errors import AnnotationTypeError, TraceError, ValidationError
from leapp.leapp_graph.datatypes import TracedNpArray, TracedTensor
from tests.numpy.tracing import trace

A = np.ndarray
TABLE = np.arange(20.0).reshape(5, 4)
MADE_BEFORE = np.zeros(4, np.float32)


def draw(seed: int, *shape: int, dtype: str = "float32") -> A:
    """Values that the traced run has not seen."""
    return np.random.default_rng(seed).normal(size=shape or (4,)).astype(dtype)


def same(function: Callable[..., Any], where: Path, *shapes: tuple[int, ...], escapes: tuple[str, ...] = ()) -> None:
    """Tracing changes no bit, and the record gives what NumPy gives on new inputs."""
    shapes = shapes or ((4,),)
    inputs = [draw(1, *s) for s in shapes]
    eager = function(*copy.deepcopy(inputs))
    done = trace(function, copy.deepcopy(inputs), where)
    assert done.escapes == list(escapes)
    for want, got in zip(eager if isinstance(eager, tuple) else [eager], done.results, strict=True):
        got, want = np.asarray(got), np.asarray(want)
        assert got.dtype == want.dtype
        assert got.tobytes() == want.tobytes()
    for seed in (2, 3):
        inputs = [draw(seed, *s) for s in shapes]
        want = function(*copy.deepcopy(inputs))
        for a, b in zip(want if isinstance(want, tuple) else [want], done.run(*inputs), strict=True):
            np.testing.assert_allclose(b, np.asarray(a), rtol=1e-5, atol=1e-6)
            assert b.dtype == np.asarray(a).dtype


def through_a_view_of_a_plain_array(x: A) -> A:
    buffer = np.zeros(6)
    part = buffer[1:5]
    part[:] = x
    part[::-1][0] = 7.0
    return buffer * 2


def elements_of_a_plain_array(x: A) -> A:
    g = np.zeros(3, np.float32)
    g[0], g[1], g[2] = x[0], x[1] * 2, x[2] + x[3]
    return g


def history(x: A) -> A:
    rows = np.zeros((3, 4), np.float32)
    rows[:-1] = rows[1:]
    rows[-1] = x
    return np.roll(rows, 1, axis=0).ravel()


def reshaped_in_place(x: A) -> A:
    y = x.copy()
    y.shape = (2, 2)
    y[0] += 1
    return y.T


def given_to_a_function_that_converts_it(x: A) -> A:
    def fill(buffer: A, values: A) -> A:
        buffer = np.asarray(buffer, dtype=np.float32)
        buffer[: len(values)] = values
        return np.ascontiguousarray(np.asanyarray(buffer))

    buffer = np.zeros(6, np.float32)
    assert fill(buffer, x) is buffer
    rows = np.array([np.zeros(2), np.ones(2)])
    rows[1] = x[:2]
    return buffer * 2, rows


def reversed_and_written(x: A) -> A:
    y = x.reshape(2, 2)[::-1]
    y[0] = y[0] * 2
    return x * 1


def torch_writes_numpy_reads(x: A) -> A:
    t = torch.zeros(4)
    t[:] = torch.from_numpy(x)
    t += 1
    return t.numpy() * 2


def numpy_writes_torch_reads(x: A) -> A:
    t = torch.from_numpy(x.copy())
    t.numpy()[0] = 7
    return (t * 2).numpy()


def constant_changed_between_reads(x: A) -> A:
    gain = np.ones(4, np.float32)
    y = x * gain
    gain[:] = 3
    return y + x * gain


def scalar_is_immutable(x: A) -> A:
    s = x[0]
    s += 1
    return x * s


def elements_by_flat(x: A) -> A:
    y = x.reshape(2, 2).T
    y.flat[1] = 5.0
    return np.array([v * 2 for v in y.flat])


def made_before(x: A) -> A:
    MADE_BEFORE[1:3] = x[:2]
    return MADE_BEFORE * 2


@pytest.mark.parametrize(
    "function",
    [
        through_a_view_of_a_plain_array, elements_of_a_plain_array, history, reshaped_in_place, reversed_and_written,
        given_to_a_function_that_converts_it,
        torch_writes_numpy_reads, numpy_writes_torch_reads, constant_changed_between_reads, scalar_is_immutable,
        elements_by_flat,
    ],
)  # fmt: skip
def test_writes_and_views(function: Callable[..., Any], tmp_path: Path) -> None:
    same(function, tmp_path)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: np.linalg.norm([x[0], x[1]]) * x,
        lambda x: np.mean([x, x * 2], axis=0),
        lambda x: np.cross([x[0], x[1], 1.0], [0.0, x[2], x[3]]) * np.max([x[0], x[1]]),
        lambda x: np.concatenate([x, [x[0], 1.0]]),
        lambda x: np.linalg.norm([x[0], x[1]]) * x,
        lambda x: np.mean([x, x * 2], axis=0) + np.max([x[0], x[1]]) + np.clip([x[0]], -1, 1),
        lambda x: np.vstack([[x[0], x[1]], [1.0, x[2]]]) + np.cross([x[0], x[1], 1], [1, 2, 3])[:2] + np.atleast_2d([x[:2]]),
        lambda x: np.r_[x[0], x, [x[1], 2.0], 0:3],
        lambda x: np.r_[np.c_[x[:3], x[:3] * 2, [x[0], x[1], 1.0]], np.zeros((1, 3))],
        lambda x: np.full(3, x[1]),
        lambda x: np.piecewise(x, [x < 0, x >= 0], [lambda v: -v, lambda v: v * 2]),
        lambda x: np.apply_along_axis(lambda v: v * v.sum(), 0, x),
        lambda x: sum(v * i for i, v in np.ndenumerate(x) for i in i),
        lambda x: torch.FloatTensor(x).numpy() * 2,
        lambda x: (x[0] * torch.from_numpy(x) + torch.from_numpy(x) * x[1]).numpy(),
        lambda x: torch.arange(5.0)[np.argsort(x)].numpy(),
        lambda x: np.maximum(torch.from_numpy(x), 0.1).numpy(),
        lambda x: np.linalg.norm(torch.from_numpy(x)) * x,
        lambda x: x.view(np.int32).view(np.float32) + 1,
        lambda x: np.abs(np.exp(1j * x)) + x,
        lambda x: copy.deepcopy(x) * 2,
    ],
)
def test_ways_in_and_out(function: Callable[..., Any], tmp_path: Path) -> None:
    same(function, tmp_path)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[0] + 1,
        lambda x: (x[0] * 0.1 > 1) * x,
        lambda x: x * np.float64(0.1),
        lambda x: np.float64(0.1) / (x[0] * 3.0) + np.abs(x),
        lambda x: x * 100000,
        lambda x: (x < 0.1) * x,
        lambda x: (x * 10).astype(np.int8) * 3 + np.int64(200),
        lambda x: (x * 10).astype(np.int8) - 1.5,
        lambda x: np.maximum(x, x.sum(dtype=np.float64)),
    ],
)
def test_results_have_the_dtype_that_this_numpy_gives_them(function: Callable[..., Any], tmp_path: Path) -> None:
    """NumPy 1 looks at the values of numbers, NumPy 2 at their types."""
    same(function, tmp_path)


ESCAPES: dict[str, tuple[Callable[..., Any], str]] = {
    "float": (lambda x: x * float(x[0]), "__float__"),
    "int": (lambda x: x * int(x[0] * 10), "__int__"),
    "bool": (lambda x: x if x.sum() > 0 else -x, "__bool__"),
    "item": (lambda x: x * x[0].item(), "item"),
    "tolist": (lambda x: x + x.tolist()[0], "tolist"),
    "format": (lambda x: x * len(f"{x[0]:.2f}"), "__format__"),
    "in": (lambda x: x * (0.5 in x), "__bool__"),
    "index": (lambda x: x * [1, 2, 3, 4][np.argmax(x)], "__index__"),
    "slice": (lambda x: x * x[: np.argmax(x) + 1].sum(), "__index__"),
    "len of a mask": (lambda x: x * len(x[x > 0]), "__len__"),
    "shape of a mask": (lambda x: x * x[x > 0].shape[0], "shape"),
    "hash": (lambda x: x * (hash(x[0]) % 7), "__hash__"),
    "round": (lambda x: x * round(x[0], 1), "__round__"),
    "bytes": (lambda x: x * len(x.tobytes()), "tobytes"),
    "trim_zeros": (lambda x: x * np.trim_zeros(x).sum(), "np.trim_zeros"),
    "unmapped": (lambda x: x * np.polyfit([0, 1, 2, 3], x, 1)[0], "np.polyfit"),
    "masked arrays": (lambda x: x * np.ma.masked_less(x, 0).sum(), "view as MaskedArray"),
    "vectorize": (lambda x: x + np.vectorize(lambda v: v * 2)(x), "np.vectorize"),
    "array_equal": (lambda x: x * np.array_equal(x, np.zeros(4)), "np.array_equal"),
}


@pytest.mark.parametrize("name", ESCAPES)
def test_values_that_leave_are_reported(name: str, tmp_path: Path) -> None:
    function, kind = ESCAPES[name]
    done = trace(function, [draw(1)], tmp_path)
    assert kind in done.escapes
    assert done.results[0].tobytes() == np.asarray(function(draw(1))).tobytes()


# What NumPy's C code reads of a real array without asking anybody.
READ_UNASKED: list[Callable[..., Any]] = [
    lambda x: np.minimum.reduce([x, -x]),
    lambda x: np.sqrt([abs(x[0]), 2.0]),
    lambda x: np.add([x[0], x[1]], [1, 2]),
    lambda x: np.float32(x[0]) * x,
    lambda x: np.float64([x[0], x[1]]),
    lambda x: TABLE.dot(x),
    lambda x: TABLE[np.argmax(x)] * 2,
    lambda x: TABLE.take(np.argsort(x), axis=1),
    made_before,
    lambda x: x + sum(float(v) for v in np.nditer(x)),
]


@pytest.mark.parametrize("function", READ_UNASKED)
def test_two_passes_refuse_what_is_read_unasked(function: Callable[..., Any], tmp_path: Path) -> None:
    leapp.start("graph", save_path=tmp_path)
    try:
        with pytest.raises((TraceError, ValidationError)):
            for seed in (1, 4):
                x = annotate.input_tensors("n", {"x": draw(seed)})
                annotate.output_tensors("n", {"y": x.sum() * 0 + function(x)}, export_with="jit")
            leapp.stop()
            leapp.compile_graph(visualize=False)
    finally:
        if leapp.ExportManager.interpreting:
            leapp.stop()


OLDER: dict[str, Callable[[A, A], Any]] = {
    "+=": lambda kept, x: kept.__iadd__(x),
    "out": lambda kept, x: np.multiply(x, 2, out=kept),
    "copyto": lambda kept, x: np.copyto(kept, x),
}


@pytest.mark.parametrize("name", OLDER)
def test_a_write_to_an_older_array_names_the_cure(name: str, tmp_path: Path) -> None:
    """And with the cure the array is followed, and its values are state."""
    kept = np.zeros(4, np.float32)
    done = trace(lambda x: (OLDER[name](kept, x), x * 2)[1], [draw(1)], tmp_path)
    assert any("register_buffer" in kind for kind in done.escapes)
    kept = np.zeros(4, np.float32)
    leapp.start("graph", save_path=tmp_path)
    held: Any = kept
    for seed in (1, 2, 3):
        x = annotate.input_tensors("n", {"x": draw(seed)})
        held = annotate.register_buffer("n", {"kept": held})
        OLDER[name](held, x)
        held[1:3] = x[:2]
        annotate.output_tensors("n", {"y": held * 2}, export_with="jit")
    leapp.stop()
    assert leapp.compile_graph(visualize=False) == {"n": True}
    assert leapp.report().escapes == []


def test_functions_are_followed_however_they_are_called(tmp_path: Path) -> None:
    """``apply(np.asarray, x)`` names the function nowhere."""

    def apply(function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    same(lambda x: apply(np.asarray, x) + apply(getattr(np, "as" + "array"), [x, x])[0], tmp_path)


ROUND_TRIPS: dict[str, Callable[..., Any]] = {
    "array to tensor": lambda x: torch.from_dlpack(x).mul(2).numpy(),
    "tensor to array": lambda x: np.from_dlpack(torch.from_numpy(x) * 2) + 1,
    "array to array": lambda x: np.from_dlpack(x * 2) + 1,
    "tensor to tensor": lambda x: torch.utils.dlpack.from_dlpack(torch.from_numpy(x) * 2).numpy() + 1,
}


@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_dlpack(name: str, tmp_path: Path) -> None:
    same(ROUND_TRIPS[name], tmp_path)


def test_an_escape_shows_up_when_two_passes_differ(tmp_path: Path) -> None:
    leapp.start("graph", save_path=tmp_path)
    for seed in (1, 4):
        x = annotate.input_tensors("n", {"x": draw(seed)})
        annotate.output_tensors("n", {"y": x * bool(x[0] > 0)}, export_with="jit")
    leapp.stop()
    with pytest.raises(TraceError, match="__bool__"):
        leapp.compile_graph(visualize=False)


def test_a_number_passes_for_a_number(tmp_path: Path) -> None:
    text = repr(draw(1).mean())

    def function(x: A) -> A:
        s = x.mean()
        assert isinstance(s, np.floating)
        assert isinstance(s, np.float32)
        assert isinstance(x.astype(np.float64)[0], float)
        assert np.isscalar(s)
        assert s.dtype == np.float32
        assert repr(s) == text
        with pytest.raises(TypeError):
            len(s)
        with pytest.raises(TypeError):
            s[...] = 1
        assert isinstance(x, TracedNpArray)
        assert not isinstance(x, TracedTensor)
        assert not isinstance(np.ones(3), TracedNpArray)
        return x * s

    assert trace(function, [draw(1)], tmp_path).escapes == ["__repr__"]


@pytest.mark.parametrize("dtype", "uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 float64 bool complex64".split())
def test_ports_of_every_dtype(dtype: str, tmp_path: Path) -> None:
    value = (np.abs(draw(1)) * 10).astype(dtype)
    done = trace(lambda x: (x[::-1], x.copy()), [value], tmp_path)
    new = (np.abs(draw(2)) * 10).astype(dtype)
    for got, want in zip(done.run(new), (new[::-1], new), strict=True):
        assert got.dtype == want.dtype
        assert np.array_equal(got, want)


@pytest.mark.parametrize("value", [np.array(["a"]), np.array([object()]), np.zeros(2, "datetime64[s]")])
def test_ports_refuse_what_is_no_number(value: A, tmp_path: Path) -> None:
    leapp.start("graph", save_path=tmp_path)
    try:
        with pytest.raises(AnnotationTypeError, match=f"port 'x'.*{value.dtype}".replace("[", r"\[").replace("]", r"\]")):
            annotate.input_tensors("n", {"x": value})
    finally:
        leapp.stop()


@pytest.mark.parametrize("make", [np.asmatrix, lambda x: np.ma.masked_less(x, 0.0)])
@pytest.mark.parametrize("output", [False, True])
def test_ports_refuse_arrays_with_operators_of_their_own(make: Callable[[A], A], output: bool, tmp_path: Path) -> None:
    """``x * x`` of a matrix is another product, and a masked array has more than its elements."""
    leapp.start("graph", save_path=tmp_path)
    try:
        x = annotate.input_tensors("n", {"x": draw(1, 3, 3) if output else draw(1)})
        with pytest.raises(AnnotationTypeError, match="(matrix|MaskedArray) computes in a way of its own.*np.asarray"):
            if output:
                annotate.output_tensors("n", {"y": make(x)}, export_with="jit")
            else:
                annotate.input_tensors("n", {"y": make(draw(1, 3, 3))})
    finally:
        leapp.stop()


def test_a_mapped_file_is_a_port_as_an_array_is(tmp_path: Path) -> None:
    draw(1).tofile(tmp_path / "values")
    value = np.memmap(tmp_path / "values", np.float32, "r+")
    done = trace(lambda x: x * 2, [value], tmp_path)
    np.testing.assert_array_equal(done.run(draw(2))[0], draw(2) * 2)


@pytest.mark.parametrize("passes", [1, 2])
def test_attributes_of_a_tensor_stay_with_it(passes: int, tmp_path: Path) -> None:
    leapp.start("graph", save_path=tmp_path)
    for seed in range(passes):
        value = torch.from_numpy(draw(seed))
        value.scale = 2.0
        x = annotate.input_tensors("n", {"x": value})
        assert x.scale == 2.0
        annotate.output_tensors("n", {"y": x * x.scale}, export_with="jit")
    leapp.stop()


def test_the_callers_array_stays_its_own(tmp_path: Path) -> None:
    mine = draw(1)
    leapp.start("graph", save_path=tmp_path)
    x = annotate.input_tensors("n", {"x": mine})
    assert type(mine) is np.ndarray
    assert x is not mine
    assert np.shares_memory(x, mine)
    x[0] = 9.0
    annotate.output_tensors("n", {"y": x * 2}, export_with="jit")
    leapp.stop()
    assert mine[0] == 9.0
    assert type(x + 1) is np.ndarray
    assert type(pickle.loads(pickle.dumps(x))) is np.ndarray


TYPES: list[Callable[[A], bool]] = [
    lambda x: type(x) == np.ndarray,  # noqa: E721 -- users write it
    lambda x: type(x) in (list, np.ndarray),
    lambda x: {np.ndarray: True}.get(type(x), False),
    lambda x: x.__class__ is np.ndarray,
    lambda x: type(x).__name__ == "ndarray" and type(x).__module__ == "numpy",
    lambda x: str(type(x)) == "<class 'numpy.ndarray'>",
    lambda x: type(x[0]) == np.float32 and type(x.sum()) in (np.float32, np.float64),  # noqa: E721
    lambda x: type(x[0]).__name__ == "float32" and type(x[0]).__module__ == "numpy",
    lambda x: type(x) != list and type(x) != np.matrix and type(x[0]) != np.float64,  # noqa: E721
    lambda x: type(np.zeros(3)) == np.ndarray,  # noqa: E721
]


@pytest.mark.parametrize("asks", TYPES)
def test_types_are_those_of_numpy(asks: Callable[[A], bool], tmp_path: Path) -> None:
    same(lambda x: x * 2 if asks(x) else x * 3, tmp_path)


def test_a_comparison_of_types_that_holds_outside_only_is_reported(tmp_path: Path) -> None:
    leapp.start("graph", save_path=tmp_path)
    for seed in (1, 2):
        x = annotate.input_tensors("n", {"x": draw(seed)})
        y = x * (2 if type(x) is np.ndarray else 3)
        z = y + (1 if type(x[0]) is np.float32 else 0)
        annotate.output_tensors("n", {"z": z if type(z) is not torch.Tensor else z * 2}, export_with="jit")
    leapp.stop()
    told = {e.source: e.kind.split(",")[0] for e in leapp.report().escapes if "which does not hold" in e.kind}
    assert told == {
        "y = x * (2 if type(x) is np.ndarray else 3)": "type() is np.ndarray",
        "z = y + (1 if type(x[0]) is np.float32 else 0)": "type() is np.float32",
    }


class Memory:
    """Shows its memory, as arrays of Warp do. NumPy then does not call ``__array__``."""

    def __init__(self, values: A) -> None:
        self.values = values

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self.values.__array_interface__

    def __array__(self, *args: Any, **kwargs: Any) -> A:
        raise AttributeError("not supported on this device")


@pytest.mark.parametrize("convert", [np.asarray, np.array, lambda v: torch.as_tensor(np.asarray(v))])
def test_objects_are_converted_as_outside_of_a_node(convert: Callable[[Any], Any], tmp_path: Path) -> None:
    memory = Memory(draw(5))
    same(lambda x: x * np.asarray(convert(memory)), tmp_path)


@pytest.mark.parametrize("resize", [lambda: np.zeros(4).resize(6), lambda: ConvexHull(np.eye(3)[:, :2])])
def test_an_array_that_is_resized_in_place_is_refused(resize: Callable[[], Any], tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="test_arrays.py:[0-9]+ an array is resized in place, which works outside of a node"):
        trace(lambda x: (resize(), x * 2)[1], [draw(1)], tmp_path)


def test_without_patching_numpy_is_left_alone(tmp_path: Path) -> None:
    array, mean = np.array, np.mean

    def function(x: A) -> A:
        assert np.array is array
        assert np.mean is mean
        return np.sin(x) + x[0]

    assert trace(function, [draw(1)], tmp_path, global_patching=False).escapes == []


def test_a_function_patch_sees_arrays(tmp_path: Path) -> None:
    import types

    compiled = types.ModuleType("compiled")
    compiled.double = lambda x: np.asarray(memoryview(np.ascontiguousarray(x).view(np.ndarray))) * 2  # type: ignore[attr-defined]
    patch = FunctionPatch(compiled, "double", lambda x: x * 2)
    done = trace(lambda x: compiled.double(x) + 1, [draw(1)], tmp_path, patching=[patch])
    assert done.escapes == []
    np.testing.assert_allclose(done.run(draw(2))[0], draw(2) * 2 + 1)
