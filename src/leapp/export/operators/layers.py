"""Layers of networks: normalisation, attention, recurrence."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from leapp.compat.graphs import core_decompositions
from leapp.export.operators.table import aten, replaces, torch_replaces

# Batch norm with the statistics of the batch: torchlib uses the running statistics instead.
torch_replaces(aten._native_batch_norm_legit_functional.default, aten._native_batch_norm_legit.no_stats)


@replaces(aten.batch_norm.default)
def _batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None, training: bool,
    momentum: float, eps: float, *rest: Any,
) -> Any:  # fmt: skip
    """What torch makes of it for a fixed example allocates memory, for which a node needs torch's slower tracer."""
    if training or mean is None or var is None:
        return aten._batch_norm_impl_index.default(x, weight, bias, mean, var, training, momentum, eps, *rest)[0]
    return aten._native_batch_norm_legit_no_training.default(x, weight, bias, mean, var, momentum, eps)[0]


@replaces(aten.rms_norm.default)
def _rms_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """The root of the mean square, at least in float32, as in eager code. There it writes to a tensor."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    square = wide.square().mean(list(range(x.dim() - len(shape), x.dim())), True)
    out = (wide * (square + (torch.finfo(x.dtype).eps if eps is None else eps)).rsqrt()).to(x.dtype)
    return out if weight is None else out * weight


# Attention: torchlib's translation takes four dimensions only and gives NaN for a row that is masked completely.


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


@replaces(aten.rrelu_with_noise_functional.default)
def _rrelu(
    x: Tensor, noise: Tensor, lower: float = 0.125, upper: float = 1 / 3, training: bool = False, generator: Any = None
) -> Any:
    if training:
        return NotImplemented
    return torch.nn.functional.leaky_relu(x, (lower + upper) / 2), noise


# The LSTM of ONNX has no projection.


@replaces(aten.lstm.input)
def _lstm(x: Tensor, hx: Sequence[Tensor], *rest: Any) -> Any:
    projected = hx[0].shape[-1] != hx[1].shape[-1]
    return core_decompositions()[aten.lstm.input](x, hx, *rest) if projected else NotImplemented


@replaces(aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default)
def _adaptive_max_pool(x: Tensor, output_size: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The largest value of each window and its place in the image. torch's own decomposition loses NaN."""
    image = x.shape[-len(output_size) :]
    values, places = [], []
    for cell in itertools.product(*map(range, output_size)):
        starts = [i * size // count for i, size, count in zip(cell, image, output_size, strict=True)]
        ends = [-((i + 1) * size // -count) for i, size, count in zip(cell, image, output_size, strict=True)]
        part: Any = (..., *map(slice, starts, ends))
        window = x[part]
        value, rest = window.flatten(-len(image)).max(-1)
        place, step = torch.zeros_like(rest), 1
        for start, end, size in reversed(list(zip(starts, ends, image, strict=True))):
            place = place + (rest % (end - start) + start) * step
            rest, step = rest // (end - start), step * size
        values.append(value)
        places.append(place)
    shape = [*x.shape[: -len(image)], *output_size]
    return torch.stack(values, -1).reshape(shape), torch.stack(places, -1).reshape(shape)


# ONNX Runtime has Gemm, which torchlib writes, for floats only.


@replaces(aten.linear.default)
def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    if x.is_floating_point() or x.is_complex():
        return NotImplemented
    return x @ weight.mT if bias is None else x @ weight.mT + bias


@replaces(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)
def _adaptive_avg_pool(x: Tensor, output_size: Sequence[int]) -> Tensor:
    for axis, count in enumerate(output_size, x.dim() - len(output_size)):
        size = x.shape[axis]
        starts = [i * size // count for i in range(count)]
        ends = [-((i + 1) * size // -count) for i in range(count)]
        parts = [x.narrow(axis, start, end - start).mean(axis, True) for start, end in zip(starts, ends, strict=True)]
        x = torch.cat(parts, axis)
    return x


# Images: torch's own code loads sympy for those of another size, and allocates memory for the others.


def _resized(overloads: Any, axes: int) -> None:
    @replaces(overloads.vec)
    def resized(x: Tensor, size: Sequence[int] | None, *rest: Any) -> Any:
        *settings, factors = rest
        if size is None:
            size = [int(n * factor) for n, factor in zip(x.shape[-axes:], factors, strict=True)]
        # ONNX Runtime resizes no float64.
        target = core_decompositions().get(overloads.default) if x.dtype == torch.float64 else None
        return (target or overloads.default)(x, size, *settings, *(factors or [None] * axes))


for _axes, _overloads in enumerate(
    (aten._upsample_nearest_exact1d, aten._upsample_nearest_exact2d, aten._upsample_nearest_exact3d), 1
):
    _resized(_overloads, _axes)
_resized(aten.upsample_linear1d, 1)
_resized(aten._upsample_bilinear2d_aa, 2)
_resized(aten._upsample_bicubic2d_aa, 2)


@replaces(aten.pixel_shuffle.default)
def _pixel_shuffle(x: Tensor, factor: int) -> Tensor:
    *front, channels, height, width = x.shape
    count = len(front)
    parts = x.reshape(*front, channels // factor**2, factor, factor, height, width)
    order = [*range(count), *(count + place for place in (0, 3, 1, 4, 2))]
    return parts.permute(order).reshape(*front, channels // factor**2, height * factor, width * factor)


@replaces(aten.pixel_unshuffle.default)
def _pixel_unshuffle(x: Tensor, factor: int) -> Tensor:
    *front, channels, height, width = x.shape
    count = len(front)
    parts = x.reshape(*front, channels, height // factor, factor, width // factor, factor)
    order = [*range(count), *(count + place for place in (0, 2, 4, 1, 3))]
    return parts.permute(order).reshape(*front, channels * factor**2, height // factor, width // factor)


@replaces(aten.channel_shuffle.default)
def _channel_shuffle(x: Tensor, groups: int) -> Tensor:
    batch, channels, *image = x.shape
    return x.reshape(batch, groups, channels // groups, *image).transpose(1, 2).reshape(batch, channels, *image)


# Recurrent cells: torch's own code writes to intermediate values, for which a node needs torch's slower tracer.


@replaces(aten.gru_cell.default)
def _gru_cell(
    x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    entering, within = linear(x, w_ih, b_ih).chunk(3, 1), linear(h, w_hh, b_hh).chunk(3, 1)
    reset, update = (within[0] + entering[0]).sigmoid(), (within[1] + entering[1]).sigmoid()
    new = (entering[2] + within[2] * reset).tanh()
    return (h - new) * update + new


@replaces(aten.lstm_cell.default)
def _lstm_cell(
    x: Tensor, hx: Sequence[Tensor], w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    h, c = hx
    i, f, g, o = (linear(h, w_hh, b_hh) + linear(x, w_ih, b_ih)).chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _rnn_cell(target: Any, activation: Callable[[Tensor], Tensor]) -> None:
    @replaces(target)
    def cell(
        x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
    ) -> Tensor:
        return activation(linear(h, w_hh, b_hh) + linear(x, w_ih, b_ih))


_rnn_cell(aten.rnn_tanh_cell.default, torch.tanh)
_rnn_cell(aten.rnn_relu_cell.default, torch.relu)
