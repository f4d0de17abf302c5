"""Layers of networks: normalisation, attention, recurrence."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from leapp.compat.graphs import core_decompositions
from leapp.export.operators.table import aten, replaces, torch_replaces

# Batch norm with the statistics of the batch: torchlib uses the running statistics instead.
torch_replaces(aten._native_batch_norm_legit_functional.default, aten._native_batch_norm_legit.no_stats)


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


# torchlib forgets the divisor that replaces the number of elements of a window.


def _avg_pool(target: Any, count: int) -> None:
    def each(values: Sequence[int]) -> list[int]:
        return list(values) * count if len(values) == 1 else list(values)

    @replaces(target)
    def avg_pool(
        x: Tensor, kernel_size: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
        ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> Any:  # fmt: skip
        if divisor_override is None:
            return NotImplemented
        kernel, pads = each(kernel_size), each(padding)
        strides = each(stride) if stride else kernel
        borders: list[int] = []
        for size, k, s, p in reversed(list(zip(x.shape[-count:], kernel, strides, pads, strict=True))):
            steps = -((size + 2 * p - k) // -s) if ceil_mode else (size + 2 * p - k) // s
            steps -= int(ceil_mode and steps * s >= size + p)  # no window begins in the padding behind the image
            borders += [p, p + max(0, steps * s + k - (size + 2 * p))]
        return target(torch.constant_pad_nd(x, borders), kernel, strides) * (math.prod(kernel) / divisor_override)


_avg_pool(aten.avg_pool2d.default, 2)
_avg_pool(aten.avg_pool3d.default, 3)


# ONNX Runtime has Gemm, which torchlib writes, for floats only.


@replaces(aten.addmm.default)
def _addmm(c: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return NotImplemented if a.is_floating_point() or a.is_complex() else a @ b * alpha + c * beta


@replaces(aten.linear.default)
def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    if x.is_floating_point() or x.is_complex():
        return NotImplemented
    return x @ weight.mT if bias is None else x @ weight.mT + bias


# ONNX computes the size of an image from its scales in float32: 20 * 0.45 is below 9 there.


def _resize(target: Any) -> None:
    @replaces(target)
    def resize(x: Tensor, output_size: Any, *rest: Any) -> Any:
        *options, scales = rest
        if scales is None or any(isinstance(size, torch.SymInt) for size in x.shape[2:]):
            return NotImplemented
        fitting = [_fitting(float(scale), size) for scale, size in zip(scales, x.shape[2:], strict=True)]
        return NotImplemented if fitting == list(scales) else target(x, None, *options, fitting)


def _fitting(scale: float, size: int) -> float:
    """The scale, or the nearest float32 that gives the same size of the image, whether it is multiplied in float32 or not."""
    wanted, near = math.floor(size * scale), np.float32(scale)
    if all(math.floor(product) == wanted for product in (size * float(near), np.float32(size) * near)):
        return scale
    while any(math.floor(product) != wanted for product in (size * float(near), np.float32(size) * near)):
        near = np.nextafter(near, np.float32(math.inf if size * float(near) < wanted + 0.5 else 0))
    return float(near)


for _target in (aten.upsample_bilinear2d.vec, aten.upsample_trilinear3d.vec, aten.upsample_bicubic2d.vec):
    _resize(_target)


@replaces(aten.upsample_nearest1d.vec, aten.upsample_nearest2d.vec, aten.upsample_nearest3d.vec)
def _nearest(x: Tensor, output_size: Any, scales: Any) -> Any:
    """Images whose pixels are taken at places computed as in eager code. ONNX Runtime rounds the places differently."""
    sizes = x.shape[2:]
    if scales is None or any(isinstance(size, torch.SymInt) for size in sizes) or all(float(s).is_integer() for s in scales):
        return NotImplemented
    for axis, (size, scale) in enumerate(zip(sizes, scales, strict=True), 2):
        places = torch.arange(math.floor(size * scale), dtype=torch.float32, device=x.device) * (1 / scale)
        x = x.index_select(axis, places.to(torch.int64).clamp(max=size - 1))
    return x


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
