"""Code through which a value leaves the graph. Each row must be exported right, or be reported with its line.

``reports`` names the kinds of report of which one is expected, as words that the report's own kind contains.
"""

# ruff: noqa: E501 -- a row is a line

from __future__ import annotations

import ctypes
import datetime
import decimal
import fractions
import io
import json
import random
import statistics
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from math import exp as plain_exp
from math import floor as plain_floor
from math import sin as plain_sin
from random import uniform as uniform_number
from time import monotonic
from typing import Any

import numpy as np
import onnxruntime
import scipy.linalg
import scipy.ndimage
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper
from scipy.linalg import cho_factor
from scipy.spatial.transform import Rotation

from tests.tables.case import Table, distinct, ints, normal, uniform

T = torch.Tensor
row = Table("escapes")
CASES = row.cases
N34, N4 = normal(3, 4), normal(4)
TORCH_GENERATOR = torch.Generator().manual_seed(0)
GENERATOR, STATE, RANDOM = np.random.default_rng(0), np.random.RandomState(0), random.Random(0)
SESSION = onnxruntime.InferenceSession(
    helper.make_model(
        helper.make_graph(
            [helper.make_node("Exp", ["x"], ["y"])],
            "exp",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 4])],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=10,
    ).SerializeToString()
)
GAINS = [0.5, 1.0, 2.0, 4.0]


class Angles(np.ndarray):
    """An array class of the user's own."""


class Lazy:
    """Something that says it is an array."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.values


def pattern(*reports: str, draws: tuple[Any, ...] = (N34,), **more: Any) -> Any:
    """Add the decorated function as a row."""

    def add(fn: Any) -> Any:
        row(fn.__name__, fn, *draws, reports=reports, **more)
        return fn

    return add


# Python numbers

row("item", lambda x: x * x.sum().item(), N34, reports=("item",))
row("item_of_element", lambda x: x * x[0, 0].item(), N34, reports=("item",))
row("item_clamp", lambda x: x.clamp(min=x.mean().item()), N34, reports=("item",))
row("float", lambda x: x * float(x.sum()), N34, reports=("float",))
row("int", lambda x: x * int(x[0, 0] * 10), N34, reports=("int",))
row("complex", lambda x: x * complex(x[0, 0]).real, N34, reports=("complex", "item"))
row("round_builtin", lambda x: x * round(x[0, 0].item(), 1), N34, reports=("item",))
row("tolist", lambda x: x + torch.tensor(x.tolist()) * 0.5, N34, reports=("tolist",))
row("tolist_sum", lambda x: x * sum(x[0].tolist()), N34, reports=("tolist",))
row("python_pow_of_item", lambda x: x * 2.0 ** x[0, 0].item(), N34, reports=("item",))
row("scalar_alpha", lambda x: torch.add(x, x * 2, alpha=x[0, 0]), N34, reports=("item", "scalar", "alpha", "float"))
row("scalar_fill_value", lambda x: x + torch.full((4,), x[0, 0]), N34, reports=("item", "scalar", "full", "float"))
row("scalar_full_like", lambda x: x + torch.full_like(x, x[0, 0]), N34, reports=("item", "scalar", "full", "float"))
row("scalar_negative_slope", lambda x: F.leaky_relu(x, x[0, 0].abs()), N34, reports=("item", "scalar", "leaky", "float"))
row("scalar_new_full", lambda x: x * x.new_full((4,), x.sum()), N34, reports=("item", "scalar", "full", "float"))
row("tensor_of_items", lambda x: x + torch.tensor([x[0, 0].item(), 1.0, 2.0, 3.0]), N34, reports=("item",))
row("is_nonzero", lambda x: x * (2.0 if (x[0, 0] > 0).is_nonzero() else 3.0), N34, reports=("nonzero", "bool", "item"))

# Branches


@pattern("bool")
def branch_if(x: T) -> T:
    if x.sum() > 0:
        return x * 2
    return x * 3


@pattern("bool")
def branch_any(x: T) -> T:
    return x * 2 if (x > 1.5).any() else x + 1


@pattern("bool")
def branch_and_or(x: T) -> T:
    return x * (2 if x[0, 0] > 0 and x[1, 1] > 0 or not x[2, 2] > 0 else 3)


@pattern("bool")
def branch_while(x: T) -> T:
    y = x.clone()
    while y.abs().sum() > 2:
        y = y * 0.5
    return y


@pattern("bool")
def branch_assert(x: T) -> T:
    assert x.abs().max() < 1000
    return x * 2 * bool(x[0, 0] < 1000)


row("builtin_max", lambda x: x * max(x[0, 0], x[1, 1]), N34, reports=("bool",))
row("builtin_min_of_tensor", lambda x: x * min(x[0]), N34, reports=("bool",))
row("builtin_sorted", lambda x: torch.stack(sorted(x[0])) + x, distinct(3, 4), reports=("bool",))
row("builtin_any", lambda x: x * (1 + any(v > 1 for v in x[0])), N34, reports=("bool",))
row("contains", lambda x: x * (2 if 1.0 in x else 3), ints(0, 6, 3, 4, dtype=torch.float32), reports=("contains", "in", "bool"))
row("equal", lambda x: x * (2 if torch.equal(x[0], x[1]) else 3), ints(0, 2, 3, 1, dtype=torch.float32), reports=("equal",))
row("allclose", lambda x: x * (2 if torch.allclose(x, x.abs(), atol=0.5) else 3), normal(3, 1), reports=("allclose",))
row("list_index_method", lambda x: x * [0.0, 1.0, 2.0].index(x[0]), ints(0, 3, 3, dtype=torch.float32), reports=("bool", "eq"))
row("chained_comparison", lambda x: x * (2 if -0.5 < x[0, 0] < 0.5 else 3), N34, reports=("bool",))


@torch.jit.script
def scripted_branch(x: T) -> T:
    if bool(x.sum() > 0):
        return x * 2
    return x * 3


row("branch_in_script", lambda x: scripted_branch(x) + 1, N34, reports=("bool", "item", "local_scalar", "script"))
row("item_in_function_of_library", lambda x: torch.nn.utils.clip_grad_norm_([p := torch.nn.Parameter(x * 2)], 1.0) * 0 + p * float(p.sum()), N34, reports=("float", "item"))

# Python containers and shapes

row("list_of_numbers_indexed", lambda x: x * GAINS[(x[0, 0] > 0).long()], N34, reports=("index",))
row("list_indexed_by_argmax", lambda x: x * GAINS[x[0].argmax()], distinct(3, 4), reports=("index",))
row("dict_by_number", lambda x: x * {0: 1.0, 1: 2.0}[int(x[0, 0] > 0)], N34, reports=("int",))
row("range_of_int", lambda x: x + sum(i for i in range(int(x[0]))), ints(0, 9, 3), reports=("int",))
row("range_of_tensor", lambda x: x + len(range(x[0])), ints(0, 9, 3), reports=("index",))
row("slice_by_tensor", lambda x: x.sum() + x[: x[0].clamp(0, 2)].sum(), ints(0, 3, 3), reports=("index", "item"))
row("zeros_of_traced_size", lambda x: x + torch.zeros(x[0].clamp(1, 3)).numel(), ints(1, 4, 3), reports=("zeros", "index", "int", "item", "size"))
row("repeat_of_traced_count", lambda x: x.sum() + x.repeat(int(x[0]), 1).sum(), ints(1, 4, 3), reports=("int",))
row("arange_of_traced_end", lambda x: x + torch.arange(x[0]).sum(), ints(1, 6, 3), reports=("item", "int", "index", "arange", "scalar"))
row("split_at_traced", lambda x: x[0] + torch.split(x, [int(x[0]), 3 - int(x[0])])[0].sum(), ints(0, 3, 3), reports=("int",))
row("roll_by_traced", lambda x: x + torch.roll(x, int(x[0])), ints(0, 3, 3), reports=("int",))

row("shape_of_mask", lambda x: x * len(x[x > 0]), N34, reports=("len", "shape"))
row("shape_of_nonzero", lambda x: x * torch.nonzero(x > 0).shape[0], N34, reports=("shape", "nonzero"))
row("shape_of_where", lambda x: x * torch.where(x > 0)[0].numel(), N34, reports=("numel", "shape"))
row("shape_of_unique", lambda x: x * torch.unique(x).numel(), ints(0, 5, 3, 4), reports=("numel", "shape", "unique"))
row("shape_of_masked_select", lambda x: x * torch.masked_select(x, x > 0).size(0), N34, reports=("size", "shape"))
row("shape_of_bincount", lambda x: x * len(torch.bincount(x)), ints(0, 6, 5), reports=("len", "shape"))
row("shape_of_repeat_interleave", lambda x: x * torch.repeat_interleave(x).shape[0], ints(0, 4, 3), reports=("shape",))
row("shape_of_repeats", lambda x: x * torch.repeat_interleave(torch.ones(3), x).shape[0], ints(0, 4, 3), reports=("shape",))
row("shape_of_one_hot", lambda x: x * F.one_hot(x).shape[-1], ints(0, 6, 5), reports=("shape",))
row("shape_is_that_of", lambda x: x * (2.0 if x[x > 0].is_same_size(torch.zeros(6)) else 3.0), N34, reports=("is_same_size",))
row("shape_by_stride", lambda x: x * x[x > 0].repeat(2, 1).stride(0), N34, reports=("stride",))
row("shape_iterated", lambda x: x + sum(i * v for i, v in enumerate(x[x > 0])), N34, reports=("iter", "unbind", "len", "shape"))
row("shape_divisor", lambda x: x * (x[x > 0].sum() / max(len(x[x > 0]), 1)), N34, reports=("len", "shape"))

# Text


@pattern("format")
def text_format(x: T) -> T:
    return x * float(f"{x[0, 0]:.2f}")


@pattern("repr", "str", "format")
def text_str(x: T) -> T:
    return x * len(str(x[0]).replace("-", ""))


@pattern("repr", "str", "format")
def text_repr(x: T) -> T:
    return x * repr(x).count("-")


# Memory

row("data_ptr_read", lambda x: x * ctypes.c_float.from_address((y := x * 1).data_ptr()).value + y, N34, reports=("data_ptr",))
row("dlpack", lambda x: x + torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x * 2)), N34, reports=("dlpack",))
row("numpy_from_dlpack", lambda x: x + torch.tensor(np.from_dlpack(x * 2).copy().tolist()), N34, reports=("dlpack", "tolist"))
row("storage", lambda x: x * (x * 2).untyped_storage()[3], N34, reports=("storage",))
row("storage_list", lambda x: x * (x * 2).untyped_storage().tolist()[2], N34, reports=("storage",))
row("memoryview", lambda x: x * memoryview(x.numpy())[0, 0], N34, reports=("memoryview", "buffer", "array", "numpy"))
row("struct_unpack", lambda x: x * struct.unpack_from("f", x.numpy())[0], N34, reports=("memoryview",))
row("numpy_ctypes", lambda x: x * x.numpy().ctypes.data_as(ctypes.POINTER(ctypes.c_float))[0], N34, reports=("ctypes",))
row("numpy_interface", lambda x: x * ctypes.c_float.from_address(x.numpy().__array_interface__["data"][0]).value, N34, reports=("interface",))
row("numpy_text", lambda x: x * float(np.array2string(x.numpy()[0, 0])), N34, reports=("array2string",))
row("numpy_broadcast_object", lambda x: x * sum(a * b for a, b in np.broadcast(x.numpy(), 2.0)), N34, reports=("broadcast",))
row("numpy_records", lambda x: x * np.rec.fromarrays([x.numpy()[0]], names="a").a[0], N34, reports=("rec",))
# Names that were imported before are the originals: they read the value.
row("math_function", lambda x: x * plain_sin(x[0, 0]), N34, reports=("float",))
row("math_of_numpy", lambda x: x * plain_exp(x.numpy()[0, 0]), N34, reports=("float",))
row("number_for_floor", lambda x: x * plain_floor(x.numpy()[0, 0] * 5), N34, reports=("float", "floor"))
row("compiled_lapack", lambda x: x + torch.from_numpy(cho_factor(x.numpy() @ x.numpy().T + np.eye(3, dtype=np.float32))[0]), normal(3, 3), reports=("Fortran",))
row("compiled_class", lambda x: x + torch.from_numpy(Rotation.align_vectors(x.numpy()[:, :3], np.eye(3))[0].as_quat().astype(np.float32)), N34, reports=("align_vectors", "compiled"))
row("first_in_a_list", lambda x: x * torch.from_numpy(np.abs([x.numpy()[0], x.numpy()[1]])).sum(), N34, reports=("abs",))
row("compiled_filter", lambda x: x + torch.from_numpy(scipy.ndimage.gaussian_filter(x.numpy(), 1.0)), N34, reports=("correlate1d",))
row("compiled_session", lambda x: x + torch.from_numpy(SESSION.run(None, {"x": x.numpy()})[0]), N34, reports=("run",))
row("bytes", lambda x: x * np.frombuffer(x.numpy().tobytes(), np.float32)[0], N34, reports=("tobytes", "frombuffer", "numpy"))

row("mirror_made_before", lambda s, x: (s[0].copy_(x), x * float(s[1][0, 0]))[1], N34, setup=lambda: (b := torch.zeros(3, 4), b.numpy()), reports=("float",))
row("mirror_lends_its_memory", lambda s, x: (s[0].copy_(x), x * s[1].item(3))[1], N34, setup=lambda: (a := np.zeros((3, 4), np.float32)) is None or (torch.from_numpy(a), a), reports=("item",))
row("mirror_memoryview", lambda s, x: (s[0].copy_(x), x * memoryview(s[1])[0, 0])[1], N34, setup=lambda: (b := torch.zeros(3, 4), b.numpy()), reports=("memoryview",))
row("mirror_text", lambda s, x: (s[0].copy_(x), x * str(s[1]).count("-") + repr(s[1]).count("-"))[1], N34, setup=lambda: (b := torch.zeros(3, 4), b.numpy()), reports=("str",))
row("mirror_made_inside", lambda x: ((b := torch.zeros(3, 4)), (m := b.numpy()), b.copy_(x), x * float(m.max()))[-1], N34, reports=("float",))
row("mirror_of_a_part", lambda s, x: (s[0].copy_(x[0]), x * float(s[1].sum()))[1], N34, setup=lambda: (a := np.zeros(9, np.float32)) is None or (torch.from_numpy(a[2:6]), a), reports=("float",))
row("mirror_read_by_compiled_code", lambda s, x: (s[0].copy_(x), x + torch.from_numpy(scipy.ndimage.gaussian_filter(s[1], 1.0)))[1], N34, setup=lambda: (b := torch.zeros(3, 4), b.numpy()), reports=("correlate1d",))
row("compiled_fortran", lambda x: x * float(scipy.linalg.blas.sdot(x[0].numpy(), x[1].numpy())), N34, reports=("Fortran",))
row("class_of_arrays", lambda x: x + torch.from_numpy(np.asarray(x.numpy().view(Angles) * 2)), N34, reports=("Angles",))
row("class_of_arrays_over_tensor", lambda s, x: (s[0].copy_(x), x * s[1].sum())[1], N34, setup=lambda: (b := torch.zeros(3, 4), b.numpy().view(Angles)), reports=("Angles",))
row("class_of_arrays_written", lambda s, x: (s.__setitem__(slice(None), x.numpy() * 2), x * float(s.mean()))[1], N34, setup=lambda: np.zeros((3, 4), np.float32).view(Angles), reports=("Angles",))

# The first array of a session appears in the arguments of a call, whose function Python has looked up by then.

row("first_in_a_stack", lambda x: x[:2] + torch.from_numpy(np.stack([x.numpy()[0], x.numpy()[1]])), N34, reports=("stack",))
row("first_in_a_list_for_a_ufunc", lambda x: x[:2] + torch.from_numpy(np.add([x.numpy()[0], x.numpy()[1]], 1)), N34, reports=("add",))
row("first_in_dot_of_plain", lambda t, x: x + torch.from_numpy(t.dot(x[0].numpy())), N34, setup=lambda: np.arange(16.0, dtype=np.float32).reshape(4, 4), reports=("dot",))
row("first_in_take_of_plain", lambda t, x: torch.from_numpy(t.take(x.numpy())) * 2, ints(0, 4, 3), setup=lambda: np.arange(4.0, dtype=np.float32), reports=("take",))
row("first_in_searchsorted_of_plain", lambda t, x: x * torch.from_numpy(t.searchsorted(x.numpy())), N4, setup=lambda: np.linspace(-2, 2, 9, dtype=np.float32), reports=("searchsorted",))
row("first_through_array_protocol", lambda x: x + torch.from_numpy(np.cos(Lazy(x.numpy() * 3))), N34, reports=("cos",))
row("array_protocol_of_function", lambda x: x + torch.from_numpy(np.cumsum(Lazy(x.numpy()), axis=0)), N34, reports=("cumsum",))
row("array_protocol_in_list", lambda x: x[:2] + torch.from_numpy(np.array([Lazy(x.numpy()[0]), Lazy(x.numpy()[1])])), N34, reports=("array",))

row("statistics_mean", lambda x: x * float(statistics.fmean(x.numpy()[0])), N34, reports=("fmean",))
row("statistics_of_numbers", lambda x: x * statistics.median([x.numpy()[0, 0], x.numpy()[1, 1], x.numpy()[2, 2]]), N34, reports=("median",))
row("json_of_a_number", lambda x: x * json.loads(json.dumps({"gain": x.numpy().astype(np.float64)[0, 0]}))["gain"], N34, reports=("dumps",))
row("json_of_a_tensor", lambda x: x * json.loads(json.dumps(x[0], default=lambda v: v.tolist()))[0], N34, reports=("dumps",))

# NumPy that no torch expression stands for

row("numpy_float", lambda x: x * float(x.numpy().sum()), N34, reports=("float",))
row("numpy_item", lambda x: x * x.numpy().sum().item(), N34, reports=("item",))
row("numpy_item_of_element", lambda x: x * x.numpy().item(3), N34, reports=("item",))
row("numpy_tolist", lambda x: x * sum(x.numpy()[0].tolist()), N34, reports=("tolist",))
row("numpy_int", lambda x: x * int(x.numpy()[0, 0] * 10), N34, reports=("int",))
row("numpy_if", lambda x: x * (2 if x.numpy().mean() > 0 else 3), N34, reports=("bool",))
row("numpy_contains", lambda x: x * (2 if 1.0 in x.numpy() else 3), ints(0, 6, 3, 4, dtype=torch.float32), reports=("contains", "in", "bool"))
row("numpy_allclose", lambda x: x * (2 if np.allclose(x.numpy(), abs(x.numpy()), atol=0.5) else 3), normal(3, 1), reports=("allclose", "bool"))
row("numpy_array_equal", lambda x: x * (2 if np.array_equal(x.numpy()[0], x.numpy()[1]) else 3), ints(0, 2, 3, 1, dtype=torch.float32), reports=("equal", "bool"))
row("numpy_list_index", lambda x: x * GAINS[np.argmax(x.numpy()[0])], distinct(3, 4), reports=("index",))
row("numpy_roots", lambda x: x * np.sort(np.roots(x.numpy()).real)[0].astype(np.float32), uniform(0.5, 3.0, 3), reports=("roots", "poly", "eig"))
row("numpy_vectorize", lambda x: x + torch.from_numpy(np.vectorize(lambda v: 2.0 if v > 0 else 1.0)(x.numpy()).astype(np.float32)), N34, reports=("vectorize", "bool", "pyfunc"))
row("numpy_frompyfunc", lambda x: x + torch.from_numpy(np.frompyfunc(lambda v: v * 2, 1, 1)(x.numpy()).astype(np.float32)), N34, reports=("frompyfunc", "vectorized", "object", "astype"))
row("numpy_fromiter", lambda x: x + torch.from_numpy(np.fromiter((v * 2 for v in x.numpy().flat), np.float32).reshape(3, 4)), N34, reports=("fromiter", "float"))
row("numpy_packbits", lambda x: x + torch.from_numpy(np.packbits(x.numpy() > 0, axis=1)), N34, reports=("packbits",))
row("numpy_unique_len", lambda x: x * len(np.unique(x.numpy())), ints(0, 5, 3, 4), reports=("unique", "len", "shape"))
row("numpy_mask_len", lambda x: x * len(x.numpy()[x.numpy() > 0]), N34, reports=("len", "shape"))
row("numpy_format", lambda x: x * float(f"{x.numpy()[0, 0]:.1f}"), N34, reports=("format", "float"))

# Chance, clocks and threads

row("random_torch_generator", lambda x: x + torch.randn(4, generator=TORCH_GENERATOR), N34, reports=("random",))
row("random_torch_filled", lambda x: x * torch.empty(4).uniform_(), N34, reports=("random",))
row("random_torch_filled_then_derived", lambda x: x + torch.zeros(4).normal_().mul(2).sub(1), N34, reports=("random",))
row("random_torch_read_out", lambda x: x * torch.rand(4).max().item(), N34, reports=("random",))
row("random_numpy", lambda x: x + torch.from_numpy(np.random.randn(4).astype(np.float32)), N34, reports=("random",))
row("random_numpy_generator", lambda x: x + torch.from_numpy(np.random.default_rng().normal(size=4).astype(np.float32)), N34, reports=("random",))
row("random_generator_made_before", lambda x: x * float(GENERATOR.normal()), N34, reports=("random",))
row("random_state_made_before", lambda x: x * STATE.rand(), N34, reports=("random",))
row("random_python_made_before", lambda x: x * RANDOM.uniform(0, 1), N34, reports=("random",))
row("random_imported_by_name", lambda x: x * uniform_number(0, 1), N34, reports=("random",))
row("clock_imported_by_name", lambda x: x * (monotonic() % 1), N34, reports=("time", "monotonic"))
row("clock_calendar", lambda x: x * datetime.datetime.now().microsecond, N34, reports=("time",))
row("random_python", lambda x: x * random.random(), N34, reports=("random",))
row("clock", lambda x: x * (time.time() % 1), N34, reports=("time",))
row("clock_perf_counter", lambda x: x * (time.perf_counter() % 1), N34, reports=("time", "perf_counter"))


@pattern("thread")
def other_thread(x: T) -> T:
    out: list[T] = []
    worker = threading.Thread(target=lambda: out.append(torch.sin(x) * 2))
    worker.start()
    worker.join()
    return x + out[0]


@pattern("thread")
def other_thread_pool(x: T) -> T:
    with ThreadPoolExecutor(1) as pool:
        return x + pool.submit(lambda: x.exp().mean(0)).result()


@pattern("thread")
def other_thread_writes(x: T) -> T:
    y = x.clone()
    worker = threading.Thread(target=lambda: y.mul_(2))
    worker.start()
    worker.join()
    return y + x


# Numbers of NumPy where only a plain number will do

F64 = (normal(3, 4, dtype=torch.float64),)
row("number_for_alpha", lambda x: torch.add(x, x * 2, alpha=x.numpy()[0, 0]), *F64, reports=("add",))
row("number_for_fill_value", lambda x: x + torch.full((4,), x.numpy()[0, 0]), *F64, reports=("full",))
row("number_inside_vmap", lambda x: torch.vmap(lambda r: r * x.numpy()[0, 0])(x), *F64, reports=("mul",))
row("number_for_slope", lambda x: F.leaky_relu(x, abs(x.numpy()[0, 0])), *F64, reports=("leaky",))
row("number_for_old_constructor", lambda x: x * torch.DoubleTensor([x.numpy()[0, 0]]), *F64, reports=("float",))
row("number_for_decimal", lambda x: x * float(decimal.Decimal(x.numpy()[0, 0])), *F64, reports=("Decimal",))
row("number_for_timedelta", lambda x: x * datetime.timedelta(seconds=x.numpy()[0, 0]).total_seconds(), *F64, reports=("timedelta",))
row("number_times_timedelta", lambda x: x * (datetime.timedelta(seconds=2) * x.numpy()[0, 0]).total_seconds(), *F64, reports=("multiply",))
row("number_for_calendar", lambda x: x * datetime.datetime.fromtimestamp(abs(x.numpy()[0, 0]) * 1e6).second, *F64, reports=("fromtimestamp",))
row("number_for_time", lambda x: x * time.gmtime(abs(x.numpy()[0, 0]) * 1e5).tm_min, *F64, reports=("gmtime",))
row("number_for_fraction", lambda x: x * float(fractions.Fraction(x.numpy()[0, 0])), *F64, reports=("ratio",))
row("number_for_struct", lambda x: x * struct.unpack("d", struct.pack("d", x.numpy()[0, 0]))[0], *F64, reports=("float",))
row("number_for_ctypes", lambda x: x * ctypes.c_double(x.numpy()[0, 0]).value, *F64, reports=("float",))
row("number_for_seed", lambda x: x * np.random.default_rng(x.numpy()[0]).random(), ints(0, 9, 3), reports=("random",))
row("number_for_fraction_whole", lambda x: x + int(fractions.Fraction(x.numpy()[0]) * 2), ints(0, 9, 3), reports=("numerator", "ratio"))

# Memory and files that are older than what is in them

row("view_made_before", lambda s, x: (s[0].copy_(x), x * s[1][0, 0])[1], N34, setup=lambda: (b := torch.zeros(3, 4), memoryview(b.numpy())), reports=("memoryview",))
row("view_made_before_and_listed", lambda s, x: (s[0].copy_(x), x * s[1].tolist()[1][1])[1], N34, setup=lambda: (b := torch.zeros(3, 4), memoryview(b.numpy())), reports=("memoryview",))
row("view_made_before_and_unpacked", lambda s, x: (s[0].copy_(x), x * struct.unpack_from("f", s[1])[0])[1], N34, setup=lambda: (b := torch.zeros(3, 4), memoryview(b.numpy())), reports=("memoryview",))
row("view_made_inside", lambda x: ((b := np.zeros((3, 4), np.float32)), (m := memoryview(b)), b.__setitem__(slice(None), x.numpy()), x * m[0, 0])[-1], N34, reports=("memoryview",))
row("dlpack_made_before", lambda s, x: (s[0].copy_(x), x * float(s[1][0, 0]))[1], N34, setup=lambda: (b := torch.zeros(3, 4), np.from_dlpack(b)), reports=("float",))
row("dlpack_made_inside", lambda x: ((b := torch.zeros(3, 4)), (m := np.from_dlpack(b)), b.copy_(x), x * float(m[0, 0]))[-1], N34, reports=("float",))
row("dlpack_as_tensor", lambda s, x: (s[0].copy_(x), x * s[1][0, 0])[1], N34, setup=lambda: (b := torch.zeros(3, 4), torch.from_dlpack(b)), reports=("memory",))


@pattern("torch.save")
def checkpoint_in_memory(x: T) -> T:
    file = io.BytesIO()
    torch.save({"x": x * 2}, file)
    file.seek(0)
    return x + torch.load(file)["x"]
