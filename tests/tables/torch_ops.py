"""The torch API, one call or a few a row: operators, methods, properties, dunders, in-place forms, ``out=``, argument forms."""

# ruff: noqa: E501 -- a row is a line

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch

from tests.tables.case import Draw, Table, bools, distinct, index, ints, normal, permutation, spd, uniform

T = torch.Tensor
f32, f64, f16, bf16 = torch.float32, torch.float64, torch.float16, torch.bfloat16
i8, i16, i32, i64, u8 = torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8

row = Table("torch_ops")
CASES = row.cases

N34 = normal(3, 4)
N33 = normal(3, 3)
N4 = normal(4)
N234 = normal(2, 3, 4)
P34 = uniform(0.2, 3.0, 3, 4)
U34 = uniform(-0.9, 0.9, 3, 4)
D34 = distinct(3, 4)
I34 = ints(-9, 9, 3, 4)
B34 = bools(3, 4)
NZ34: Draw = lambda g: uniform(0.3, 3.0, 3, 4)(g) * (ints(0, 2, 3, 4)(g) * 2 - 1)  # noqa: E731
IN34: Draw = lambda g: ints(1, 9, 3, 4)(g) * (ints(0, 2, 3, 4)(g) * 2 - 1)  # noqa: E731

ODD = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.5])
ODD34: Draw = lambda g: ODD[torch.randint(0, 6, (3, 4), generator=g)]  # noqa: E731


def unary(names: str, draw: Draw, prefix: str = "", home: Any = torch) -> None:
    """One row per function of one tensor."""
    for name in names.split():
        row(prefix + name, lambda x, f=getattr(home, name): f(x), draw)


def binary(names: str, a: Draw, b: Draw, prefix: str = "", home: Any = torch) -> None:
    """One row per function of two tensors."""
    for name in names.split():
        row(prefix + name, lambda x, y, f=getattr(home, name): f(x, y), a, b)


def inplace(names: str, draw: Draw, *more: Draw) -> None:
    """One row per in-place method, applied to a fresh copy and then read."""
    for name in names.split():

        def fn(x: T, *rest: T, name: str = name) -> T:
            y = x.clone()
            getattr(y, name)(*rest)
            return torch.cat([y, x])

        row("inplace_" + name.strip("_"), fn, draw, *more)


def written(name: str, fn: Any, *draws: Draw) -> None:
    """An in-place call in ``fn(y, x, ...)`` on a fresh copy ``y`` of the first input."""

    def run(x: T, *rest: T) -> T:
        y = x.clone()
        fn(y, x, *rest)
        return torch.cat([y, x])

    row("inplace_" + name, run, *draws)


# Element-wise functions

unary("abs absolute neg negative positive sign sgn signbit square exp exp2 expm1 sin cos tan sinh cosh tanh atan arctan", N34)
unary("asinh arcsinh sigmoid erf erfc relu sinc deg2rad rad2deg floor ceil round trunc fix frac i0", N34)
unary("isnan isfinite isinf isneginf isposinf nan_to_num logical_not", ODD34)
unary("angle real conj resolve_conj celu selu ravel", N34)
unary("sqrt rsqrt reciprocal log log2 log10 log1p lgamma digamma", P34)
unary("asin arcsin acos arccos atanh arctanh erfinv", U34)
unary("acosh arccosh", uniform(1.2, 4.0, 3, 4))
unary("logit", uniform(0.1, 0.9, 3, 4))
unary("expit exp2 ndtr i0e i1 i1e entr erfcx bessel_j0 log_ndtr", uniform(0.2, 3.0, 3, 4), "special_", torch.special)
unary("gammaln psi", P34, "special_", torch.special)
unary("ndtri", uniform(0.1, 0.9, 3, 4), "special_", torch.special)
unary("bitwise_not", I34)
row("round_decimals", lambda x: torch.round(x, decimals=2), N34)
row("nan_to_num_values", lambda x: torch.nan_to_num(torch.log(x), nan=1.5, posinf=7.0, neginf=-3.0), N34)
row("logit_eps", lambda x: torch.logit(x, eps=1e-3), uniform(-0.5, 1.5, 3, 4))
row("polygamma", lambda x: torch.polygamma(1, x), P34)
row("mvlgamma", lambda x: torch.mvlgamma(x, p=2), uniform(2.0, 4.0, 3, 4))
row("multigammaln", lambda x: torch.special.multigammaln(x, 2), uniform(2.0, 4.0, 3, 4))
row("frexp", lambda x: tuple(torch.frexp(x)), NZ34)
row("softmax_fn", lambda x: torch.softmax(x, -1), N34)
row("softmax_dtype", lambda x: torch.softmax(x, dim=1, dtype=f64), N34)
row("log_softmax_fn", lambda x: torch.log_softmax(x, 0), N34)
row("softmin", lambda x: torch.nn.functional.softmin(x, dim=-1), N34)
row("hardshrink", lambda x: x.hardshrink(0.3), N34)
row("prelu_number", lambda x: torch.prelu(x.sum(), torch.full((1,), 0.2)), N34)
row("prelu_fn", lambda x, y: torch.prelu(x, y), N34, normal(4))
row("threshold", lambda x: torch.threshold(x, 0.1, -2.0), N34)
row("rrelu_eval", lambda x: torch.rrelu(x, training=False), N34)

# Two tensors

binary("add sub mul multiply subtract maximum minimum fmax fmin hypot copysign atan2 arctan2 logaddexp logaddexp2", N34, N34)
binary("div divide true_divide fmod remainder floor_divide", N34, NZ34)
binary("eq ne lt le gt ge not_equal less less_equal greater greater_equal", ints(0, 3, 3, 4), ints(0, 3, 3, 4))
binary("pow float_power", P34, N34)
binary("xlogy", P34, P34)
binary("xlog1py", P34, P34, "special_", torch.special)
binary("nextafter", N34, N34)
binary("heaviside", ints(-1, 2, 3, 4, dtype=f32), N34)
binary("ldexp", N34, ints(-3, 3, 3, 4))
binary("igamma igammac", P34, P34)
binary("bitwise_and bitwise_or bitwise_xor", I34, I34)
binary("bitwise_left_shift bitwise_right_shift", ints(0, 50, 3, 4), ints(0, 4, 3, 4))
binary("gcd lcm", ints(1, 30, 3, 4), ints(1, 30, 3, 4))
binary("logical_and logical_or logical_xor", B34, B34)
binary("isclose", ints(0, 3, 3, 4, dtype=f32), ints(0, 3, 3, 4, dtype=f32))
row("zeta", lambda x, y: torch.special.zeta(x, y), uniform(1.5, 4.0, 3, 4), P34)
row("add_alpha", lambda x, y: torch.add(x, y, alpha=2.5), N34, N34)
row("sub_alpha", lambda x, y: x.sub(y, alpha=3), N34, N34)
row("rsub", lambda x, y: torch.rsub(x, y, alpha=2), N34, N34)
row("div_floor", lambda x, y: torch.div(x, y, rounding_mode="floor"), N34, NZ34)
row("div_trunc", lambda x, y: torch.div(x, y, rounding_mode="trunc"), N34, NZ34)
row("div_floor_int", lambda x, y: torch.div(x, y, rounding_mode="floor"), I34, IN34)
row("div_trunc_int", lambda x, y: torch.div(x, y, rounding_mode="trunc"), I34, IN34)
row("lerp_number", lambda x, y: torch.lerp(x, y, 0.3), N34, N34)
row("lerp_tensor", lambda x, y, z: torch.lerp(x, y, z), N34, N34, U34)
row("addcmul", lambda x, y, z: torch.addcmul(x, y, z, value=0.5), N34, N34, N34)
row("addcdiv", lambda x, y, z: torch.addcdiv(x, y, z, value=-2.0), N34, N34, NZ34)
row("where_tensors", lambda x, y, z: torch.where(x, y, z), B34, N34, N34)
row("where_number", lambda x: torch.where(x > 0, x, -1.0), N34)
row("where_two_numbers", lambda x: torch.where(x > 0, 1.0, 0.0), N34)
row("where_method", lambda x, y: x.where(y > 0, 0), N34, N34)
row("where_broadcast", lambda x, y: torch.where(y[:, None] > 0, x, x * 2), N34, normal(3))
row("clamp", lambda x: torch.clamp(x, -0.5, 0.5), N34)
row("clamp_min_only", lambda x: x.clamp(min=0.1), N34)
row("clamp_max_only", lambda x: x.clamp(max=0.1), N34)
row("clamp_tensors", lambda x, y: torch.clamp(x, -y, y), N34, uniform(0.1, 1.0, 4))
row("clip", lambda x: x.clip(-1, 1), N34)
row("clamp_min_fn", lambda x: torch.clamp_min(x, 0), N34)
row("clamp_max_fn", lambda x: torch.clamp_max(x, 0.2), N34)
row("clamp_int", lambda x: x.clamp(-3, 3), I34)
row("maximum_broadcast", lambda x, y: torch.maximum(x, y), N34, N4)
row("max_two", lambda x, y: torch.max(x, y), N34, N34)
row("min_two", lambda x, y: torch.min(x, y), N34, N34)
row("broadcast_3d", lambda x, y: x * y + x - y, normal(2, 1, 4), normal(3, 1))
row("broadcast_scalar_tensor", lambda x, y: x * y, N34, normal())
row("promote_int_float", lambda x, y: x + y, I34, N34)
row("promote_f32_f64", lambda x, y: x * y, N34, normal(3, 4, dtype=f64))
row("promote_0d_f64", lambda x, y: x * y, N34, normal(dtype=f64))
row("promote_bool_int", lambda x, y: x + y, B34, I34)
row("promote_int_number", lambda x: x * 0.5, I34)
row("promote_u8_i8", lambda x, y: x + y, ints(0, 50, 3, 4, dtype=u8), ints(-50, 50, 3, 4, dtype=i8))
row("int_true_divide", lambda x, y: x / y, I34, IN34)

# Python operators, both ways round and in place

for symbol, a, b in [
    ("add", N34, N34), ("sub", N34, N34), ("mul", N34, N34), ("truediv", N34, NZ34), ("floordiv", N34, NZ34), ("mod", N34, NZ34),
    ("matmul", N34, normal(4, 2)), ("eq", ints(0, 3, 3, 4), ints(0, 3, 3, 4)), ("ne", ints(0, 3, 3, 4), ints(0, 3, 3, 4)),
    ("lt", N34, N34), ("le", N34, N34), ("gt", N34, N34), ("ge", N34, N34), ("and_", I34, I34), ("or_", B34, B34), ("xor", B34, B34),
    ("pow", P34, N34), ("lshift", ints(0, 20, 3, 4), ints(0, 4, 3, 4)), ("rshift", ints(0, 90, 3, 4), ints(0, 4, 3, 4)),
]:  # fmt: skip
    row("op_" + symbol.strip("_"), lambda x, y, f=getattr(operator, symbol): f(x, y), a, b)
row("op_neg", lambda x: -x, N34)
row("op_pos", lambda x: +x * 2, N34)
row("op_abs", lambda x: abs(x), N34)
row("op_invert_mask", lambda x: ~x, B34)
row("op_invert_int", lambda x: ~x, I34)
row("op_int_floordiv", lambda x, y: x // y, I34, IN34)
row("op_int_mod", lambda x, y: x % y, I34, IN34)
row("op_floordiv_number", lambda x: x // 0.7, N34)
row("op_int_floordiv_negative", lambda x: x // -4, I34)
row("op_int_mod_negative", lambda x: x % -4, I34)
row("op_mod_number", lambda x: x % 0.75, N34)
row("op_pow_int", lambda x: x**3, N34)
row("op_pow_half", lambda x: x**0.5, P34)
row("op_pow_negative", lambda x: x**-2, NZ34)
row("op_int_pow", lambda x: x**2, I34)
row("op_mask_and_true", lambda x: x & True, B34)
row("op_mask_xor_false", lambda x: x ^ False, B34)
row("op_int_and_number", lambda x: x & 6, I34)
row("op_lshift_number", lambda x: x << 2, I34)
row("op_rshift_number", lambda x: x >> 1, I34)
row("rop_add", lambda x: 2 + x, N34)
row("rop_sub", lambda x: 2.5 - x, N34)
row("rop_mul", lambda x: 3 * x, N34)
row("rop_truediv", lambda x: 1.0 / x, NZ34)
row("rop_floordiv", lambda x: 7 // x, IN34)
row("rop_floordiv_float", lambda x: 7.0 // x, NZ34)
row("rop_mod", lambda x: 7 % x, IN34)
row("rop_pow", lambda x: 2**x, N34)
row("rop_pow_float", lambda x: 0.5**x, N34)
row("rop_and", lambda x: 5 & x, I34)
row("rop_or", lambda x: True | x, ints(0, 3, 3, 4))
row("rop_xor", lambda x: 3 ^ x, I34)
row("rop_lshift", lambda x: 1 << x, ints(0, 6, 3, 4))
row("rop_rshift", lambda x: 64 >> x, ints(0, 6, 3, 4))
row("rop_matmul", lambda x: torch.ones(2, 3) @ x, N34)
row("rop_lt", lambda x: 0.1 < x, N34)
row("compare_chain_masks", lambda x: (x > -0.5) & (x < 0.5) | (x == 0), N34)
row("compare_number", lambda x: torch.stack([x > 0.1, x >= 0.1, x < 0.1, x <= 0.1, x == 0.1, x != 0.1]), N34)
row("compare_int_float", lambda x: x > 0.5, ints(-2, 3, 3, 4))
row("compare_method_number", lambda x: x.gt(0).logical_or(x.le(-1)), N34)
row("truthy_arithmetic", lambda x: (x > 0) * 2.0 - (x < 0).float(), N34)
row("dunder_explicit", lambda x, y: x.__add__(y).__mul__(2).__sub__(y.__rsub__(1)), N34, N34)
row("dunder_radd", lambda x: x.__radd__(1) + x.__rmul__(2) + x.__rsub__(3) + x.__rtruediv__(4), NZ34)
row("dunder_rpow", lambda x: x.__rpow__(2) + x.__rfloordiv__(5) + x.__rmod__(3), NZ34)
row("dunder_iadd_result", lambda x, y: (x * 1).__iadd__(y), N34, N34)
row("builtin_sum", lambda x: sum(x), N34)
row("builtin_pow", lambda x: pow(x, 2), N34)
row("builtin_round", lambda x: x.round() + torch.round(x * 10) / 10, N34)
row("builtin_reversed", lambda x: torch.stack(list(reversed(x))), N34)

for symbol, a, b in [
    ("iadd", N34, N34), ("isub", N34, N34), ("imul", N34, N34), ("itruediv", N34, NZ34), ("ifloordiv", N34, NZ34), ("imod", N34, NZ34),
    ("ipow", P34, N34), ("iand", B34, B34), ("ior", B34, B34), ("ixor", I34, I34),
    ("ilshift", ints(0, 20, 3, 4), ints(0, 4, 3, 4)), ("irshift", ints(0, 90, 3, 4), ints(0, 4, 3, 4)),
]:  # fmt: skip

    def augmented(x: T, y: T, f: Any = getattr(operator, symbol)) -> tuple[T, T]:
        z = x.clone()
        w = z
        z = f(z, y)
        return z, w

    row("aug_" + symbol, augmented, a, b)


def augmented_numbers(x: T) -> T:
    y = x.clone()
    y += 1
    y -= 0.5
    y *= 3
    y /= 2
    y **= 2
    y //= 0.3
    y %= 5
    return y


row("aug_numbers", augmented_numbers, N34)


def augmented_matmul(x: T) -> T:
    y = x
    y = y @ x
    return y


row("aug_matmul", augmented_matmul, N33)

# In-place methods

inplace("abs_ absolute_ neg_ negative_ sign_ sgn_ square_ exp_ exp2_ expm1_ sin_ cos_ tan_ sinh_ cosh_ tanh_ atan_ arctan_", N34)
inplace("asinh_ arcsinh_ sigmoid_ erf_ erfc_ relu_ sinc_ deg2rad_ rad2deg_ floor_ ceil_ round_ trunc_ fix_ frac_ i0_", N34)
inplace("nan_to_num_ logical_not_ zero_ conj_physical_ detach_", N34)
inplace("sqrt_ rsqrt_ reciprocal_ log_ log2_ log10_ log1p_ lgamma_ digamma_", P34)
inplace("asin_ arcsin_ acos_ arccos_ atanh_ arctanh_ erfinv_", U34)
inplace("acosh_ arccosh_", uniform(1.2, 4.0, 3, 4))
inplace("logit_", uniform(0.1, 0.9, 3, 4))
inplace("bitwise_not_", I34)
inplace("add_ sub_ mul_ multiply_ subtract_ hypot_ copysign_ atan2_ arctan2_ copy_ nextafter_", N34, N34)
inplace("div_ divide_ true_divide_ fmod_ remainder_ floor_divide_", N34, NZ34)
inplace("eq_ ne_ lt_ le_ gt_ ge_ not_equal_ less_ less_equal_ greater_ greater_equal_", ints(0, 3, 3, 4), ints(0, 3, 3, 4))
inplace("pow_", P34, N34)
inplace("float_power_", uniform(0.2, 3.0, 3, 4, dtype=f64), normal(3, 4, dtype=f64))
inplace("xlogy_ igamma_ igammac_", P34, P34)
inplace("heaviside_", ints(-1, 2, 3, 4, dtype=f32), N34)
inplace("bitwise_and_ bitwise_or_ bitwise_xor_", I34, I34)
inplace("bitwise_left_shift_ bitwise_right_shift_", ints(0, 50, 3, 4), ints(0, 4, 3, 4))
inplace("gcd_ lcm_", ints(1, 30, 3, 4), ints(1, 30, 3, 4))
inplace("logical_and_ logical_or_ logical_xor_", B34, B34)
inplace("ldexp_", N34, ints(-3, 3, 3, 4))
inplace("clamp_", N34, uniform(-1.0, 0.0, 4), uniform(0.1, 1.0, 4))
written("clamp_number", lambda y, x: y.clamp_(-0.5, 0.5), N34)
written("clip", lambda y, x: y.clip_(min=0), N34)
written("clamp_min", lambda y, x: y.clamp_min_(0.2), N34)
written("clamp_max", lambda y, x: y.clamp_max_(0.2), N34)
written("fill", lambda y, x: y[0].fill_(2.5), N34)
written("fill_tensor", lambda y, x: y.fill_(x[0, 0]), N34)
written("fill_diagonal", lambda y, x: y.fill_diagonal_(7.0), N34)
written("lerp", lambda y, x, z: y.lerp_(z, 0.25), N34, N34)
written("addcmul", lambda y, x, z: y.addcmul_(x, z, value=0.3), N34, N34)
written("addcdiv", lambda y, x, z: y.addcdiv_(x, z, value=0.3), N34, NZ34)
written("addmm", lambda y, x, z, w: y.addmm_(z, w, beta=0.5, alpha=2), N34, normal(3, 2), normal(2, 4))
written("addmv", lambda y, x, z, w: y.addmv_(z, w), normal(3), N34, N4)
written("addr", lambda y, x, z, w: y.addr_(z, w), N34, normal(3), N4)
written("addbmm", lambda y, x, z, w: y.addbmm_(z, w), N34, normal(2, 3, 5), normal(2, 5, 4))
written("baddbmm", lambda y, x, z, w: y.baddbmm_(z, w), N234, normal(2, 3, 5), normal(2, 5, 4))
written("masked_fill", lambda y, x: y.masked_fill_(x > 0, -1.0), N34)
written("masked_fill_tensor", lambda y, x, z: y.masked_fill_(x > 0, z), N34, normal())
written("masked_scatter", lambda y, x, z: y.masked_scatter_(x > 0, z), N34, N34)
written("scatter", lambda y, x, z, w: y.scatter_(1, z, w), N34, lambda g: permutation(4)(g).repeat(3, 1), N34)
written("scatter_number", lambda y, x, z: y.scatter_(1, z, 5.0), N34, index(4, 3, 2))
written("scatter_reduce_mul", lambda y, x, z, w: y.scatter_(1, z, w, reduce="multiply"), N34, index(4, 3, 2), N34)
written("scatter_add", lambda y, x, z, w: y.scatter_add_(1, z, w), N34, index(4, 3, 4), N34)
written("scatter_reduce", lambda y, x, z, w: y.scatter_reduce_(1, z, w, reduce="amax"), N34, index(4, 3, 4), N34)
written("index_add", lambda y, x, z, w: y.index_add_(0, z, w, alpha=2), N34, index(3, 2), normal(2, 4))
written("index_copy", lambda y, x, z: y.index_copy_(0, torch.tensor([2, 0]), z), N34, normal(2, 4))
written("index_fill", lambda y, x, z: y.index_fill_(1, z, 3.0), N34, index(4, 2))
written("index_put", lambda y, x, z, w: y.index_put_((z,), w, accumulate=True), N34, index(3, 2), normal(2, 4))
written("index_reduce", lambda y, x, z, w: y.index_reduce_(0, z, w, "amin"), N34, index(3, 2), normal(2, 4))
written("put", lambda y, x, z: y.put_(torch.tensor([1, 7]), z), N34, normal(2))
written("put_accumulate", lambda y, x, z, w: y.put_(z, w, accumulate=True), N34, index(12, 3), normal(3))
written("cumsum", lambda y, x: y.cumsum_(1), N34)
written("cumprod", lambda y, x: y.cumprod_(0), N34)
written("tril", lambda y, x: y.tril_(), N34)
written("triu", lambda y, x: y.triu_(1), N34)
written("renorm", lambda y, x: y.renorm_(2, 0, 1.0), N34)
written("polygamma", lambda y, x: y.polygamma_(1), P34)
written("mvlgamma", lambda y, x: y.mvlgamma_(2), uniform(2.0, 4.0, 3, 4))
written("eq_number", lambda y, x: y.eq_(0), ints(-1, 2, 3, 4))
written("pow_number", lambda y, x: y.pow_(3), N34)
written("remainder_number", lambda y, x: y.remainder_(0.7), N34)
written("div_rounding", lambda y, x, z: y.div_(z, rounding_mode="floor"), N34, NZ34)
written("add_alpha", lambda y, x, z: y.add_(z, alpha=0.1), N34, N34)
written("copy_broadcast", lambda y, x, z: y.copy_(z), N34, N4)
written("copy_cast", lambda y, x, z: y.copy_(z), N34, I34)
written("apply_chain", lambda y, x: y.mul_(2).add_(1).clamp_(-1, 1).neg_(), N34)
written("F_relu", lambda y, x: torch.nn.functional.relu(y, inplace=True), N34)
written("F_elu", lambda y, x: torch.nn.functional.elu_(y), N34)
written("F_leaky_relu", lambda y, x: torch.nn.functional.leaky_relu_(y, 0.2), N34)
written("F_hardtanh", lambda y, x: torch.nn.functional.hardtanh_(y), N34)
written("torch_relu_", lambda y, x: torch.relu_(y), N34)
written("torch_square_", lambda y, x: torch.square_(y), N34)


def reshaped(name: str, fn: Any, *draws: Draw) -> None:
    """An in-place call that changes the shape of a fresh copy."""

    def run(x: T, *rest: T) -> T:
        y = x.clone()
        fn(y, *rest)
        return y * 2

    row("inplace_" + name, run, *draws)


reshaped("transpose", lambda y: y.transpose_(0, 1), N34)
reshaped("t", lambda y: y.t_(), N34)
reshaped("swapaxes", lambda y: y.swapaxes_(0, 1), N34)
reshaped("swapdims", lambda y: y.swapdims_(0, 1), N34)
reshaped("unsqueeze", lambda y: y.unsqueeze_(1), N34)
reshaped("squeeze", lambda y: y.squeeze_(1), normal(3, 1, 4))
reshaped("squeeze_all", lambda y: y.squeeze_(), normal(1, 3, 1))
reshaped("as_strided", lambda y: y.as_strided_((2, 2), (1, 2)), N34)

# out=

for name in "add sub mul maximum minimum atan2 hypot".split():

    def into(x: T, y: T, f: Any = getattr(torch, name)) -> T:
        z = torch.empty(3, 4)
        f(x, y, out=z)
        return z

    row("out_" + name, into, N34, N34)
for name in "sin cos exp tanh neg abs floor sigmoid".split():

    def into1(x: T, f: Any = getattr(torch, name)) -> T:
        z = torch.zeros_like(x)
        r = f(x, out=z)
        return r + z

    row("out_" + name, into1, N34)


def out_of(name: str, fn: Any, shape: tuple[int, ...], *draws: Draw, dtype: torch.dtype = f32) -> None:
    """A call ``fn(o, ...)`` that writes into a plain tensor ``o`` made inside."""

    def run(*inputs: T) -> T:
        o = torch.zeros(shape, dtype=dtype)
        fn(o, *inputs)
        return o * 2 if dtype is not torch.bool else o

    row("out_" + name, run, *draws)


out_of("clamp", lambda o, x: torch.clamp(x, 0, 1, out=o), (3, 4), N34)
out_of("matmul", lambda o, x, y: torch.matmul(x, y, out=o), (3, 2), N34, normal(4, 2))
out_of("mm", lambda o, x, y: torch.mm(x, y, out=o), (3, 2), N34, normal(4, 2))
out_of("bmm", lambda o, x, y: torch.bmm(x, y, out=o), (2, 3, 2), N234, normal(2, 4, 2))
out_of("sum", lambda o, x: torch.sum(x, 1, out=o), (3,), N34)
out_of("mean", lambda o, x: torch.mean(x, dim=0, out=o), (4,), N34)
out_of("cat", lambda o, x, y: torch.cat([x, y], dim=0, out=o), (6, 4), N34, N34)
out_of("stack", lambda o, x, y: torch.stack([x, y], out=o), (2, 3, 4), N34, N34)
out_of("where", lambda o, x, y: torch.where(x > 0, x, y, out=o), (3, 4), N34, N34)
out_of("gt", lambda o, x: torch.gt(x, 0, out=o), (3, 4), N34, dtype=torch.bool)
out_of("cumsum", lambda o, x: torch.cumsum(x, 0, out=o), (3, 4), N34)
out_of("into_slice", lambda o, x: torch.mul(x, 2, out=o[1]), (2, 3, 4), N34)
out_of("into_row_view", lambda o, x, y: torch.add(x, y, out=o[0]), (2, 4), N4, N4)
out_of("index_select", lambda o, x, y: torch.index_select(x, 0, y, out=o), (2, 4), N34, index(3, 2))
out_of("norm", lambda o, x: torch.linalg.vector_norm(x, dim=1, out=o), (3,), N34)
out_of("addmm", lambda o, x, y: torch.addmm(o, x, y, out=o), (3, 2), N34, normal(4, 2))
out_of("resized", lambda o, x: torch.mul(x, 3, out=o), (0,), N34)


def out_pair(x: T) -> tuple[T, T]:
    values, places = torch.empty(3), torch.empty(3, dtype=i64)
    torch.max(x, 1, out=(values, places))
    return values, places


def out_sort(x: T) -> tuple[T, T]:
    values, places = torch.empty(3, 4), torch.empty(3, 4, dtype=i64)
    torch.sort(x, dim=1, out=(values, places))
    return values, places


row("out_max_pair", out_pair, D34)
row("out_sort_pair", out_sort, D34)
row("out_is_input", lambda x, y: torch.add(x, y, out=(z := x * 1)) + z, N34, N34)
row("out_is_operand", lambda x: torch.mul(z := x + 1, z, out=z), N34)

# _foreach

SQ34, SQ2 = uniform(-0.5, 3.0, 3, 4), uniform(-0.5, 3.0, 2)
for name in "abs neg exp sin cos tanh sqrt sigmoid reciprocal floor sign".split():
    row("foreach_" + name, lambda x, y, f=getattr(torch, "_foreach_" + name): tuple(f([x, y])), SQ34, SQ2)

    def each(x: T, y: T, f: Any = getattr(torch, f"_foreach_{name}_")) -> tuple[T, T]:
        a, b = x.clone(), y.clone()
        f([a, b])
        return torch.cat([a, x]), torch.cat([b, y])

    row(f"foreach_inplace_{name}", each, SQ34, SQ2)
row("foreach_add_number", lambda x, y: tuple(torch._foreach_add([x, y], 2.0)), N34, N4)
row("foreach_add_numbers", lambda x, y: tuple(torch._foreach_add([x, y], [2.0, 3.0])), N34, N4)
row("foreach_mul_lists", lambda x, y: tuple(torch._foreach_mul([x, y], [y, x])), N34, N34)
row("foreach_sub_alpha", lambda x, y: tuple(torch._foreach_sub([x, y], [y, x], alpha=2)), N34, N34)
row("foreach_lerp", lambda x, y: tuple(torch._foreach_lerp([x, y], [y, x], 0.2)), N34, N34)
row("foreach_addcmul", lambda x, y: tuple(torch._foreach_addcmul([x, y], [y, x], [x, x], value=0.5)), N34, N34)
row("foreach_pow", lambda x, y: tuple(torch._foreach_pow([x, y], 2)), N34, N34)
row("foreach_norm", lambda x, y: tuple(torch._foreach_norm([x, y])), N34, N34)
row("foreach_clamp_max", lambda x, y: tuple(torch._foreach_clamp_max([x, y], 0.3)), N34, N34)
row("foreach_maximum", lambda x, y: tuple(torch._foreach_maximum([x, y], [y, x])), N34, N34)


def foreach_add_(x: T, y: T) -> tuple[T, T]:
    a, b = x.clone(), y.clone()
    torch._foreach_add_([a, b], 1.0)
    torch._foreach_mul_([a, b], [b, a])
    return a, b


def foreach_copy_(x: T, y: T) -> tuple[T, T]:
    a, b = torch.zeros(3, 4), torch.zeros(4)
    torch._foreach_copy_([a, b], [x, y])
    return a + 1, b + 1


def foreach_ema_(x: T, y: T) -> T:
    mean = [torch.ones(3, 4), torch.zeros(3, 4)]
    torch._foreach_lerp_(mean, [x, y], 0.1)
    torch._foreach_addcdiv_(mean, [x, y], [y.abs() + 1, x.abs() + 1], value=-1.0)
    return torch.stack(mean)


row("foreach_inplace_add_mul", foreach_add_, N34, N34)
row("foreach_inplace_copy", foreach_copy_, N34, N4)
row("foreach_inplace_optimizer", foreach_ema_, N34, N34)

# Reductions

SPARSE: Draw = lambda g: torch.rand(3, 4, generator=g) < 0.06  # noqa: E731
DENSE: Draw = lambda g: torch.rand(3, 4, generator=g) < 0.94  # noqa: E731
for name in "sum prod mean amax amin std var any all logsumexp count_nonzero argmax argmin nansum nanmean median norm max min".split():
    draw = {"any": SPARSE, "all": DENSE, "count_nonzero": ints(0, 2, 3, 4)}.get(name, D34)
    if name != "logsumexp":
        row(f"reduce_{name}", lambda x, f=getattr(torch, name): f(x), draw)
    if name not in {"max", "min", "median", "norm"}:
        row(f"reduce_{name}_dim", lambda x, f=getattr(torch, name): f(x, dim=1), draw)
    if name not in {"max", "min", "median", "norm", "count_nonzero"}:
        row(f"reduce_{name}_keepdim", lambda x, m=name: getattr(x, m)(0, keepdim=True) if m not in {"std", "var"} else getattr(x, m)(dim=0, keepdim=True), draw)
row("reduce_sum_axis", lambda x: x.sum(axis=-1), N34)
row("reduce_sum_axis_keepdims", lambda x: torch.sum(x, axis=1, keepdims=True), N34)
row("reduce_mean_axis", lambda x: x.mean(axis=(0, 1)), N234)
row("reduce_sum_list", lambda x: x.sum([0, 2]), N234)
row("reduce_sum_dtype", lambda x: x.sum(1, dtype=f64), N34)
row("reduce_int_sum", lambda x: x.sum(), I34)
row("reduce_bool_sum", lambda x: x.sum(dim=1), B34)
row("reduce_int_mean_float", lambda x: x.float().mean(), I34)
row("reduce_i32_sum", lambda x: x.sum(0), ints(-9, 9, 3, 4, dtype=i32))
row("reduce_i32_prod", lambda x: x.prod(1), ints(-3, 4, 3, 4, dtype=i32))
row("reduce_std_unbiased_false", lambda x: x.std(unbiased=False), N34)
row("reduce_std_correction", lambda x: torch.std(x, dim=1, correction=0), N34)
row("reduce_var_dims", lambda x: torch.var(x, dim=(0, 2), unbiased=False, keepdim=True), N234)
row("reduce_std_mean", lambda x: torch.std_mean(x, dim=1), N34)
row("reduce_var_mean", lambda x: torch.var_mean(x, dim=0, keepdim=True), N34)
row("reduce_max_dim_named", lambda x: (x.max(dim=1).values, x.max(dim=1).indices), D34)
row("reduce_max_dim_tuple", lambda x: torch.max(x, 0), D34)
row("reduce_min_dim_keepdim", lambda x: x.min(1, keepdim=True)[0] - x, D34)
row("reduce_median_dim", lambda x: tuple(x.median(dim=1)), D34)
row("reduce_nanmedian", lambda x: x.nanmedian(), D34)
row("reduce_mode", lambda x: x.mode(1).values, ints(0, 3, 3, 5))
row("reduce_kthvalue", lambda x: tuple(x.kthvalue(2, dim=1)), D34)
row("reduce_quantile", lambda x: torch.quantile(x, 0.3), D34)
row("reduce_quantile_dim", lambda x: torch.quantile(x, 0.25, dim=1, keepdim=True), D34)
row("reduce_quantile_tensor", lambda x: torch.quantile(x, torch.tensor([0.1, 0.9]), dim=0), D34)
row("reduce_quantile_lower", lambda x: torch.quantile(x, 0.4, dim=0, interpolation="lower"), D34)
row("reduce_quantile_midpoint", lambda x: x.quantile(torch.tensor([0.2, 0.7]), dim=-1, keepdim=True, interpolation="midpoint"), D34)
row("reduce_quantile_kept", lambda x: torch.quantile(x, 0.6, keepdim=True, interpolation="nearest"), D34)
row("reduce_quantile_of_nan", lambda x: torch.quantile(torch.where(x > 1.2, torch.full_like(x, float("nan")), x), 0.5, dim=1), D34)
row("reduce_nanquantile_of_nan", lambda x: torch.nanquantile(torch.where(x > 0.6, torch.full_like(x, float("nan")), x), 0.5, dim=1), D34)
row("reduce_nanquantile", lambda x: torch.nanquantile(x, 0.5, dim=1), D34)
row("reduce_norm_p1", lambda x: x.norm(p=1), N34)
row("reduce_norm_dim", lambda x: x.norm(dim=-1, keepdim=True), N34)
row("reduce_norm_p_dim", lambda x: torch.norm(x, p=2, dim=1), N34)
row("reduce_norm_inf", lambda x: torch.norm(x, p=float("inf"), dim=0), N34)
row("reduce_norm_fro", lambda x: torch.norm(x, p="fro"), N34)
row("reduce_dist", lambda x, y: torch.dist(x, y, 2), N34, N34)
row("reduce_aminmax", lambda x: (x.aminmax(dim=1).min, x.aminmax(dim=1).max), D34)
row("reduce_aminmax_unpack", lambda x: tuple(torch.aminmax(x)), D34)
row("reduce_amax_dims", lambda x: x.amax((0, 2)), N234)
row("reduce_all_comparison", lambda x: (x > -1).all(dim=1, keepdim=True), N34)
row("reduce_any_dims", lambda x: torch.any(x > 1, dim=(0, 1)), N234)
row("reduce_argmax_flat", lambda x: x.argmax(), D34)
row("reduce_logsumexp_dims", lambda x: torch.logsumexp(x, (0, 1)), N34)
row("reduce_trace", lambda x: torch.trace(x), N33)
row("reduce_nan_sum", lambda x: torch.log(x).nansum(1), N34)
row("reduce_nan_mean", lambda x: torch.where(x > 0, x, float("nan")).nanmean(), N34)
row("reduce_nan_propagates", lambda x: torch.log(x).sum(1), N34)
row("reduce_inf_max", lambda x: (x / 0).amax(1), N34)
row("sum_to_size", lambda x: x.sum_to_size(1, 4), N34)
row("histc", lambda x: torch.histc(x, bins=5, min=-2, max=2), N34)
row("bincount", lambda x: torch.bincount(x, minlength=6), lambda g: torch.cat([index(6, 7)(g), torch.tensor([5])]))

# Cumulative and neighbouring

row("cumsum", lambda x: torch.cumsum(x, dim=0), N34)
row("cumsum_dtype", lambda x: x.cumsum(-1, dtype=f64), N34)
row("cumsum_int", lambda x: x.cumsum(1), I34)
row("cumsum_bool", lambda x: x.cumsum(0), B34)
row("cumprod", lambda x: x.cumprod(1), N34)
row("cummax", lambda x: tuple(torch.cummax(x, 1)), D34)
row("cummin_named", lambda x: (x.cummin(0).values, x.cummin(0).indices), D34)
row("logcumsumexp", lambda x: torch.logcumsumexp(x, 1), N34)
row("diff", lambda x: torch.diff(x), N34)
row("diff_n_dim", lambda x: torch.diff(x, n=2, dim=0), N34)
row("diff_prepend", lambda x: x.diff(dim=1, prepend=torch.zeros(3, 1)), N34)
row("gradient", lambda x: torch.gradient(x, spacing=0.1, dim=1)[0], N34)
row("trapezoid", lambda x: torch.trapezoid(x, dx=0.5, dim=1), N34)
row("trapz_x", lambda x, y: torch.trapz(x, y), N34, lambda g: N34(g).sort(1).values)
row("cumulative_trapezoid", lambda x: torch.cumulative_trapezoid(x, dim=0), N34)

# Shape and view

for name, fn in {
    "reshape": lambda x: x.reshape(4, 3), "reshape_tuple": lambda x: x.reshape((2, -1)), "reshape_fn": lambda x: torch.reshape(x, (-1,)),
    "view": lambda x: x.view(2, 6), "view_minus": lambda x: x.view(-1), "flatten": lambda x: x.flatten(), "flatten_fn": lambda x: torch.flatten(x, 0, 1),
    "ravel_method": lambda x: x.ravel(), "T": lambda x: x.T, "mT": lambda x: x.mT, "H": lambda x: x.H, "mH": lambda x: x.mH, "t": lambda x: x.t(),
    "adjoint": lambda x: x.adjoint(), "transpose": lambda x: x.transpose(0, -1), "swapaxes": lambda x: torch.swapaxes(x, 0, 1),
    "swapdims": lambda x: x.swapdims(0, 1), "permute": lambda x: x.permute(1, 0), "permute_tuple": lambda x: torch.permute(x, (1, 0)),
    "movedim": lambda x: x.movedim(0, 1), "moveaxis": lambda x: torch.moveaxis(x, 1, 0), "unsqueeze": lambda x: x.unsqueeze(-1),
    "squeeze": lambda x: x[None].squeeze(0), "squeeze_dims": lambda x: x[None, :, None].squeeze((0, 2)), "expand": lambda x: x[None].expand(2, -1, -1),
    "expand_as": lambda x: x[:1].expand_as(x), "broadcast_to": lambda x: x[0].broadcast_to(2, 4), "repeat": lambda x: x.repeat(2, 1),
    "repeat_3d": lambda x: x.repeat(2, 1, 3), "tile": lambda x: x.tile(2), "tile_tuple": lambda x: torch.tile(x, (2, 1)),
    "repeat_interleave": lambda x: x.repeat_interleave(2, dim=1), "repeat_interleave_flat": lambda x: torch.repeat_interleave(x, 2),
    "repeat_interleave_list": lambda x: x.repeat_interleave(torch.tensor([1, 0, 2]), 0),
    "flip_int": lambda x: x.flip(0), "flip_dims": lambda x: torch.flip(x, [0, 1]), "fliplr": lambda x: torch.fliplr(x), "flipud": lambda x: x.flipud(),
    "rot90": lambda x: torch.rot90(x), "rot90_k": lambda x: torch.rot90(x, 3, [0, 1]), "roll": lambda x: torch.roll(x, 1, 0),
    "roll_flat": lambda x: x.roll(2), "roll_dims": lambda x: torch.roll(x, shifts=(1, -1), dims=(0, 1)), "narrow": lambda x: x.narrow(1, 1, 2),
    "select": lambda x: x.select(0, 1), "unfold": lambda x: x.unfold(1, 2, 1), "as_strided": lambda x: x.as_strided((2, 2), (4, 1), 1),
    "unflatten": lambda x: x.unflatten(1, (2, 2)), "view_as": lambda x: x.view_as(torch.zeros(2, 6)), "reshape_as": lambda x: x.reshape_as(torch.zeros(12)),
    "contiguous": lambda x: x.T.contiguous().view(-1), "diagonal": lambda x: x.diagonal(), "diagonal_offset": lambda x: torch.diagonal(x, 1),
    "diag": lambda x: torch.diag(x), "diag_vector": lambda x: torch.diag(x[0]), "diag_embed": lambda x: x.diag_embed(), "diagflat": lambda x: x.diagflat(),
    "tril": lambda x: x.tril(), "triu_offset": lambda x: torch.triu(x, 1), "atleast_3d": lambda x: torch.atleast_3d(x), "shape_arithmetic": lambda x: x * x.shape[1] + x.size(0) - len(x),
    "numel_ndim": lambda x: x / x.numel() + x.dim() + x.ndim + x.nelement(), "dtype_bytes": lambda x: x * x.element_size() + x.nbytes,
    "new_zeros": lambda x: x.new_zeros(3, 4) + x, "new_ones": lambda x: x.new_ones(x.shape) * x, "new_full": lambda x: x.new_full((3, 1), 2.0) * x,
    "new_tensor": lambda x: x.new_tensor([1.0, 2.0, 3.0, 4.0]) * x, "zeros_like": lambda x: torch.zeros_like(x) + x, "ones_like": lambda x: torch.ones_like(x) - x,
    "full_like": lambda x: torch.full_like(x, 1.5) * x, "empty_like_filled": lambda x: torch.empty_like(x).copy_(x), "clone": lambda x: x.clone() + 1,
    "detach": lambda x: x.detach() * 2, "alias_data": lambda x: x.data * 2, "cpu": lambda x: x.cpu() + 1, "to_device": lambda x: x.to("cpu") + x.to(x.device),
    "combinations": lambda x: torch.combinations(x[0], 2), "cartesian_prod": lambda x: torch.cartesian_prod(x[0], x[1]), "block_diag": lambda x: torch.block_diag(x, x[:1]),
    "channel_shuffle": lambda x: torch.channel_shuffle(x[None, :, :, None].transpose(1, 2), 2), "unsafe_chunk": lambda x: x.unsafe_chunk(2, 1)[1],
    "narrow_copy": lambda x: x.narrow_copy(0, 1, 2), "slice_scatter": lambda x: x.slice_scatter(torch.zeros(1, 4), 0, 1, 2), "select_scatter": lambda x: x.select_scatter(x[0] * 2, 0, 2),
    "diagonal_scatter": lambda x: x.diagonal_scatter(torch.zeros(3)), "as_strided_scatter": lambda x: x.as_strided_scatter(x[0, :2] * 9, (2,), (1,)),
    "unbind": lambda x: x.unbind(1)[2], "unbind_star": lambda x: torch.stack([*x.unbind(0)][::-1]), "chunk": lambda x: x.chunk(2, dim=1),
    "split": lambda x: x.split(2), "split_sizes": lambda x: torch.split(x, [1, 3], dim=1), "tensor_split": lambda x: torch.tensor_split(x, 3, dim=1),
    "tensor_split_at": lambda x: x.tensor_split((1, 2), dim=0), "hsplit": lambda x: torch.hsplit(x, 2), "vsplit": lambda x: x.vsplit(3),
    "split_with_sizes": lambda x: x.split_with_sizes([2, 2], 1)[0], "view_dtype": lambda x: x.view(i32), "view_bytes": lambda x: x.view(u8),
    "squeeze_noop": lambda x: x.squeeze(0) + 1, "size_star": lambda x: torch.ones(*x.shape) * x, "shape_unpack": lambda x: x.reshape((lambda a, b: (b, a))(*x.shape)),
}.items():  # fmt: skip
    row("shape_" + name, fn, N34)
row("shape_permute_3d", lambda x: x.permute(2, 0, 1), N234)
row("shape_movedim_many", lambda x: torch.movedim(x, (0, 1), (2, 0)), N234)
row("shape_mT_batch", lambda x: x.mT @ x, N234)
row("shape_T_0d_1d", lambda x: x.view(1, -1).T, N4)
row("shape_dsplit", lambda x: torch.dsplit(x, 2), N234)
row("shape_flip_3d", lambda x: x.flip(0, 2), N234)
row("shape_non_contiguous_view", lambda x: x.transpose(0, 1)[1:, ::2].reshape(-1), N34)
row("shape_zero_d", lambda x: x.reshape(1).expand(3) * 2, normal())
row("shape_empty", lambda x: torch.cat([x[:0], x]), N34)
row("shape_meshgrid", lambda x, y: torch.meshgrid(x, y, indexing="ij"), N4, normal(3))
row("shape_meshgrid_xy", lambda x, y: torch.stack(torch.meshgrid([x, y], indexing="xy")), N4, normal(3))
row("shape_broadcast_tensors", lambda x, y: torch.broadcast_tensors(x, y), N34, N4)

# Joining

row("cat", lambda x, y: torch.cat((x, y), dim=-1), N34, N34)
row("cat_axis", lambda x, y: torch.cat([x, y], axis=0), N34, normal(2, 4))
row("cat_mixed_dtype", lambda x, y: torch.cat([x, y]), N34, I34)
row("cat_with_plain", lambda x: torch.cat([x, torch.ones(3, 1)], 1), N34)
row("concat", lambda x, y: torch.concat([x, y]), N34, N34)
row("concatenate", lambda x, y: torch.concatenate([x, y], axis=1), N34, N34)
row("stack", lambda x, y: torch.stack((x, y), dim=1), N34, N34)
row("stack_generator", lambda x: torch.stack([r * i for i, r in enumerate(x)]), N34)
row("hstack", lambda x, y: torch.hstack([x, y]), N34, N34)
row("vstack", lambda x, y: torch.vstack([x, y]), N4, N4)
row("dstack", lambda x, y: torch.dstack([x, y]), N34, N34)
row("column_stack", lambda x, y: torch.column_stack([x, y]), N4, N4)
row("row_stack", lambda x, y: torch.row_stack([x, y]), N4, N4)
row("atleast_2d", lambda x: torch.atleast_2d(x), N4)
row("pad_constant", lambda x: torch.nn.functional.pad(x, (1, 2), value=0.5), N34)

# Indexing: reads

for name, fn in {
    "int": lambda x: x[1], "negative": lambda x: x[-1], "two_ints": lambda x: x[1, 2], "chained": lambda x: x[1][2], "slice": lambda x: x[1:],
    "slice_step": lambda x: x[:, ::2], "slice_negative": lambda x: x[:-1, -3:], "ellipsis": lambda x: x[..., 0], "ellipsis_mid": lambda x: x[0, ..., 1:],
    "none": lambda x: x[:, None], "none_many": lambda x: x[None, :, None, ..., None], "list": lambda x: x[[2, 0]], "list_cols": lambda x: x[:, [0, 3, 1]],
    "two_lists": lambda x: x[[0, 1], [2, 3]], "list_of_bools": lambda x: x[[True, False, True]], "tuple": lambda x: x[(1, slice(None, 2))],
    "tensor_const": lambda x: x[torch.tensor([2, 0, 1])], "mask_const": lambda x: x[torch.tensor([True, False, True])], "numpy_index": lambda x: x[np.array([0, 2])],
    "numpy_int": lambda x: x[np.int64(1)], "slice_object": lambda x: x[slice(0, 2), slice(1, None)], "range": lambda x: x[list(range(2))],
    "arange": lambda x: x[torch.arange(3), torch.arange(3)], "bool_true": lambda x: x[True], "mixed": lambda x: x[1:, [0, 2]], "broadcast_index": lambda x: x[torch.tensor([[0], [2]]), torch.tensor([1, 3])],
    "int8_index": lambda x: x[torch.tensor([0, 2], dtype=i32)], "negative_list": lambda x: x[[-1, -3]], "zero_d_tensor": lambda x: x[torch.tensor(1)], "empty_tuple": lambda x: x[()] * 2,
}.items():  # fmt: skip
    row("index_" + name, fn, N34)
row("index_traced", lambda x, y: x[y], N34, index(3, 5))
row("index_traced_cols", lambda x, y: x[:, y], N34, index(4, 2))
row("index_traced_pair", lambda x, y, z: x[y, z], N34, index(3, 5), index(4, 5))
row("index_traced_with_arange", lambda x, y: x[torch.arange(3), y], N34, index(4, 3))
row("index_traced_2d", lambda x, y: x[y], N34, index(3, 2, 2))
row("index_traced_scalar", lambda x, y: x[y], N34, index(3))
row("index_traced_negative", lambda x, y: x[y], N34, ints(-3, 3, 4))
row("index_mask_where", lambda x: torch.where(x > 0, x, 0)[:, 1:], N34)
row("index_mask_sum", lambda x: x[x > 0].sum(), N34)
row("index_mask_row_sum", lambda x, y: x[y].sum(0), N34, bools(3))
row("index_mask_mean", lambda x, y: x[y].mean(), N34, B34)
row("index_argmax_gather", lambda x: x[torch.arange(3), x.argmax(1)], D34)
row("gather", lambda x, y: torch.gather(x, 1, y), N34, index(4, 3, 2))
row("gather_method", lambda x, y: x.gather(0, y), N34, index(3, 2, 4))
row("gather_unsqueeze", lambda x, y: x.gather(1, y.unsqueeze(-1)).squeeze(-1), N34, index(4, 3))
row("take", lambda x, y: torch.take(x, y), N34, index(12, 5))
row("take_along_dim", lambda x: torch.take_along_dim(x, x.argsort(1), dim=1), D34)
row("index_select", lambda x, y: torch.index_select(x, 1, y), N34, index(4, 3))
row("masked_select_sum", lambda x: torch.masked_select(x, x > 0).sum(), N34)
row("nonzero_static", lambda x: torch.nonzero_static(x > 0, size=6, fill_value=-1), N34)
row("searchsorted", lambda x, y: torch.searchsorted(x, y), lambda g: N4(g).sort().values, N34)
row("searchsorted_right", lambda x: torch.searchsorted(torch.tensor([-1.0, 0.0, 1.0]), x, right=True), N34)
row("bucketize", lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])), N34)
row("isin", lambda x: torch.isin(x, torch.tensor([1, 3])), ints(0, 5, 3, 4))
row("one_hot", lambda x: torch.nn.functional.one_hot(x, 5), index(5, 3))
row("embedding_fn", lambda x, y: torch.nn.functional.embedding(x, y), index(5, 3), normal(5, 2))
row("index_add", lambda x, y, z: torch.index_add(x, 0, y, z), N34, index(3, 2), normal(2, 4))
row("index_copy", lambda x, y: x.index_copy(1, torch.tensor([3, 1]), y), N34, normal(3, 2))
row("index_fill", lambda x, y: x.index_fill(0, y, -2.0), N34, index(3, 2))
row("index_put", lambda x, y: x.index_put((torch.tensor([0, 2]),), y), N34, N4)
row("index_put_accumulate", lambda x, y, z: x.index_put((y,), z, accumulate=True), N34, index(3, 4), normal(4, 4))
row("index_reduce", lambda x, y, z: x.index_reduce(0, y, z, "mean", include_self=False), N34, index(3, 2), normal(2, 4))
row("scatter", lambda x, y, z: x.scatter(0, y, z), N34, lambda g: torch.stack([permutation(3)(g)[:2] for _ in range(4)], 1), normal(2, 4))
row("scatter_number", lambda x, y: x.scatter(1, y, 9.0), N34, index(4, 3, 2))
row("scatter_number_reduce", lambda x, y: x.scatter(1, y, 2.0, reduce="multiply"), N34, index(4, 3, 2))
row("scatter_one_hot", lambda x: torch.zeros(3, 4).scatter(1, x.argmax(1, keepdim=True), 1.0), D34)
row("scatter_add", lambda x, y, z: torch.scatter_add(x, 1, y, z), N34, index(4, 3, 4), N34)
for how in ("sum", "prod", "mean", "amax", "amin"):
    row("scatter_reduce_" + how, lambda x, y, z, how=how: x.scatter_reduce(1, y, z, reduce=how), N34, index(4, 3, 4), N34)
row("masked_fill", lambda x: x.masked_fill(x < 0, float("-inf")), N34)
row("masked_fill_broadcast", lambda x, y: x.masked_fill(y, 0), N34, bools(4))
row("masked_scatter", lambda x, y: x.masked_scatter(x > 0, y), N34, N34)
row("put", lambda x, y: x.put(torch.tensor([0, 5]), y), N34, normal(2))

# Indexing: writes


def assigned(name: str, fn: Any, *draws: Draw) -> None:
    """An assignment in ``fn(y, x, ...)`` to a fresh copy ``y`` of the first input."""

    def run(x: T, *rest: T) -> T:
        y = x.clone()
        fn(y, x, *rest)
        return y

    row("set_" + name, run, *draws)


def put(key: Any, value: Any) -> Any:
    """An assignment as a function."""
    return lambda y, x, *rest: operator.setitem(y, key, value(x, *rest) if callable(value) else value)


for name, key, value in [
    ("int", 1, 0.0), ("int_tensor", 0, lambda x: x[1] * 2), ("slice", slice(0, 2), 1.5), ("slice_tensor", slice(1, None), lambda x: x[:2] + 1),
    ("cols", (slice(None), 1), lambda x: x[:, 0]), ("cols_step", (slice(None), slice(None, None, 2)), lambda x: x[:, 1::2] * 3), ("ellipsis", (..., 2), -1.0),
    ("none", (None, 1), lambda x: x[None, 0]), ("list", [0, 2], lambda x: x[[1, 1]]), ("two_lists", ([0, 1], [2, 3]), 4.0), ("element", (2, 3), lambda x: x[0, 0] * x[1, 1]),
    ("element_int", (2, 3), 7), ("index_tensor", torch.tensor([2, 0]), lambda x: x[:2]), ("mask_const", torch.tensor([True, False, True]), 9.0),
    ("all", slice(None), lambda x: x.flip(0)), ("broadcast", slice(None), lambda x: x[0]), ("from_int", 1, lambda x: x[0].round().long()),
    ("list_value_tensor", 0, torch.tensor([1.0, 2.0, 3.0, 4.0])), ("ellipsis_all", ..., lambda x: x * 2), ("negative_slice", slice(-2, None), lambda x: x[:2]),
]:  # fmt: skip
    assigned(name, put(key, value), N34)
assigned("mask_number", lambda y, x: y.__setitem__(x > 0, 0.0), N34)
assigned("mask_selected", lambda y, x: y.__setitem__(x > 0, x[x > 0] * 2), N34)
assigned("mask_rows", lambda y, x, z: y.__setitem__(z, 1.0), N34, bools(3))
assigned("mask_rows_tensor", lambda y, x, z: y.__setitem__(z, x[1]), N34, bools(3))
assigned("mask_cols", lambda y, x, z: y.__setitem__((slice(None), z), -1.0), N34, bools(4))
assigned("traced_index", lambda y, x, z: y.__setitem__(z, 5.0), N34, index(3, 2))
assigned("traced_index_pair", lambda y, x, z: y.__setitem__((torch.arange(3), z), x[:, 0] * 2), N34, index(4, 3))
assigned("traced_scalar_index", lambda y, x, z: y.__setitem__(z, x[0] + 1), N34, index(3))
assigned("traced_value_0d", lambda y, x, z: y.__setitem__((slice(None), 0), z), N34, normal())


def slice_augmented(x: T) -> T:
    y = x.clone()
    y[1:] += 2
    y[:, 0] *= x[:, 1]
    y[0, 0] -= 1
    y[..., -1] /= 2
    y[0] **= 2
    return y


def mask_augmented(x: T) -> T:
    y = x.clone()
    y[x > 0] *= -1
    y[[0, 2]] += 1
    return y


row("set_augmented_slices", slice_augmented, N34)
row("set_augmented_masks", mask_augmented, N34)
row("setitem_dtype_int", lambda x: (y := torch.zeros(3, 4, dtype=i64), y.__setitem__(0, x[0]))[0] + 1, I34)
row("setitem_bool", lambda x: (y := x > 0, y.__setitem__(0, True))[0], N34)
row("setitem_int_truncates", lambda x: (y := torch.zeros(3, 4, dtype=i32), y.__setitem__(slice(None), x))[0], uniform(-9, 9, 3, 4))

# Sorting

row("sort", lambda x: torch.sort(x), D34)
row("sort_descending", lambda x: x.sort(dim=0, descending=True).values, D34)
row("sort_named", lambda x: (x.sort().indices, x.sort().values), D34)
row("sort_stable", lambda x: torch.sort(x, stable=True, dim=1), ints(0, 4, 3, 6))
row("argsort", lambda x: x.argsort(), D34)
row("argsort_descending", lambda x: torch.argsort(x, dim=0, descending=True), D34)
row("msort", lambda x: torch.msort(x), D34)
row("topk", lambda x: torch.topk(x, 2), D34)
row("topk_smallest", lambda x: x.topk(2, dim=0, largest=False).values, D34)
row("topk_indices", lambda x: x.topk(3).indices, D34)
row("rank", lambda x: x.argsort(1).argsort(1), D34)

# Linear algebra

for name, fn, draws in [
    ("mm", torch.mm, (N34, normal(4, 2))), ("bmm", torch.bmm, (N234, normal(2, 4, 2))), ("mv", torch.mv, (N34, N4)), ("dot", torch.dot, (N4, N4)), ("vdot", torch.vdot, (N4, N4)),
    ("inner", torch.inner, (N34, N34)), ("outer", torch.outer, (N4, normal(3))), ("ger", torch.ger, (N4, normal(3))), ("kron", torch.kron, (N34, normal(2, 2))),
    ("matmul_vec", torch.matmul, (N234, N4)), ("matmul_broadcast", torch.matmul, (normal(2, 1, 3, 4), normal(5, 4, 2))), ("addmm", torch.addmm, (normal(3, 2), N34, normal(4, 2))),
    ("addmv", torch.addmv, (normal(3), N34, N4)), ("addr", torch.addr, (N34, normal(3), N4)), ("baddbmm", torch.baddbmm, (normal(2, 3, 2), N234, normal(2, 4, 2))),
    ("addbmm", torch.addbmm, (normal(3, 2), N234, normal(2, 4, 2))), ("chain_matmul", torch.linalg.multi_dot, None), ("cdist", torch.cdist, (N34, normal(5, 4))),
    ("vecdot", torch.linalg.vecdot, (N34, N34)), ("cosine_similarity", torch.cosine_similarity, (N34, N34)), ("pairwise_distance", torch.pairwise_distance, (N34, N34)),
]:  # fmt: skip
    if draws is None:
        row("la_" + name, lambda x, y, z: torch.linalg.multi_dot([x, y, z]), N34, normal(4, 2), normal(2, 5))
    else:
        row("la_" + name, lambda *a, f=fn: f(*a), *draws)
row("la_cross", lambda x, y: torch.cross(x, y, dim=-1), normal(4, 3), normal(4, 3))
row("la_linalg_cross", lambda x, y: torch.linalg.cross(x, y), normal(4, 3), normal(1, 3))
row("la_einsum", lambda x, y: torch.einsum("ij,jk->ik", x, y), N34, normal(4, 2))
row("la_einsum_batch", lambda x, y: torch.einsum("bij,bj->bi", x, y), N234, normal(2, 4))
row("la_einsum_ellipsis", lambda x, y: torch.einsum("...i,...i->...", x, y), N34, N34)
row("la_einsum_sublist", lambda x, y: torch.einsum(x, [0, 1], y, [1, 2], [0, 2]), N34, normal(4, 2))
row("la_tensordot", lambda x, y: torch.tensordot(x, y, dims=1), N34, normal(4, 2))
row("la_tensordot_dims", lambda x, y: torch.tensordot(x, y, dims=([0], [1])), N34, normal(2, 3))
row("la_bilinear", lambda x, y, z: torch.nn.functional.bilinear(x, y, z), N34, normal(3, 2), normal(5, 4, 2))
row("la_matrix_power", lambda x: torch.linalg.matrix_power(x, 3), N33)
row("la_matrix_power_negative", lambda x: torch.matrix_power(x, -1), spd(3, 3))
row("la_matrix_exp_large", lambda x: torch.matrix_exp(x), lambda g: -40 * spd(4, 4, dtype=f64)(g) + 30 * normal(4, 4, dtype=f64)(g).triu(1), rtol=1e-5, atol=1e-12)
row("la_matrix_exp_float32", lambda x: torch.matrix_exp(x), normal(2, 4, 4))
row("la_matrix_exp", lambda x: torch.matrix_exp(x), normal(3, 3, dtype=f64), rtol=1e-5)
row("la_vector_norm", lambda x: torch.linalg.vector_norm(x, ord=3, dim=1), N34)
row("la_norm", lambda x: torch.linalg.norm(x), N34)
row("la_norm_dim", lambda x: torch.linalg.norm(x, dim=-1, keepdim=True), N34)
row("la_matrix_norm", lambda x: torch.linalg.matrix_norm(x), N234)
row("la_matrix_norm_one", lambda x: torch.linalg.matrix_norm(x, ord=1), N234)
row("la_det", lambda x: torch.linalg.det(x), spd(3, 3))
row("la_det_batch", lambda x: torch.det(x), normal(2, 3, 3))
row("la_logdet", lambda x: torch.logdet(x), spd(3, 3))
row("la_slogdet", lambda x: tuple(torch.linalg.slogdet(x)), spd(3, 3))
row("la_inv", lambda x: torch.linalg.inv(x), spd(3, 3))
row("la_inverse_method", lambda x: x.inverse(), spd(2, 3, 3))
row("la_pinv", lambda x: torch.linalg.pinv(x), normal(4, 2))
row("la_det_double", lambda x: torch.linalg.det(x) + torch.linalg.slogdet(x)[1], normal(2, 4, 4, dtype=f64))
row("la_pinv_number", lambda x: torch.linalg.pinv(x), normal(1, 1, dtype=f64))
row("la_pinv_wide", lambda x: torch.linalg.pinv(x), normal(2, 3, 6, dtype=f64), apart=("onnx",))
row("la_pinv_deficient", lambda x: torch.linalg.pinv(x[:, :2] @ x[:, 2:].mT, rtol=1e-9), normal(5, 4, dtype=f64), apart=("onnx",))
row("la_pinverse", lambda x: x.pinverse(), normal(4, 2))
row("la_solve", lambda x, y: torch.linalg.solve(x, y), spd(3, 3), normal(3, 2))
row("la_solve_vector", lambda x, y: torch.linalg.solve(x, y), spd(3, 3), normal(3))
row("la_solve_triangular", lambda x, y: torch.linalg.solve_triangular(x.triu(), y, upper=True), spd(3, 3), normal(3, 2))
row("la_cholesky", lambda x: torch.linalg.cholesky(x), spd(3, 3))
if hasattr(torch.ops.aten, "cholesky"):  # torch 2.15 has no more
    row("la_cholesky_old", lambda x: torch.cholesky(x), spd(3, 3))
row("la_cholesky_solve", lambda x, y: torch.cholesky_solve(y, torch.linalg.cholesky(x)), spd(3, 3), normal(3, 2))
row("la_cholesky_inverse", lambda x: torch.cholesky_inverse(torch.linalg.cholesky(x)), spd(3, 3))
row("la_qr", lambda x: tuple(torch.linalg.qr(x)), normal(4, 3))
row("la_svdvals_large", lambda x: torch.linalg.svdvals(x), normal(8, 11, dtype=f64), apart=("onnx",))
row("la_svdvals", lambda x: torch.linalg.svdvals(x), normal(4, 3), apart=("onnx",))
row("la_svd_rebuilt", lambda x: (lambda u, s, v: u @ torch.diag(s**2) @ v)(*torch.linalg.svd(x, full_matrices=False)), normal(4, 3))
row("la_eigh_values", lambda x: torch.linalg.eigh(x).eigenvalues, spd(3, 3))
row("la_eigh_function", lambda x: (lambda w, v: v @ torch.diag(w.sqrt()) @ v.mT)(*torch.linalg.eigh(x)), spd(3, 3))
row("la_eigvalsh", lambda x: torch.linalg.eigvalsh(x), spd(3, 3))
row("la_eigvals_sorted", lambda x: torch.linalg.eigvals(x).real.sort().values, spd(3, 3))
row("la_lstsq", lambda x, y: torch.linalg.lstsq(x, y, driver="gels").solution, normal(5, 3), normal(5, 2))
row("la_lu_rebuilt", lambda x: (lambda p, lo, up: p @ lo @ up + lo)(*torch.linalg.lu(x)), spd(3, 3))
row("la_lu_solve", lambda x, y: torch.linalg.lu_solve(*torch.linalg.lu_factor(x), y), spd(3, 3), normal(3, 2))
row("la_cond", lambda x: torch.linalg.cond(x), spd(3, 3), apart=("onnx",))
row("la_matrix_rank", lambda x: torch.linalg.matrix_rank(x), lambda g: torch.diag(ints(0, 2, 3, dtype=f32)(g)), apart=("onnx",))
row("la_cov", lambda x: torch.cov(x), N34)
row("la_corrcoef", lambda x: torch.corrcoef(x), N34)
row("la_vander", lambda x: torch.vander(x, 3), N4)
row("la_tensorinv", lambda x: torch.linalg.tensorinv(x.reshape(2, 2, 4), ind=2), spd(4, 4))
row("la_rotation_from_cross", lambda x, y: torch.stack([x, torch.cross(x, y, dim=0), y], -1), normal(3), normal(3))

# Complex numbers and fft inside a node

row("fft_rfft_abs", lambda x: torch.fft.rfft(x).abs(), normal(3, 8))
row("fft_rfft_parts", lambda x: (torch.fft.rfft(x).real, torch.fft.rfft(x).imag), normal(3, 8))
row("fft_round_trip", lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2, n=8), normal(3, 8))
row("fft_fft_view", lambda x: torch.view_as_real(torch.fft.fft(x, dim=0)), normal(4, 3))
row("fft_ifft_real", lambda x: torch.fft.ifft(torch.fft.fft(x) * 0.5).real, normal(3, 8))
row("fft_fft2_abs", lambda x: torch.fft.fft2(x).abs(), normal(4, 4))
row("fft_ortho", lambda x: torch.fft.rfft(x, norm="ortho").abs(), normal(8))
row("fft_fftshift", lambda x: torch.fft.fftshift(x), N34)
row("fft_ifftshift", lambda x: torch.fft.ifftshift(x, dim=1), N34)
row("fft_fftfreq", lambda x: x * torch.fft.fftfreq(4, d=0.1), N34)
row("fft_low_pass", lambda x: (lambda z: torch.fft.irfft(torch.where(torch.arange(5) < 3, z, 0), n=8))(torch.fft.rfft(x)), normal(3, 8))
row("complex_make", lambda x, y: torch.complex(x, y).abs(), N34, N34)
row("complex_polar", lambda x, y: torch.view_as_real(torch.polar(x, y)), P34, N34)
row("complex_view", lambda x: torch.view_as_complex(x.reshape(3, 2, 2).contiguous()).abs(), N34)
row("complex_multiply", lambda x, y: (torch.complex(x, y) * torch.complex(y, x)).imag, N34, N34)
row("complex_j", lambda x: (x * 1j + 2).real + (x * 1j).imag, N34)
row("complex_exp", lambda x: torch.exp(1j * x).real, N34)
row("complex_conj", lambda x, y: torch.view_as_real(torch.complex(x, y).conj().resolve_conj()), N34, N34)
row("complex_angle", lambda x, y: torch.angle(torch.complex(x, y)), N34, N34)
row("complex_matmul", lambda x, y: (torch.complex(x, y) @ torch.complex(y, x).mT).real, N34, N34)
row("complex_H", lambda x, y: torch.complex(x, y).H.abs() + torch.complex(x, y).H.imag, N34, N34)
row("complex_set_real", lambda x, y: (z := torch.complex(x, y), z.real.mul_(2))[0].abs(), N34, N34)
row("complex_imag_property", lambda x, y: torch.complex(x, y).square().imag * 2, N34, N34)
for name, part in {
    "select": lambda z: z[0] + z[:, 1:2],
    "index": lambda z: z[:, torch.tensor([0, 2])],
    "mask": lambda z: torch.where(z.real > 0, z, z * 2),
    "move": lambda z: z.flip(0).roll(1, 1).T.reshape(2, 6),
    "join": lambda z: torch.cat([z, z * 2], 0) + torch.stack([z, z - 1], 0).flatten(0, 1),
    "split": lambda z: z.unbind(0)[1] + torch.cat(z.chunk(2, 1)[::-1], 1),
    "gather": lambda z: z.gather(1, torch.tensor([[0], [3], [1]])) + z.repeat(1, 2)[:, 2:6] + z.diagonal()[0],
    "write": lambda z: (w := z.clone(), w.__setitem__((slice(None), 0), z[:, 1]))[0].index_put((torch.tensor([0]),), z[1]),
    "pad": lambda z: torch.nn.functional.pad(z, (1, 1), value=0.5).tril(),
    "fill": lambda z: z.masked_fill(z.imag > 0, 2.5),
    "equal": lambda z: torch.where(z == torch.complex(z.real, z.imag.abs()), z, z * 2),
    "root": lambda z: z.sqrt() + z.log(),
    "waves": lambda z: z.sin() * z.cos(),
    "running": lambda z: z.cumsum(0) + z.prod(1, keepdim=True),
    "dot": lambda z: torch.dot(z[0], z[1]) + torch.mv(z, z[2]),
    "conjugate": lambda z: torch.outer(z[0], z[1].conj()) + torch.vdot(z[0], z[1]) + torch.angle(z * z.conj() + z)[0],
}.items():
    row(f"complex_{name}", lambda x, y, f=part: torch.view_as_real(f(torch.complex(x, y))), N34, N34)
    row(f"complex_{name}_wide", lambda x, y, f=part: torch.view_as_real(f(torch.complex(x, y))), normal(3, 4, dtype=f64), normal(3, 4, dtype=f64))
row("fake_quantize", lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, 0, 255) + x, N34)
row("fake_quantize_tensor", lambda x: torch.fake_quantize_per_tensor_affine(x, torch.tensor(0.1), torch.tensor(0), -128, 127) + x, N34)
row("fake_quantize_channel", lambda x: torch.fake_quantize_per_channel_affine(x, torch.tensor([0.1, 0.2, 0.3]), torch.zeros(3, dtype=i32), 0, -128, 127) + x, N34)
row("stft_magnitude", lambda x: torch.stft(x, n_fft=8, hop_length=4, window=torch.hann_window(8), return_complex=True).abs(), normal(32))

# dtypes

for name, dtype in {"f64": f64, "f16": f16, "i8": i8, "i16": i16, "i32": i32, "i64": i64}.items():
    row(f"cast_to_{name}", lambda x, d=dtype: x.to(d), uniform(-5, 5, 3, 4))
for name in "double half float int long short char".split():
    row("cast_method_" + name, lambda x, m=name: getattr(x, m)(), uniform(-5, 5, 3, 4))
row("cast_byte", lambda x: x.byte(), uniform(0, 9, 3, 4))
row("cast_bfloat16_inside", lambda x: x.bfloat16().float(), N34)
row("cast_bfloat16_maths", lambda x: (x.bfloat16() * 3 + 1).float(), N34, rtol=2e-2, atol=2e-2)
row("cast_type", lambda x: x.type(f64), N34)
row("cast_type_string", lambda x: x.type("torch.DoubleTensor"), N34)
row("cast_type_as", lambda x, y: x.type_as(y) + y, I34, N34)
row("cast_to_other", lambda x, y: x.to(y) * y, I34, normal(3, 4, dtype=f64))
row("cast_to_copy", lambda x: x.to(f32, copy=True).add_(1), N34)
row("cast_round_trip", lambda x: x.int().float() + x, uniform(-5, 5, 3, 4))
row("cast_bool_of_float", lambda x: x.bool(), ints(-1, 2, 3, 4, dtype=f32))
row("cast_to_bool", lambda x: x.to(torch.bool), ODD34)
row("cast_bool_of_int", lambda x: x.bool(), ints(-1, 2, 3, 4))
row("cast_float_of_bool", lambda x: x.float() * 2 - 1, B34)
row("cast_int_of_bool", lambda x: x.int().sum(0), B34)
row("dtype_f64", lambda x: torch.sin(x) * x + 1, normal(3, 4, dtype=f64))
row("dtype_f16", lambda x: x * 2 + x.sum(), normal(3, 4, dtype=f16), rtol=1e-2, atol=2e-2)
row("dtype_i32", lambda x: x * 3 - x // 2, ints(-9, 9, 3, 4, dtype=i32))
for name, dtype in {"i8": i8, "i16": i16, "u8": u8}.items():
    narrow = ints(0 if dtype is u8 else -120, 120, 2, 3, dtype=dtype)
    row(f"narrow_arithmetic_{name}", lambda x: [-x, x**2, x.square() + 7, x @ x.T, x.sum(0) ** 3], narrow)
    row(f"narrow_choice_{name}", lambda x: [x.clamp(-5, 9), torch.maximum(x, x.flip(0)), torch.where(x > 3, x, 0), x.argmax(1)], narrow)
    row(f"narrow_order_{name}", lambda x: [x.sort(1).values, x.sort(0, descending=True).values, x.max(1).values, x.argmin(1)], narrow)
    row(f"narrow_form_{name}", lambda x: [x.tril(), torch.nn.functional.pad(x, (1, 2)), x << 2, x >> 1], narrow)
row("logarithm_of_powers", lambda x: [torch.log2(2.0**x).floor(), torch.log10(10.0**x).floor()], ints(0, 30, 3, 4, dtype=f32))
row("powers_that_wrap", lambda x: [x**3, x**5, x**0], ints(-(1 << 40), 1 << 40, 3, 4))
row("remainders_of_large", lambda x, y: [x % y, x // y, x % 7, 7 % y, torch.fmod(x, y)], ints(-(1 << 60), 1 << 60, 3, 4), IN34)
row("shifts_beyond", lambda x, y: [x << y, x >> y, x.int() << y.int(), x.int() >> y.int()], ints(-99, 99, 3, 4), ints(-2, 70, 3, 4))
row("odd_functions", lambda x: [x.trunc(), x.frac(), torch.special.entr(x), torch.xlogy(x, x + 1), x.lerp(x * 2, 0.3)], ODD34)
row("odd_activations", lambda x: [torch.nn.functional.hardsigmoid(x), torch.nn.functional.mish(x), torch.selu(x)], ODD34)
row("odd_reductions", lambda x: [x.logsumexp(1), x.nansum(0), x.count_nonzero(1), torch.linalg.vector_norm(x, 3, 1)], ODD34)
row("index_tensors_apart", lambda x, i, j: [x[i, :, j], x[:, i, j % 3], x[i[:, None], j]], normal(3, 3, 4), ints(-3, 3, 5), ints(-3, 3, 5))
row("index_written_apart", lambda x, i, y: [x.index_put((i, i), y, accumulate=True), x.index_add(1, i % 3, x[:, [0, 1, 2, 0, 1]])], normal(3, 3, 4), ints(-3, 3, 5), normal(4))
row("masked_scatter_rows", lambda x, m, y: x.masked_scatter(m, y), N34, bools(3, 1), normal(12))
row("factors_of_zero", lambda x, a: [x * 2, torch.baddbmm(x.log(), a, a, beta=0), torch.addr(x[0].log(), a[0, 0], a[0, 1], beta=0)], normal(2, 3, 3), normal(2, 3, 3))
row("max_pool_places", lambda x: list(torch.nn.functional.adaptive_max_pool2d(x, (2, 3), return_indices=True)), distinct(2, 5, 7))
row("narrow_bounds", lambda x: [x.clamp(min=-3), x.clamp_max(200), x.clamp(-7, 90)], ints(0, 256, 2, 3, dtype=u8))
row("bool_arithmetic", lambda x: [(x > 0) + (x > 1), (x > 0) ** 2, (x > 0) * (x < 1), (x > 0) + 1], N34)
for name, dtype in {"f32": f32, "f64": f64}.items():
    odd: Draw = lambda g, dtype=dtype: ODD34(g).to(dtype)  # noqa: E731
    row(f"order_of_nan_{name}", lambda x: [*x.sort(dim=1, stable=True), *x.sort(dim=0, descending=True, stable=True), x.topk(2).values, x.kthvalue(2).values], odd)
    row(f"place_of_nan_{name}", lambda x: [x.argmax(1), x.argmin(0, keepdim=True), x.argmax(), x.argmin(keepdim=True), x.max(1).values], odd)
    row(f"ranks_without_nan_{name}", lambda x: [x.nanquantile(0.3, dim=1), x.nanmedian()], odd)
row("dtype_i16", lambda x: x.to(i32) * 3, ints(-9, 9, 3, 4, dtype=i16))
row("dtype_i8", lambda x: x.to(i32) * 3, ints(-9, 9, 3, 4, dtype=i8))
row("dtype_u8", lambda x: x.float() / 255, ints(0, 256, 3, 4, dtype=u8))
row("dtype_u8_wraps", lambda x: x + 200, ints(0, 256, 3, 4, dtype=u8))
row("dtype_i32_wraps", lambda x: x * 2**30, ints(-9, 9, 3, 4, dtype=i32))
row("dtype_bool_out", lambda x: ~(x & (x.roll(1, 0) ^ True)), B34)
row("dtype_bf16_port", lambda x: x * 2, normal(3, 4, dtype=bf16), rtol=2e-2, atol=2e-2)
row("dtype_complex_port", lambda x: (x * 2).abs(), lambda g: torch.complex(N34(g), N34(g)))
row("dtype_finfo", lambda x: x.clamp(min=torch.finfo(x.dtype).eps).log(), N34)
row("dtype_iinfo", lambda x: torch.where(x > 0, x, torch.iinfo(x.dtype).max), I34)
row("dtype_result_type", lambda x: x.to(torch.result_type(x, 1.5)) * 1.5, I34)
row("isnan_filter", lambda x: torch.where(torch.isnan(torch.sqrt(x)), 0.0, x), N34)
row("is_predicates", lambda x: x * 2 if x.is_floating_point() and not x.is_complex() and not x.is_cuda else x, N34)

# Arguments of other kinds

row("arg_numpy_scalar", lambda x: x * np.float32(2.5) + np.float64(0.5), N34)
row("arg_numpy_int", lambda x: x.sum(np.int64(1)), N34)
row("arg_numpy_left", lambda x: torch.tensor(np.float32(2.5)) * x, N34)
row("arg_numpy_array_as_tensor", lambda x: x + torch.from_numpy(np.ones((3, 4), np.float32)), N34)
row("arg_numpy_bool", lambda x: x.sum(1, keepdim=np.bool_(True).item()), N34)
row("arg_zero_d_number", lambda x: x * torch.tensor(3.0) + torch.tensor(2), N34)
row("arg_zero_d_traced", lambda x, y: x + y * 2, N34, normal())
row("arg_inf", lambda x: torch.where(x > 0, x, -float("inf")), N34)
row("arg_bool_as_number", lambda x: x * True + False, N34)
row("arg_torch_size", lambda x: x.reshape(torch.Size([4, 3])), N34)
row("arg_kwargs", lambda x, y: torch.add(input=x, other=y, alpha=2), N34, N34)
row("arg_default_dtype_const", lambda x: x + torch.linspace(0, 1, 4) + torch.arange(4) + torch.eye(3, 4), N34)
row("arg_logspace", lambda x: x * torch.logspace(0, 1, 4) * torch.full((4,), 2.0), N34)
row("arg_shape_from_other", lambda x, y: x.expand(y.shape) + y, N4, N34)
row("arg_list_of_tensors_sum", lambda x, y, z: sum([x, y, z]), N34, N34, N34)
row("arg_named_result_unpack", lambda x: (lambda v, i: v * i)(*x.max(dim=1)), D34)
row("arg_out_dtype_sum", lambda x: torch.sum(x, dim=1, dtype=i32), I34)
row("arg_dim_negative", lambda x: x.unsqueeze(-2).cumsum(-3).flatten(-2), N34)
row("arg_memory_format", lambda x: x[None, None].contiguous(memory_format=torch.channels_last) * 2, N34)

# Free functions that read as one call

row("cov_sum_product", lambda x, y: torch.addmm(x, x, y, beta=0.5, alpha=-1), N33, N33)
row("renorm", lambda x: torch.renorm(x, 2, 0, 1.0), N34)
row("unravel_index", lambda x: torch.unravel_index(x, (3, 4)), index(12, 5))
row("tril_indices", lambda x: x[tuple(torch.tril_indices(3, 3))], N33)
row("count_nonzero_comparison", lambda x: torch.count_nonzero(x > 0, dim=1), N34)
row("clone_preserves", lambda x: torch.clone(x, memory_format=torch.preserve_format) - 1, N34)
row("vstack_of_cat", lambda x, y: torch.vstack([torch.cat([x, y]), torch.cat([y, x])]), N4, N4)
row("polyval_horner", lambda x: ((2.0 * x + 1.0) * x - 3.0) * x + 0.5, N34)
row("long_chain", lambda x: [y := x, [y := torch.tanh(y * 1.01 + 0.01) for _ in range(60)]][1][-1], N34)
