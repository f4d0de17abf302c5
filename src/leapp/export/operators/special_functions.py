"""Special functions that ONNX or its engines lack, as rational and asymptotic approximations in double precision.

Those around the error function hold the precision of float64 over the whole range, with W. J. Cody's approximations
(Math. Comp. 23, 1969). The gamma functions are exact to about 1e-14 of the value, near their zeros to 1e-14.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from leapp.export.operators.table import aten, replaces, torch_replaces


def _in_float64(target: Any) -> Callable[[Callable[[Tensor], Tensor]], Callable[[Tensor], Tensor]]:
    """Register a function of float64 values for all floats that ONNX Runtime computes with."""

    def register(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        @replaces(target)
        def widened(x: Tensor) -> Any:
            known = x.dtype in (torch.float16, torch.float32, torch.float64)
            return function(x.to(torch.float64)).to(x.dtype) if known else NotImplemented

        return function

    return register


def _polynomial(factors: Sequence[float], x: Tensor) -> Tensor:
    """A polynomial; the constant factor comes first."""
    total = torch.full_like(x, factors[-1])
    for factor in reversed(factors[:-1]):
        total = total * x + factor
    return total


# The error function and its relatives: near zero by erf, elsewhere by erfc times exp(x * x).

_CENTRE = (
    (3209.37758913846947, 377.485237685302021, 113.864154151050156, 3.16112374387056560, 0.185777706184603153),
    (2844.23683343917062, 1282.61652607737228, 244.024637934444173, 23.6012909523441209, 1.0),
)
_MIDDLE = (
    (1230.33935479799725, 2051.07837782607147, 1712.04761263407058, 881.952221241769090, 298.635138197400131,
     66.1191906371416295, 8.88314979438837594, 0.564188496988670089, 2.15311535474403846e-8),
    (1230.33935480374942, 3439.36767414372164, 4362.61909014324716, 3290.79923573345963, 1621.38957456669019,
     537.181101862009858, 117.693950891312499, 15.7449261107098347, 1.0),
)  # fmt: skip
_FAR = (
    (6.58749161529837803e-4, 0.0160837851487422766, 0.125781726111229246, 0.360344899949804439, 0.305326634961232344,
     0.0163153871373020978),
    (2.33520497626869185e-3, 0.0605183413124413191, 0.527905102951428412, 1.87295284992346725, 2.56852019228982242, 1.0),
)  # fmt: skip
_BORDERS = 0.46875, 4.0
_LAST = 28.0
"""Beyond this ``erfc`` is zero in float64."""


def _ratio(pair: tuple[Sequence[float], Sequence[float]], x: Tensor) -> Tensor:
    return _polynomial(pair[0], x) / _polynomial(pair[1], x)


def _central(x: Tensor) -> Tensor:
    """``erf`` near zero."""
    near = torch.where(x.abs() <= _BORDERS[0], x, torch.zeros_like(x))
    return near * _ratio(_CENTRE, near * near)


def _scaled(size: Tensor) -> Tensor:
    """``erfc(x) * exp(x * x)`` for positive numbers away from zero."""
    middle = _ratio(_MIDDLE, size.clamp(*_BORDERS))
    far = size.clamp(min=_BORDERS[1])
    inverse = 1 / far / far
    beyond = (1 / math.sqrt(math.pi) - inverse * _ratio(_FAR, inverse)) / far
    return torch.where(size <= _BORDERS[1], middle, beyond)


def _gauss(size: Tensor) -> Tensor:
    """``exp(-x * x)``, split into a part with few digits, whose square is exact, and a small rest."""
    size = size.clamp(max=_LAST)
    whole = (size * 16).floor() / 16
    return (-whole * whole).exp() * (-(size - whole) * (size + whole)).exp()


def erf(x: Tensor) -> Tensor:
    """The error function of float64 values."""
    size = x.abs()
    outside = 1 - _scaled(size) * _gauss(size)
    value = torch.where(size <= _BORDERS[0], _central(x), torch.where(x < 0, -outside, outside))
    return torch.where(x != x, x, value)


@_in_float64(aten.erfc.default)
def _erfc(x: Tensor) -> Tensor:
    """One minus ``erf`` has no digits left where ``erfc`` is small."""
    size = x.abs()
    outside = torch.where(size < _LAST, _scaled(size) * _gauss(size), torch.zeros_like(x))
    value = torch.where(size <= _BORDERS[0], 1 - _central(x), torch.where(x < 0, 2 - outside, outside))
    return torch.where(x != x, x, value)


@replaces(aten.erf.default)
def _wide_erf(x: Tensor) -> Any:
    return erf(x) if x.dtype == torch.float64 else NotImplemented


@_in_float64(aten.special_erfcx.default)
def _erfcx(x: Tensor) -> Tensor:
    size = x.abs()
    # The value is as exact as the square of the argument. Beyond this limit it is infinite.
    grown = 1 / _gauss(size.clamp(max=27.0))
    central = (1 - _central(x)) * grown
    value = torch.where(x < 0, 2 * grown - _scaled(size), _scaled(size))
    value = torch.where(size <= _BORDERS[0], central, value)
    value = torch.where(x < -26.7, math.inf, value)
    return torch.where(x != x, x, value)


torch_replaces(aten.special_log_ndtr.default)


_INVERSE = (
    (0.886226899, -1.645349621, 0.914624893, -0.140543331),
    (1.0, -2.118377725, 1.442710462, -0.329097515, 0.012229801),
)
_INVERSE_TAIL = ((-1.970840454, -1.624906493, 3.429567803, 1.641345311), (1.0, 3.543889200, 1.637067800))


@_in_float64(aten.erfinv.default)
def _erfinv(x: Tensor) -> Tensor:
    size = x.abs().clamp(max=1.0)
    rest = 1 - size
    square = size * size
    far = (-(rest.clamp(min=1e-18) / 2).log()).sqrt()
    value = torch.where(size <= 0.7, size * _ratio(_INVERSE, square), _ratio(_INVERSE_TAIL, far))
    for _ in range(2):
        # Near one, the distance of the argument from one has more correct digits than the argument.
        error = torch.where(size <= 0.5, erf(value) - size, rest - _erfc(value))
        value = value - error * (math.sqrt(math.pi) / 2) / _gauss(value)
    value = torch.where(x < 0, -value, value)
    value = torch.where(x.abs() == 1, x * math.inf, torch.where(x.abs() > 1, math.nan, value))
    return torch.where(x != x, x, value)


# The gamma function and its relatives.

_LANCZOS = (
    0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059,
    12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7,
)  # fmt: skip


@_in_float64(aten.lgamma.default)
def _lgamma(x: Tensor) -> Tensor:
    # Arguments below one half are reflected.
    left = x < 0.5
    z = torch.where(left, 1 - x, x) - 1
    total = torch.full_like(z, _LANCZOS[0])
    for step, factor in enumerate(_LANCZOS[1:], 1):
        total = total + factor / (z + step)
    t = z + 7.5
    value = 0.5 * math.log(2 * math.pi) + (z + 0.5) * t.log() - t + total.log()
    angle = (x - x.round()) * math.pi
    reflected = math.log(math.pi) - angle.sin().abs().log() - value
    value = torch.where(left, reflected, value)
    return torch.where(x.isinf(), math.inf, value)


@_in_float64(aten.digamma.default)
def _digamma(x: Tensor) -> Tensor:
    left = x < 0.5
    z = torch.where(left, 1 - x, x)
    below = torch.zeros_like(z)
    # The asymptotic series needs a large argument; the recurrence makes it large.
    for step in range(16):
        below = below + 1 / (z + step)
    z = z + 16
    inverse = 1 / (z * z)
    series = inverse * (1 / 12 - inverse * (1 / 120 - inverse * (1 / 252 - inverse * (1 / 240 - inverse * (1 / 132)))))
    value = z.log() - 0.5 / z - series - below
    distance = x - x.round()
    angle = distance * math.pi
    value = torch.where(left, value - math.pi * angle.cos() / angle.sin(), value)
    # At zero the result has the opposite sign of the zero; at negative integers it is NaN.
    value = torch.where((x < 0) & (distance == 0), math.nan, value)
    return torch.where(x == 0, -1 / x, torch.where(x == math.inf, math.inf, value))
