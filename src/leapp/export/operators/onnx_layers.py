"""Matrix products and layers of networks, written as ONNX."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from leapp.export.onnx_graph import Value, Writer
from leapp.export.operators.table import aten, translates

_GEMM = (torch.float32, torch.float16)
"""Types for which float32 attributes are exact enough."""


@translates(aten.mm.default, aten.bmm.default)
def _product(op: Writer, a: Value, b: Value) -> Any:
    return op("MatMul", a, b)


@translates(aten.matmul.default)
def _matmul(op: Writer, a: Value, b: Value) -> Any:
    return op("MatMul", a, b) if a.rank > 1 and b.rank > 1 else NotImplemented


@translates(aten.addmm.default)
def _addmm(op: Writer, c: Value, a: Value, b: Value, *, beta: Any = 1, alpha: Any = 1) -> Any:
    if a.dtype not in _GEMM:
        return NotImplemented
    return op("Gemm", a, b, c, alpha=float(alpha), beta=float(beta))


@translates(aten.linear.default)
def _linear(op: Writer, x: Value, weight: Value, bias: Value | None = None) -> Any:
    if not x.dtype.is_floating_point or weight.rank != 2:
        return NotImplemented
    if x.rank == 1 or (x.rank == 2 and bias is not None):
        rows = op.reshaped(x, [1, *x.sizes]) if x.rank == 1 else x
        out = op("Gemm", rows, weight, bias, transB=1)
        return op.reshaped(out, weight.sizes[:1]) if x.rank == 1 else out
    out = op("MatMul", x, op("Transpose", weight, perm=[1, 0]))
    return out if bias is None else op("Add", out, bias)


@translates(aten.convolution.default)
def _convolution(
    op: Writer, x: Value, weight: Value, bias: Value | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
) -> Any:  # fmt: skip
    if not x.dtype.is_floating_point:
        return NotImplemented
    stride, padding, dilation, rest = (_each(v, weight.rank - 2) for v in (stride, padding, dilation, output_padding))
    inputs = [x, weight] if bias is None else [x, weight, bias]
    settings: dict[str, Any] = {"strides": stride, "pads": padding * 2, "dilations": dilation, "group": groups}
    return op("ConvTranspose", *inputs, output_padding=rest, **settings) if transposed else op("Conv", *inputs, **settings)


def _each(values: Sequence[int], count: int) -> list[int]:
    """One number for each axis of an image. A single number is meant for all of them."""
    return list(values) * count if len(values) == 1 else list(values)


@translates(aten.layer_norm.default)
def _layer_norm(
    op: Writer, x: Value, shape: Sequence[int], weight: Value | None = None, bias: Value | None = None, eps: float = 1e-5,
    *_: Any,
) -> Any:  # fmt: skip
    if x.dtype != torch.float32:
        return NotImplemented
    if weight is None:
        weight = op.number(1.0, x.dtype, shape)
    inputs = [x, weight] if bias is None else [x, weight, bias]
    return op("LayerNormalization", *inputs, axis=-len(shape), epsilon=eps)


@translates(aten.group_norm.default)
def _group_norm(
    op: Writer, x: Value, groups: int, weight: Value | None = None, bias: Value | None = None, eps: float = 1e-5, *_: Any
) -> Any:
    if x.dtype not in _GEMM or 0 in x.sizes:
        return NotImplemented
    rows = op.reshaped(x, [x.sizes[0], groups, math.prod(x.sizes[1:]) // groups])
    one, zero = op.number(1.0, x.dtype, [groups]), op.number(0.0, x.dtype, [groups])
    out = op.reshaped(op("InstanceNormalization", rows, one, zero, epsilon=eps), x.sizes)
    channels = [1, x.sizes[1]] + [1] * (x.rank - 2)
    out = out if weight is None else op("Mul", out, op.reshaped(weight, channels))
    return out if bias is None else op("Add", out, op.reshaped(bias, channels))


@translates(aten.instance_norm.default)
def _instance_norm(
    op: Writer, x: Value, weight: Value | None, bias: Value | None, mean: Value | None, var: Value | None, own: bool,
    momentum: float, eps: float, *_: Any,
) -> Any:  # fmt: skip
    if not own or x.dtype not in _GEMM or 0 in x.sizes or x.rank < 3:
        return NotImplemented
    channels = x.sizes[1:2]
    weight, bias = weight or op.number(1.0, x.dtype, channels), bias or op.number(0.0, x.dtype, channels)
    return op("InstanceNormalization", x, weight, bias, epsilon=eps)


@translates(aten._native_batch_norm_legit_no_training.default)
def _batch_norm(
    op: Writer, x: Value, weight: Value | None, bias: Value | None, mean: Value, var: Value, momentum: float, eps: float
) -> Any:
    """The statistics of the batch, which it returns too, are empty."""
    if x.dtype != torch.float32 or mean.dtype != torch.float32:
        return NotImplemented
    weight, bias = weight or op.number(1.0, x.dtype, mean.sizes), bias or op.number(0.0, x.dtype, mean.sizes)
    nothing = op.number(0.0, x.dtype, [0])
    return [op("BatchNormalization", x, weight, bias, mean, var, epsilon=eps), nothing, nothing]


# Pools. Windows that go past the end take what is there: the padding ends where the last of them does.


def _padding(
    size: Sequence[int], out: Sequence[int], kernel: Sequence[int], stride: Sequence[int], before: Sequence[int],
    dilation: Sequence[int],
) -> list[int]:  # fmt: skip
    """The padding at the end of each axis of an image, with which there are ``out`` windows."""
    axes = zip(size, out, kernel, stride, before, dilation, strict=True)
    return [max((n - 1) * s + d * (k - 1) + 1 - length - p, p) for length, n, k, s, p, d in axes]


def _count(length: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    """How many windows there are along an axis. None of them begins in the padding at the end."""
    room = length + 2 * padding - dilation * (kernel - 1) - 1
    count = (room + stride - 1 if ceil_mode else room) // stride + 1
    return count - 1 if ceil_mode and (count - 1) * stride >= length + padding else count


def _image(x: Value, axes: int) -> tuple[int, ...]:
    """The sizes of an image. How many there are need not be known."""
    return Value(x.dtype, (x.shape or (None,))[-axes:]).sizes


def _pooled(
    op: Writer, kind: str, x: Value, outputs: int, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], ceil_mode: bool, **settings: Any,
) -> Any:  # fmt: skip
    axes = len(kernel)
    stride, padding, dilation = _each(stride or kernel, axes), _each(padding, axes), _each(dilation, axes)
    size = _image(x, axes)
    out = [_count(*axis, ceil_mode) for axis in zip(size, kernel, stride, padding, dilation, strict=True)]
    pads = [*padding, *_padding(size, out, kernel, stride, padding, dilation)]
    single = x.rank == axes + 1
    images = op.reshaped(x, [1, *x.sizes]) if single else x
    types = [x.dtype, torch.int64][:outputs]
    found = op.many(
        kind, images, shapes=[None] * outputs, dtypes=types, kernel_shape=kernel, strides=stride, pads=pads, **settings
    )
    return [op.reshaped(f, [x.sizes[0], *out]) for f in found] if single else found


def _max_pooled(
    op: Writer, x: Value, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,), ceil_mode: bool = False, *, outputs: int = 1,
) -> Any:  # fmt: skip
    settings = {"dilations": _each(dilation, len(kernel))}
    return _pooled(op, "MaxPool", x, outputs, kernel, stride, padding, dilation, ceil_mode, **settings)[-1]


def _max_pool(axes: int, target: Any, alone: bool) -> None:
    @translates(target)
    def write(op: Writer, x: Value, kernel: Sequence[int], *settings: Any) -> Any:
        """ONNX Runtime skips NaN and -inf. So a second pool tells which windows have NaN, and which have nothing but -inf."""
        if not x.dtype.is_floating_point or 0 in (x.shape or ()):
            return NotImplemented
        kernel = _each(kernel, axes)
        wide = op.cast(x, torch.float32) if x.dtype == torch.float16 else x
        lowest, zero = op.number(-math.inf, wide.dtype), op.number(0.0, torch.float32)
        nan = op.cast(op("IsNaN", wide, dtype=torch.bool, shape=x.shape), torch.float32)
        bottom = op.cast(op("Equal", wide, lowest, dtype=torch.bool, shape=x.shape), torch.float32)
        kinds = _max_pooled(op, op("Sub", nan, bottom, shape=x.shape), kernel, *settings)
        found = _max_pooled(op, wide, kernel, *settings)
        found = op("Where", op("Less", kinds, zero, dtype=torch.bool), lowest, found, dtype=wide.dtype)
        poisoned = op("Greater", kinds, zero, dtype=torch.bool)
        found = op.cast(op("Where", poisoned, op.number(math.nan, wide.dtype), found, dtype=wide.dtype), x.dtype)
        if alone:
            return found
        # The places in ONNX count over all images.
        places = _max_pooled(op, wide, kernel, *settings, outputs=2)
        return [found, op("Mod", places, op.number(math.prod(_image(x, axes)), torch.int64))]


_max_pool(1, aten.max_pool1d.default, True)
_max_pool(2, aten.max_pool2d_with_indices.default, False)
_max_pool(3, aten.max_pool3d_with_indices.default, False)


def _avg_pool(axes: int, target: Any) -> None:
    @translates(target)
    def write(
        op: Writer, x: Value, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
        ceil_mode: bool = False, count_include_pad: bool = True, divisor: int | None = None,
    ) -> Any:  # fmt: skip
        if x.dtype not in _GEMM or 0 in (x.shape or ()) or (any(padding) and ceil_mode and divisor is None):
            return NotImplemented
        # Padding that is an operator of its own counts. ONNX Runtime 1.20 makes it the padding of the pool.
        counted = divisor is not None or (count_include_pad if any(padding) else not ceil_mode)
        kernel = _each(kernel, axes)
        found = _pooled(op, "AveragePool", x, 1, kernel, stride, padding, (1,), ceil_mode, count_include_pad=int(counted))[0]
        return found if divisor is None else op("Mul", found, op.number(math.prod(kernel) / divisor, x.dtype))


for _axes, _target in enumerate((aten.avg_pool1d, aten.avg_pool2d, aten.avg_pool3d), 1):
    _avg_pool(_axes, _target.default)


# Images of another size


def _resize(target: Any, write: Callable[..., Any]) -> None:
    """Register a function of a writer, an image, its new size, the factors if eager code uses them, and the other settings."""

    @translates(target)
    def by_axis(op: Writer, x: Value, size: Sequence[int], *rest: Any) -> Any:
        settings = [value for value in rest if isinstance(value, bool)]
        return write(op, x, list(size), [value for value in rest if isinstance(value, float)], *settings)


def _resize_whole(target: Any, write: Callable[..., Any]) -> None:
    """The same for an overload with a list of factors, which a trace keeps whole."""

    @translates(target)
    def at_once(op: Writer, x: Value, size: Sequence[int] | None, *rest: Any) -> Any:
        *settings, factors = rest
        if size is None:
            size = [int(length * factor) for length, factor in zip(_image(x, len(factors)), factors, strict=True)]
        return write(op, x, list(size), list(factors or []), *settings)


def _nearest(place: Any) -> Callable[..., Any]:
    def write(op: Writer, x: Value, size: list[int], factors: list[float]) -> Any:
        """Eager code chooses the places in single precision, or in double for float64. They are constants."""
        kind = torch.float64 if x.dtype == torch.float64 else torch.float32
        shape = list(x.shape or ())
        for n, (length, count) in enumerate(zip(_image(x, len(size)), size, strict=True)):
            row = torch.arange(length, dtype=kind, device="cpu").reshape(1, 1, -1)
            places = place(row, [count], factors[n] if factors else None).reshape(-1)
            axis = len(shape) - len(size) + n
            shape[axis] = count
            x = op("Gather", x, op.constant(places.to(torch.int64)), axis=axis, shape=shape)
        return x

    return write


def _interpolated(kind: str, **settings: Any) -> Callable[..., Any]:
    def write(op: Writer, x: Value, size: list[int], factors: list[float], aligned: bool) -> Any:
        if x.dtype not in _GEMM or 0 in x.sizes:
            return NotImplemented
        front = x.rank - len(size)
        places: dict[str, Any] = {"coordinate_transformation_mode": "align_corners" if aligned else "half_pixel", **settings}
        if aligned or not factors:
            return op("Resize", x, None, None, op.ints([*x.sizes[:front], *size]), mode=kind, **places)
        fitting = [_fitting(factor, length) for factor, length in zip(factors, x.sizes[front:], strict=True)]
        scales = torch.tensor([1.0] * front + fitting, dtype=torch.float32, device="cpu")
        return op("Resize", x, None, op.constant(scales), mode=kind, **places)

    return write


def _fitting(factor: float, length: int) -> float:
    """The factor, or the nearest float32 that gives an image of the size of eager code: 20 * 0.45 is below 9 in float32.

    Engines multiply in float32 or not.
    """
    wanted, near = math.floor(length * factor), np.float32(factor)
    while any(math.floor(product) != wanted for product in (length * float(near), np.float32(length) * near)):
        near = np.nextafter(near, np.float32(math.inf if length * float(near) < wanted + 0.5 else 0))
    return float(near)


def _smoothed(target: Any, kind: str, **settings: Any) -> Callable[..., Any]:
    resize = _interpolated(kind, antialias=1, exclude_outside=1, **settings)

    def write(op: Writer, x: Value, size: list[int], factors: list[float], aligned: bool) -> Any:
        """ONNX Runtime has other weights if the corners are aligned, and takes no float64. Then the weights are constants."""
        if not aligned and x.dtype != torch.float64:
            return resize(op, x, size, factors, aligned)
        if x.dtype not in (*_GEMM, torch.float64) or (factors and not aligned):
            return NotImplemented
        weights = []
        for length, count in zip(_image(x, 2), size, strict=True):
            every = torch.eye(length, dtype=torch.float64, device="cpu").reshape(1, 1, length, length)
            weights.append(target(every, [count, length], aligned).reshape(count, length).to(x.dtype))
        return op("MatMul", op("MatMul", op.constant(weights[0]), x), op.constant(weights[1].T.contiguous()))

    return write


for _target in (aten.upsample_nearest1d, aten.upsample_nearest2d, aten.upsample_nearest3d):
    _resize_whole(_target.vec, _nearest(aten.upsample_nearest1d.default))
for _target in (aten._upsample_nearest_exact1d, aten._upsample_nearest_exact2d, aten._upsample_nearest_exact3d):
    _resize(_target.default, _nearest(aten._upsample_nearest_exact1d.default))
for _target in (aten.upsample_bilinear2d, aten.upsample_trilinear3d):
    _resize_whole(_target.vec, _interpolated("linear"))
_resize(aten.upsample_linear1d.default, _interpolated("linear"))
_resize_whole(aten.upsample_bicubic2d.vec, _interpolated("cubic", cubic_coeff_a=-0.75))
_resize(aten._upsample_bilinear2d_aa.default, _smoothed(aten._upsample_bilinear2d_aa.default, "linear"))
_resize(aten._upsample_bicubic2d_aa.default, _smoothed(aten._upsample_bicubic2d_aa.default, "cubic", cubic_coeff_a=-0.5))


@translates(aten.gru.input)
def _gru(op: Writer, x: Value, hidden: Value, *settings: Any) -> Any:
    """The gates of torch are (reset, update, new); those of ONNX (update, reset, new)."""
    return _recurrent(op, "GRU", (1, 0, 2), x, [hidden], *settings, linear_before_reset=1)


@translates(aten.lstm.input)
def _lstm(op: Writer, x: Value, states: Sequence[Value], *settings: Any) -> Any:
    """The gates of torch are (input, forget, new, output); those of ONNX (input, output, forget, new)."""
    return _recurrent(op, "LSTM", (0, 3, 1, 2), x, states, *settings)


def _recurrent(
    op: Writer, kind: str, gates: Sequence[int], x: Value, states: Sequence[Value], params: Sequence[Value], has_biases: bool,
    layers: int, dropout: float, train: bool, both_ways: bool, batch_first: bool, **attributes: Any,
) -> Any:  # fmt: skip
    if x.rank != 3 or x.dtype != torch.float32 or (train and dropout) or 0 in (x.shape or ()):
        return NotImplemented
    ways = 2 if both_ways else 1
    size = Value(x.dtype, (states[0].shape or (None,))[-1:]).sizes[0]
    order = op.ints(place for gate in gates for place in range(gate * size, (gate + 1) * size))
    steps = op("Transpose", x, perm=[1, 0, 2]) if batch_first else x
    parts = op.ints([ways] * layers)
    first = [op.many("Split", s, parts, shapes=[None] * layers, axis=0) if layers > 1 else [s] for s in states]
    last: list[list[Value]] = [[] for _ in states]
    for layer in range(layers):
        parts_of = [params[i :: 4 if has_biases else 2] for i in range(4 if has_biases else 2)]
        own = [[_gates(op, value, order) for value in part[layer * ways : (layer + 1) * ways]] for part in parts_of]
        entering, within = (_joined(op, [op("Unsqueeze", value, op.ints([0])) for value in part]) for part in own[:2])
        bias = None
        if has_biases:
            pairs = [op("Concat", a, b, axis=0) for a, b in zip(own[2], own[3], strict=True)]
            bias = _joined(op, [op("Unsqueeze", pair, op.ints([0])) for pair in pairs])
        direction = "bidirectional" if both_ways else "forward"
        begin = [state[layer] for state in first]
        out, *ends = op.many(
            kind, steps, entering, within, bias, None, *begin, shapes=[None] * (1 + len(begin)), direction=direction,
            hidden_size=size, **attributes,
        )  # fmt: skip
        over_time, at_end = _not_numbers(op, steps, begin, ways)
        for kept, end in zip(last, ends, strict=True):
            kept.append(op("Add", end, at_end))
        rows = op("Transpose", op("Add", out, over_time), perm=[0, 2, 1, 3])
        steps = op("Reshape", rows, op.ints([0, 0, ways * size]))
    output = op("Transpose", steps, perm=[1, 0, 2]) if batch_first else steps
    return [output, *(_joined(op, kept) for kept in last)]


def _not_numbers(op: Writer, steps: Value, states: Sequence[Value], ways: int) -> tuple[Value, Value]:
    """What is added to the outputs and the last state of a layer: 0 before the first NaN enters it, NaN from then on.

    The engine limits the gates to finite numbers, and so hides a NaN.
    """

    def found(x: Value) -> Value:
        nan, zero = op.number(math.nan, x.dtype), op.number(0.0, x.dtype)
        marks = op("Where", op("IsNaN", x, dtype=torch.bool), nan, zero, dtype=x.dtype)
        return op("ReduceSum", marks, op.ints([2]), keepdims=1)

    entered, began = found(steps), found(states[0])
    for state in states[1:]:
        began = op("Add", began, found(state))
    axis = op.number(0, torch.int64)
    seen = [op("Unsqueeze", op("CumSum", entered, axis, reverse=way), op.ints([1])) for way in range(ways)]
    over_time = op("Concat", *seen, axis=1) if ways > 1 else seen[0]
    at_end = op("Add", op("ReduceSum", entered, op.ints([0]), keepdims=1), began)
    return op("Add", over_time, op("Unsqueeze", began, op.ints([0]))), at_end


def _gates(op: Writer, value: Value, order: Value) -> Value:
    return op("Gather", value, order, axis=0)


def _joined(op: Writer, values: Sequence[Value]) -> Value:
    return values[0] if len(values) == 1 else op("Concat", *values, axis=0)


@translates(aten.linalg_cross.default)
def _cross(op: Writer, a: Value, b: Value, *, dim: int = -1) -> Any:
    axis = dim % max(a.rank, b.rank)
    if a.rank != b.rank or a.dtype != b.dtype:
        return NotImplemented
    after, before = op.ints([1, 2, 0]), op.ints([2, 0, 1])

    def turned(x: Value, order: Value) -> Value:
        return op("Gather", x, order, axis=axis)

    left = op("Mul", turned(a, after), turned(b, before))
    return op("Sub", left, op("Mul", turned(a, before), turned(b, after)))


@translates(aten.linalg_det.default, aten.det.default)
def _det(op: Writer, x: Value) -> Any:
    return op("Det", x) if x.dtype == torch.float32 else NotImplemented


@translates(aten.einsum.default)
def _einsum(op: Writer, equation: str, tensors: Sequence[Value], *, path: Any = None) -> Any:
    if len({t.dtype for t in tensors}) > 1 or not tensors[0].dtype.is_floating_point:
        return NotImplemented
    return op("Einsum", *tensors, equation=equation)


