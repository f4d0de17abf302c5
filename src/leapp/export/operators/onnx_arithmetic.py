"""Operators that compute element by element, written as ONNX.

Eager arithmetic promotes types. ONNX operators take operands of one type, so each function casts first. Numbers become
tensors of that type: attributes are float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from leapp.export.onnx_graph import Value, Writer, result_type
from leapp.export.operators.table import aten, translates


def as_float(op: Writer, x: Value) -> Value:
    """``x``, with integers as the floats in which eager code computes functions of them."""
    return x if x.dtype.is_floating_point else op.cast(x, torch.get_default_dtype())


# Functions of one tensor


def _function(kind: str, *targets: Any) -> None:
    @translates(*targets)
    def write(op: Writer, x: Value) -> Any:
        return op(kind, as_float(op, x))


for _kind, _target in {
    "Exp": aten.exp, "Log": aten.log, "Sqrt": aten.sqrt, "Sin": aten.sin, "Cos": aten.cos, "Tan": aten.tan, "Asin": aten.asin,
    "Acos": aten.acos, "Atan": aten.atan, "Sinh": aten.sinh, "Cosh": aten.cosh, "Tanh": aten.tanh, "Sigmoid": aten.sigmoid,
    "Erf": aten.erf, "Floor": aten.floor, "Ceil": aten.ceil, "Round": aten.round, "Reciprocal": aten.reciprocal,
    "HardSwish": aten.hardswish, "Asinh": aten.asinh, "Acosh": aten.acosh, "Atanh": aten.atanh,
}.items():  # fmt: skip
    _function(_kind, _target.default)


@translates(aten.rsqrt.default)
def _rsqrt(op: Writer, x: Value) -> Any:
    return op("Reciprocal", op("Sqrt", as_float(op, x)))


translates(aten.neg.default)(lambda op, x: op("Neg", x))
translates(aten.abs.default)(lambda op, x: op("Abs", x))


@translates(aten.isnan.default)
def _isnan(op: Writer, x: Value) -> Any:
    return op("IsNaN", x, dtype=torch.bool)


@translates(aten.isinf.default)
def _isinf(op: Writer, x: Value) -> Any:
    return op("IsInf", x, dtype=torch.bool) if x.dtype == torch.float32 else NotImplemented


@translates(aten.logical_not.default)
def _logical_not(op: Writer, x: Value) -> Any:
    return op("Not", op.cast(x, torch.bool))


@translates(aten.bitwise_not.default)
def _bitwise_not(op: Writer, x: Value) -> Any:
    return op("Not" if x.dtype == torch.bool else "BitwiseNot", x)


@translates(aten._to_copy.default)
def _to_copy(op: Writer, x: Value, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
    return op.cast(x, dtype or x.dtype)


@translates(
    aten.clone.default, aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default, aten.lift_fresh.default
)
def _same(op: Writer, x: Value, **_: Any) -> Any:
    return x


# Functions of two tensors, or of a tensor and a number


@translates(aten.add.Tensor, aten.add.Scalar)
def _add(op: Writer, x: Any, y: Any, alpha: Any = 1) -> Any:
    return _sum(op, "Add", x, y, alpha)


@translates(aten.sub.Tensor, aten.sub.Scalar)
def _sub(op: Writer, x: Any, y: Any, alpha: Any = 1) -> Any:
    return _sum(op, "Sub", x, y, alpha)


@translates(aten.rsub.Tensor, aten.rsub.Scalar)
def _rsub(op: Writer, x: Any, y: Any, alpha: Any = 1) -> Any:
    return _sum(op, "Sub", y, x, alpha)


def _sum(op: Writer, kind: str, x: Any, y: Any, alpha: Any) -> Any:
    a, b = op.promoted(x, y)
    if a.dtype == torch.bool:
        return op("Or", a, b) if kind == "Add" and alpha == 1 else NotImplemented
    return op(kind, a, b if alpha == 1 else op("Mul", b, op.number(alpha, b.dtype)))


@translates(aten.mul.Tensor, aten.mul.Scalar)
def _mul(op: Writer, x: Any, y: Any) -> Any:
    a, b = _factors(op, x, y, lambda number: number)
    return op("And" if a.dtype == torch.bool else "Mul", a, b)


@translates(aten.div.Tensor, aten.div.Scalar)
def _div(op: Writer, x: Any, y: Any) -> Any:
    a, b = _factors(op, x, y, lambda number: 1.0 / number if number else number)
    return op("Div", as_float(op, a), as_float(op, b))


@translates(aten.div.Tensor_mode, aten.div.Scalar_mode)
def _whole_quotient(op: Writer, x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    """A quotient of integers. torchlib divides them as float32 numbers, which hold integers up to 2**24."""
    dtype = result_type(x, y)
    if rounding_mode is None or dtype.is_floating_point or dtype == torch.bool:
        return NotImplemented
    wide = torch.int64 if dtype == torch.int64 else torch.int32
    a, b = (op.cast(side, wide) for side in op.promoted(x, y))
    quotient = op("Div", a, b)
    if rounding_mode == "floor":
        zero = op.number(0, wide)
        rest = op("Sub", a, op("Mul", quotient, b))
        apart = op("Xor", op("Less", rest, zero, dtype=torch.bool), op("Less", b, zero, dtype=torch.bool))
        inexact = op("Not", op("Equal", rest, zero, dtype=torch.bool))
        quotient = op("Sub", quotient, op.cast(op("And", inexact, apart), wide))
    return op.cast(quotient, dtype)


def _factors(op: Writer, x: Any, y: Any, factor: Callable[[Any], Any]) -> tuple[Value, Value]:
    """Two factors in one type.

    ONNX Runtime moves single numbers, and the inverse of a divisor, into its matrix products, which round them to float32. A
    number that would be rounded becomes a row of equal numbers.
    """
    dtype = result_type(x, y)
    if dtype == torch.float64 and isinstance(x, Value) and not isinstance(y, Value) and (_rounds(y) or _rounds(factor(y))):
        y = op.number(y, dtype, _row_shape(x.shape or ()))
    return op.promoted(x, y)


def _rounds(value: Any) -> bool:
    """Whether float32 rounds a number."""
    return isinstance(value, float) and value == value and float(torch.tensor(value, dtype=torch.float32)) != value


def _row_shape(shape: Sequence[int | None]) -> tuple[int, ...]:
    """The shape of a row of equal numbers along the last axis that is longer than 1; empty if there is none."""
    for axis, size in reversed(list(enumerate(shape))):
        if size is not None and size > 1:
            return (size, *(1 for _ in shape[axis + 1 :]))
    return ()


@translates(aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar)
def _pow(op: Writer, x: Any, y: Any) -> Any:
    if not result_type(x, y).is_floating_point:
        return NotImplemented
    if isinstance(x, Value) and x.dtype.is_floating_point and not isinstance(y, Value) and abs(y) == 0.5:
        root = op("Sqrt", x)  # as in eager code, where the square root of -inf is NaN
        return root if y > 0 else op("Reciprocal", root)
    a, b = op.promoted(x, y)
    return op("Pow", a, b)


@translates(aten.fmod.Tensor, aten.fmod.Scalar)
def _fmod(op: Writer, x: Any, y: Any) -> Any:
    a, b = op.promoted(x, y)
    if a.dtype != torch.int64:
        return op("Mod", a, b, fmod=1)
    # ONNX Runtime computes this Mod in float64. Its integer division by zero ends the process; eager code raises an error.
    zero = op("Equal", b, op.number(0, b.dtype), dtype=torch.bool)
    b = op("Where", zero, op.number(1, b.dtype), b, dtype=b.dtype)
    return op("Sub", a, op("Mul", op("Div", a, b), b))


def _extreme(kind: str, of_booleans: str, target: Any) -> None:
    @translates(target)
    def write(op: Writer, x: Any, y: Any) -> Any:
        a, b = op.promoted(x, y)
        return op(of_booleans if a.dtype == torch.bool else kind, a, b)


_extreme("Max", "Or", aten.maximum.default)
_extreme("Min", "And", aten.minimum.default)


@translates(aten.addcmul.default)
def _addcmul(op: Writer, x: Value, a: Value, b: Value, *, value: Any = 1) -> Any:
    if not x.dtype == a.dtype == b.dtype:
        return NotImplemented
    return op("Add", x, _scaled(op, op("Mul", a, b), value))


@translates(aten.addcdiv.default)
def _addcdiv(op: Writer, x: Value, a: Value, b: Value, *, value: Any = 1) -> Any:
    if not x.dtype == a.dtype == b.dtype or not x.dtype.is_floating_point:
        return NotImplemented
    return op("Add", x, _scaled(op, op("Div", a, b), value))


def _scaled(op: Writer, x: Value, factor: Any) -> Value:
    return x if factor == 1 else op("Mul", x, op.number(factor, x.dtype))


# Comparisons and logic


@translates(aten.eq.Tensor, aten.eq.Scalar)
def _eq(op: Writer, x: Any, y: Any) -> Any:
    return op("Equal", *op.promoted(x, y), dtype=torch.bool)


@translates(aten.ne.Tensor, aten.ne.Scalar)
def _ne(op: Writer, x: Any, y: Any) -> Any:
    return op("Not", _eq(op, x, y))


def _comparison(kind: str, *targets: Any) -> None:
    @translates(*targets)
    def write(op: Writer, x: Any, y: Any) -> Any:
        a, b = op.promoted(x, y)
        return NotImplemented if a.dtype == torch.bool else op(kind, a, b, dtype=torch.bool)


_comparison("Less", aten.lt.Tensor, aten.lt.Scalar)
_comparison("LessOrEqual", aten.le.Tensor, aten.le.Scalar)
_comparison("Greater", aten.gt.Tensor, aten.gt.Scalar)
_comparison("GreaterOrEqual", aten.ge.Tensor, aten.ge.Scalar)


def _logical(kind: str, logical: Any, bitwise: Any) -> None:
    @translates(logical.default)
    def write(op: Writer, x: Value, y: Value) -> Any:
        return op(kind, op.cast(x, torch.bool), op.cast(y, torch.bool))

    @translates(bitwise.Tensor, bitwise.Scalar)
    def write_bits(op: Writer, x: Any, y: Any) -> Any:
        a, b = op.promoted(x, y)
        return op(kind if a.dtype == torch.bool else f"Bitwise{kind}", a, b)


_logical("And", aten.logical_and, aten.bitwise_and)
_logical("Or", aten.logical_or, aten.bitwise_or)
_logical("Xor", aten.logical_xor, aten.bitwise_xor)


def _shift(target: Any, left: bool) -> None:
    @translates(target.Tensor, target.Tensor_Scalar, target.Scalar_Tensor)
    def write(op: Writer, x: Any, y: Any) -> Any:
        """A product with, or a rounded quotient by, a power of 2. ONNX shifts unsigned numbers only."""
        a, b = op.promoted(x, y)
        if a.dtype not in (torch.int32, torch.int64):
            return NotImplemented
        bits = torch.iinfo(a.dtype).bits - 1
        zero, last = op.number(0, a.dtype), op.number(bits - 1, a.dtype)
        most = op("Less", last, b, dtype=torch.bool)
        outside = op("Or", op("Less", b, zero, dtype=torch.bool), most)
        power = op("Gather", op.constant(torch.tensor([1 << n for n in range(bits)], dtype=a.dtype)), op("Clip", b, zero, last))
        if left:
            whole = op("Mul", a, power)
            top = op("Mul", op("Mul", a, op.number(1 << (bits - 1), a.dtype)), op.number(2, a.dtype))
            beyond = op("Where", op("Equal", b, op.number(bits, a.dtype), dtype=torch.bool), top, zero, dtype=a.dtype)
        else:
            rest = op("Mod", a, power)
            whole = op("Div", op("Sub", a, rest), power)
            beyond = op("Where", op("Less", a, zero, dtype=torch.bool), op.number(-1, a.dtype), zero, dtype=a.dtype)
        return op("Where", outside, beyond, whole, dtype=a.dtype)


_shift(aten.bitwise_left_shift, True)
_shift(aten.bitwise_right_shift, False)


# Choices and limits


@translates(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf)
def _where(op: Writer, condition: Value, x: Any, y: Any) -> Any:
    a, b = op.promoted(x, y)
    return op("Where", op.cast(condition, torch.bool), a, b, dtype=a.dtype)


@translates(aten.masked_fill.Scalar)
def _masked_fill(op: Writer, x: Value, mask: Value, value: Any) -> Any:
    if x.dtype == torch.bool:
        return NotImplemented
    dtype = torch.int32 if x.dtype == torch.int16 else x.dtype
    return op.cast(op("Where", mask, op.number(value, dtype), op.cast(x, dtype), dtype=dtype), x.dtype)


@translates(aten.clamp.default)
def _clamp(op: Writer, x: Value, low: Any = None, high: Any = None) -> Any:
    if low is None or high is None or any(result_type(x, bound) != x.dtype for bound in (low, high)):
        return NotImplemented
    if low != low or high != high:  # a bound of NaN makes everything NaN; ONNX Runtime ignores it
        return op("Add", x, op.number(math.nan, x.dtype))
    return op("Clip", x, op.number(low, x.dtype), op.number(high, x.dtype))


@translates(aten.hardtanh.default)
def _hardtanh(op: Writer, x: Value, low: Any = -1.0, high: Any = 1.0) -> Any:
    return _clamp(op, x, low, high)


# Activations


@translates(aten.relu.default)
def _relu(op: Writer, x: Value) -> Any:
    return op("Relu", x) if x.dtype.is_floating_point else NotImplemented


@translates(aten.silu.default)
def _silu(op: Writer, x: Value) -> Any:
    return op("Mul", x, op("Sigmoid", x))


@translates(aten.elu.default)
def _elu(op: Writer, x: Value, alpha: Any = 1.0, scale: Any = 1.0, input_scale: Any = 1.0) -> Any:
    return op("Elu", x, alpha=float(alpha)) if scale == 1 and input_scale == 1 else NotImplemented


@translates(aten.leaky_relu.default)
def _leaky_relu(op: Writer, x: Value, slope: Any = 0.01) -> Any:
    return op("LeakyRelu", x, alpha=float(slope))


@translates(aten.softplus.default)
def _softplus(op: Writer, x: Value, beta: Any = 1, threshold: Any = 20) -> Any:
    scaled = _scaled(op, x, beta)
    smooth = op("Softplus", scaled)
    if beta != 1:
        smooth = op("Div", smooth, op.number(beta, x.dtype))
    return op("Where", op("Greater", scaled, op.number(threshold, x.dtype), dtype=torch.bool), x, smooth, dtype=x.dtype)


@translates(aten.gelu.default)
def _gelu(op: Writer, x: Value, *, approximate: str = "none") -> Any:
    if approximate != "none":
        return NotImplemented
    half = op("Mul", x, op.number(0.5, x.dtype))
    error = op("Erf", op("Mul", x, op.number(math.sqrt(0.5), x.dtype)))
    return op("Mul", half, op("Add", error, op.number(1.0, x.dtype)))
