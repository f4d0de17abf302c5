"""Matrix products and layers of networks, written as ONNX."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from leapp.export.onnx_graph import Value, Writer
from leapp.export.operators.table import aten, translates

_GEMM = (torch.float32, torch.float16)
"""Types for which the float32 attributes of ``Gemm`` are exact enough."""


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
    if transposed or not x.dtype.is_floating_point:
        return NotImplemented
    count = weight.rank - 2

    def each(values: Sequence[int]) -> list[int]:
        return list(values) * count if len(values) == 1 else list(values)

    inputs = [x, weight] if bias is None else [x, weight, bias]
    return op(
        "Conv", *inputs, strides=each(stride), pads=each(padding) * 2, dilations=each(dilation), group=groups
    )  # fmt: skip


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


@translates(aten.einsum.default)
def _einsum(op: Writer, equation: str, tensors: Sequence[Value], *, path: Any = None) -> Any:
    if len({t.dtype for t in tensors}) > 1 or not tensors[0].dtype.is_floating_point:
        return NotImplemented
    return op("Einsum", *tensors, equation=equation)


