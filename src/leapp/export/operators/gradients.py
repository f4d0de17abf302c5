"""Gradients that are computed inside a node, of operators whose backward torchlib lacks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from leapp.export.operators.table import aten, replaces, torch_replaces

torch_replaces(aten.silu_backward.default, aten.mish_backward.default)


@replaces(aten.convolution_backward.default)
def _convolution_backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias_sizes: Sequence[int] | None, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
    output_mask: Sequence[bool],
) -> Any:  # fmt: skip
    spatial = x.dim() - 2
    stride, padding, dilation = ([*v, *[v[-1]] * (spatial - len(v))] for v in (stride, padding, dilation))
    nothing = [0] * spatial
    dx = dw = db = None
    if output_mask[0] and transposed:
        dx = aten.convolution.default(grad, weight, None, stride, padding, dilation, False, nothing, groups)
    elif output_mask[0]:
        sizes = zip(x.shape[2:], grad.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
        rest = [n - ((out - 1) * s - 2 * p + d * (k - 1) + 1) for n, out, k, s, p, d in sizes]
        dx = aten.convolution.default(grad, weight, None, stride, padding, dilation, True, rest, groups)
    if output_mask[1]:
        entering, leaving = (grad, x) if transposed else (x, grad)
        parts = zip(entering.chunk(groups, 1), leaving.chunk(groups, 1), strict=True)
        dw = torch.cat([_kernel_gradient(a, b, weight.shape[2:], stride, padding, dilation) for a, b in parts])
    if output_mask[2]:
        db = grad.sum([0, *range(2, grad.dim())])
    return dx, dw, db


def _kernel_gradient(
    x: Tensor, grad: Tensor, size: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> Tensor:
    """The gradient of a convolution without groups by its kernel: the input convolved with the gradient of the output."""
    nothing = [0] * len(size)
    x = pad(x, [amount for p in reversed(padding) for amount in (p, p)])
    found: Tensor = aten.convolution.default(
        x.transpose(0, 1), grad.transpose(0, 1), None, dilation, nothing, stride, False, nothing, 1
    )
    for axis, length in enumerate(size):
        found = found.narrow(axis + 2, 0, length)
    return found.transpose(0, 1)


@replaces(aten.avg_pool2d_backward.default)
def _avg_pool2d_backward(
    grad: Tensor, x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], ceil_mode: bool,
    count_include_pad: bool, divisor_override: int | None,
) -> Any:  # fmt: skip
    (kh, kw), (ph, pw) = ([*v, v[-1]][:2] for v in (kernel, padding))
    sh, sw = [*stride, stride[-1]][:2] if stride else (kh, kw)
    if ceil_mode or ph or pw:
        return NotImplemented
    flat = grad.reshape(-1, 1, *grad.shape[-2:])
    weight = torch.full((1, 1, kh, kw), 1 / (divisor_override or kh * kw), dtype=grad.dtype, device=grad.device)
    sizes = zip(x.shape[-2:], grad.shape[-2:], (kh, kw), (sh, sw), (ph, pw), strict=True)
    # Rows and columns that no window reached have the gradient 0. A convolution can add only a few of them, so they are padded.
    lengths = [(n, (out - 1) * s + k - 2 * p) for n, out, k, s, p in sizes]
    found = aten.convolution.default(flat, weight, None, [sh, sw], [ph, pw], [1, 1], True, [0, 0], 1)
    (height, h), (width, w) = lengths
    return pad(found, [0, width - w, 0, height - h]).reshape(x.shape)


@replaces(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def _attention_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, dropout_p: float,
    is_causal: bool, *, attn_mask: Tensor | None = None, scale: float | None = None,
) -> Any:  # fmt: skip
    if dropout_p or query.shape[-3] != key.shape[-3]:
        return NotImplemented
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = query @ key.mT * factor
    if is_causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
        scores = scores.masked_fill(~allowed, -math.inf)
    elif attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    weights = scores.softmax(-1)
    if attn_mask is not None:
        barred = (scores != -math.inf).to(torch.float32).sum(-1, keepdim=True) == 0
        weights = weights.masked_fill(barred, 0.0)
    d_weights = grad @ value.mT
    d_scores = weights * (d_weights - (d_weights * weights).sum(-1, keepdim=True)) * factor
    return d_scores @ key, d_scores.mT @ query, weights.mT @ grad
