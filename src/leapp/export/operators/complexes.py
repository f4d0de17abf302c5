"""Complex numbers: the real and the imaginary part, computed apart."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .table import aten, replaces


def _joined(real: Tensor, imaginary: Tensor) -> Tensor:
    return torch.complex(real, imaginary)


@replaces(aten.mul.Scalar)
def _mul_number(x: Tensor, number: Any) -> Any:
    return _mul(x, number)


@replaces(aten.mul.Tensor)
def _mul(x: Any, y: Any) -> Any:
    """A product where exactly one side is a complex number, or a real tensor with an imaginary number."""
    if not isinstance(x, Tensor) or not isinstance(y, (complex, int, float)) or isinstance(y, bool):
        return NotImplemented
    if isinstance(y, complex):
        real, imaginary = (x.real, x.imag) if x.is_complex() else (x, torch.zeros_like(x))
        return _joined(real * y.real - imaginary * y.imag, real * y.imag + imaginary * y.real)
    return _joined(x.real * y, x.imag * y) if x.is_complex() else NotImplemented


@replaces(aten.add.Scalar)
def _add_number(x: Tensor, y: Any, alpha: Any = 1) -> Any:
    return _add(x, y, alpha=alpha)


@replaces(aten.add.Tensor)
def _add(x: Any, y: Any, *, alpha: Any = 1) -> Any:
    if not isinstance(x, Tensor) or not x.is_complex() or not isinstance(y, (complex, int, float)) or alpha != 1:
        return NotImplemented
    number = complex(y)
    return _joined(x.real + number.real, x.imag + number.imag)


def _number(value: Any, like: Tensor) -> tuple[Tensor, Tensor]:
    number, dtype = complex(value), like.real.dtype
    return torch.full((), number.real, dtype=dtype), torch.full((), number.imag, dtype=dtype)


@replaces(aten.where.ScalarOther)
def _where_number(condition: Tensor, x: Tensor, y: Any) -> Any:
    return torch.where(condition, x, torch.complex(*_number(y, x))) if x.is_complex() else NotImplemented


@replaces(aten.where.ScalarSelf)
def _where_other(condition: Tensor, x: Any, y: Tensor) -> Any:
    return torch.where(condition, torch.complex(*_number(x, y)), y) if y.is_complex() else NotImplemented


@replaces(aten.exp.default)
def _exp(x: Tensor) -> Any:
    if not x.is_complex():
        return NotImplemented
    size = x.real.exp()
    return _joined(size * x.imag.cos(), size * x.imag.sin())


@replaces(aten.pow.Tensor_Scalar)
def _pow(x: Tensor, exponent: Any) -> Any:
    if not x.is_complex() or exponent not in (1, 2, 3, 4):
        return NotImplemented
    result = x
    for _ in range(int(exponent) - 1):
        result = result * x
    return result


@replaces(aten._neg_view.default)
def _neg_view(x: Tensor) -> Any:
    return -x
