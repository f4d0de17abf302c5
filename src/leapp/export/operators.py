"""Operators that torch's ONNX library lacks, or translates to something else than eager computes.

Each is written once as other ATen operators and replaces the original while a node is traced for ONNX. A function that
returns ``NotImplemented`` leaves the operator as it is. Sizes are fixed numbers during the trace, so loops over them
unroll.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch
from onnxscript import opset18 as _opset18
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

__all__ = ["BROKEN_COMPOSITES", "DECOMPOSITIONS", "TRANSLATIONS", "aten", "replaces"]

aten: Any = torch.ops.aten
opset18: Any = _opset18
_broadcast_shapes: Any = torch.broadcast_shapes

DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {}
"""ATen overload to the function that replaces it."""

BROKEN_COMPOSITES = (
    aten.conv1d.default,
    aten.conv2d.default,
    aten.conv3d.default,
    aten.cross_entropy_loss.default,
)
"""Composites whose own translation fails or is wrong; what they consist of translates well."""

_UNROLL_LIMIT = 32
"""Matrices up to this size are solved by unrolled elimination; larger ones would make unwieldy models."""


def replaces(*targets: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register what an overload is written as."""
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        DECOMPOSITIONS.update(dict.fromkeys(targets, function))
        return function

    return register


def _is_float(*values: Any) -> bool:
    return any(v.is_floating_point() if isinstance(v, Tensor) else isinstance(v, float) for v in values)


def _promoted(a: Any, b: Any) -> tuple[Tensor, Tensor]:
    """Both operands as tensors of the type that eager arithmetic would give them."""
    dtype = torch.result_type(a, b)
    like = a if isinstance(a, Tensor) else b
    return tuple(v.to(dtype) if isinstance(v, Tensor) else torch.full((), v, dtype=dtype, device=like.device) for v in (a, b))  # type: ignore[return-value]


# Writes into a part: the library computes with the old content, and NaN or infinity in fresh memory spoils the result.


def _put(x: Tensor, source: Tensor, dim: int, positions: range) -> Tensor:
    """``x`` with the slices at ``positions`` along ``dim`` taken from ``source``, by choosing and nothing else."""
    # The result lies in memory as ``x`` does: later views of it count on that.
    order = sorted(range(x.dim()), key=lambda d: -x.stride()[d])
    out = _put_dense(x.permute(order), source.to(x.dtype).permute(order), order.index(dim), positions)
    return out.permute([order.index(d) for d in range(x.dim())])


def _put_dense(x: Tensor, source: Tensor, dim: int, positions: range) -> Tensor:
    size = x.shape[dim]
    first, step = positions.start, positions.step
    if step == 1:
        return torch.cat([x.narrow(dim, 0, first), source, x.narrow(dim, positions.stop, size - positions.stop)], dim)
    place = torch.arange(size, device=x.device)
    turn = place - first
    taken = (turn >= 0) & (place < positions.stop) & (turn % step == 0)
    index = torch.where(taken, size + turn // step, place)
    return aten.index_select(torch.cat([x, source], dim), dim, index)  # type: ignore[no-any-return]


@replaces(aten.slice_scatter.default)
def _slice_scatter(
    x: Tensor, source: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    dim = dim % x.dim()
    if isinstance(x.shape[dim], torch.SymInt):
        whole = start in (None, 0) and step == 1 and (end is None or statically_known_true(end >= x.shape[dim]))
        return source.to(x.dtype).expand(x.shape).clone() if whole else NotImplemented
    positions = range(x.shape[dim])[slice(start, end, step)]
    shape = [*x.shape[:dim], len(positions), *x.shape[dim + 1 :]]
    return _put(x, source.expand(shape), dim, positions) if len(positions) else x.clone()


@replaces(aten.select_scatter.default)
def _select_scatter(x: Tensor, source: Tensor, dim: int, index: int) -> Any:
    dim = dim % x.dim()
    if isinstance(x.shape[dim], torch.SymInt):
        return NotImplemented
    return _put(x, source.unsqueeze(dim), dim, range(index % x.shape[dim], index % x.shape[dim] + 1))


# Products with a vector: ONNX Runtime fuses a transpose into MatMul and loses it when the other side is one-dimensional.


@replaces(aten.mv.default)
def _mv(a: Tensor, b: Tensor) -> Any:
    return aten.mm(a, b.unsqueeze(1)).squeeze(1)


@replaces(aten.addmv.default)
def _addmv(c: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return aten.add(aten.mul(c, beta), aten.mul(aten.mm(a, b.unsqueeze(1)).squeeze(1), alpha))


@replaces(aten.dot.default)
def _dot(a: Tensor, b: Tensor) -> Any:
    return aten.mm(a.unsqueeze(0), b.unsqueeze(1)).reshape(())


@replaces(aten.matmul.default)
def _matmul(a: Tensor, b: Tensor) -> Any:
    if a.dim() > 1 and b.dim() > 1:
        return NotImplemented
    left = a.unsqueeze(0) if a.dim() == 1 else a
    right = b.unsqueeze(1) if b.dim() == 1 else b
    out = aten.matmul(left, right)
    out = out.squeeze(-1) if b.dim() == 1 else out
    return out.squeeze(-1 if b.dim() == 1 else -2) if a.dim() == 1 else out


# Batch norm that computes its statistics from the batch: the library translates it as if it used the running ones.


@replaces(aten._native_batch_norm_legit_functional.default)
def _batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, training: bool, momentum: float,
    eps: float,
) -> Any:  # fmt: skip
    if not training:
        return NotImplemented
    out, batch_mean, batch_var = _normalised(x, weight, bias, eps)
    count = x.numel() // x.shape[1]
    new_mean = mean * (1 - momentum) + batch_mean * momentum
    new_var = var * (1 - momentum) + batch_var * (momentum * count / max(count - 1, 1))
    return out, batch_mean, (batch_var + eps).rsqrt(), new_mean, new_var


@replaces(aten._native_batch_norm_legit.no_stats)
def _batch_norm_no_stats(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> Any:
    out, batch_mean, batch_var = _normalised(x, weight, bias, eps)
    return out, batch_mean, (batch_var + eps).rsqrt()


def _normalised(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    dims = [d for d in range(x.dim()) if d != 1]
    channels = [1, -1] + [1] * (x.dim() - 2)
    mean = x.mean(dims)
    centred = x - mean.reshape(channels)
    var = (centred * centred).mean(dims)
    out = centred * (var + eps).rsqrt().reshape(channels)
    out = out if weight is None else out * weight.reshape(channels)
    return (out if bias is None else out + bias.reshape(channels)), mean, var


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
def _sign(x: Tensor) -> Any:
    if x.is_complex() or x.dtype == torch.bool:
        return NotImplemented
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


@replaces(aten.signbit.default)
def _signbit(x: Tensor) -> Tensor:
    if not x.is_floating_point():
        return x < 0
    # 1 / -0.0 is -inf: the only arithmetic that tells the zeros apart.
    return (x < 0) | ((x == 0) & (x.reciprocal() < 0))


@replaces(aten.copysign.Tensor)
def _copysign(x: Tensor, y: Tensor) -> Tensor:
    size = x.abs() if x.is_floating_point() else x.to(torch.get_default_dtype()).abs()
    return torch.where(_signbit(y), -size, size)


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


@replaces(aten.clamp.default)
def _clamp(x: Tensor, low: Any = None, high: Any = None) -> Any:
    if low is not None and high is not None and not _is_float(low, high) and x.is_floating_point():
        return aten.clamp.default(x, float(low), float(high))
    if (low is not None and high is not None) or torch.result_type(x, low if low is not None else high) != x.dtype:
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


@replaces(aten.fmax.default)
def _fmax(a: Tensor, b: Tensor) -> Tensor:
    a, b = _promoted(a, b)
    return torch.where(a != a, b, torch.where(b != b, a, torch.maximum(a, b)))


@replaces(aten.fmin.default)
def _fmin(a: Tensor, b: Tensor) -> Tensor:
    a, b = _promoted(a, b)
    return torch.where(a != a, b, torch.where(b != b, a, torch.minimum(a, b)))


# Reductions that must hand NaN on: the engine's ReduceMax and ReduceMin skip it.


def _with_nan(x: Tensor, reduced: Tensor, dim: list[int], keepdim: bool) -> Tensor:
    if not x.is_floating_point():
        return reduced
    poisoned = (x != x).to(torch.float32).sum(dim, keepdim) > 0
    return reduced.masked_fill(poisoned, math.nan)


def _translated_extreme(reduce: Callable[..., Any]) -> Callable[..., Any]:
    def extreme(self: Any, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
        axes = opset18.Constant(value_ints=list(dim) or list(range(len(self.shape))))
        dtype = ir.DataType(self.dtype)
        wide = opset18.Cast(self, to=ir.DataType.INT32) if dtype in _NARROW else self
        out = reduce(wide, axes, keepdims=int(keepdim)) if len(self.shape) else opset18.Identity(wide)
        if dtype in _NARROW:
            return opset18.Cast(out, to=dtype)
        if dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16) or not len(self.shape):
            return out
        nan = opset18.Cast(opset18.IsNaN(self), to=ir.DataType.FLOAT)
        poisoned = opset18.Greater(opset18.ReduceMax(nan, axes, keepdims=int(keepdim)), opset18.Constant(value_float=0.0))
        return opset18.Where(poisoned, opset18.Cast(opset18.Constant(value_float=math.nan), to=dtype), out)

    return extreme


_NARROW = (ir.DataType.BOOL, ir.DataType.INT8, ir.DataType.INT16, ir.DataType.UINT8)

TRANSLATIONS: dict[Any, Callable[..., Any]] = {
    aten.amax.default: _translated_extreme(opset18.ReduceMax),
    aten.amin.default: _translated_extreme(opset18.ReduceMin),
}
"""ATen overload to a function that writes it as ONNX operators."""


@replaces(aten.max.default)
def _max(x: Tensor) -> Any:
    return x.amax()


@replaces(aten.min.default)
def _min(x: Tensor) -> Any:
    return x.amin()


@replaces(aten.max.dim)
def _max_dim(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    return (x.amax(dim, keepdim), _ranked(x).argmax(dim, keepdim)) if x.dim() else NotImplemented


@replaces(aten.min.dim)
def _min_dim(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    return (x.amin(dim, keepdim), _ranked(x).argmin(dim, keepdim)) if x.dim() else NotImplemented


def _ranked(x: Tensor) -> Tensor:
    return x.to(torch.int32) if x.dtype in (torch.bool, torch.int8, torch.int16, torch.uint8) else x


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
    if rounding_mode != "floor" or not _is_float(a, b):
        return NotImplemented
    return _floored(*_promoted(a, b))


@replaces(aten.floor_divide.default, aten.floor_divide.Scalar)
def _floor_divide(a: Any, b: Any) -> Any:
    if _is_float(a, b):
        return _floored(*_promoted(a, b))
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return NotImplemented
    left, right = _promoted(a, b)
    return aten.div.Tensor_mode(left, right, rounding_mode="floor")


@replaces(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def _remainder(a: Any, b: Any) -> Any:
    if not _is_float(a, b):
        return NotImplemented
    a, b = _promoted(a, b)
    rest = torch.fmod(a, b)
    return torch.where((rest != 0) & ((b < 0) != (rest < 0)), rest + b, rest)


# Geometry


@replaces(aten.atan2.default)
def _atan2(y: Tensor, x: Tensor) -> Tensor:
    y, x = _promoted(y, x)
    if not y.is_floating_point():
        y, x = y.to(torch.get_default_dtype()), x.to(torch.get_default_dtype())
    infinite = y.isinf() & x.isinf()
    up, right = torch.where(infinite, _sign(y), y), torch.where(infinite, _sign(x), x)
    angle = torch.where((y == 0) & (x == x), torch.zeros_like(up / right), (up / right).atan())
    half_turn = torch.where(_signbit(y), -math.pi, math.pi).to(y.dtype)
    return torch.where(_signbit(x), angle + half_turn, angle)


@replaces(aten.hypot.default)
def _hypot(a: Tensor, b: Tensor) -> Tensor:
    a, b = (side.abs() for side in _promoted(a, b))
    large, small = torch.maximum(a, b), torch.minimum(a, b)
    ratio = torch.where(large == 0, torch.zeros_like(large), small / large)
    return torch.where(a.isinf() | b.isinf(), math.inf, large * (1 + ratio * ratio).sqrt())


@replaces(aten._cdist_forward.default)
def _cdist(a: Tensor, b: Tensor, p: float, compute_mode: int | None = None) -> Tensor:
    apart = (a.unsqueeze(-2) - b.unsqueeze(-3)).abs()
    if p == 0:
        return (apart != 0).to(a.dtype).sum(-1)
    if p == 1:
        return apart.sum(-1)
    if p == 2:
        return (apart * apart).sum(-1).sqrt()
    return apart.amax(-1) if math.isinf(p) else apart.pow(p).sum(-1).pow(1 / p)


@replaces(aten.cov.default)
def _cov(x: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None) -> Any:
    if fweights is not None or aweights is not None or x.is_complex():
        return NotImplemented
    rows = x if x.dim() == 2 else x.reshape(1, -1)
    centred = rows - rows.mean(1, keepdim=True)
    return (centred @ centred.mT / max(rows.shape[1] - correction, 0)).squeeze()


# Attention: torch's own translation takes four dimensions only and gives NaN where a row is masked as a whole.


@replaces(aten.scaled_dot_product_attention.default)
def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    if dropout_p:
        return NotImplemented
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (t.unsqueeze(-3).expand(*t.shape[:-2], groups, *t.shape[-2:]).flatten(-4, -3) for t in (key, value))
    scores = query @ key.mT * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
        return scores.masked_fill(~allowed, -math.inf).softmax(-1) @ value
    if attn_mask is None:
        return scores.softmax(-1) @ value
    scores = scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    barred = (scores != -math.inf).to(torch.float32).sum(-1, keepdim=True) == 0
    return scores.softmax(-1).masked_fill(barred, 0.0) @ value


# Order statistics: a stable sort is a TopK over the whole axis.


@replaces(aten.sort.stable)
def _sort(x: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    values, indices = aten.sort.default(_ranked(x), dim, descending)
    return values.to(x.dtype), indices


@replaces(aten.sort.default)
def _sort_narrow(x: Tensor, dim: int = -1, descending: bool = False) -> Any:
    return NotImplemented if _ranked(x) is x else _sort(x, dim=dim, descending=descending)


@replaces(aten.kthvalue.default)
def _kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    values, indices = _sort(x, dim=dim)
    taken = values.narrow(dim, k - 1, 1), indices.narrow(dim, k - 1, 1)
    return taken if keepdim else (taken[0].squeeze(dim), taken[1].squeeze(dim))


@replaces(aten.median.dim)
def _median_dim(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    value, index = _kthvalue(x, (x.shape[dim] + 1) // 2, dim, keepdim)
    return _with_nan(x, value, [dim], keepdim), index


@replaces(aten.median.default)
def _median(x: Tensor) -> Any:
    return _median_dim(x.reshape(-1), 0)[0]


@replaces(aten.nanmedian.default)
def _nanmedian(x: Tensor) -> Any:
    flat = x.reshape(-1)
    if not x.is_floating_point():
        return _median(flat)
    values, _ = aten.sort.default(torch.where(flat != flat, math.inf, flat), 0, False)
    count = (flat == flat).to(torch.int64).sum()
    middle = values.index_select(0, ((count - 1) // 2).clamp(0, flat.shape[0] - 1).reshape(1)).squeeze(0)
    return torch.where(count == 0, math.nan, middle)


@replaces(aten.searchsorted.Tensor)
def _searchsorted(
    boundaries: Tensor,
    x: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    if sorter is not None:
        boundaries = boundaries.gather(-1, sorter)
    if boundaries.dim() > 1:
        boundaries = boundaries.unsqueeze(-2)
    values = x.unsqueeze(-1)
    before = boundaries <= values if right or side == "right" else boundaries < values
    # NaN sorts behind everything.
    count = (before | (values != values)).to(torch.int64).sum(-1)
    return count.to(torch.int32) if out_int32 else count


@replaces(aten.searchsorted.Scalar)
def _searchsorted_scalar(boundaries: Tensor, x: float, **options: Any) -> Any:
    return _searchsorted(boundaries, torch.full((), x, dtype=boundaries.dtype), **options)


@replaces(aten._unique2.default)
def _unique(x: Tensor, *options: Any, **named: Any) -> Any:
    if x.dtype in (torch.int64, torch.float32, torch.float64):
        return NotImplemented
    values, inverse, counts = aten._unique2.default(x.to(torch.int64), *options, **named)
    return values.to(x.dtype), inverse, counts


# Scans by doubling: log2(n) steps instead of an operator ONNX does not have.


def _steps(size: int) -> list[int]:
    return [1 << step for step in range(max(size - 1, 0).bit_length())]


@replaces(aten.cumprod.default)
def _cumprod(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    out = x.to(dtype or (x.dtype if x.is_floating_point() else torch.int64))
    if x.dim() == 0:
        return out.clone()
    for step in _steps(x.shape[dim]):
        head, rest = out.narrow(dim, 0, step), out.narrow(dim, step, x.shape[dim] - step)
        out = torch.cat([head, rest * out.narrow(dim, 0, x.shape[dim] - step)], dim)
    return out


def _cumulative_extreme(x: Tensor, dim: int, wins: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    size = x.shape[dim]
    shape = [size if d == dim % x.dim() else 1 for d in range(x.dim())]
    value, index = x, torch.arange(size).reshape(shape).expand(x.shape)
    for step in _steps(size):
        late, early = value.narrow(dim, step, size - step), value.narrow(dim, 0, size - step)
        late_at, early_at = index.narrow(dim, step, size - step), index.narrow(dim, 0, size - step)
        keep = wins(late, early) & (early == early) | (late != late)
        value = torch.cat([value.narrow(dim, 0, step), torch.where(keep, late, early)], dim)
        index = torch.cat([index.narrow(dim, 0, step), torch.where(keep, late_at, early_at)], dim)
    return value, index


@replaces(aten.cummax.default)
def _cummax(x: Tensor, dim: int) -> Any:
    return _cumulative_extreme(x, dim, torch.ge)


@replaces(aten.cummin.default)
def _cummin(x: Tensor, dim: int) -> Any:
    return _cumulative_extreme(x, dim, torch.le)


# Selection and scattered writes


@replaces(aten.masked_select.default)
def _masked_select(x: Tensor, mask: Tensor) -> Any:
    shape = _broadcast_shapes(x.shape, mask.shape)
    return aten.index.Tensor(x.expand(shape), [mask.expand(shape)])


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


@replaces(aten.copy.default)
def _copy(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    return source.to(x.dtype).expand(x.shape).clone()


@replaces(aten.diagonal_scatter.default)
def _diagonal_scatter(x: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    count = source.shape[-1]
    rows, columns = torch.arange(count) + max(-offset, 0), torch.arange(count) + max(offset, 0)
    front = x.movedim((dim1, dim2), (0, 1))
    written = aten.index_put.default(front, [rows, columns], source.movedim(-1, 0))
    return written.movedim((0, 1), (dim1, dim2))


@replaces(aten.as_strided_scatter.default)
def _as_strided_scatter(
    x: Tensor, source: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Any:
    if not x.is_contiguous():
        return NotImplemented
    places = torch.full((), storage_offset or 0, dtype=torch.int64)
    for length, step in zip(size, stride, strict=True):
        places = places.unsqueeze(-1) + torch.arange(length) * step
    return aten.index_put.default(x.reshape(-1), [places.reshape(-1)], source.reshape(-1)).reshape(x.shape)


@replaces(aten.scatter_reduce.two)
def _scatter_mean(x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True) -> Any:
    if reduce != "mean" or not x.is_floating_point():
        return NotImplemented
    ones = torch.ones_like(source)
    count = torch.zeros_like(x).scatter_add(dim, index, ones)
    base = x if include_self else torch.where(count > 0, torch.zeros_like(x), x)
    total = base.scatter_add(dim, index, source)
    return total / (count + 1 if include_self else count.clamp(min=1.0))


@replaces(aten.rrelu_with_noise_functional.default)
def _rrelu(
    x: Tensor, noise: Tensor, lower: float = 0.125, upper: float = 1 / 3, training: bool = False, generator: Any = None
) -> Any:
    if training:
        return NotImplemented
    return torch.nn.functional.leaky_relu(x, (lower + upper) / 2), noise


# Small linear algebra, unrolled


def _fits(a: Tensor) -> bool:
    return a.dim() >= 2 and a.shape[-1] <= _UNROLL_LIMIT and a.is_floating_point()


def _eliminated(a: Tensor, b: Tensor) -> Tensor:
    """The solution of ``a @ x = b`` by Gauss-Jordan elimination with partial pivoting."""
    n = a.shape[-1]
    work = torch.cat([a, b], -1)
    rows = torch.arange(n)
    for k in range(n):
        pivot = work[..., k:, k].abs().argmax(-1, keepdim=True) + k
        order = torch.where(rows == k, pivot, torch.where(rows == pivot, torch.full_like(rows, k), rows))
        work = work.gather(-2, order.unsqueeze(-1).expand(*work.shape))
        scaled = work[..., k : k + 1, :] / work[..., k : k + 1, k : k + 1]
        reduced = work - work[..., :, k : k + 1] * scaled
        work = torch.where((rows == k).unsqueeze(-1), scaled, reduced)
    return work[..., n:]


@replaces(aten.linalg_inv.default, aten.inverse.default)
def _inv(a: Tensor) -> Any:
    if not _fits(a):
        return NotImplemented
    return _eliminated(a, torch.eye(a.shape[-1], dtype=a.dtype, device=a.device).expand(*a.shape))


@replaces(aten.linalg_solve.default)
def _solve(a: Tensor, b: Tensor, *, left: bool = True) -> Any:
    if not _fits(a):
        return NotImplemented
    if not left:
        return _solve(a.mT, b.mT, left=True).mT
    vector = b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1])
    right = b.unsqueeze(-1) if vector else b
    batch = _broadcast_shapes(a.shape[:-2], right.shape[:-2])
    solution = _eliminated(a.expand(*batch, *a.shape[-2:]), right.expand(*batch, *right.shape[-2:]))
    return solution.squeeze(-1) if vector else solution


@replaces(aten.linalg_slogdet.default, aten.slogdet.default)
def _slogdet(a: Tensor) -> Any:
    if not _fits(a):
        return NotImplemented
    determinant = torch.linalg.det(a)
    return _sign(determinant), determinant.abs().log()


@replaces(aten.linalg_cholesky.default, aten.cholesky.default)
def _cholesky(a: Tensor, upper: bool = False) -> Any:
    if not _fits(a):
        return NotImplemented
    n = a.shape[-1]
    columns: list[Tensor] = []
    for j in range(n):
        column = a[..., j:, j]
        for done in columns:
            column = column - done[..., j:] * done[..., j : j + 1]
        column = column / column[..., :1].sqrt()
        columns.append(torch.cat([torch.zeros_like(a[..., :j, 0]), column], -1))
    lower = torch.stack(columns, -1)
    return lower.mT if upper else lower


@replaces(aten.linalg_solve_triangular.default)
def _solve_triangular(a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    if not _fits(a):
        return NotImplemented
    if not left:
        return _solve_triangular(a.mT, b.mT, upper=not upper, unitriangular=unitriangular).mT
    n = a.shape[-1]
    solved: dict[int, Tensor] = {}
    for i in reversed(range(n)) if upper else range(n):
        row = b[..., i, :]
        for j, known in solved.items():
            row = row - a[..., i, j].unsqueeze(-1) * known
        solved[i] = row if unitriangular else row / a[..., i, i].unsqueeze(-1)
    return torch.stack([solved[i] for i in range(n)], -2)


@replaces(aten.cholesky_solve.default)
def _cholesky_solve(b: Tensor, factor: Tensor, upper: bool = False) -> Any:
    if not _fits(factor):
        return NotImplemented
    lower = factor.mT if upper else factor
    return _solve_triangular(lower.mT, _solve_triangular(lower, b, upper=False), upper=True)
