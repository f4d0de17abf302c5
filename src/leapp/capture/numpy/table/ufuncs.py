"""Ufuncs by name, and their methods ``reduce`` and ``accumulate``."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from leapp.capture.numpy.table.registry import Expression, Unmapped
from leapp.capture.numpy.table.tensors import axes_of, tensor
from leapp.compat.numpy import binary_ufuncs, unary_ufuncs

Tensor = torch.Tensor

_OPERATORS = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv, "power": operator.pow,
    "remainder": operator.mod, "floor_divide": operator.floordiv, "greater": operator.gt, "greater_equal": operator.ge,
    "less": operator.lt, "less_equal": operator.le, "equal": operator.eq, "not_equal": operator.ne,
}  # fmt: skip
NUMBERS = frozenset(_OPERATORS)
"""Ufuncs whose expressions take Python numbers beside tensors."""


def _modf(x: Tensor) -> tuple[Tensor, Tensor]:
    whole = torch.trunc(x)
    fraction = torch.where(torch.isinf(x), torch.zeros_like(x), x - whole)
    return torch.copysign(fraction, x), whole


def _cbrt(x: Tensor) -> Tensor:
    return torch.copysign(torch.abs(x) ** (1 / 3), x)


def _spacing(x: Tensor) -> Tensor:
    return torch.nextafter(x, torch.copysign(torch.full_like(x, math.inf), x)) - x


def _sign(x: Tensor) -> Tensor:
    return torch.where(torch.isnan(x), x, torch.sign(x)) if x.dtype.is_floating_point else torch.sign(x)


def _ldexp(x: Tensor, e: Tensor) -> Tensor:
    return x * torch.exp2(e.to(x.dtype))


UFUNCS: dict[str, Expression] = {
    **{n: getattr(unary_ufuncs, n) for n in dir(unary_ufuncs) if isinstance(getattr(np, n, None), np.ufunc)},
    **{n: getattr(binary_ufuncs, n) for n in dir(binary_ufuncs) if isinstance(getattr(np, n, None), np.ufunc)},
    **_OPERATORS,
    "modf": _modf,
    "frexp": torch.frexp,
    "cbrt": _cbrt,
    "spacing": _spacing,
    "sign": _sign,
    "ldexp": _ldexp,
    "float_power": torch.pow,
    "heaviside": lambda x, y: torch.where(torch.isnan(x), x, torch.heaviside(x, y)),
    "vecdot": lambda x, y: (torch.conj_physical(x) * y).sum(-1),
    "matvec": lambda x, y: torch.matmul(x, y.unsqueeze(-1)).squeeze(-1),
    "vecmat": lambda x, y: torch.matmul(torch.conj_physical(x).unsqueeze(-2), y).squeeze(-2),
}
"""Expressions by the name that a ufunc gives itself: ``np.acos`` is ``arccos``."""

NUMPY_UFUNCS = frozenset(v for v in vars(np).values() if isinstance(v, np.ufunc))
SCIPY_UFUNCS: dict[str, Expression] = {
    "expit": torch.special.expit, "logit": torch.special.logit, "log_expit": torch.nn.functional.logsigmoid,
    "erf": torch.special.erf, "erfc": torch.special.erfc, "erfinv": torch.special.erfinv, "ndtr": torch.special.ndtr,
    "gammaln": torch.special.gammaln, "xlogy": torch.special.xlogy, "entr": torch.special.entr, "sinc": torch.special.sinc,
}  # fmt: skip
"""Ufuncs of ``scipy.special`` that observation code uses, by name."""

_ACCUMULATE: dict[str, Callable[[Tensor, int], Tensor]] = {
    "add": torch.cumsum,
    "multiply": torch.cumprod,
    "maximum": lambda x, axis: torch.cummax(x, axis).values,
    "minimum": lambda x, axis: torch.cummin(x, axis).values,
}
_FOLD_LIMIT = 256


def reduced(
    name: str, x: Tensor, axis: Any = 0, dtype: torch.dtype | None = None, keepdims: bool = False,
    initial: Any = None, where: Any = None,
) -> Tensor:  # fmt: skip
    """``ufunc.reduce`` on the values of ``x``, computed in ``dtype``."""
    if dtype is not None:
        x = x.to(dtype)
    dims = axes_of(x, axis)
    if where is not None:
        fill = _neutral(name, x.dtype) if initial is None or name in ("add", "multiply") else initial
        x = torch.where(tensor(where), x, torch.full_like(x, fill))
    if not dims:
        result = x
    elif name in _REDUCE:
        result = _REDUCE[name](x, dims)
    elif len(dims) == 1 and 0 < x.shape[dims[0]] <= _FOLD_LIMIT:
        result = functools.reduce(UFUNCS[name], torch.unbind(x, dims[0]))
    else:
        raise Unmapped
    if initial is not None:
        result = UFUNCS[name](torch.full_like(result, initial) if not isinstance(initial, Tensor) else initial, result)
    return result.reshape([1 if d in dims else n for d, n in enumerate(x.shape)]) if keepdims else result


def _product(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    for d in sorted(dims, reverse=True):
        x = torch.prod(x, d, dtype=x.dtype)
    return x


def _logical(function: Expression) -> Expression:
    def reduce(x: Tensor, dims: tuple[int, ...]) -> Tensor:
        for d in sorted(dims, reverse=True):
            x = function(x.to(torch.bool), d)
        return x

    return reduce


_REDUCE: dict[str, Expression] = {
    "add": lambda x, dims: torch.sum(x, dims, dtype=x.dtype) if x.dtype != torch.bool else torch.any(x, dims),
    "multiply": _product,
    "maximum": torch.amax,
    "minimum": torch.amin,
    "logical_and": _logical(torch.all),
    "logical_or": _logical(torch.any),
}


def _neutral(name: str, dtype: torch.dtype) -> Any:
    if name in ("maximum", "minimum"):
        low = name == "maximum"
        if dtype.is_floating_point:
            return -math.inf if low else math.inf
        limits = torch.iinfo(dtype)
        return limits.min if low else limits.max
    try:
        return {"add": 0, "multiply": 1, "logical_and": True, "logical_or": False}[name]
    except KeyError:
        raise Unmapped from None


def accumulated(name: str, x: Tensor, axis: int = 0, dtype: torch.dtype | None = None) -> Tensor:
    """``ufunc.accumulate`` on the values of ``x``."""
    if dtype is not None:
        x = x.to(dtype)
    if name in _ACCUMULATE:
        return _ACCUMULATE[name](x, axis)
    if not 0 < x.shape[axis] <= _FOLD_LIMIT:
        raise Unmapped
    return torch.stack(list(itertools.accumulate(torch.unbind(x, axis), UFUNCS[name])), axis)
