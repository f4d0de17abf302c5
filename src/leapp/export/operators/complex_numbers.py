"""Operators on complex numbers that torchlib lacks, written as operators on the real and the imaginary parts."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from leapp.export.operators.arithmetic import signbit
from leapp.export.operators.table import aten, replaces, replaces_some

_complex = functools.partial(replaces_some, (torch.complex32, torch.complex64, torch.complex128))
"""Registers a function for calls with complex arguments; other calls are replaced as before."""


@_complex(aten.mul.Tensor, aten.mul.Scalar)
def _mul(x: Any, y: Any) -> Any:
    """A product of a tensor and a number, one of them complex."""
    if not isinstance(x, Tensor) or not isinstance(y, (complex, int, float)) or isinstance(y, bool):
        return NotImplemented
    if isinstance(y, complex):
        real, imaginary = (x.real, x.imag) if x.is_complex() else (x, torch.zeros_like(x))
        return torch.complex(real * y.real - imaginary * y.imag, real * y.imag + imaginary * y.real)
    return torch.complex(x.real * y, x.imag * y) if x.is_complex() else NotImplemented


def _number(value: Any, like: Tensor) -> Tensor:
    number, dtype = complex(value), like.real.dtype
    return torch.complex(torch.full((), number.real, dtype=dtype), torch.full((), number.imag, dtype=dtype))


@_complex(aten.where.ScalarOther, aten.where.ScalarSelf)
def _where_number(condition: Tensor, x: Any, y: Any) -> Any:
    """A choice between a tensor and a number."""
    if isinstance(x, Tensor):
        return torch.where(condition, x, _number(y, x))
    return torch.where(condition, _number(x, y), y)


@_complex(aten.exp.default)
def _exp(x: Tensor) -> Any:
    size = x.real.exp()
    return torch.complex(size * x.imag.cos(), size * x.imag.sin())


@_complex(aten.pow.Tensor_Scalar)
def _pow(x: Tensor, exponent: Any) -> Any:
    if exponent not in (1, 2, 3, 4):
        return NotImplemented
    result = x
    for _ in range(int(exponent) - 1):
        result = result * x
    return result


replaces(aten._neg_view.default)(torch.neg)


# ONNX Runtime 1.23 has no Cos of float64, which torchlib writes.
@replaces(aten.polar.default)
def _polar(size: Tensor, angle: Tensor) -> Any:
    return torch.complex(size * angle.cos(), size * angle.sin())


@_complex(aten.angle.default)
def _angle(x: Tensor) -> Any:
    return torch.atan2(x.imag, x.real)


@_complex(aten._conj.default, aten._conj_physical.default, aten.conj_physical.default)
def _conj(x: Tensor) -> Any:
    return torch.complex(x.real, -x.imag)


@_complex(aten.eq.Tensor)
def _eq(x: Tensor, y: Tensor) -> Any:
    return (x.real == y.real) & (x.imag == y.imag) if x.is_complex() and y.is_complex() else NotImplemented


@_complex(aten.log.default)
def _log(x: Tensor) -> Any:
    return torch.complex(torch.hypot(x.real, x.imag).log(), torch.atan2(x.imag, x.real))


@_complex(aten.sqrt.default)
def _sqrt(x: Tensor) -> Any:
    """The larger part is computed first, so that no digits cancel."""
    real, imaginary = x.real, x.imag
    larger = ((real.abs() + torch.hypot(real, imaginary)) / 2).sqrt()
    smaller = torch.where(larger == 0, torch.zeros_like(larger), imaginary.abs() / (2 * larger))
    right = real >= 0
    size = torch.where(right, smaller, larger)
    return torch.complex(torch.where(right, larger, smaller), torch.where(signbit(imaginary), -size, size))


@_complex(aten.sin.default)
def _sin(x: Tensor) -> Any:
    return torch.complex(x.real.sin() * x.imag.cosh(), x.real.cos() * x.imag.sinh())


@_complex(aten.cos.default)
def _cos(x: Tensor) -> Any:
    return torch.complex(x.real.cos() * x.imag.cosh(), -(x.real.sin() * x.imag.sinh()))


@_complex(aten.prod.default)
def _prod(x: Tensor, *, dtype: torch.dtype | None = None) -> Any:
    return NotImplemented if dtype is not None else _prod_along(x.reshape(-1), 0)


@_complex(aten.prod.dim_int)
def _prod_along(x: Tensor, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    if dtype is not None or not x.shape[dim]:
        return NotImplemented
    result = x.select(dim, 0)
    for position in range(1, x.shape[dim]):
        result = result * x.select(dim, position)
    return result.unsqueeze(dim) if keepdim else result


def _by_parts(target: Any) -> None:
    """Write an operator that only moves or adds elements as two operators: on the real and on the imaginary parts."""

    def parts(values: Any, imaginary: bool) -> Any:
        if isinstance(values, (list, tuple)):
            return type(values)(parts(value, imaginary) for value in values)
        if isinstance(values, Tensor) and values.is_complex():
            return values.imag if imaginary else values.real
        return values

    def apart(*args: Any, **named: Any) -> Any:
        real, imaginary = (target(*parts(args, side), **named) for side in (False, True))
        if isinstance(real, Tensor):
            return torch.complex(real, imaginary)
        return [torch.complex(*pair) for pair in zip(real, imaginary, strict=True)]

    _complex(target)(apart)


for _target in (
    aten.select.int, aten.unsqueeze.default, aten.expand.default, aten.unbind.int, aten.split.Tensor,
    aten.split_with_sizes.default, aten.diagonal.default, aten.unfold.default, aten.index.Tensor, aten.index_select.default,
    aten.gather.default, aten.repeat.default, aten.index_put.default, aten.select_scatter.default, aten.slice_scatter.default,
    aten.diagonal_scatter.default, aten.scatter.src, aten.cumsum.default, aten.tril.default, aten.triu.default,
    aten.repeat_interleave.self_int, aten.alias.default,
):  # fmt: skip
    _by_parts(_target)


@_complex(aten._fft_c2r.default)
def _fft_c2r(x: Tensor, dim: list[int], normalization: int, size: int) -> Any:
    """The real part of the inverse transform of the whole spectrum. ONNX Runtime 1.23 refuses that of half of it."""
    *others, last = dim
    x = aten._fft_c2c.default(x, others, 0, False) if others else x
    real, imaginary = (part.narrow(last, 0, size // 2 + 1) for part in (x.real, x.imag))
    mirrored = (part.narrow(last, 1, (size - 1) // 2).flip(last) for part in (real, -imaginary))
    whole = torch.complex(*(torch.cat(parts, last) for parts in zip((real, imaginary), mirrored, strict=True)))
    out = aten._fft_c2c.default(whole, [last], 0, False).real
    count = math.prod(out.shape[d] for d in dim)
    return out / {0: 1, 1: math.sqrt(count), 2: count}[normalization]


@_complex(aten.constant_pad_nd.default)
def _pad(x: Tensor, pad: Any, value: Any = 0) -> Any:
    if isinstance(value, complex):
        return NotImplemented
    return torch.complex(torch.constant_pad_nd(x.real, pad, value), torch.constant_pad_nd(x.imag, pad, 0))


@_complex(aten.masked_fill.Scalar)
def _masked_fill(x: Tensor, mask: Tensor, value: Any) -> Any:
    return torch.where(mask, _number(value, x), x)


@_complex(aten.fill.Tensor)
def _fill(x: Tensor, value: Tensor) -> Any:
    dtype = x.real.dtype
    real, imaginary = (value.real, value.imag) if value.is_complex() else (value, torch.zeros_like(value))
    return torch.complex(real.to(dtype).expand(x.shape), imaginary.to(dtype).expand(x.shape))


@_complex(aten.fill.Scalar)
def _fill_number(x: Tensor, value: Any) -> Any:
    return _number(value, x).expand(x.shape)
