"""Operators on float64 values, written as sums, products and choices.

ONNX attributes are float32, and ONNX Runtime has few operators for float64. Sums, products and choices take their numbers as
tensors, and ONNX Runtime has them for every type.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from leapp.export.operators.special_functions import erf
from leapp.export.operators.table import aten, replaces_some, torch_replaces

_wide = functools.partial(replaces_some, (torch.float64,))
"""Registers a function for calls with float64 arguments."""


# Activations

torch_replaces(aten.hardswish.default, dtypes=(torch.float64,))


@_wide(aten.leaky_relu.default)
def _leaky_relu(x: Tensor, slope: Any = 0.01) -> Any:
    return torch.where(x > 0, x, x * slope)


@_wide(aten.softplus.default)
def _softplus(x: Tensor, beta: Any = 1, threshold: Any = 20) -> Any:
    scaled = x * beta
    return torch.where(scaled > threshold, x, torch.where(scaled > threshold, torch.zeros_like(x), scaled).exp().log1p() / beta)


@_wide(aten.gelu.default)
def _gelu(x: Tensor, *, approximate: str = "none") -> Any:
    return NotImplemented if approximate != "none" else 0.5 * x * (1 + erf(x * math.sqrt(0.5)))


# Images of another size

torch_replaces(aten.upsample_bilinear2d.vec, aten.upsample_bicubic2d.vec, dtypes=(torch.float64,))

# Normalisation


@_wide(aten.layer_norm.default)
def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5, *_: Any
) -> Any:
    return _scaled(_normalised(x, list(range(x.dim() - len(shape), x.dim())), eps), weight, bias, list(shape))


@_wide(aten.native_layer_norm.default)
def _native_layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Any:
    # The statistics are for gradients, which do not read them here.
    return _layer_norm(x, shape, weight, bias, eps), x[..., :0], x[..., :0]


@_wide(aten.group_norm.default)
def _group_norm(
    x: Tensor, groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5, *_: Any
) -> Any:
    out = _normalised(x.reshape(x.shape[0], groups, -1), [2], eps).reshape(x.shape)
    return _scaled(out, weight, bias, _channels(x))


@_wide(aten.instance_norm.default)
def _instance_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None, own: bool,
    momentum: float, eps: float, *_: Any,
) -> Any:  # fmt: skip
    return _scaled(_normalised(x, list(range(2, x.dim())), eps), weight, bias, _channels(x)) if own else NotImplemented


@_wide(aten._native_batch_norm_legit_no_training.default)
def _batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, momentum: float, eps: float
) -> Any:
    channels = _channels(x)
    out = (x - mean.reshape(channels)) * (var + eps).rsqrt().reshape(channels)
    return _scaled(out, weight, bias, channels), mean[:0], var[:0]


def _channels(x: Tensor) -> list[int]:
    return [1, -1] + [1] * (x.dim() - 2)


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None, shape: list[int]) -> Tensor:
    x = x if weight is None else x * weight.reshape(shape)
    return x if bias is None else x + bias.reshape(shape)


def _normalised(x: Tensor, dims: list[int], eps: float) -> Tensor:
    centred = x - x.mean(dims, keepdim=True)
    return centred * ((centred * centred).mean(dims, keepdim=True) + eps).rsqrt()


# Functions for which torchlib rounds a factor to float32


@_wide(aten.log2.default)
def _log2(x: Tensor) -> Any:
    return x.log() * (1 / math.log(2))


@_wide(aten.log10.default)
def _log10(x: Tensor) -> Any:
    return x.log() * (1 / math.log(10))


# Functions that ONNX Runtime 1.20 to 1.31 has for float32 only. It has Cos for float64 since a release after 1.23.


@_wide(aten.isinf.default)
def _isinf(x: Tensor) -> Any:
    return x.abs() == math.inf


@_wide(aten.asinh.default)
def _asinh(x: Tensor) -> Any:
    size = x.abs()
    # Above this limit the 1 does not matter, and the square might overflow.
    far = size > 1e8
    square = torch.where(far, torch.ones_like(x), size * size)
    near = (size + square / (1 + (1 + square).sqrt())).log1p()
    value = torch.where(far, size.log() + math.log(2), near)
    return torch.where(x < 0, -value, torch.where(x == 0, x, value))


@_wide(aten.acosh.default)
def _acosh(x: Tensor) -> Any:
    above = x - 1
    near = (above + (2 * above + above * above).sqrt()).log1p()
    return torch.where(x < 1, math.nan, torch.where(x > 1e8, x.log() + math.log(2), near))


@_wide(aten.atanh.default)
def _atanh(x: Tensor) -> Any:
    size = x.abs()
    value = 0.5 * (2 * size / (1 - size)).log1p()
    return torch.where(x < 0, -value, torch.where(x == 0, x, value))


@_wide(aten.atan.default)
def _atan(x: Tensor) -> Any:
    size = x.abs()
    flipped = size > 1
    small = torch.where(flipped, 1 / size, size)
    # Three halvings make the angle so small that a short series is exact.
    for _ in range(3):
        small = small / (1 + (1 + small * small).sqrt())
    square = small * small
    total = torch.zeros_like(x)
    for power in reversed(range(1, 21, 2)):
        total = total * square + (-1) ** (power // 2) / power
    value = 8 * small * total
    value = torch.where(flipped, math.pi / 2 - value, value)
    return torch.where(x < 0, -value, torch.where(x == 0, x, value))


@_wide(aten.asin.default)
def _asin(x: Tensor) -> Any:
    return torch.where(x == 0, x, (x / ((1 - x) * (1 + x)).sqrt()).atan())


@_wide(aten.acos.default)
def _acos(x: Tensor) -> Any:
    return 2 * ((1 - x) / (1 + x)).sqrt().atan()


@_wide(aten.cos.default)
def _cos(x: Tensor) -> Any:
    half = (x * 0.5).sin()
    return 1 - 2 * half * half


@_wide(aten.tan.default)
def _tan(x: Tensor) -> Any:
    return x.sin() / x.cos()


@_wide(aten.sinh.default)
def _sinh(x: Tensor) -> Any:
    grown = x.abs().expm1()
    value = (grown + torch.where(grown > 1, 1 - 1 / (grown + 1), grown / (grown + 1))) / 2
    return torch.where(x < 0, -value, torch.where(x == 0, x, value))


@_wide(aten.cosh.default)
def _cosh(x: Tensor) -> Any:
    return (x.exp() + (-x).exp()) / 2
