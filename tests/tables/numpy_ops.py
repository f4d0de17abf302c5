"""NumPy as observation code uses it: arrays in, arrays out."""

# ruff: noqa: E501 -- a row is a line

from __future__ import annotations

import math
from collections import deque
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from tests.tables.case import Draw, Table, bools, distinct, index, ints, normal, permutation, quaternion, spd, uniform

A = np.ndarray
f64, i32 = torch.float64, torch.int32
row = Table("numpy_ops", numpy=True)
CASES = row.cases
N34, N33, N4 = normal(3, 4), normal(3, 3), normal(4)
N234 = normal(2, 3, 4)
P34, U34, D34 = uniform(0.2, 3.0, 3, 4), uniform(-0.9, 0.9, 3, 4), distinct(3, 4)
I34, B34 = ints(-9, 9, 3, 4), bools(3, 4)
NZ34: Draw = lambda g: uniform(0.3, 3.0, 3, 4)(g) * (ints(0, 2, 3, 4)(g) * 2 - 1)  # noqa: E731
IN34: Draw = lambda g: ints(1, 9, 3, 4)(g) * (ints(0, 2, 3, 4)(g) * 2 - 1)  # noqa: E731
ODD = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.5])
ODD34: Draw = lambda g: ODD[torch.randint(0, 6, (3, 4), generator=g)]  # noqa: E731
GAPS34: Draw = lambda g: torch.where((torch.rand(3, 4, generator=g) < 0.3) & (torch.arange(4) > 0), float("nan"), distinct(3, 4)(g))  # noqa: E731


def unary(names: str, draw: Draw) -> None:
    """One row per function of one array."""
    for name in names.split():
        row(name, lambda x, f=getattr(np, name): f(x), draw)


def binary(names: str, a: Draw, b: Draw) -> None:
    """One row per function of two arrays."""
    for name in names.split():
        row(name, lambda x, y, f=getattr(np, name): f(x, y), a, b)


def idiom(*draws: Any, **more: Any) -> Any:
    """Add the decorated function as a row."""

    def add(fn: Any) -> Any:
        row(fn.__name__, fn, *draws, **more)
        return fn

    return add


# Element-wise functions

unary("negative positive absolute abs fabs sign square exp exp2 expm1 sin cos tan sinh cosh tanh arctan arcsinh", N34)
unary("floor ceil trunc rint fix deg2rad rad2deg radians degrees sinc signbit cbrt round", N34)
unary("sqrt reciprocal log log2 log10 log1p", P34)
unary("arcsin arccos arctanh", U34)
unary("arccosh", uniform(1.2, 4.0, 3, 4))
unary("isnan isinf isfinite isposinf isneginf nan_to_num logical_not", ODD34)
unary("invert", I34)
binary("add subtract multiply maximum minimum fmax fmin arctan2 hypot copysign logaddexp logaddexp2", N34, N34)
binary("divide true_divide floor_divide mod remainder fmod", N34, NZ34)
binary("power float_power", P34, N34)
binary("greater greater_equal less less_equal equal not_equal", ints(0, 3, 3, 4), ints(0, 3, 3, 4))
binary("logical_and logical_or logical_xor", B34, B34)
binary("bitwise_and bitwise_or bitwise_xor", I34, I34)
binary("left_shift right_shift", ints(0, 50, 3, 4), ints(0, 4, 3, 4))
binary("heaviside", ints(-1, 2, 3, 4, dtype=torch.float32), N34)
row("heaviside_of_nan", lambda x: np.heaviside(x, 0.5), ODD34)
binary("gcd lcm", ints(1, 30, 3, 4), ints(1, 30, 3, 4))
row("ldexp", lambda x, y: np.ldexp(x, y), N34, ints(-3, 3, 3, 4, dtype=i32))
row("isclose", lambda x, y: np.isclose(x, y, atol=0.5), N34, N34)
row("round_decimals", lambda x: np.round(x, 2), N34)
row("around_decimals", lambda x: np.around(x, decimals=1), N34)
row("clip", lambda x: np.clip(x, -0.5, 0.5), N34)
row("clip_none", lambda x: np.clip(x, None, 0.3), N34)
row("clip_arrays", lambda x, y: np.clip(x, -y, y), N34, uniform(0.1, 1, 4))
row("clip_method", lambda x: x.clip(min=0), N34)
row("where", lambda x, y: np.where(x > 0, x, y), N34, N34)
row("where_numbers", lambda x: np.where(x > 0, 1.0, -1.0), N34)
row("modf", lambda x: np.modf(x), N34)
row("divmod", lambda x, y: np.divmod(x, y), N34, NZ34)
row("builtin_divmod", lambda x: divmod(x, 0.7), N34)
row("frexp", lambda x: np.frexp(x)[0], NZ34)
row("angle_of_complex", lambda x, y: np.angle(x + 1j * y), N34, N34)
row("real_imag", lambda x, y: ((x + 1j * y) * (y - 2j * x)).real + ((x + 1j * y) ** 2).imag, N34, N34)
row("nan_to_num_values", lambda x: np.nan_to_num(x, nan=0.5, posinf=3.0, neginf=-3.0), ODD34)
row("polyval", lambda x: np.polyval([2.0, -1.0, 0.5], x), N34)
row("interp", lambda x: np.interp(x, [-2.0, 0.0, 1.0, 2.0], [0.0, 1.0, 4.0, 5.0]), N34)
row("interp_outside", lambda x: np.interp(x * 3, np.linspace(-1, 1, 5), np.arange(5.0), left=-1.0, right=9.0), N34)
row("digitize", lambda x: np.digitize(x, [-1.0, 0.0, 1.0]), N34)
row("digitize_right", lambda x: np.digitize(x, np.array([-1.0, 0.0, 1.0]), right=True), N34)
row("digitize_falling", lambda x: np.digitize(x, [1.0, 0.0, -1.0]) * 10 + np.digitize(x, [1.0, 0.0, -1.0], right=True), ints(-2, 3, 3, 4, dtype=torch.float32))
row("digitize_of_nan", lambda x: np.digitize(x, [-1.0, 0.0, 1.0]) * 10 + np.digitize(x, [1.0, 0.0, -1.0], right=True), ODD34)
row("select", lambda x: np.select([x < -0.5, x < 0.5], [x * 2, x * 3], default=7.0), N34)
row("select_of_numbers", lambda x: np.select([x < -0.5, x < 0.5], [0.1, 2], default=7.0) * x, N34)
row("piecewise", lambda x: np.piecewise(x, [x < 0, x >= 0], [lambda v: -v, lambda v: v * 2]), N34)
row("vectorize_signature", lambda x: np.vectorize(lambda v: v.sum() * v, signature="(n)->(n)")(x), N34)
row("clip_narrow", lambda x: np.clip(x, 1, 3) + np.clip((x.astype(np.int16) - 100) * 2, -50, None).astype(np.uint8), ints(0, 200, 3, 4, dtype=torch.uint8))
row("asarray_chkfinite", lambda x: np.asarray_chkfinite(x) * np.asarray_chkfinite(x, np.float64), N34)
row("unwrap", lambda x: np.unwrap(x * 5), normal(8))
row("unwrap_axis", lambda x: np.unwrap(x * 4, axis=0), N34)
row("choose", lambda x, y: np.choose(x, [y, y * 2, -y]), ints(0, 3, 3, 4), N34)
row("choose_a_number", lambda x, y: np.choose(x, [y[0], 1, -y[1]]), ints(0, 3, 3, 4), N34)
row("reduce_where", lambda x, y: [np.sum(x, axis=1, where=y), np.max(x, initial=-9.0, where=y), np.prod(x, axis=(0, 1), keepdims=True)], N34, B34)
row("i0", lambda x: np.i0(x), N34, rtol=1e-3)

# Operators

row("op_arithmetic", lambda x, y: (x + y) * (x - y) / 2 - -x + +y, N34, N34)
row("op_floordiv_mod", lambda x, y: x // y + x % y, N34, NZ34)
row("op_int_floordiv_mod", lambda x, y: (x // y) * 10 + x % y, I34, IN34)
row("op_reflected", lambda x: 2 + x - (3 - x) * (4 / x) + 2**x + 7 // x + 7 % x, NZ34)
row("op_pow", lambda x: x**2 + x**3, N34)
row("op_pow_half", lambda x: x**0.5 + x**-1.0, P34)
row("op_matmul", lambda x, y: x @ y, N34, normal(4, 2))
row("op_rmatmul", lambda x: np.ones((2, 3), np.float32) @ x, N34)
row("op_compare", lambda x, y: (x > y) & (x < 1) | (x == y) ^ (y != 0), ints(-2, 3, 3, 4), ints(-2, 3, 3, 4))
row("op_invert", lambda x: ~(x > 0), N34)
row("op_shift", lambda x: (x << 2) | (x >> 1), ints(0, 30, 3, 4))
row("op_abs", lambda x: abs(x), N34)
row("op_chain_numbers", lambda x: ((x + 1) * 2.5 - 3) / 4, N34)
row("op_array_const_left", lambda x: np.array([1.0, 2.0, 3.0, 4.0], np.float32) * x - np.ones(4, np.float32), N34)
row("op_f32_scalar_left", lambda x: np.float32(2.0) * x + np.float32(1.0), N34)
row("op_f32_scalar_right", lambda x: x * np.float32(2.0) - np.float32(0.5), N34)
row("op_f64_scalar", lambda x: x * np.float64(2.0), N34)
row("op_int_scalar", lambda x: x * np.int64(3) + np.int32(1), I34)
row("op_pi", lambda x: x * np.pi / 180.0 + np.e, N34)
row("op_f64_array_promotes", lambda x: x * np.array([0.1, 0.2, 0.3, 0.4]), N34)
row("op_int_promotes", lambda x, y: x * y, I34, N34)
row("op_bool_promotes", lambda x, y: x * y + (y > 0), B34, N34)
row("op_broadcast", lambda x, y: x[:, None] * y[None, :], N4, normal(3))


@idiom(N34, NZ34)
def op_augmented(x: A, y: A) -> A:
    z = x.copy()
    z += y
    z -= 0.5
    z *= 2
    z /= y
    z **= 2
    z //= 0.3
    z %= 5
    return z


@idiom(B34, B34)
def op_augmented_logic(x: A, y: A) -> A:
    z = x.copy()
    z |= y
    z ^= x
    z &= y
    return z


# Reductions

for name in "sum prod mean std var min max amin amax argmin argmax any all ptp median count_nonzero".split():
    draw = {"any": lambda g: torch.rand(3, 4, generator=g) < 0.06, "all": lambda g: torch.rand(3, 4, generator=g) < 0.94, "count_nonzero": ints(0, 2, 3, 4)}.get(name, D34)
    # NumPy 1 gives the count as an int of Python, which is no output.
    row("reduce_" + name, lambda x, f=getattr(np, name): f(x) * np.int64(1) if f is np.count_nonzero else f(x), draw)
    row(f"reduce_{name}_axis", lambda x, f=getattr(np, name): f(x, axis=1), draw)
    if name not in {"median"}:
        row(f"reduce_{name}_keepdims", lambda x, f=getattr(np, name): f(x, axis=0, keepdims=True), draw)
for name in "sum mean std var min max argmax prod any all cumsum".split():
    draw = {"any": lambda g: torch.rand(3, 4, generator=g) < 0.06, "all": lambda g: torch.rand(3, 4, generator=g) < 0.94}.get(name, D34)
    row("method_" + name, lambda x, m=name: getattr(x, m)(axis=-1) if m != "sum" else x.sum(), draw)
row("reduce_sum_axes", lambda x: x.sum(axis=(0, 2)), N234)
row("reduce_sum_int", lambda x: np.sum(x), ints(-9, 9, 3, 4, dtype=i32))
row("reduce_sum_dtype", lambda x: np.sum(x, dtype=np.float64), N34)
row("reduce_std_ddof", lambda x: np.std(x, axis=0, ddof=1), N34)
row("reduce_var_ddof", lambda x: x.var(ddof=1), N34)
row("reduce_mean_int", lambda x: np.mean(x), I34)
row("reduce_average_weights", lambda x, w: np.average(x, axis=1, weights=w), N34, uniform(0.1, 1, 4))
row("reduce_percentile", lambda x: np.percentile(x, 30), D34)
row("reduce_percentile_axis", lambda x: np.percentile(x, [25, 75], axis=1), D34)
row("reduce_quantile", lambda x: np.quantile(x, 0.9, axis=0), D34)
row("reduce_sum_where", lambda x: np.sum(x, where=x > 0), N34)
row("reduce_max_initial", lambda x: np.max(x, axis=1, initial=0.0), N34)
row("reduce_norm", lambda x: np.linalg.norm(x), N34)
row("reduce_norm_axis", lambda x: np.linalg.norm(x, axis=-1, keepdims=True), N34)
row("reduce_norm_one", lambda x: np.linalg.norm(x, ord=1, axis=1), N34)
row("reduce_trapezoid", lambda x: (np.trapezoid if hasattr(np, "trapezoid") else np.trapz)(x, dx=0.1, axis=1), N34)
row("reduce_nansum", lambda x: np.nansum(x), GAPS34)
row("reduce_nansum_axis", lambda x: np.nansum(x, axis=1), GAPS34)
row("reduce_nanmean", lambda x: np.nanmean(x, axis=1), GAPS34)
row("reduce_nanmax", lambda x: np.nanmax(x, axis=1), GAPS34)
row("reduce_nanmin", lambda x: np.nanmin(x), GAPS34)
row("reduce_nanstd", lambda x: np.nanstd(x, axis=1), GAPS34)
row("reduce_nanvar_of_infinity", lambda x: np.nanvar(x, axis=0), ODD34)
row("reduce_nanvar", lambda x: np.nanvar(x), GAPS34)
row("reduce_nanmedian", lambda x: np.nanmedian(x, axis=1), GAPS34)
row("reduce_nanmedian_of_infinity", lambda x: np.nanmedian(x, axis=1), lambda g: torch.where(torch.rand(4, 7, generator=g) < 0.5, float("inf"), distinct(4, 7)(g)))
row("reduce_medians_by_position", lambda x: np.median(x, 1, None, False, True) + np.nanmedian(x, 0, None, False, True) + np.percentile(x, 30, 1, None, False, "linear", keepdims=True), D34)
row("reduce_nanprod", lambda x: np.nanprod(x, axis=1), GAPS34)
row("reduce_nanargmax", lambda x: np.nanargmax(x, axis=1), GAPS34)
row("reduce_nanpercentile", lambda x: np.nanpercentile(x, 50, axis=1), GAPS34)
row("cumsum", lambda x: np.cumsum(x), N34)
row("cumsum_axis", lambda x: np.cumsum(x, axis=0), N34)
row("cumprod", lambda x: np.cumprod(x, axis=1), N34)
row("nancumsum", lambda x: np.nancumsum(x, axis=1), GAPS34)
row("diff", lambda x: np.diff(x), N34)
row("diff_n", lambda x: np.diff(x, n=2, axis=0), N34)
row("ediff1d", lambda x: np.ediff1d(x), N4)
row("gradient", lambda x: np.gradient(x, 0.1, axis=1), N34)
row("convolve", lambda x: np.convolve(x, np.array([0.25, 0.5, 0.25], np.float32), mode="same"), normal(8))
row("correlate", lambda x, y: np.correlate(x, y, mode="valid"), normal(8), normal(3))
row("bincount", lambda x: np.bincount(x, minlength=6), lambda g: torch.cat([index(6, 7)(g), torch.tensor([5])]))
row("bincount_beyond_minlength", lambda x: (np.bincount(x, minlength=2) ** 2).sum() + 0 * x, ints(0, 6, 8))
row("histogram", lambda x: np.histogram(x, bins=4, range=(-2.0, 2.0))[0], N34)

# Ufunc methods, out= and where=

row("ufunc_add_reduce", lambda x: np.add.reduce(x, axis=1), N34)
row("ufunc_multiply_reduce", lambda x: np.multiply.reduce(x), N34)
row("ufunc_maximum_reduce", lambda x: np.maximum.reduce(x, axis=0), N34)
row("ufunc_minimum_reduce_list", lambda x, y: np.minimum.reduce([x, y]), N34, N34)
row("ufunc_logical_or_reduce", lambda x: np.logical_or.reduce(x, axis=1), lambda g: torch.rand(3, 4, generator=g) < 0.2)
row("ufunc_add_accumulate", lambda x: np.add.accumulate(x, axis=1), N34)
row("ufunc_maximum_accumulate", lambda x: np.maximum.accumulate(x, axis=1), N34)
row("ufunc_multiply_outer", lambda x, y: np.multiply.outer(x, y), N4, normal(3))
row("ufunc_add_outer", lambda x: np.add.outer(x, x * 2), N4)
row("ufunc_subtract_outer", lambda x: np.subtract.outer(x, np.arange(3, dtype=np.float32)), N4)
row("ufunc_where", lambda x: np.add(x, 1, out=x.copy(), where=x > 0), N34)
row("ufunc_divide_where", lambda x, y: np.divide(x, y, out=np.zeros_like(x), where=y > 0.5), N34, N34)
row("ufunc_dtype", lambda x: np.add(x, 1, dtype=np.float64), N34)


@idiom(N34, index(3, 2))
def ufunc_add_at(x: A, i: A) -> A:
    y = x.copy()
    np.add.at(y, i, 1.0)
    return y


@idiom(N34, index(3, 2))
def ufunc_add_at_places(x: A, i: A) -> A:
    """The arrays in the tuple are an index each."""
    y = np.zeros((3, 4), np.float32)
    np.add.at(y, (i, np.array([1, 1])), x[0, :2])
    np.subtract.at(y, ([0, 2], i), x[1, 2])
    return y


@idiom(N34)
def out_add(x: A) -> A:
    y = np.empty_like(x)
    np.add(x, 1, out=y)
    return y


@idiom(N34)
def out_slice(x: A) -> A:
    y = np.zeros((2, 3, 4), np.float32)
    np.multiply(x, 2, out=y[1])
    return y


@idiom(N34, N34)
def out_is_operand(x: A, y: A) -> A:
    z = x.copy()
    np.maximum(z, y, out=z)
    np.clip(z, -1, 1, out=z)
    return z


@idiom(N34)
def out_mean(x: A) -> A:
    y = np.zeros(3, np.float32)
    np.mean(x, axis=1, out=y)
    np.sqrt(np.abs(y), out=y)
    return y


@idiom(N34, normal(4, 2))
def out_matmul(x: A, y: A) -> A:
    z = np.empty((3, 2), np.float32)
    np.matmul(x, y, out=z)
    return z * 2


# Shapes

for name, fn in {
    "reshape": lambda x: x.reshape(4, 3), "reshape_fn": lambda x: np.reshape(x, (-1,)), "reshape_minus": lambda x: x.reshape(2, -1), "ravel": lambda x: x.ravel(), "ravel_fn": lambda x: np.ravel(x),
    "flatten": lambda x: x.flatten(), "T": lambda x: x.T, "transpose": lambda x: np.transpose(x), "transpose_axes": lambda x: x.transpose(1, 0), "swapaxes": lambda x: np.swapaxes(x, 0, 1),
    "moveaxis": lambda x: np.moveaxis(x, 0, -1), "rollaxis": lambda x: np.rollaxis(x, 1), "expand_dims": lambda x: np.expand_dims(x, 1), "squeeze": lambda x: np.squeeze(x[None]),
    "atleast_1d": lambda x: np.atleast_1d(x[0, 0]), "atleast_2d": lambda x: np.atleast_2d(x[0]), "atleast_3d": lambda x: np.atleast_3d(x), "broadcast_to": lambda x: np.broadcast_to(x, (2, 3, 4)),
    "flip": lambda x: np.flip(x), "flip_axis": lambda x: np.flip(x, axis=0), "fliplr": lambda x: np.fliplr(x), "flipud": lambda x: np.flipud(x), "rot90": lambda x: np.rot90(x), "roll": lambda x: np.roll(x, 1, axis=0),
    "roll_flat": lambda x: np.roll(x, -2), "roll_many": lambda x: np.roll(x, (1, 2), axis=(0, 1)), "tile": lambda x: np.tile(x, (2, 1)), "tile_int": lambda x: np.tile(x, 2), "repeat": lambda x: np.repeat(x, 2, axis=1),
    "repeat_flat": lambda x: np.repeat(x, 2), "repeat_counts": lambda x: np.repeat(x, [1, 0, 2], axis=0), "pad": lambda x: np.pad(x, 1), "pad_value": lambda x: np.pad(x, ((0, 1), (2, 0)), constant_values=3.0),
    "pad_value_traced": lambda x: np.pad(x, 1, constant_values=x[0, 0]), "pad_values": lambda x: np.pad(x, ((1, 2), (0, 1)), constant_values=((1, 2), (3, 4))),
    "pad_edge": lambda x: np.pad(x, ((1, 0), (0, 0)), mode="edge"), "diag": lambda x: np.diag(x), "diagonal": lambda x: x.diagonal(), "tril": lambda x: np.tril(x), "triu": lambda x: np.triu(x, 1), "trace": lambda x: np.trace(x),
    "diagflat": lambda x: np.diagflat(x[0]), "zeros_like": lambda x: np.zeros_like(x) + x, "ones_like": lambda x: np.ones_like(x) * x, "full_like": lambda x: np.full_like(x, 2.5) * x, "empty_like": lambda x: (e := np.empty_like(x), e.fill(2.0))[0] * x,
    "copy": lambda x: np.copy(x) + 1, "array": lambda x: np.array(x) * 2, "asarray": lambda x: np.asarray(x) * 2, "ascontiguousarray": lambda x: np.ascontiguousarray(x.T) * 2, "asanyarray": lambda x: np.asanyarray(x) + 1,
    "asarray_dtype": lambda x: np.asarray(x, dtype=np.float64) + 1, "array_list": lambda x: np.array([x, x * 2]), "split": lambda x: np.split(x, 2, axis=1), "split_at": lambda x: np.split(x, [1, 3], axis=1), "array_split": lambda x: np.array_split(x, 2),
    "hsplit": lambda x: np.hsplit(x, 2), "vsplit": lambda x: np.vsplit(x, 3), "shape_numbers": lambda x: x * x.shape[0] + x.size + x.ndim + len(x), "resize": lambda x: np.resize(x, (2, 2)), "delete": lambda x: np.delete(x, 1, axis=0), "delete_list": lambda x: np.delete(x, [0, 2], axis=1),
    "insert": lambda x: np.insert(x, 1, 9.0, axis=1), "append": lambda x: np.append(x, x[:1] * 2, axis=0), "append_flat": lambda x: np.append(x, [1.0, 2.0]), "ix": lambda x: x[np.ix_([0, 2], [1, 3])],
    "apply_along_axis": lambda x: np.apply_along_axis(lambda v: v.sum() * v[0], 1, x), "unstack": lambda x: np.stack(list(x)[::-1]), "newaxis": lambda x: x[:, np.newaxis] * x[np.newaxis],
}.items():  # fmt: skip
    row("shape_" + name, fn, N34)
if hasattr(np, "permute_dims"):  # new in NumPy 2
    row("shape_matrix_transpose", lambda x: np.matrix_transpose(x), N34)
    row("linalg_in_python", lambda x: [np.linalg.matrix_norm(x), np.linalg.vector_norm(x, axis=1), np.linalg.trace(x), np.linalg.diagonal(x, offset=1) * 2], N33)
    row("cumulative", lambda x: [np.cumulative_sum(x, axis=1, include_initial=True), np.cumulative_prod(x, axis=0)], N34)
    row("shape_permute_dims", lambda x: np.permute_dims(x, (1, 0)), N34)
row("concatenate", lambda x, y: np.concatenate([x, y]), N34, N34)
row("concatenate_axis", lambda x, y: np.concatenate((x, y), axis=-1), N34, N34)
row("concatenate_none", lambda x, y: np.concatenate([x, y], axis=None), N34, N4)
row("concatenate_with_list", lambda x: np.concatenate([x, [1.0, 2.0], np.zeros(2)]), N4)
row("stack", lambda x, y: np.stack([x, y], axis=1), N34, N34)
row("vstack", lambda x, y: np.vstack([x, y]), N4, N4)
row("hstack", lambda x, y: np.hstack([x, y]), N4, normal(2))
row("dstack", lambda x, y: np.dstack([x, y]), N34, N34)
row("column_stack", lambda x, y: np.column_stack([x, y]), N4, N4)
row("block", lambda x, y: np.block([[x, y], [y, x]]), normal(2, 2), normal(2, 2))
row("r_c", lambda x, y: np.r_[x, 0.0, y], N4, N4)
row("c_", lambda x, y: np.c_[x, y], N4, N4)
row("meshgrid", lambda x, y: np.meshgrid(x, y), N4, normal(3))
row("meshgrid_ij", lambda x, y: np.stack(np.meshgrid(x, y, indexing="ij")), N4, normal(3))
row("broadcast_arrays", lambda x, y: np.broadcast_arrays(x, y), N34, N4)

# Indexing

for name, fn in {
    "int": lambda x: x[1], "two": lambda x: x[1, 2], "chained": lambda x: x[1][2], "negative": lambda x: x[-1, -2], "slice": lambda x: x[1:, :2], "step": lambda x: x[:, ::2], "reversed": lambda x: x[::-1],
    "reversed_both": lambda x: x[::-1, ::-1], "reversed_step": lambda x: x[:, 3:0:-2], "ellipsis": lambda x: x[..., 0], "none": lambda x: x[:, None], "list": lambda x: x[[2, 0]], "array": lambda x: x[np.array([2, 0, 1])],
    "two_lists": lambda x: x[[0, 1], [2, 3]], "mask_const": lambda x: x[np.array([True, False, True])], "cols": lambda x: x[:, [3, 1]], "element_arithmetic": lambda x: x[0, 0] * x[1, 1] + x[2, 2], "row_times_element": lambda x: x * x[0, 0],
    "flat": lambda x: x.flat[5] * x, "take": lambda x: np.take(x, [0, 2], axis=1), "take_flat": lambda x: x.take([1, 5]), "iterate": lambda x: sum(r * i for i, r in enumerate(x)), "unpack": lambda x: (lambda a, b, c: a * b + c)(*x), "compress": lambda x: np.compress([True, False, True], x, axis=0),
}.items():  # fmt: skip
    row("index_" + name, fn, N34)
row("index_traced", lambda x, i: x[i], N34, index(3, 5))
row("index_traced_pair", lambda x, i: x[np.arange(3), i], N34, index(4, 3))
row("index_take_along", lambda x: np.take_along_axis(x, np.argsort(x, axis=1), axis=1), D34)
row("index_traced_take", lambda x, i: np.take(x, i, axis=1), N34, index(4, 2))
row("index_mask_sum", lambda x: x[x > 0].sum(), N34)
row("index_mask_mean_rows", lambda x, m: x[m].mean(axis=0), N34, bools(3))
row("index_extract_sum", lambda x: np.extract(x > 0, x).sum(), N34)
row("index_argmax_row", lambda x: x[np.argmax(x[:, 0])], D34)
row("index_searchsorted", lambda x: np.searchsorted(np.array([-1.0, 0.0, 1.0]), x), normal(5))
row("index_isin", lambda x: np.isin(x, [1, 3]), ints(0, 5, 3, 4))
row("index_permutation", lambda x, p: x[:, p], N34, permutation(4))
row("index_unravel", lambda x: np.stack(np.unravel_index(x, (3, 4))), index(12, 5))


@idiom(N4)
def set_obs_buffer(x: A) -> A:
    obs = np.zeros(8)
    obs[:4] = x
    obs[4:6] = x[:2] * 2
    obs[6] = x.sum()
    obs[7] = x[0] * x[1]
    return obs


@idiom(N34)
def set_obs_buffer_f32(x: A) -> A:
    obs = np.zeros((3, 6), dtype=np.float32)
    obs[:, :4] = x
    obs[:, 4] = x.mean(axis=1)
    obs[:, 5] = 1
    return obs


@idiom(N34)
def set_rows(x: A) -> A:
    y = x.copy()
    y[0] = 0
    y[1] += x[2]
    y[:, 3] *= 2
    y[2, ::2] = -1
    return y


@idiom(N34)
def set_mask(x: A) -> A:
    y = x.copy()
    y[y < 0] = 0
    y[x > 1] *= 0.5
    return y


@idiom(N34)
def set_mask_selected(x: A) -> A:
    y = np.zeros_like(x)
    y[x > 0] = x[x > 0] * 2
    return y


@idiom(N34, index(3, 2))
def set_traced_index(x: A, i: A) -> A:
    y = x.copy()
    y[i] = 5.0
    return y


@idiom(N34)
def set_through_view(x: A) -> A:
    y = x.copy()
    v = y[:2]
    v += 1
    y.T[0] = 9
    y.reshape(-1)[5] = -3
    y.ravel()[7] = -4
    return y


@idiom(N34)
def set_through_reversed_view(x: A) -> A:
    y = x.copy()
    v = y[::-1]
    v[0] = 0
    v[:, ::-1][1, 0] = 7
    return y


@idiom(N34)
def base_written_view_read(x: A) -> A:
    y = x.copy()
    v = y[1]
    y *= 3
    return v


@idiom(N34)
def flatten_is_a_copy(x: A) -> A:
    y = x.copy()
    y.flatten()[:] = 0
    return y * 2


@idiom(N34)
def set_fill(x: A) -> A:
    y = x.copy()
    y[0].fill(3.0)
    np.fill_diagonal(y, 5.0)
    return y


@idiom(N34, N34)
def set_copyto(x: A, z: A) -> A:
    y = np.zeros((3, 4), np.float32)
    np.copyto(y, x)
    np.copyto(y, z, where=x > 0)
    return y


@idiom(N34)
def set_put(x: A) -> A:
    y = x.copy()
    np.put(y, [0, 5], [1.0, 2.0])
    np.putmask(y, x > 1, -1.0)
    np.place(y, x < -1, [7.0])
    return y


@idiom(N34)
def set_rows_of_another_type(x: A) -> A:
    y = x.astype(np.float32)
    y[[0, 2]] = x[:2] * np.ones(4)
    y[1, [0, 3]] = [1.0, 2.0]
    return y


@idiom(N34)
def set_putmask_repeated(x: A) -> A:
    y = x.copy()
    np.putmask(y, x > 0, [1.0, 2.0, 3.0, 4.0, 5.0])
    np.putmask(y, x < -1, x * 2)
    return y


@idiom(D34)
def set_put_along_axis(x: A) -> A:
    y = np.zeros_like(x)
    np.put_along_axis(y, np.argmax(x, axis=1)[:, None], 1.0, axis=1)
    return y


@idiom(N34)
def set_input(x: A) -> A:
    x[0] = 1.0
    x += 1
    return x * 2


@idiom(N4, setup=lambda: np.zeros(6, np.float32))
def set_array_made_before(buf: A, x: A) -> A:
    buf[1:5] = x
    return buf * 2


@idiom(N4, normal(5, 4))
def set_history(x: A, h: A) -> A:
    h = np.roll(h, -1, axis=0)
    h[-1] = x
    return h.flatten()


@idiom(D34)
def sort_in_place(x: A) -> A:
    y = x.copy()
    y.sort(axis=0)
    y.partition(1, axis=1)
    y.sort(axis=1)
    return y


# Sorting and sets

row("sort", lambda x: np.sort(x), D34)
row("sort_axis", lambda x: np.sort(x, axis=0), D34)
row("sort_none", lambda x: np.sort(x, axis=None), D34)
row("sort_descending", lambda x: np.sort(x)[:, ::-1], D34)
row("argsort", lambda x: np.argsort(x, axis=1), D34)
row("argsort_method", lambda x: x.argsort(axis=0), D34)
row("argsort_stable", lambda x: np.argsort(x, kind="stable"), ints(0, 4, 3, 6))
row("argpartition_top", lambda x: np.sort(x[np.argpartition(x, -2)[-2:]]), distinct(6))
row("partition_kth", lambda x: np.partition(x, 2)[2], distinct(6))
row("lexsort", lambda x, y: np.lexsort((x, y)), distinct(6), ints(0, 3, 6))
row("allclose_as_array", lambda x, y: np.isclose(x, y).all(axis=1), ints(0, 2, 3, 2, dtype=torch.float32), ints(0, 2, 3, 2, dtype=torch.float32))

# Linear algebra

row("dot_vectors", lambda x, y: np.dot(x, y), N4, N4)
row("dot_matrices", lambda x, y: np.dot(x, y), N34, normal(4, 2))
row("dot_method", lambda x, y: x.dot(y), N34, N4)
row("matmul_batch", lambda x, y: np.matmul(x, y), N234, normal(2, 4, 2))
row("inner", lambda x, y: np.inner(x, y), N34, N34)
row("outer", lambda x, y: np.outer(x, y), N4, normal(3))
row("vdot", lambda x, y: np.vdot(x, y), N34, N34)
row("kron", lambda x, y: np.kron(x, y), N34, normal(2, 2))
row("cross", lambda x, y: np.cross(x, y), normal(4, 3), normal(4, 3))
row("tensordot", lambda x, y: np.tensordot(x, y, axes=1), N34, normal(4, 2))
row("tensordot_axes", lambda x, y: np.tensordot(x, y, axes=([0], [1])), N34, normal(2, 3))
row("einsum", lambda x, y: np.einsum("ij,jk->ik", x, y), N34, normal(4, 2))
row("einsum_batch", lambda x, y: np.einsum("bij,bj->bi", x, y), N234, normal(2, 4))
row("linalg_inv", lambda x: np.linalg.inv(x), spd(3, 3))
row("linalg_det", lambda x: np.linalg.det(x), spd(3, 3))
row("linalg_solve", lambda x, y: np.linalg.solve(x, y), spd(3, 3), normal(3, 2))
row("linalg_cholesky", lambda x: np.linalg.cholesky(x), spd(3, 3))
row("linalg_pinv", lambda x: np.linalg.pinv(x), normal(4, 2), rtol=2e-3, atol=1e-4)
row("linalg_qr_rebuilt", lambda x: (lambda q, r: q @ r * 2)(*np.linalg.qr(x)), normal(4, 3))
row("linalg_svd_values", lambda x: np.linalg.svd(x, compute_uv=False), normal(4, 3))
row("linalg_eigvalsh", lambda x: np.linalg.eigvalsh(x), spd(3, 3))
row("linalg_eigh_rebuilt", lambda x: (lambda w, v: v @ np.diag(np.sqrt(w)) @ v.T)(*np.linalg.eigh(x)), spd(3, 3))
row("linalg_matrix_power", lambda x: np.linalg.matrix_power(x, 3), N33)
row("linalg_lstsq_rank_one", lambda x, y: np.linalg.lstsq(x[:, :1] * np.float32([1, 2, 4]), y, rcond=None)[0], normal(5, 3), normal(5, 2))
row("linalg_lstsq_rank", lambda x, y: y * np.linalg.lstsq(x[:, :1] * (x > 0), y, rcond=1e-3)[2], normal(5, 3), normal(5, 2))
row("linalg_lstsq_wide", lambda x, y: np.linalg.lstsq(x, y, rcond=-1)[0], normal(3, 5), normal(3))
row("linalg_lstsq_residuals", lambda x, y: np.linalg.lstsq(x, y, rcond=None)[1], normal(5, 3), normal(5, 2))
row("linalg_lstsq", lambda x, y: np.linalg.lstsq(x, y, rcond=None)[0], normal(5, 3), normal(5, 2))
row("linalg_multi_dot", lambda x, y, z: np.linalg.multi_dot([x, y, z]), N34, normal(4, 2), normal(2, 5))
row("cov", lambda x: np.cov(x), N34)
row("corrcoef", lambda x: np.corrcoef(x), N34)
row("vander", lambda x: np.vander(x, 3), N4)
row("fft_magnitude", lambda x: np.abs(np.fft.rfft(x)), normal(8))
row("fft_low_pass", lambda x: np.fft.irfft(np.fft.rfft(x) * (np.arange(5) < 3), n=8), normal(8))

# Casts, zero-d values, creation

for name in "float64 float16 int8 int16 int32 int64 bool".split():
    draw = ints(-2, 3, 3, 4, dtype=torch.float32) if name == "bool" else uniform(-5, 5, 3, 4)
    row("astype_" + name, lambda x, d=name: x.astype(getattr(np, d if d != "bool" else "bool_")), draw)
row("astype_string", lambda x: x.astype("float64") + x.astype("f4"), N34)
row("astype_python", lambda x: x.astype(float) + x.astype(int), uniform(-5, 5, 3, 4))
row("astype_u8", lambda x: (x * 255).astype(np.uint8), uniform(0, 1, 3, 4))
row("dtype_f64_port", lambda x: np.sin(x) + 1, normal(3, 4, dtype=f64))
row("dtype_u8_port", lambda x: x.astype(np.float32) / 255.0, ints(0, 256, 3, 4, dtype=torch.uint8))
row("dtype_i32_port", lambda x: x // 2 + x * 3, ints(-9, 9, 3, 4, dtype=i32))
row("dtype_bool_port", lambda x: x.astype(np.float32) * 2 - 1, B34)
row("zero_d_std", lambda x: x / (np.std(x) + 1e-6), N34)
row("zero_d_mean_arithmetic", lambda x: (x - np.mean(x)) * 2 / (x.max() - x.min()), N34)
row("zero_d_chain", lambda x: np.sqrt(np.sum(x**2)) * 2 + 1, N34)
row("zero_d_element_maths", lambda x: np.array([x[0] ** 2, np.sin(x[1]), x[2] - x[3] * 2]), N4)
row("zero_d_maximum", lambda x: np.maximum(x.sum(), 0.1) * x, N34)
row("zero_d_comparison_where", lambda x: np.where(x.mean() > 0, x, -x), N34)
row("zero_d_pow", lambda x: x * x[0] ** 2 * 2 ** x[1], N4)
row("zero_d_input", lambda x, y: x * y + y, N34, normal())
row("create_array_of_elements", lambda x: np.array([x[0], x[1], 0.0]) * 2, N4)
row("create_array_nested", lambda x: np.array([[np.cos(x[0]), -np.sin(x[0])], [np.sin(x[0]), np.cos(x[0])]]), normal(1))
row("create_array_f32", lambda x: np.array([x[0], 2 * x[1]], dtype=np.float32), N4)
row("create_asarray_list", lambda x: np.asarray([x[2], x[0]]) + 1, N4)
row("create_array_of_rows", lambda x: np.array([x[0] * 2, x[1]]), N34)
row("create_full_traced", lambda x: np.full((2, 3), x[0]) * 2, N4)
row("create_full_keywords", lambda x: np.full(shape=(2, 3), fill_value=x[0]) * np.full(shape=3, fill_value=2.0), N4)
row("create_full_of_list", lambda x: np.full((2, 2), [x[0], x[1]]) * 2, N4)
row("create_full_of_number", lambda x: np.full(3, math.sin(x[0])) * 2, N4)
row("create_arange_linspace", lambda x: x + np.arange(4) + np.linspace(0, 1, 4) + np.eye(4)[0], N34)
row("create_outer_grid", lambda x: x + np.indices((3, 4))[0] * 2, N34)

# Between the libraries

row("mixed_from_numpy", lambda x: torch.from_numpy(x) * 2, N34)
row("mixed_as_tensor", lambda x: torch.as_tensor(x, dtype=torch.float64) + 1, N34)
row("mixed_tensor", lambda x: torch.tensor(x) + 1, N34)
row("mixed_tensor_dtype", lambda x: torch.tensor(x, dtype=torch.float64) * 2, N34)
row("mixed_round_trip", lambda x: (torch.from_numpy(x * 2).sin() + 1).numpy() * 3, N34)
row("mixed_module", lambda m, x: m(torch.from_numpy(x).unsqueeze(0)).detach().numpy()[0], N4, setup=lambda: torch.nn.Linear(4, 2))
row("mixed_np_sin_of_tensor", lambda x: np.sin(torch.from_numpy(x)) + 1, N34)
row("mixed_tensor_plus_array", lambda x: torch.from_numpy(x) + torch.from_numpy(np.cos(x)), N34)
row("mixed_asarray_of_tensor", lambda x: np.asarray(torch.from_numpy(x) * 2) + x, N34)
row("mixed_array_of_tensor", lambda x: np.array(torch.from_numpy(x) * 2) - x, N34)
row("mixed_detach_cpu_numpy", lambda x: torch.from_numpy(x).mul(2).detach().cpu().numpy() + 1, N34)
row("mixed_shared_memory", lambda x: (y := x.copy(), torch.from_numpy(y).add_(1))[0] * 2, N34)
row("mixed_stack_of_tensors", lambda x: torch.stack([torch.from_numpy(x), torch.from_numpy(x * 2)]), N34)
row("mixed_float_tensor", lambda x: torch.from_numpy(x.astype(np.float32)).float().unsqueeze(0), normal(4, dtype=f64))

# Robot code


@idiom(quaternion(), normal(3))
def quat_rotate_inverse(q: A, v: A) -> A:
    w, u = q[0], q[1:]
    return v * (2.0 * w**2 - 1.0) - np.cross(u, v) * w * 2.0 + u * np.dot(u, v) * 2.0


@idiom(quaternion())
def quat_to_euler(q: A) -> A:
    w, x, y, z = q
    roll = np.arctan2(2 * (w * x + y * z), 1 - 2 * (x**2 + y**2))
    pitch = np.arcsin(np.clip(2 * (w * y - z * x), -1, 1))
    yaw = np.arctan2(2 * (w * z + x * y), 1 - 2 * (y**2 + z**2))
    return np.array([roll, pitch, yaw])


@idiom(quaternion())
def quat_to_matrix(q: A) -> A:
    w, x, y, z = q
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )


@idiom(quaternion())
def gravity_orientation(q: A) -> A:
    qw, qx, qy, qz = q[0], q[1], q[2], q[3]
    g = np.zeros(3)
    g[0] = 2 * (-qz * qx + qw * qy)
    g[1] = -2 * (qz * qy + qw * qx)
    g[2] = 1 - 2 * (qw * qw + qz * qz)
    return g


@idiom(normal(3), normal(12), normal(12), normal(3), normal(12))
def legged_observation(omega: A, q: A, dq: A, cmd: A, last: A) -> A:
    default = np.array([0.1, 0.8, -1.5] * 4, dtype=np.float32)
    obs = np.zeros(42, dtype=np.float32)
    obs[:3] = omega * 0.25
    obs[3:6] = cmd * np.array([2.0, 2.0, 0.25], dtype=np.float32)
    obs[6:18] = q - default
    obs[18:30] = dq * 0.05
    obs[30:42] = last
    return np.clip(obs, -100, 100)


@idiom(N4, N4)
def low_pass(x: A, prev: A) -> A:
    alpha = 2 * math.pi * 5.0 * 0.02 / (2 * math.pi * 5.0 * 0.02 + 1)
    return alpha * x + (1 - alpha) * prev


@idiom(N34)
def min_max_normalise(x: A) -> A:
    low, high = x.min(axis=0), x.max(axis=0)
    return 2 * (x - low) / (high - low + 1e-8) - 1


@idiom(N4)
def softmax(x: A) -> A:
    e = np.exp(x - np.max(x))
    return e / e.sum()


@idiom(uniform(0, 3, 6, 8))
def depth_to_points(d: A) -> A:
    v, u = np.mgrid[0:6, 0:8].astype(np.float32)
    return np.stack([(u - 4) * d / 5.0, (v - 3) * d / 5.0, d], axis=-1).reshape(-1, 3)


@idiom(ints(0, 256, 6, 8, 3, dtype=torch.uint8))
def image_channels_first(img: A) -> A:
    x = img[::2, ::2, ::-1].astype(np.float32) / 255.0
    return ((x - [0.5, 0.4, 0.3]) / [0.2, 0.2, 0.2]).transpose(2, 0, 1)[None]


@idiom(uniform(0.1, 30, 36))
def lidar_sectors(r: A) -> A:
    r = np.clip(r, 0.1, 10.0)
    return np.min(r.reshape(6, 6), axis=1) / 10.0


@idiom(uniform(0, 1))
def gait_clock(t: A) -> A:
    phase = np.mod(t + np.array([0.0, 0.5, 0.5, 0.0]), 1.0)
    return np.concatenate([np.sin(2 * np.pi * phase), np.cos(2 * np.pi * phase)])


@idiom(normal(2), normal(2), normal(1))
def goal_in_body_frame(goal: A, pos: A, yaw: A) -> A:
    c, s = np.cos(yaw[0]), np.sin(yaw[0])
    return np.array([[c, s], [-s, c]]) @ (goal - pos)


row("wrap_angle", lambda x: (x * 5 + np.pi) % (2 * np.pi) - np.pi, N34)
row("skew", lambda v: np.array([[0, -v[2], v[1]], [v[2], 0, -v[0]], [-v[1], v[0], 0]]), normal(3))
row("homogeneous", lambda r, t: np.vstack([np.hstack([r, t[:, None]]), [0, 0, 0, 1]]), N33, normal(3))
row("normalise_rows", lambda x: x / np.linalg.norm(x, axis=1, keepdims=True), N34)
row("one_hot_eye", lambda x: np.eye(5)[x], index(5, 4))

# Windows

row("sliding_window", lambda x: np.lib.stride_tricks.sliding_window_view(x, 2, axis=1).mean(-1), N34)
row("sliding_window_both_axes", lambda x: np.lib.stride_tricks.sliding_window_view(x, (2, 3)).max((2, 3)), N34)
row("sliding_window_same_axis", lambda x: np.lib.stride_tricks.sliding_window_view(x, (2, 2), axis=(1, 1)) * 2, N34)
row("as_strided_windows", lambda x: np.lib.stride_tricks.as_strided(x, (3, 3, 2), (16, 4, 4)).sum(-1), N34)


@idiom(N4)
def sliding_window_of_a_buffer(x: A) -> A:
    history = np.zeros(6, np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(history, 3)
    history[2:] = x
    history[0] -= 1
    return windows.max(1)


@idiom(N34)
def flat_assigned(x: A) -> A:
    y = x.copy()
    y.flat[::5] = 0
    y.flat = y.flat[:] * 2
    return y


# One number of an array, where torch or Python code takes a number

NUMBER, TENSOR = normal(4, dtype=f64), torch.tensor([-1.0, 0.5, 2.0])
for _name, _fn in {
    "clamp_max": lambda a: TENSOR.clamp(max=a[0]),
    "clamp_both": lambda a: torch.clamp(TENSOR, a[0] - 1, a[0] + 1),
    "clamp_in_place": lambda a: TENSOR.clone().clamp_(min=a[0]),
    "add": lambda a: torch.add(TENSOR, a[0]),
    "mul_in_place": lambda a: TENSOR.clone().mul_(a[0]),
    "where": lambda a: torch.where(TENSOR > 1, TENSOR, a[0]),
    "greater": lambda a: (TENSOR > a[0]).float() + a[0] * TENSOR,
    "lerp": lambda a: torch.lerp(TENSOR, TENSOR * 2, a[0]),
    "masked_fill": lambda a: TENSOR.masked_fill(TENSOR > 1, a[0]),
    "fill": lambda a: torch.zeros(3).fill_(a[0]),
    "item_set": lambda a: (t := TENSOR.clone(), t.__setitem__(1, a[0]))[0],
    "power": lambda a: abs(a[0]) ** TENSOR + TENSOR.abs() ** a[1],
    "fmod": lambda a: torch.fmod(TENSOR, abs(a[0]) + 0.1),
    "linspace": lambda a: torch.linspace(0, a[0], 3),
    "beside_whole_numbers": lambda a: torch.arange(3) * a[0],
    "beside_no_axes": lambda a: torch.tensor(2.0) * a[0],
}.items():
    row(f"number_for_torch_{_name}", _fn, NUMBER)
row("number_for_torch_float32", lambda a: TENSOR.clamp(max=a[0]) * a[1], N4)


@idiom(NUMBER)
def number_is_no_array(a: A) -> A:
    number = a[0]
    kinds = [isinstance(number, k) for k in (np.ndarray, float, np.floating, np.number)]
    return a * (kinds.index(True) + 10 * hasattr(number, "__len__") + 100 * np.isscalar(number) + np.ndim(number)) + number


@idiom(NUMBER)
def number_methods(a: A) -> A:
    first, second = a[0].astype(np.float32), a[1].clip(-1, 1)
    return np.array([first.copy(), second.round(1), a[2].sum(), a[3].reshape(1)[0], isinstance(first, np.generic) + second])


@idiom(NUMBER)
def number_operators(a: A) -> A:
    x, y, z, w = a
    whole, remainder = divmod(x, 0.3)
    return np.array([x + y, 2 - x, x * -y, x / 3, 3 // (y + 9), x % 0.7, abs(z) ** w, -w, +w, abs(y), whole, remainder, (x > y) * z])


@idiom(NUMBER)
def number_complex(a: A) -> A:
    z = a[0] + 1j * a[1]
    return np.array([np.abs(z), (z * z).real, np.angle(z), np.exp(1j * a[2]).imag])


@idiom(normal(6))
def queue_of_numbers(x: A) -> A:
    history: deque[Any] = deque(maxlen=3)
    history.extend(x)
    return np.array(history) * sum(history)


@idiom(normal(6))
def queue_of_arrays(x: A) -> A:
    parts = deque(np.split(x, 3))
    parts.rotate(1)
    return np.stack([np.concatenate(parts), np.hstack(parts), np.array(parts).ravel()]) * np.mean(parts)


@idiom(normal(3, 3))
def tuple_with_names(x: A) -> A:
    state = State(*x)
    state = state._replace(v=state.v + 0.02 * state.a)
    return np.concatenate(state) + np.vstack(state).ravel() + np.array(state).reshape(-1)


class State(NamedTuple):
    """Of a point that moves."""

    p: Any
    v: Any
    a: Any


@idiom(normal(4, 5))
def row_of_argmax_written(x: A) -> list[A]:
    y, i = x.copy(), x[:, 0].argmax()
    y[i][:2] = 0
    r = y[i]
    r *= 2
    r[1:3] += 1
    y[0] += 1
    y[i, 1] = 5
    np.add(y[i], 1, out=y[i])
    v = r.reshape(5, 1)
    v[0] = 3
    return [y, r, v]


@idiom(normal(4, 5))
def rows_exchanged_by_number(x: A) -> A:
    y, i, j = x.copy(), x[:, 0].argmax(), x[0].argmax()
    y[:, j] += 1
    y[j % 4] = y[i]
    y[i], y[0] = y[0].copy(), y[i].copy()
    return y


@idiom(normal(4, 5))
def row_of_plain_buffer_by_number(x: A) -> A:
    buffer, i = np.zeros((4, 5), np.float32), x[:, 0].argmax()
    slot = buffer[i]
    slot[:] = x[0]
    slot[2] = x[i, 2]
    return buffer


@idiom(normal(4, 5), index(4, 3))
def columns_by_index_written(x: A, i: A) -> list[A]:
    y = x[:, i]
    y[0] = 5
    y += 1
    return [y, x[..., i] * 2]


@idiom(normal(4, 5))
def history_shifted_in_place(x: A) -> list[A]:
    newest, oldest = x.copy(), x.copy()
    newest[1:] = newest[:-1]
    newest[0] = x[2]
    oldest[:-1] = oldest[1:]
    oldest[:, 1:] += oldest[:, :-1]
    return [newest, oldest]


row("clip_by_keyword", lambda x: np.clip(x, a_min=-0.5, a_max=0.5) + np.clip(x, a_min=None, a_max=1.0) + np.clip(x[0], a_min=0, a_max=None), N34)
row("clip_partial", lambda x: np.array(list(map(partial(np.clip, a_min=-1, a_max=1), x))), N4)
row("average_whole_weights", lambda x: [np.average(x, weights=[3, 1, 2], axis=0), np.average(x[0], weights=[1, 2, 3, 4]), np.average(x, 1)], N34)
row("average_with_weights_returned", lambda x, w: [*np.average(x, 1, w, True), np.average(x, axis=1, weights=w, keepdims=True)], N34, uniform(0.2, 1.0, 4))
row("std_by_position", lambda x: np.std(x, 1, None, None, 1) + np.var(x, 1, np.float64, None, 1), N34)
@idiom(N34)
def written_backwards(x: A) -> A:
    """Slices with a negative step as targets."""
    turned = np.zeros((3, 4), np.float32)
    turned[::-1, ::-2] = x[:, :2]
    turned[0, ::-1] += x[1]
    return turned


row("size_by_keyword", lambda x: x * np.size(a=x) + np.shape(a=x)[0], N34)
row("corrcoef_of_two", lambda x, y: [np.corrcoef(x[0], y[0]), np.cov(x, y), np.corrcoef(x, y, rowvar=False)], N34, N34)
row("f32_published_as_f64", lambda x: np.cumsum(np.exp(x)).astype(np.float64), normal(500), rtol=1e-5)
row("math_numbers", lambda x: np.array([math.cos(x[0]) * math.sin(x[1]), -math.exp(x[2]) / math.hypot(x[3], 1), math.floor(x[0]) + 2 * math.tanh(x[1])]), N4)
row("math_number_beside_array", lambda x: x * math.cos(x[0]) + math.sqrt(x[1] ** 2), N4)
row("numbers_in_a_row", lambda x: np.r_[x[0], x[1:3], 0, x[3] * 2], N4)
row("polyval_whole_numbers", lambda x: np.polyval([1, 2, 3], x), N4)
row("reshape_by_columns", lambda x: [x.reshape(4, 3, order="F"), np.reshape(x, (2, 6), order="F") * 2, x.flatten("F"), x.ravel(order="F")], N34)

row("number_at_a_port", lambda a: a.sum() * a[1], NUMBER)
