"""Functions of ``math`` for 0-d tensors. Their results have the types of ``math``: float64, an integer or a truth value."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from leapp.capture.numpy.table import UFUNCS, Unmapped
from leapp.capture.numpy.table.tensors import double, tensor

Tensor = torch.Tensor


def _of_doubles(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(function)
    def call(*args: Any) -> Tensor:
        return function(*(double(a) for a in args))

    return call


def _log(x: Tensor, base: Tensor | None = None) -> Tensor:
    return torch.log(x) if base is None else torch.log(x) / torch.log(base)


def _hypot(*sides: Tensor) -> Tensor:
    return torch.sqrt(functools.reduce(torch.add, (s * s for s in sides)))


def _gamma(x: Tensor) -> Tensor:
    odd = torch.floor(x) - 2 * torch.floor(torch.floor(x) / 2)
    return torch.where(x < 0, 1 - 2 * odd, torch.ones_like(x)) * torch.exp(torch.lgamma(x))


def _whole(name: str) -> Callable[..., Tensor]:
    return lambda x: UFUNCS[name](double(x)).to(torch.int64)


def _dist(p: Any, q: Any) -> Tensor:
    return torch.sqrt(((double(p) - double(q)) ** 2).sum())


def _fsum(seq: Any) -> Tensor:
    return double(list(seq)).sum()


def _prod(iterable: Any, *, start: Any = 1) -> Tensor:
    found = tensor(list(iterable)).prod() * tensor(start)
    if not found.is_floating_point():
        raise Unmapped
    return found.to(torch.float64)


def _sumprod(p: Any, q: Any) -> Tensor:
    return (double(list(p)) * double(list(q))).sum()


def _isclose(a: Any, b: Any, *, rel_tol: float = 1e-9, abs_tol: float = 0.0) -> Any:
    a, b = double(a), double(b)
    near = (a - b).abs() <= torch.maximum(rel_tol * torch.maximum(a.abs(), b.abs()), double(abs_tol))
    return (a == b) | (near & torch.isfinite(a) & torch.isfinite(b))


_LIKE_NUMPY = (
    "sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh exp exp2 expm1 log2 log10 log1p sqrt cbrt pow fabs "
    "copysign fmod ldexp modf degrees radians isnan isinf isfinite"
)
_OTHERS: dict[str, Callable[..., Tensor]] = {
    "log": _log, "hypot": _hypot, "gamma": _gamma, "lgamma": torch.lgamma, "erf": torch.erf, "erfc": torch.erfc,
    "remainder": lambda x, y: x - torch.round(x / y) * y, "fma": lambda x, y, z: x * y + z,
}  # fmt: skip

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: _of_doubles(UFUNCS.get(name) or getattr(torch, name)) for name in _LIKE_NUMPY.split()},
    **{name: _of_doubles(function) for name, function in _OTHERS.items()},
    **{name: _whole(name) for name in ("floor", "ceil", "trunc")},
    "dist": _dist, "fsum": _fsum, "prod": _prod, "sumprod": _sumprod, "isclose": _isclose,
}  # fmt: skip
"""Torch forms by the name in ``math``."""
