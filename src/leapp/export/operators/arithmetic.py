"""Arithmetic, angles and distances, where torchlib loses digits, signs, NaN or infinity, or takes floats only."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from leapp.export.operators.table import aten, is_float, promoted, replaces, replaces_some, torch_replaces

torch_replaces(aten.clamp_max.default, aten.clamp_min.default)

# torchlib writes exp(x) - 1, log(1 + x) and log(sigmoid(x)), which lose the digits of small results.


@replaces(aten.expm1.default)
def _expm1(x: Tensor) -> Any:
    if not x.is_floating_point():
        return NotImplemented
    raised = x.exp()
    # The error of the rounded exponential and that of its logarithm cancel each other.
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


@replaces(aten.log_sigmoid_forward.default)
def _log_sigmoid(x: Tensor) -> Any:
    return x.clamp(max=0) - (-x.abs()).exp().log1p(), x.new_zeros(0)


# torchlib raises both terms, so that the result is infinite above 88 and minus infinity below -104.


def _log_of_sum(target: Any, raised: Callable[[Tensor], Tensor], base: float) -> None:
    @replaces(target)
    def log_of_sum(a: Tensor, b: Tensor) -> Tensor:
        a, b = promoted(a, b)
        value = torch.maximum(a, b) + raised(-(a - b).abs()).log1p() / math.log(base)
        return torch.where((a == b) & a.isinf(), a, value)  # where the difference is NaN


_log_of_sum(aten.logaddexp.default, torch.exp, math.e)
_log_of_sum(aten.logaddexp2.default, torch.exp2, 2.0)


# ONNX has neither of these logarithms. A quotient of float32 logarithms is not whole for a power of the base.


def _log_to(target: Any, base: float) -> None:
    @replaces(target)
    def log(x: Tensor) -> Any:
        if x.dtype == torch.float64:
            return NotImplemented
        wide = x.to(torch.float64).log() * (1 / math.log(base))
        return wide.to(x.dtype if x.is_floating_point() else torch.get_default_dtype())


_log_to(aten.log2.default, 2)
_log_to(aten.log10.default, 10)
replaces(aten.exp2.default)(lambda x: aten.pow.Scalar(2.0, x))


# torchlib loses NaN.


@replaces(aten.angle.default)
def _angle(x: Tensor) -> Any:
    """The angle of a real number."""
    if not x.is_floating_point():
        return NotImplemented
    half_turn = torch.full((), math.pi, dtype=x.dtype)  # a Python number would be rounded to float32
    return torch.where(x.isnan(), x, torch.where(x < 0, half_turn, torch.zeros_like(x)))


@replaces(aten.logit.default)
def _logit(x: Tensor, eps: float | None = None) -> Any:
    if not x.is_floating_point():
        x = x.to(torch.get_default_dtype())
    inside = x if eps is None else x.clamp(eps, 1 - eps)
    return (inside / (1 - inside)).log()


# Signs and rounding: ONNX Runtime's Sign of NaN is 1, and its rounding and IsNaN take floats only.


@replaces(aten.sign.default, aten.sgn.default)
def sign(x: Tensor) -> Any:
    """The sign of each number; that of NaN is 0."""
    if x.is_complex() or x.dtype == torch.bool:
        return NotImplemented
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


@replaces(aten.signbit.default)
def signbit(x: Tensor) -> Tensor:
    """Whether each number is negative or a negative zero."""
    if not x.is_floating_point():
        return x < 0
    # 1 / -0.0 is -inf; no other arithmetic tells the zeros apart.
    return (x < 0) | ((x == 0) & (x.reciprocal() < 0))


@replaces(aten.copysign.Tensor, aten.copysign.Scalar)
def _copysign(x: Tensor, y: Any) -> Tensor:
    size = x.abs() if x.is_floating_point() else x.to(torch.get_default_dtype()).abs()
    return torch.where(signbit(y if isinstance(y, Tensor) else torch.full((), float(y))), -size, size)


@replaces(aten.floor.default, aten.ceil.default, aten.round.default)
def _round_integer(x: Tensor) -> Any:
    return NotImplemented if x.is_floating_point() else x.clone()


@replaces(aten.trunc.default)
def trunc(x: Tensor) -> Tensor:
    """Each number without its fraction."""
    return torch.where(x < 0, x.ceil(), x.floor()) if x.is_floating_point() else x.clone()


@replaces(aten.frac.default)
def _frac(x: Tensor) -> Any:
    return x - trunc(x) if x.is_floating_point() else NotImplemented


@replaces(aten.round.decimals)
def _round_decimals(x: Tensor, *, decimals: int) -> Any:
    if x.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    power = torch.full((), 10.0 ** abs(decimals), dtype=x.dtype)
    return (x * power).round() / power if decimals >= 0 else (x / power).round() * power


@replaces(aten.isposinf.default)
def _isposinf(x: Tensor) -> Tensor:
    return x == math.inf if x.is_floating_point() else torch.zeros_like(x, dtype=torch.bool)


@replaces(aten.isneginf.default)
def _isneginf(x: Tensor) -> Tensor:
    return x == -math.inf if x.is_floating_point() else torch.zeros_like(x, dtype=torch.bool)


@replaces(aten.nan_to_num.default)
def _nan_to_num(x: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    if not x.is_floating_point():
        return x.clone()
    limits = torch.finfo(x.dtype)
    found = torch.where(x == math.inf, limits.max if posinf is None else posinf, x)
    found = torch.where(x == -math.inf, limits.min if neginf is None else neginf, found)
    return torch.where(x != x, 0.0 if nan is None else nan, found)


@replaces(aten.isnan.default, aten.isinf.default)
def _never(x: Tensor) -> Any:
    return NotImplemented if x.is_floating_point() else torch.zeros_like(x, dtype=torch.bool)


# For NaN torchlib gives 1, eager code 0.
@replaces(aten.heaviside.default)
def _heaviside(x: Tensor, values: Tensor) -> Tensor:
    return torch.where(x == 0, values, (x > 0).to(x.dtype))


# ONNX Runtime has no Relu of int64.
@replaces(aten.relu.default)
def _relu_integer(x: Tensor) -> Any:
    return NotImplemented if x.is_floating_point() else torch.where(x > 0, x, torch.zeros_like(x))


# Limits: a Clip with one bound uses the largest finite number for the other bound, so infinity becomes finite.


BOUNDS_WRAP = bool(torch.zeros(1, dtype=torch.uint8, device="cpu").clamp_min(-1))
"""Whether clamp keeps the low bits of a bound that the type of the tensor cannot hold. Since torch 2.15 it has no effect."""


def _within(x: Tensor, bound: Any) -> Any:
    """The bound, moved to the nearest number that the integer type of ``x`` can hold."""
    if bound is None or isinstance(bound, float) or x.is_floating_point() or x.dtype == torch.bool or BOUNDS_WRAP:
        return bound
    limits = torch.iinfo(x.dtype)
    return min(max(bound, limits.min), limits.max)


@replaces(aten.clamp.default)
def _clamp(x: Tensor, low: Any = None, high: Any = None) -> Any:
    if (low, high) != (bounds := (_within(x, low), _within(x, high))):
        return aten.clamp.default(x, *bounds)
    given = [bound for bound in (low, high) if bound is not None]
    dtype = functools.reduce(torch.promote_types, (torch.result_type(x, bound) for bound in given))
    number = float if dtype.is_floating_point else int
    if len(given) == 2:
        if x.dtype == dtype and type(low) is number and type(high) is number:
            return NotImplemented
        # torchlib does not promote bounds of two types, or of another type than the values.
        return aten.clamp.default(x.to(dtype), number(low), number(high))
    if dtype != x.dtype:
        return NotImplemented
    if low is not None:
        return torch.maximum(x, torch.full((), low, dtype=x.dtype, device=x.device))
    return torch.minimum(x, torch.full((), high, dtype=x.dtype, device=x.device))


@replaces(aten.clamp.Tensor)
def _clamp_tensor(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Any:
    given = [bound for bound in (low, high) if bound is not None]
    if any(bound.dtype != x.dtype for bound in given):
        dtype = functools.reduce(torch.promote_types, (torch.result_type(x, bound) for bound in given))
        if dtype.is_floating_point:
            return NotImplemented
        return aten.clamp.Tensor(x.to(dtype), *(None if bound is None else bound.to(dtype) for bound in (low, high)))
    x = x if low is None else torch.maximum(x, low)
    return x if high is None else torch.minimum(x, high)


def _extreme(target: Any, of_two: Callable[[Tensor, Tensor], Tensor]) -> None:
    @replaces(target)
    def extreme(a: Tensor, b: Tensor) -> Tensor:
        a, b = promoted(a, b)
        return torch.where(a != a, b, torch.where(b != b, a, of_two(a, b)))


_extreme(aten.fmax.default, torch.maximum)
_extreme(aten.fmin.default, torch.minimum)


# Division: torchlib's floor and remainder differ from eager code for infinity, zero and large quotients.


def _floored(a: Tensor, b: Tensor) -> Tensor:
    rest = torch.fmod(a, b)
    quotient = (a - rest) / b
    quotient = quotient - ((rest != 0) & ((b < 0) != (rest < 0))).to(a.dtype)
    whole = quotient.floor()
    whole = whole + (quotient - whole > 0.5).to(a.dtype)
    return torch.where(b == 0, a / b, torch.where(quotient != 0, whole, torch.zeros_like(whole)))


@replaces(aten.div.Tensor_mode, aten.div.Scalar_mode)
def _divide(a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return torch.div(a, b)
    if not is_float(a, b):
        return NotImplemented
    return _floored(*promoted(a, b)) if rounding_mode == "floor" else trunc(torch.div(a, b))


@replaces(aten.floor_divide.default, aten.floor_divide.Scalar)
def _floor_divide(a: Any, b: Any) -> Any:
    left, right = promoted(a, b)
    return _floored(left, right) if is_float(left) else aten.div.Tensor_mode(left, right, rounding_mode="floor")


@replaces(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def _remainder(a: Any, b: Any) -> Any:
    a, b = promoted(a, b)
    rest = torch.fmod(a, b)
    return torch.where((rest != 0) & ((b < 0) != (rest < 0)), rest + b, rest)


# Products: ONNX Runtime raises integers to a power in float64.


@replaces(aten.pow.Tensor_Scalar)
def _whole_power(x: Tensor, exponent: Any) -> Any:
    if is_float(x, exponent) or x.dtype == torch.bool or not isinstance(exponent, int) or not 0 <= exponent <= 64:
        return NotImplemented
    found = None
    while exponent:
        if exponent % 2:
            found = x if found is None else found * x
        exponent //= 2
        x = x * x if exponent else x
    return torch.ones_like(x) if found is None else found.clone()


@replaces(aten.lerp.Scalar, aten.lerp.Tensor)
def _lerp(a: Tensor, b: Tensor, weight: Any) -> Any:
    apart = b - a
    if not isinstance(weight, Tensor):
        return a + apart * weight if abs(weight) < 0.5 else b - apart * (1 - weight)
    return torch.where(weight.abs() < 0.5, a + apart * weight, b - apart * (1 - weight))


def _of_logarithm(logarithm: Callable[[Tensor], Tensor], *targets: Any) -> None:
    """Register a product of ``x`` with a logarithm, which is 0 where ``x`` is 0."""

    @replaces(*targets)
    def product(x: Any, y: Any) -> Tensor:
        x, y = (v if v.is_floating_point() else v.to(torch.get_default_dtype()) for v in promoted(x, y))
        return torch.where(y != y, y, torch.where(x == 0, torch.zeros_like(x), x * logarithm(y)))


_of_logarithm(torch.log, aten.xlogy.Tensor, aten.xlogy.Scalar_Self, aten.xlogy.Scalar_Other)
_of_logarithm(
    torch.log1p, aten.special_xlog1py.default, aten.special_xlog1py.self_scalar, aten.special_xlog1py.other_scalar
)


@replaces(aten.special_entr.default)
def _entr(x: Tensor) -> Any:
    if not x.is_floating_point():
        return NotImplemented
    return torch.where(x == 0, 0.0, torch.where(x < 0, -math.inf, -x * x.log()))


@replaces(aten.sinc.default)
def _sinc(x: Tensor) -> Tensor:
    angle = x * math.pi
    return torch.where(x == 0, torch.ones_like(angle), angle.sin() / angle)


# Activations, some of which torchlib writes with factors that are rounded to float32.


@replaces(aten.elu.default)
def _elu(x: Tensor, alpha: Any = 1.0, scale: Any = 1.0, input_scale: Any = 1.0) -> Any:
    if x.dtype != torch.float64 and scale == input_scale == 1:
        return NotImplemented
    negative = (x if input_scale == 1 else x * input_scale).expm1()
    return torch.where(x > 0, x if scale == 1 else x * scale, negative * (alpha * scale))


replaces(aten.celu.default)(lambda x, alpha=1.0: aten.elu.default(x, alpha, 1.0, 1.0 / alpha))
replaces(aten.selu.default)(lambda x: aten.elu.default(x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946))
replaces(aten.hardsigmoid.default)(lambda x: (x + 3.0).clamp(0.0, 6.0) / 6.0)
replaces(aten.mish.default)(lambda x: x * x.exp().log1p().tanh())


@replaces(aten.gelu.default)
def _gelu(x: Tensor, *, approximate: str = "none") -> Any:
    if approximate != "tanh":
        return NotImplemented
    return 0.5 * x * (1 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)).tanh())


@replaces(aten._prelu_kernel.default, aten.prelu.default)
def _prelu(x: Tensor, weight: Tensor) -> Tensor:
    shape = [1, -1] + [1] * (x.dim() - 2) if x.dim() > 1 and weight.dim() < 2 else list(weight.shape)
    return torch.where(x > 0, x, x * weight.reshape(shape if x.dim() else []))


@replaces(aten.glu.default)
def _glu(x: Tensor, dim: int = -1) -> Any:
    if isinstance(x.shape[dim], torch.SymInt):
        return NotImplemented
    values, gates = x.chunk(2, dim)
    return values * gates.sigmoid()


@replaces(aten.threshold.default)
def _threshold(x: Tensor, threshold: Any, value: Any) -> Any:
    return torch.where(x <= threshold, float(value), x) if x.is_floating_point() else NotImplemented


@replaces(aten.mse_loss.default)
def _mse_loss(x: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    squares = (x - target).square()
    if reduction == 0:
        return squares
    return squares.mean() if reduction == 1 else squares.sum()


# Shifts: torchlib has no translation of these names.

replaces(aten.__lshift__.Tensor, aten.__lshift__.Scalar)(torch.bitwise_left_shift)
replaces(aten.__rshift__.Tensor, aten.__rshift__.Scalar)(torch.bitwise_right_shift)


# Choices: ONNX Runtime has no Where of booleans or narrow integers, and torchlib none of complex numbers.


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


@replaces_some((torch.bool,), aten.where.ScalarOther, aten.where.ScalarSelf)
def _where_truth(condition: Tensor, x: Any, y: Any) -> Any:
    if not all(v.dtype == torch.bool if isinstance(v, Tensor) else isinstance(v, bool) for v in (x, y)):
        return NotImplemented
    return (condition & x) | (~condition & y)


@replaces_some((torch.bool,), aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def _fill_truth(x: Tensor, mask: Tensor, value: Any) -> Any:
    if x.dtype != torch.bool:
        return NotImplemented
    return (mask & (value.bool() if isinstance(value, Tensor) else bool(value))) | (~mask & x)


# Comparison within a tolerance: in onnxscript 0.7.1 infinity is close to every number.


@replaces(aten.isclose.default)
def _isclose(x: Tensor, y: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    near = y if y.is_floating_point() else y.to(torch.get_default_dtype())
    error = (x - near).abs()
    close = (x == y) | ((error < math.inf) & (error <= atol + (rtol * near).abs()))
    return close | (x.isnan() & y.isnan()) if equal_nan and is_float(x) else close


# Angles and distances: torchlib lacks them, or loses NaN, infinity and signed zeros.


@replaces(aten.atan2.default)
def _atan2(y: Tensor, x: Tensor) -> Tensor:
    y, x = promoted(y, x)
    if not y.is_floating_point():
        y, x = y.to(torch.get_default_dtype()), x.to(torch.get_default_dtype())
    infinite = y.isinf() & x.isinf()
    up, right = torch.where(infinite, sign(y), y), torch.where(infinite, sign(x), x)
    angle = torch.where((y == 0) & (x == x), torch.zeros_like(up / right), (up / right).atan())
    half_turn = torch.full((), math.pi, dtype=y.dtype)  # a Python number would be rounded to float32
    half_turn = torch.where(signbit(y), -half_turn, half_turn)
    return torch.where(signbit(x), angle + half_turn, angle)


replaces(aten.deg2rad.default)(lambda x: x * (math.pi / 180))
replaces(aten.rad2deg.default)(lambda x: x * (180 / math.pi))


@replaces(aten.hypot.default)
def _hypot(a: Tensor, b: Tensor) -> Tensor:
    a, b = (side.abs() for side in promoted(a, b))
    large, small = torch.maximum(a, b), torch.minimum(a, b)
    ratio = torch.where(large == 0, torch.zeros_like(large), small / large)
    return torch.where(a.isinf() | b.isinf(), math.inf, large * (1 + ratio * ratio).sqrt())


@replaces(aten._cdist_forward.default)
def _cdist(a: Tensor, b: Tensor, p: float, compute_mode: int | None = None) -> Tensor:
    apart = (a.unsqueeze(-2) - b.unsqueeze(-3)).abs()
    return _length(apart, p)


@replaces(aten._pdist_forward.default)
def _pdist(x: Tensor, p: float = 2.0) -> Any:
    pairs = torch.triu_indices(x.shape[0], x.shape[0], 1)
    apart = (x.index_select(0, pairs[0]) - x.index_select(0, pairs[1])).abs()
    return _length(apart, p)


def _length(apart: Tensor, p: float) -> Tensor:
    """The ``p``-norm along the last axis of differences without their signs."""
    if p == 0:
        return (apart != 0).to(apart.dtype).sum(-1)
    if p == 1:
        return apart.sum(-1)
    if p == 2:
        return (apart * apart).sum(-1).sqrt()
    return apart.amax(-1) if math.isinf(p) else apart.pow(p).sum(-1).pow(1 / p)
