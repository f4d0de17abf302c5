"""Special functions that ONNX lacks, as rational and asymptotic approximations in double precision.

Each is as exact as float32 can show; float64 is left to the backends that have the function.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .table import aten, replaces

_LANCZOS = (
    0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059,
    12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7,
)  # fmt: skip


def _narrow(x: Tensor) -> bool:
    return x.dtype in (torch.float32, torch.float16)


@replaces(aten.lgamma.default)
def _lgamma(x: Tensor) -> Any:
    if not _narrow(x):
        return NotImplemented
    wide = x.to(torch.float64)
    # Left of one half by reflection.
    left = wide < 0.5
    z = torch.where(left, 1 - wide, wide) - 1
    total = torch.full_like(z, _LANCZOS[0])
    for step, factor in enumerate(_LANCZOS[1:], 1):
        total = total + factor / (z + step)
    t = z + 7.5
    value = 0.5 * math.log(2 * math.pi) + (z + 0.5) * t.log() - t + total.log()
    fraction = wide - wide.floor()
    reflected = math.log(math.pi) - (fraction * math.pi).sin().abs().log() - value
    value = torch.where(left, reflected, value)
    return torch.where(wide.isinf(), math.inf, value).to(x.dtype)


@replaces(aten.digamma.default)
def _digamma(x: Tensor) -> Any:
    if not _narrow(x):
        return NotImplemented
    wide = x.to(torch.float64)
    left = wide < 0.5
    z = torch.where(left, 1 - wide, wide)
    below = torch.zeros_like(z)
    # The asymptotic series needs a large argument; the recurrence leads there.
    for step in range(8):
        below = below + 1 / (z + step)
    z = z + 8
    inverse = 1 / (z * z)
    series = inverse * (1 / 12 - inverse * (1 / 120 - inverse * (1 / 252 - inverse * (1 / 240 - inverse * (1 / 132)))))
    value = z.log() - 0.5 / z - series - below
    fraction = wide - wide.floor()
    value = torch.where(left, value - math.pi * (fraction * math.pi).cos() / (fraction * math.pi).sin(), value)
    # At zero the sign of the zero decides, at the negative integers nothing does.
    zero = -1 / wide
    value = torch.where((wide < 0) & (fraction == 0), math.nan, value)
    value = torch.where(wide == 0, zero, torch.where(wide == math.inf, math.inf, value))
    return value.to(x.dtype)


_CENTRE = (
    (0.886226899, -1.645349621, 0.914624893, -0.140543331),
    (1.0, -2.118377725, 1.442710462, -0.329097515, 0.012229801),
)
_TAIL = ((-1.970840454, -1.624906493, 3.429567803, 1.641345311), (1.0, 3.543889200, 1.637067800))


def _polynomial(factors: tuple[float, ...], x: Tensor) -> Tensor:
    total = torch.full_like(x, factors[-1])
    for factor in reversed(factors[:-1]):
        total = total * x + factor
    return total


@replaces(aten.erfinv.default)
def _erfinv(x: Tensor) -> Any:
    if not _narrow(x):
        return NotImplemented
    y = x.to(torch.float32)
    square = y * y
    centre = y * _polynomial(_CENTRE[0], square) / _polynomial(_CENTRE[1], square)
    far = (-((1 - y.abs()) / 2).log()).sqrt()
    tail = _polynomial(_TAIL[0], far) / _polynomial(_TAIL[1], far)
    value = torch.where(y.abs() <= 0.7, centre, torch.where(y < 0, -tail, tail))
    for _ in range(2):
        value = value - (value.erf() - y) / (2 / math.sqrt(math.pi) * (-value * value).exp())
    value = torch.where(y.abs() == 1, y * math.inf, torch.where(y.abs() > 1, math.nan, value))
    return value.to(x.dtype)
