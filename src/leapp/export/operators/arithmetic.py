"""Arithmetic, number by number: where the library loses digits, signs, NaN or infinity, or knows floats only."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from leapp.export.operators.table import aten, is_float, promoted, replaces

# Differences from one: the library subtracts, which leaves nothing of small values.


@replaces(aten.expm1.default)
def _expm1(x: Tensor) -> Any:
    if not x.is_floating_point():
        return NotImplemented
    raised = x.exp()
    # The error of the rounded exponential cancels against that of its logarithm.
    less = raised - 1
    value = torch.where(raised == 1, x, less * (x / raised.log()))
    return torch.where((raised == math.inf) | (less == -1), less, value)


@replaces(aten.log1p.default)
def _log1p(x: Tensor) -> Any:
    if not x.is_floating_point():
        return NotImplemented
    raised = x + 1
    value = torch.where(raised == 1, x, raised.log() * (x / (raised - 1)))
    return torch.where(raised == math.inf, raised, value)


@replaces(aten.log_sigmoid.default)
def _log_sigmoid(x: Tensor) -> Any:
    return x.clamp(max=0) - (-x.abs()).exp().log1p()


@replaces(aten.log_sigmoid_forward.default)
def _log_sigmoid_forward(x: Tensor) -> Any:
    return _log_sigmoid(x), x.new_zeros(0)


# Signs and rounding: the engine's Sign turns NaN into 1, its rounding wants floats.


@replaces(aten.sign.default, aten.sgn.default)
def sign(x: Tensor) -> Any:
    """The sign of each number; that of NaN is 0."""
    if x.is_complex() or x.dtype == torch.bool:
        return NotImplemented
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


@replaces(aten.signbit.default)
def signbit(x: Tensor) -> Tensor:
    """Whether each number has a minus, zeros included."""
    if not x.is_floating_point():
        return x < 0
    # 1 / -0.0 is -inf: the only arithmetic that tells the zeros apart.
    return (x < 0) | ((x == 0) & (x.reciprocal() < 0))


@replaces(aten.copysign.Tensor)
def _copysign(x: Tensor, y: Tensor) -> Tensor:
    size = x.abs() if x.is_floating_point() else x.to(torch.get_default_dtype()).abs()
    return torch.where(signbit(y), -size, size)


@replaces(aten.copysign.Scalar)
def _copysign_scalar(x: Tensor, y: float) -> Tensor:
    size = x.abs() if x.is_floating_point() else x.to(torch.get_default_dtype()).abs()
    return -size if math.copysign(1.0, y) < 0 else size


@replaces(aten.floor.default, aten.ceil.default, aten.trunc.default, aten.round.default)
def _round_integer(x: Tensor) -> Any:
    return NotImplemented if x.is_floating_point() else x.clone()


@replaces(aten.isnan.default, aten.isinf.default)
def _never(x: Tensor) -> Any:
    return NotImplemented if x.is_floating_point() else torch.zeros_like(x, dtype=torch.bool)


@replaces(aten.heaviside.default)
def _heaviside(x: Tensor, values: Tensor) -> Tensor:
    return torch.where(x == 0, values, (x > 0).to(x.dtype))


@replaces(aten.relu.default)
def _relu_integer(x: Tensor) -> Any:
    return NotImplemented if x.is_floating_point() else torch.where(x > 0, x, torch.zeros_like(x))


# Limits: a Clip with one bound fills in the largest finite number for the other, which is not infinity.


_SATURATES = bool(torch.zeros(1, dtype=torch.uint8, device="cpu").clamp(min=-5)[0] == 0)
"""Whether a bound beyond the integers of a tensor has no effect (torch 2.15), or is taken by its low bits (before)."""


def _reached(x: Tensor, bound: Any) -> Any:
    """A bound as the integers of ``x`` can reach it."""
    if bound is None or isinstance(bound, float) or x.is_floating_point() or x.dtype == torch.bool or not _SATURATES:
        return bound
    limits = torch.iinfo(x.dtype)
    return min(max(bound, limits.min), limits.max)


@replaces(aten.clamp.default)
def _clamp(x: Tensor, low: Any = None, high: Any = None) -> Any:
    if (low, high) != (reached := (_reached(x, low), _reached(x, high))):
        return aten.clamp.default(x, *reached)
    given = [bound for bound in (low, high) if bound is not None]
    dtype = functools.reduce(torch.promote_types, (torch.result_type(x, bound) for bound in given))
    number = float if dtype.is_floating_point else int
    if len(given) == 2:
        if x.dtype == dtype and type(low) is number and type(high) is number:
            return NotImplemented
        # Bounds of two types, or of another than the values, are more than the library can promote.
        return aten.clamp.default(x.to(dtype), number(low), number(high))
    if dtype != x.dtype:
        return NotImplemented
    if low is not None:
        return torch.maximum(x, torch.full((), low, dtype=x.dtype, device=x.device))
    return torch.minimum(x, torch.full((), high, dtype=x.dtype, device=x.device))


@replaces(aten.clamp_min.default)
def _clamp_min(x: Tensor, low: Any) -> Any:
    return _clamp(x, low, None)


@replaces(aten.clamp_max.default)
def _clamp_max(x: Tensor, high: Any) -> Any:
    return _clamp(x, None, high)


@replaces(aten.clamp.Tensor)
def _clamp_tensor(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Any:
    if any(bound is not None and bound.dtype != x.dtype for bound in (low, high)):
        return NotImplemented
    x = x if low is None else torch.maximum(x, low)
    return x if high is None else torch.minimum(x, high)


@replaces(aten.fmax.default)
def _fmax(a: Tensor, b: Tensor) -> Tensor:
    a, b = promoted(a, b)
    return torch.where(a != a, b, torch.where(b != b, a, torch.maximum(a, b)))


@replaces(aten.fmin.default)
def _fmin(a: Tensor, b: Tensor) -> Tensor:
    a, b = promoted(a, b)
    return torch.where(a != a, b, torch.where(b != b, a, torch.minimum(a, b)))


# Division: floor and remainder as eager computes them, infinities and signed zeros included.


def _floored(a: Tensor, b: Tensor) -> Tensor:
    rest = torch.fmod(a, b)
    quotient = (a - rest) / b
    quotient = quotient - ((rest != 0) & ((b < 0) != (rest < 0))).to(a.dtype)
    whole = quotient.floor()
    whole = whole + (quotient - whole > 0.5).to(a.dtype)
    return torch.where(b == 0, a / b, torch.where(quotient != 0, whole, torch.zeros_like(whole)))


@replaces(aten.div.Tensor_mode, aten.div.Scalar_mode)
def _divide(a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode != "floor" or not is_float(a, b):
        return NotImplemented
    return _floored(*promoted(a, b))


@replaces(aten.floor_divide.default, aten.floor_divide.Scalar)
def _floor_divide(a: Any, b: Any) -> Any:
    if is_float(a, b):
        return _floored(*promoted(a, b))
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return NotImplemented
    left, right = promoted(a, b)
    return aten.div.Tensor_mode(left, right, rounding_mode="floor")


@replaces(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def _remainder(a: Any, b: Any) -> Any:
    if not is_float(a, b):
        return NotImplemented
    a, b = promoted(a, b)
    rest = torch.fmod(a, b)
    return torch.where((rest != 0) & ((b < 0) != (rest < 0)), rest + b, rest)


# Shifts


@replaces(aten.__lshift__.Tensor, aten.__lshift__.Scalar)
def _left_shift(x: Tensor, count: Any) -> Any:
    return torch.bitwise_left_shift(x, count)


@replaces(aten.__rshift__.Tensor, aten.__rshift__.Scalar)
def _right_shift(x: Tensor, count: Any) -> Any:
    return torch.bitwise_right_shift(x, count)


# Choices


@replaces(aten.where.self)
def _where_narrow(condition: Tensor, x: Tensor, y: Tensor) -> Any:
    if x.dtype == y.dtype == torch.bool:
        return (condition & x) | (~condition & y)
    dtype = torch.result_type(x, y)
    if dtype.is_complex:
        parts = [[v.real, v.imag] if v.is_complex() else [v, torch.zeros_like(v)] for v in (x, y)]
        return torch.complex(*(torch.where(condition, a, b) for a, b in zip(*parts, strict=True)))
    if dtype not in (torch.int8, torch.int16):
        return NotImplemented
    return torch.where(condition, x.to(torch.int32), y.to(torch.int32)).to(dtype)


# Comparison within a tolerance: the library of onnxscript 0.7.1 takes an infinity for close to any number.


@replaces(aten.isclose.default)
def _isclose(x: Tensor, y: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    near = y if y.is_floating_point() else y.to(torch.get_default_dtype())
    error = (x - near).abs()
    close = (x == y) | ((error < math.inf) & (error <= atol + (rtol * near).abs()))
    return close | (x.isnan() & y.isnan()) if equal_nan and is_float(x) else close
