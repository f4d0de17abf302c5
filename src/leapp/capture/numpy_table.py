"""NumPy in torch: for each function, an expression over tensors that gives what NumPy gives, on any input.

Most functions are ``torch._numpy``'s. Here stands what it lacks or does otherwise. An expression takes the arguments of the
NumPy function with tensors for arrays, and never writes to them. Shape, dtype and values of every result are compared with
NumPy's own at the time of the call, so an expression raises :class:`Unmapped` for forms it does not cover and need not repeat
NumPy's checks. Nothing here knows tapes or sessions.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch._numpy as tnp
from torch._numpy import _binary_ufuncs_impl, _unary_ufuncs_impl

__all__ = [
    "BLIND", "CHECKS", "DATA_SHAPED", "FUNCTIONS", "IN_PLACE", "NUMBERS", "NUMPY_UFUNCS", "SCIPY_UFUNCS", "SEQUENCES",
    "TEXTS", "THROUGH", "UFUNCS", "Unmapped", "accumulated", "lookup", "reduced", "tensor",
]  # fmt: skip

Tensor = torch.Tensor
Expression = Callable[..., Any]
Dims = int | tuple[int, ...] | None


class Unmapped(Exception):
    """There is no torch expression for this form of the call."""


FUNCTIONS: dict[Any, Expression] = {}
"""NumPy functions to expressions."""

IN_PLACE: dict[Any, Expression] = {}
"""NumPy functions that write to their first argument, as expressions for its new value."""


def _named(names: str, *modules: Any) -> list[Any]:
    return [getattr(m, n) for n in names.split() for m in modules or (np,) if hasattr(m, n)]


def _expression(names: str, *modules: Any, table: dict[Any, Expression] | None = None) -> Callable[[Expression], Expression]:
    def add(function: Expression) -> Expression:
        for f in _named(names, *modules):
            (FUNCTIONS if table is None else table)[f] = function
        return function

    return add


BLIND = frozenset(
    _named(
        "zeros_like ones_like empty_like ndim result_type can_cast min_scalar_type common_type iscomplexobj isrealobj "
        "may_share_memory shares_memory broadcast_shapes tril_indices_from triu_indices_from diag_indices_from "
        "einsum_path"
    )
)
"""Functions that do not look at values."""

TEXTS = frozenset(_named("array_repr array_str array2string"))
"""Functions that write values down."""

DATA_SHAPED = frozenset(_named("trim_zeros"))
"""Functions that return part of their argument, as its values decide."""

SEQUENCES = frozenset(
    _named(
        "concatenate concat stack vstack hstack dstack column_stack block choose select lexsort broadcast_arrays meshgrid "
        "piecewise ravel_multi_index einsum ix_ multi_dot",
        np,
        np.linalg,
    )
)
"""Functions for which a list is a list of arrays, not an array."""

CHECKS = {
    **dict.fromkeys(_named("partition argpartition"), "shape"),
    **dict.fromkeys(_named("eigh svd qr", np.linalg), "magnitude"),
}
"""What to compare of functions whose result is not unique: the order of equals, the signs of vectors."""

THROUGH = frozenset(_named("apply_along_axis apply_over_axes append unstack"))
"""Functions written in Python whose inner NumPy calls see all there is to see."""


def lookup(function: Any) -> Expression | None:
    """The expression for a NumPy function, if there is one."""
    found = FUNCTIONS.get(function)
    if found is not None:
        return found
    name = getattr(function, "__name__", "")
    module = getattr(function, "__module__", "")
    places = {"numpy": (tnp,), "numpy.linalg": (tnp.linalg, tnp), "numpy.fft": (tnp.fft,)}.get(module, ())
    candidates: list[Expression | None] = [getattr(place, name, None) for place in places]
    return next((c for c in candidates if callable(c)), None)


def tensor(value: Any, like: Tensor | None = None) -> Tensor:
    """A value as a tensor: numbers and lists become constants."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, (list, tuple)) and any(isinstance(v, Tensor) for v in value):
        return torch.stack([tensor(v) for v in value])
    return torch.from_numpy(np.array(value)) if like is None else torch.tensor(value, dtype=like.dtype)


def _floating(x: Tensor) -> Tensor:
    return x if x.dtype.is_floating_point or x.dtype.is_complex else x.to(torch.float64)


def _promoted(*values: Any) -> list[Tensor]:
    found = [tensor(v) for v in values]
    dtype = functools.reduce(torch.promote_types, (t.dtype for t in found))
    return [t.to(dtype) for t in found]


# -- ufuncs ------------------------------------------------------------------------------------------------------------

_OPERATORS = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv,
    "true_divide": operator.truediv, "power": operator.pow, "remainder": operator.mod, "mod": operator.mod,
    "floor_divide": operator.floordiv, "greater": operator.gt, "greater_equal": operator.ge, "less": operator.lt,
    "less_equal": operator.le, "equal": operator.eq, "not_equal": operator.ne,
}  # fmt: skip
NUMBERS = frozenset(_OPERATORS)
"""Ufuncs whose expressions take Python numbers beside tensors."""

_ALIASES = {
    "acos": "arccos", "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh", "atan": "arctan", "atan2": "arctan2",
    "atanh": "arctanh", "pow": "power", "bitwise_invert": "invert", "bitwise_left_shift": "left_shift",
    "bitwise_right_shift": "right_shift",
}  # fmt: skip


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


def _logaddexp2(x: Tensor, y: Tensor) -> Tensor:
    return torch.logaddexp2(x, y)


def _float_power(x: Tensor, y: Tensor) -> Tensor:
    return torch.pow(x, y)


def _ldexp(x: Tensor, e: Tensor) -> Tensor:
    return x * torch.exp2(e.to(x.dtype))


UFUNCS: dict[str, Expression] = {
    **{n: getattr(_unary_ufuncs_impl, n) for n in dir(_unary_ufuncs_impl) if isinstance(getattr(np, n, None), np.ufunc)},
    **{n: getattr(_binary_ufuncs_impl, n) for n in dir(_binary_ufuncs_impl) if isinstance(getattr(np, n, None), np.ufunc)},
    **_OPERATORS,
    "fabs": torch.abs,
    "rint": torch.round,
    "modf": _modf,
    "frexp": torch.frexp,
    "cbrt": _cbrt,
    "spacing": _spacing,
    "sign": _sign,
    "ldexp": _ldexp,
    "float_power": _float_power,
    "conjugate": torch.conj_physical,
    "conj": torch.conj_physical,
    "divmod": lambda x, y: (x // y, x % y),
    "vecdot": lambda x, y: (torch.conj_physical(x) * y).sum(-1),
    "matvec": lambda x, y: torch.matmul(x, y.unsqueeze(-1)).squeeze(-1),
    "vecmat": lambda x, y: torch.matmul(torch.conj_physical(x).unsqueeze(-2), y).squeeze(-2),
}
UFUNCS.update({alias: UFUNCS[name] for alias, name in _ALIASES.items()})

NUMPY_UFUNCS = frozenset(v for v in vars(np).values() if isinstance(v, np.ufunc))
SCIPY_UFUNCS: dict[str, Expression] = {
    "expit": torch.special.expit, "logit": torch.special.logit, "log_expit": torch.nn.functional.logsigmoid,
    "erf": torch.special.erf, "erfc": torch.special.erfc, "erfinv": torch.special.erfinv, "ndtr": torch.special.ndtr,
    "gammaln": torch.special.gammaln, "xlogy": torch.special.xlogy, "entr": torch.special.entr, "sinc": torch.special.sinc,
}  # fmt: skip
"""Ufuncs of ``scipy.special`` that observation code uses, by name."""

_ACCUMULATE: dict[str, Expression] = {
    "add": torch.cumsum,
    "multiply": torch.cumprod,
    "maximum": lambda x, axis: torch.cummax(x, axis).values,
    "minimum": lambda x, axis: torch.cummin(x, axis).values,
}
_FOLD_LIMIT = 256


def _axes(x: Tensor, axis: Any) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(x.dim()))
    return tuple(int(a) % max(x.dim(), 1) for a in (axis if isinstance(axis, (tuple, list)) else (axis,)))


def reduced(
    name: str, x: Tensor, axis: Any = 0, dtype: torch.dtype | None = None, keepdims: bool = False,
    initial: Any = None, where: Any = None,
) -> Tensor:  # fmt: skip
    """``ufunc.reduce`` on the values of ``x``, computed in ``dtype``."""
    if dtype is not None:
        x = x.to(dtype)
    dims = _axes(x, axis)
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
        return _ACCUMULATE[name](x, axis)  # type: ignore[no-any-return]
    if not 0 < x.shape[axis] <= _FOLD_LIMIT:
        raise Unmapped
    return torch.stack(list(itertools.accumulate(torch.unbind(x, axis), UFUNCS[name])), axis)


# -- reductions --------------------------------------------------------------------------------------------------------


def _torch_dtype(dtype: Any) -> torch.dtype | None:
    return None if dtype is None else torch.from_numpy(np.empty(0, np.dtype(dtype))).dtype


def _sum_dtype(x: Tensor, dtype: Any) -> torch.dtype | None:
    if dtype is not None:
        return _torch_dtype(dtype)
    return None if x.dtype.is_floating_point or x.dtype.is_complex else torch.int64


def _reduction(name: str) -> Expression:
    summing = name in ("add", "multiply")

    def reduce(
        a: Any, axis: Any = None, dtype: Any = None, keepdims: Any = False, initial: Any = None, where: Any = None
    ) -> Tensor:
        a = tensor(a)
        where = None if where is True else where
        return reduced(name, a, axis, _sum_dtype(a, dtype) if summing else None, bool(keepdims), initial, where)

    return reduce


for _names, _ufunc in {"sum": "add", "prod": "multiply", "max amax": "maximum", "min amin": "minimum"}.items():
    _expression(_names)(_reduction(_ufunc))


_expression("all")(_reduction("logical_and"))
_expression("any")(_reduction("logical_or"))


@_expression("ptp")
def _ptp(a: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    a = tensor(a)
    return reduced("maximum", a, axis, None, keepdims) - reduced("minimum", a, axis, None, keepdims)


def _first_lane(x: Tensor, axis: Any) -> tuple[Tensor, list[int]]:
    """The reduced axes joined into the last one, and the shape with them kept as ones."""
    dims = _axes(x, axis)
    rest = [d for d in range(x.dim()) if d not in dims]
    kept = [1 if d in dims else n for d, n in enumerate(x.shape)]
    lane = math.prod(x.shape[d] for d in dims)
    return x.permute([*rest, *dims]).reshape([x.shape[d] for d in rest] + [lane]), kept


def _any_nan(x: Tensor) -> Tensor | None:
    return torch.isnan(x).any(-1) if x.dtype.is_floating_point else None


@_expression("median")
def _median(a: Any, axis: Any = None, overwrite_input: bool = False, keepdims: bool = False) -> Tensor:
    lanes, kept = _first_lane(tensor(a), axis)
    n = lanes.shape[-1]
    nan = _any_nan(lanes)
    lanes = _floating(lanes if nan is None else torch.where(torch.isnan(lanes), math.inf, lanes))
    ordered = torch.sort(lanes, -1).values
    middle = ordered[..., n // 2] if n % 2 else (ordered[..., n // 2 - 1] + ordered[..., n // 2]) / 2
    result = middle if nan is None else torch.where(nan, torch.nan, middle)
    return result.reshape(kept) if keepdims else result


def _quantile(a: Any, q: Any, axis: Any, keepdims: bool, method: str, percent: bool, skip_nan: bool) -> Tensor:
    if method != "linear":
        raise Unmapped
    lanes, kept = _first_lane(tensor(a), axis)
    lanes = _floating(lanes)
    precision = lanes.dtype if isinstance(q, (int, float)) else torch.promote_types(lanes.dtype, torch.float64)
    q = tensor(q).to(torch.float64)
    q = q / 100 if percent else q
    nan = _any_nan(lanes)
    # Engines differ in where they sort NaN to.
    ordered = torch.sort(lanes if nan is None else torch.where(torch.isnan(lanes), math.inf, lanes), -1).values
    count: Any = lanes.shape[-1]
    if skip_nan:
        count = (~torch.isnan(lanes)).sum(-1)
    results = []
    for one in q.reshape(-1):
        place = one * (count - 1)
        below = torch.floor(place).clamp(min=0).to(torch.int64)
        above = torch.minimum(below + 1, tensor(count).to(torch.int64) - 1).clamp(min=0)
        weight = (place - below).to(precision)
        low, high = _pick(ordered, below), _pick(ordered, above)
        step = (high - low).to(precision)
        mixed = torch.where(weight < 0.5, low + step * weight, high - step * (1 - weight))
        mixed = mixed if nan is None or skip_nan else torch.where(nan, torch.nan, mixed)
        results.append(mixed.reshape(kept) if keepdims else mixed)
    return torch.stack(results).reshape([*q.shape, *results[0].shape])


def _pick(ordered: Tensor, place: Tensor) -> Tensor:
    if place.dim() == 0:
        return torch.index_select(ordered, -1, place.reshape(1)).squeeze(-1)
    return torch.gather(ordered, -1, place.unsqueeze(-1)).squeeze(-1)


def _quantile_function(percent: bool, skip_nan: bool) -> Expression:
    def quantile(
        a: Any, q: Any, axis: Any = None, out: None = None, overwrite_input: bool = False, method: str = "linear",
        keepdims: bool = False,
    ) -> Tensor:  # fmt: skip
        return _quantile(a, q, axis, bool(keepdims), method, percent, skip_nan)

    return quantile


for _names, _flags in {
    "percentile": (True, False), "quantile": (False, False), "nanpercentile": (True, True), "nanquantile": (False, True),
}.items():  # fmt: skip
    _expression(_names)(_quantile_function(*_flags))


@_expression("nanmedian")
def _nanmedian(a: Any, axis: Any = None, overwrite_input: bool = False, keepdims: bool = False) -> Tensor:
    return _quantile(a, 0.5, axis, keepdims, "linear", percent=False, skip_nan=True)


def _without_nan(a: Any, fill: float) -> Tensor:
    a = tensor(a)
    return torch.where(torch.isnan(a), fill, a) if a.dtype.is_floating_point else a


@_expression("nansum")
def _nansum(a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    a = _without_nan(a, 0.0)
    return reduced("add", a, axis, _sum_dtype(a, dtype), keepdims)


@_expression("nanprod")
def _nanprod(a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    a = _without_nan(a, 1.0)
    return reduced("multiply", a, axis, _sum_dtype(a, dtype), keepdims)


def _count(a: Tensor, axis: Any, keepdims: bool) -> Tensor:
    return reduced("add", (~torch.isnan(a)).to(torch.int64), axis, torch.int64, keepdims)


@_expression("nanmean")
def _nanmean(a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
    a = _floating(tensor(a)) if dtype is None else tensor(a).to(_torch_dtype(dtype))
    return _nansum(a, axis, None, keepdims) / _count(a, axis, keepdims)


@_expression("nanvar")
def _nanvar(a: Any, axis: Any = None, dtype: Any = None, ddof: float = 0, keepdims: bool = False) -> Tensor:
    a = _floating(tensor(a)) if dtype is None else tensor(a).to(_torch_dtype(dtype))
    deviation = _without_nan(a - _nanmean(a, axis, None, True), 0.0)
    freedom = _count(a, axis, keepdims) - ddof
    result = reduced("add", deviation * deviation, axis, None, keepdims) / freedom
    return torch.where(freedom <= 0, torch.nan, result)


@_expression("nanstd")
def _nanstd(a: Any, axis: Any = None, dtype: Any = None, ddof: float = 0, keepdims: bool = False) -> Tensor:
    return torch.sqrt(_nanvar(a, axis, dtype, ddof, keepdims))


def _nan_extreme(name: str, fill: float) -> Expression:
    def extreme(a: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
        a = tensor(a)
        if not a.dtype.is_floating_point:
            return reduced(name, a, axis, None, keepdims)
        found = reduced(name, _without_nan(a, fill), axis, None, keepdims)
        return torch.where(_count(a, axis, keepdims) == 0, torch.nan, found)

    return extreme


_expression("nanmax")(_nan_extreme("maximum", -math.inf))
_expression("nanmin")(_nan_extreme("minimum", math.inf))


@_expression("nanargmax")
def _nanargmax(a: Any, axis: int | None = None, keepdims: bool = False) -> Tensor:
    return torch.argmax(_without_nan(a, -math.inf), axis, bool(keepdims))


@_expression("nanargmin")
def _nanargmin(a: Any, axis: int | None = None, keepdims: bool = False) -> Tensor:
    return torch.argmin(_without_nan(a, math.inf), axis, bool(keepdims))


def _running(function: Expression, fill: float) -> Expression:
    def run(a: Any, axis: int | None = None, dtype: Any = None) -> Tensor:
        a = _without_nan(a, fill)
        a = a.to(_sum_dtype(a, dtype) or a.dtype)
        return function(a.reshape(-1), 0) if axis is None else function(a, axis)  # type: ignore[no-any-return]

    return run


_expression("nancumsum")(_running(torch.cumsum, 0.0))
_expression("nancumprod")(_running(torch.cumprod, 1.0))


@_expression("cumulative_sum")
def _cumulative_sum(x: Any, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Tensor:
    if include_initial or (axis is None and tensor(x).dim() > 1):
        raise Unmapped
    return _running(torch.cumsum, math.nan)(x, 0 if axis is None else axis, dtype)  # type: ignore[no-any-return]


@_expression("trapezoid trapz")
def _trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    y = _floating(tensor(y))
    if x is None:
        width: Any = dx
    else:
        x = tensor(x)
        width = torch.diff(x, dim=axis if x.dim() > 1 else 0)
        if x.dim() == 1:
            width = width.reshape([-1 if d == axis % y.dim() else 1 for d in range(y.dim())])
    n = y.shape[axis]
    heights = (y.narrow(axis, 1, n - 1) + y.narrow(axis, 0, n - 1)) / 2.0
    return (width * heights).sum(axis)


# -- looking up --------------------------------------------------------------------------------------------------------


def _rank(edges: Tensor, values: Tensor, strict: bool) -> Tensor:
    """How many edges lie below each value (or at it, if not ``strict``). Compared one by one: every backend can do that."""
    edges, values = _promoted(edges, values)
    values = values.unsqueeze(-1)
    return ((edges < values) if strict else (edges <= values)).sum(-1)


@_expression("searchsorted")
def _searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None) -> Tensor:
    a = tensor(a)
    return _rank(a if sorter is None else a[tensor(sorter)], tensor(v), strict=side == "left")


@_expression("digitize")
def _digitize(x: Any, bins: Any, right: bool = False) -> Any:
    x, bins = tensor(x), tensor(bins)
    if bool(bins[0] <= bins[-1]):
        return _rank(bins, x, strict=right)
    return bins.numel() - _rank(bins, x, strict=not right)


@_expression("interp")
def _interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Tensor:
    x, xp, fp = (tensor(v).to(torch.float64) for v in (x, xp, fp))
    n = xp.numel()
    if period is not None or n < 2:
        raise Unmapped
    above = _rank(xp, x, strict=False).clamp(1, n - 1)
    below = above - 1
    slope = (fp[above] - fp[below]) / (xp[above] - xp[below])
    inner = slope * (x - xp[below]) + fp[below]
    result = torch.where(x < xp[0], fp[0] if left is None else left, inner)
    result = torch.where(x > xp[-1], fp[-1] if right is None else right, result)
    return torch.where(x == xp[-1], fp[-1], result)


@_expression("isin")
def _isin(element: Any, test_elements: Any, assume_unique: bool = False, invert: bool = False, *, kind: Any = None) -> Any:
    element, test = _promoted(element, test_elements)
    found = (element.unsqueeze(-1) == test.reshape(-1)).any(-1)
    return ~found if invert else found


@_expression("select")
def _select(condlist: Any, choicelist: Any, default: Any = 0) -> Tensor:
    *choices, result = _promoted(*choicelist, default)
    for condition, choice in reversed(list(zip(condlist, choices, strict=True))):
        result = torch.where(tensor(condition), choice, result)
    return result


@_expression("choose")
def _choose(a: Any, choices: Any, mode: str = "raise") -> Tensor:
    if mode != "raise":
        raise Unmapped
    stacked = torch.stack(torch.broadcast_tensors(*_promoted(*choices)))  # type: ignore[no-untyped-call]
    a = tensor(a)
    shape = torch.broadcast_shapes(a.shape, stacked.shape[1:])  # type: ignore[no-untyped-call]
    index = a.to(torch.int64).expand(shape).unsqueeze(0)
    return torch.gather(stacked.expand(stacked.shape[0], *shape), 0, index).squeeze(0)


@_expression("take")
def _take(a: Any, indices: Any, axis: int | None = None, mode: str = "raise") -> Tensor:
    if mode != "raise":
        raise Unmapped
    a, i = tensor(a), tensor(indices)
    a, axis = (a.reshape(-1), 0) if axis is None else (a, axis % a.dim())
    n = a.shape[axis]
    i = torch.where(i < 0, i + n, i).to(torch.int64)
    found = torch.index_select(a, axis, i.reshape(-1))
    return found.reshape([*a.shape[:axis], *i.shape, *a.shape[axis + 1 :]])


@_expression("extract")
def _extract(condition: Any, arr: Any) -> Tensor:
    return tensor(arr).reshape(-1)[tensor(condition).to(torch.bool).reshape(-1)]


@_expression("lexsort")
def _lexsort(keys: Any, axis: int = -1) -> Tensor:
    order: Tensor | None = None
    for key in keys:
        key = tensor(key)
        if order is None:
            order = torch.argsort(key, dim=axis, stable=True)
        else:
            order = torch.gather(order, axis, torch.argsort(torch.gather(key, axis, order), dim=axis, stable=True))
    if order is None:
        raise Unmapped
    return order


@_expression("sort")
def _sort(a: Any, axis: int | None = -1, kind: Any = None, order: None = None, *, stable: Any = None) -> Tensor:
    a = tensor(a)
    return torch.sort(a.reshape(-1)).values if axis is None else torch.sort(a, axis).values


@_expression("argsort")
def _argsort(a: Any, axis: int | None = -1, kind: Any = None, order: None = None, *, stable: Any = None) -> Tensor:
    a = tensor(a)
    return torch.argsort(a.reshape(-1), stable=True) if axis is None else torch.argsort(a, dim=axis, stable=True)


@_expression("partition")
def _partition(a: Any, kth: Any, axis: int | None = -1, kind: Any = None, order: None = None) -> Any:
    return _sort(a, axis)


@_expression("argpartition")
def _argpartition(a: Any, kth: Any, axis: int | None = -1, kind: Any = None, order: None = None) -> Any:
    return _argsort(a, axis)


@_expression("unravel_index")
def _unravel_index(indices: Any, shape: Any, order: str = "C") -> tuple[Tensor, ...]:
    if order != "C":
        raise Unmapped
    rest, parts = tensor(indices), []
    for n in reversed(shape if isinstance(shape, Sequence) else [shape]):
        parts.append(rest % n)
        rest = rest // n
    return tuple(reversed(parts))


@_expression("ravel_multi_index")
def _ravel_multi_index(multi_index: Any, dims: Any, mode: str = "raise", order: str = "C") -> Tensor:
    if mode != "raise" or order != "C":
        raise Unmapped
    result = tensor(multi_index[0])
    for part, n in zip(multi_index[1:], dims[1:], strict=True):
        result = result * n + tensor(part)
    return result


# -- moving elements ---------------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """An argument that is not allowed to depend on the inputs, as NumPy takes it."""
    found = value.numpy() if isinstance(value, Tensor) else value
    if isinstance(found, np.ndarray) and type(found) is not np.ndarray:
        raise Unmapped  # it is traced
    return found


def _moved(a: Tensor, move: Callable[[Any], Any]) -> Tensor:
    """What a function that only moves elements does, found out on their numbers. Negative numbers are no element."""
    places = torch.from_numpy(np.array(move(np.arange(a.numel()).reshape(tuple(a.shape)))))
    return a.reshape(-1)[places]


@_expression("delete")
def _delete(arr: Any, obj: Any, axis: int | None = None) -> Tensor:
    return _moved(tensor(arr), lambda n: np.delete(n, _plain(obj), axis))


@_expression("resize")
def _resize(a: Any, new_shape: Any) -> Tensor:
    return _moved(tensor(a), lambda n: np.resize(n, new_shape))


@_expression("repeat")
def _repeat(a: Any, repeats: Any, axis: int | None = None) -> Any:
    a = tensor(a)
    if isinstance(repeats, int):
        a, axis = (a.reshape(-1), 0) if axis is None else (a, axis % a.dim())
        shape = list(a.shape)
        grown = a.unsqueeze(axis + 1).expand([*shape[: axis + 1], repeats, *shape[axis + 1 :]])
        return grown.reshape([*shape[:axis], shape[axis] * repeats, *shape[axis + 1 :]])
    return _moved(a, lambda n: np.repeat(n, _plain(repeats), axis))


@_expression("compress")
def _compress(condition: Any, a: Any, axis: int | None = None) -> Tensor:
    return _moved(tensor(a), lambda n: np.compress(_plain(condition), n, axis))


@_expression("insert")
def _insert(arr: Any, obj: Any, values: Any, axis: int | None = None) -> Tensor:
    arr = tensor(arr)
    values = tensor(values).to(arr.dtype)
    n = arr.numel()
    numbers = np.arange(n).reshape(tuple(arr.shape))
    new = n + np.arange(values.numel()).reshape(tuple(values.shape))
    places = torch.from_numpy(np.insert(numbers, _plain(obj), new, axis))
    return torch.cat([arr.reshape(-1), values.reshape(-1)])[places]


@_expression("pad")
def _pad(array: Any, pad_width: Any, mode: str = "constant", **options: Any) -> Tensor:
    a = tensor(array)
    if callable(mode) or mode not in ("constant", "edge", "reflect", "symmetric", "wrap"):
        raise Unmapped
    if mode != "constant":
        return _moved(a, lambda n: np.pad(n, _plain(pad_width), mode, **options))  # type: ignore[call-overload]
    value = options.get("constant_values", 0)
    if not isinstance(value, (int, float, bool)):
        raise Unmapped
    outside = np.pad(np.arange(a.numel()).reshape(tuple(a.shape)), _plain(pad_width), constant_values=-1)
    places = torch.from_numpy(outside)
    inside = a.reshape(-1)[places.clamp(min=0)]
    return torch.where(places < 0, torch.full((), value, dtype=a.dtype), inside)


@_expression("reshape")
def _reshape(a: Any, shape: Any = None, order: str = "C", *, newshape: Any = None, copy: bool | None = None) -> Tensor:
    if order != "C":
        raise Unmapped
    shape = newshape if shape is None else shape
    return tensor(a).reshape([shape] if isinstance(shape, int) else list(shape))


@_expression("ravel")
def _ravel(a: Any, order: str = "C") -> Tensor:
    if order != "C":
        raise Unmapped
    return tensor(a).reshape(-1)


@_expression("fix")
def _fix(x: Any) -> Tensor:
    return torch.trunc(tensor(x))


@_expression("mean")
def _mean(a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    a = _floating(tensor(a)) if dtype is None else tensor(a).to(_torch_dtype(dtype))
    return torch.mean(a, _axes(a, axis), keepdim=bool(keepdims))


def _spread_function(root: bool) -> Expression:
    def spread(
        a: Any, axis: Any = None, dtype: Any = None, ddof: float = 0, keepdims: bool = False, correction: float | None = None
    ) -> Tensor:
        a = _floating(tensor(a)) if dtype is None else tensor(a).to(_torch_dtype(dtype))
        found = torch.std if root else torch.var
        return found(a, _axes(a, axis), correction=ddof if correction is None else correction, keepdim=bool(keepdims))

    return spread


_expression("std")(_spread_function(True))
_expression("var")(_spread_function(False))


@_expression("block")
def _block(arrays: Any) -> Tensor:
    def depth(part: Any) -> int:
        return 1 + max(map(depth, part)) if isinstance(part, list) else 0

    def join(part: Any, axis: int) -> Tensor:
        return torch.cat(_promoted(*(join(p, axis + 1) for p in part)), axis) if isinstance(part, list) else grown(part)

    def leaves(part: Any) -> list[Tensor]:
        return [leaf for p in part for leaf in leaves(p)] if isinstance(part, list) else [tensor(part)]

    dims = max(depth(arrays), *(leaf.dim() for leaf in leaves(arrays)))

    def grown(part: Any) -> Tensor:
        t = tensor(part)
        return t[(None,) * (dims - t.dim())]

    return join(arrays, -depth(arrays))


@_expression("cov")
def _cov(
    m: Any, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: int | None = None, fweights: None = None,
    aweights: None = None, *, dtype: Any = None,
) -> Any:  # fmt: skip
    m = tensor(m)
    if y is not None or fweights is not None or aweights is not None or dtype is not None or m.dim() > 2:
        raise Unmapped
    m = m.to(torch.promote_types(m.dtype, torch.float64))
    rows = m.reshape(1, -1) if m.dim() < 2 else m if rowvar else m.mT
    rows = rows - torch.mean(rows, 1, keepdim=True)
    found = torch.matmul(rows, torch.conj_physical(rows).mT) / (rows.shape[1] - (int(not bias) if ddof is None else ddof))
    return found.squeeze()


@_expression("corrcoef")
def _corrcoef(x: Any, y: Any = None, rowvar: bool = True, **options: Any) -> Any:
    if options:
        raise Unmapped
    c = _cov(x, y, rowvar)
    if c.dim() == 0:
        return c / c
    scale = torch.sqrt(torch.diagonal(c))
    return torch.clip(c / scale.unsqueeze(1) / scale.unsqueeze(0), -1, 1)


@_expression("vander")
def _vander(x: Any, N: int | None = None, increasing: bool = False) -> Tensor:  # noqa: N803
    x = tensor(x)
    x = x.to(_torch_dtype(np.promote_types(str(x.dtype).removeprefix("torch."), np.int64)))
    n = x.shape[0] if N is None else N
    powers = [torch.ones_like(x)]
    for _ in range(n - 1):
        powers.append(powers[-1] * x)
    return torch.stack(powers[:n] if increasing else powers[:n][::-1], 1)


@_expression("matrix_transpose", np, np.linalg)
def _matrix_transpose(x: Any) -> Tensor:
    return tensor(x).mT


@_expression("permute_dims")
def _permute_dims(a: Any, axes: Any = None) -> Any:
    a = tensor(a)
    return a.permute(*reversed(range(a.dim()))) if axes is None else a.permute(*axes)


@_expression("concat")
def _concat(arrays: Any, axis: int | None = 0, **options: Any) -> Any:
    return tnp.concatenate(arrays, axis, **options)  # type: ignore[attr-defined]


@_expression("ediff1d")
def _ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> Tensor:
    steps = torch.diff(tensor(ary).reshape(-1))
    parts = [steps if p is None else tensor(p).to(steps.dtype).reshape(-1) for p in (to_begin, to_end) if p is not None]
    if to_begin is not None:
        return torch.cat([parts[0], steps, *parts[1:]])
    return torch.cat([steps, *parts])


@_expression("unwrap")
def _unwrap(p: Any, discont: float | None = None, axis: int = -1, *, period: float = 2 * math.pi) -> Tensor:
    p = tensor(p)
    if not p.dtype.is_floating_point:
        raise Unmapped
    n = p.shape[axis]
    steps = torch.diff(p, dim=axis)
    low = -period / 2
    wrapped = torch.remainder(steps - low, period) + low
    wrapped = torch.where((wrapped == low) & (steps > 0), -low, wrapped)
    jump = torch.where(steps.abs() < (period / 2 if discont is None else discont), 0.0, wrapped - steps)
    rest = p.narrow(axis, 1, n - 1) + torch.cumsum(jump, axis)
    return torch.cat([p.narrow(axis, 0, 1), rest], axis)


@_expression("polyval")
def _polyval(p: Any, x: Any) -> Tensor:
    p, x = _promoted(p, x)
    result = torch.zeros_like(x)
    for coefficient in torch.unbind(p):
        result = result * x + coefficient
    return result


@_expression("piecewise")
def _piecewise(x: Any, condlist: Any, funclist: Any) -> Tensor:
    x = tensor(x)
    conditions = [tensor(c).to(torch.bool) for c in (condlist if isinstance(condlist, (list, tuple)) else [condlist])]
    functions = list(funclist)
    if any(callable(f) for f in functions):
        raise Unmapped
    result = torch.zeros_like(x)
    if len(functions) == len(conditions) + 1:
        result = torch.full_like(x, functions.pop())
    for condition, value in zip(conditions, functions, strict=True):
        result = torch.where(condition, tensor(value, x), result)
    return result


@_expression("histogram")
def _histogram(a: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None) -> tuple[Tensor, Tensor]:
    if density or weights is not None or (isinstance(bins, int) and range is None) or isinstance(bins, str):
        raise Unmapped
    a = tensor(a).reshape(-1).to(torch.float64)
    edges = torch.from_numpy(np.histogram_bin_edges(np.zeros(1), bins, range)) if isinstance(bins, int) else tensor(bins)
    low, high = edges[:-1].to(torch.float64), edges[1:].to(torch.float64)
    last = torch.arange(low.numel()) == low.numel() - 1
    value = a.unsqueeze(-1)
    inside = (value >= low) & ((value < high) | (last & (value == high)))
    return inside.sum(0), edges


@_expression("bincount")
def _bincount(x: Any, weights: Any = None, minlength: int = 0) -> Tensor:
    if not minlength:
        raise Unmapped
    hits = tensor(x).unsqueeze(-1) == torch.arange(minlength)
    return hits.sum(0) if weights is None else (hits * tensor(weights).to(torch.float64).unsqueeze(-1)).sum(0)


@_expression("correlate")
def _correlate(a: Any, v: Any, mode: str = "valid") -> Tensor:
    a, v = _promoted(a, v)
    if a.numel() < v.numel():
        raise Unmapped
    return _sliding(a, v, mode)


@_expression("convolve")
def _convolve(a: Any, v: Any, mode: str = "full") -> Tensor:
    a, v = _promoted(a, v)
    if a.numel() < v.numel():
        a, v = v, a
    return _sliding(a, torch.flip(v, (0,)), mode)


def _sliding(a: Tensor, v: Tensor, mode: str) -> Tensor:
    n = v.numel()
    before = {"valid": 0, "same": n // 2, "full": n - 1}[mode]
    after = {"valid": 0, "same": n - 1 - n // 2, "full": n - 1}[mode]
    padded = torch.cat([a.new_zeros(before), a, a.new_zeros(after)])
    length = padded.numel() - n + 1
    places = torch.arange(length).unsqueeze(1) + torch.arange(n)
    return (padded[places] * v).sum(1)


def _fourier(name: str) -> Expression:
    function: Expression = getattr(torch.fft, name)
    one_axis = not name.endswith(("2", "n"))
    keeps_precision = np.fft.fft(np.zeros(1, np.float32)).dtype == np.complex64

    def transform(a: Any, n: Any = None, axis: Any = None, norm: Any = None, **options: Any) -> Tensor:
        a = tensor(a)
        if a.dtype.is_floating_point or a.dtype.is_complex:
            a = a if keeps_precision else a.to(torch.promote_types(a.dtype, torch.float64))
        else:
            a = a.to(torch.float64)
        if one_axis:
            return function(a, n, -1 if axis is None else axis, norm)  # type: ignore[no-any-return]
        axes = options.get("axes", axis)
        default = (-2, -1) if name.endswith("2") else None
        return function(a, options.get("s", n), default if axes is None else axes, norm)  # type: ignore[no-any-return]

    return transform


for _names in "fft ifft rfft irfft hfft ihfft fft2 ifft2 rfft2 irfft2 fftn ifftn rfftn irfftn".split():
    _expression(_names, np.fft)(_fourier(_names))


@_expression("nonzero")
def _nonzero(a: Any) -> tuple[Tensor, ...]:
    return torch.nonzero(tensor(a), as_tuple=True)


@_expression("copy")
def _copy(a: Any, order: str = "K", subok: bool = False) -> Tensor:
    return tensor(a).clone()


@_expression("astype")
def _astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Tensor:
    return tensor(x).to(_torch_dtype(dtype), copy=True)


@_expression("trace", np.linalg)
def _trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Tensor:
    found = torch.diagonal(tensor(x), offset, -2, -1)
    return found.sum(-1)


@_expression("vector_norm", np.linalg)
def _vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
    return torch.linalg.vector_norm(_floating(tensor(x)), ord, axis, keepdims)


@_expression("svdvals", np.linalg)
def _svdvals(x: Any, /) -> Any:
    return torch.linalg.svdvals(_floating(tensor(x)))


@_expression("lstsq", np.linalg)
def _lstsq(a: Any, b: Any, rcond: Any = None) -> Any:
    a, b = (_floating(tensor(v)) for v in (a, b))
    if rcond is not None or a.shape[0] < a.shape[1]:
        raise Unmapped
    columns = b if b.dim() > 1 else b.unsqueeze(1)
    q, r = torch.linalg.qr(a)
    x = torch.linalg.solve_triangular(r, q.mT @ columns, upper=True)
    rest = ((columns - a @ x) ** 2).sum(0) if a.shape[0] > a.shape[1] else a.new_zeros(0)
    return (x if b.dim() > 1 else x.squeeze(1)), rest, a.shape[1], torch.linalg.svdvals(a)


@_expression("svd", np.linalg)
def _svd(a: Any, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False) -> Any:
    if compute_uv:
        return tuple(torch.linalg.svd(_floating(tensor(a)), full_matrices))
    return torch.linalg.svdvals(_floating(tensor(a)))


# -- functions that write to their first argument ------------------------------------------------------------------------


@_expression("copyto", table=IN_PLACE)
def _copyto(dst: Tensor, src: Any, casting: str = "same_kind", where: Any = True) -> Tensor:
    src = tensor(src).to(dst.dtype)
    src = src if src.shape == dst.shape else src.expand(dst.shape)
    return src if where is True else torch.where(tensor(where), src, dst)


@_expression("putmask", table=IN_PLACE)
def _putmask(a: Tensor, mask: Any, values: Any) -> Tensor:
    values = tensor(values).to(a.dtype).reshape(-1)
    if values.numel() not in (1, a.numel()):
        raise Unmapped
    return torch.where(tensor(mask), values if values.numel() == 1 else values.reshape(a.shape), a)


@_expression("place", table=IN_PLACE)
def _place(arr: Tensor, mask: Any, vals: Any) -> Tensor:
    values = tensor(vals).to(arr.dtype).reshape(-1)
    if values.numel() != 1:
        raise Unmapped
    return torch.where(tensor(mask), values, arr)


@_expression("put", table=IN_PLACE)
def _put(a: Tensor, ind: Any, v: Any, mode: str = "raise") -> Tensor:
    if mode != "raise":
        raise Unmapped
    places = tensor(ind).reshape(-1).to(torch.int64)
    values = tensor(v).to(a.dtype).reshape(-1)
    if values.numel() not in (1, places.numel()):
        raise Unmapped
    places = torch.where(places < 0, places + a.numel(), places)
    return a.reshape(-1).scatter(0, places, values.expand(places.shape)).reshape(a.shape)


@_expression("put_along_axis", table=IN_PLACE)
def _put_along_axis(arr: Tensor, indices: Any, values: Any, axis: int | None) -> Tensor:
    if axis is None:
        raise Unmapped
    indices = tensor(indices).to(torch.int64)
    shape = [indices.shape[d] if d == axis % arr.dim() else n for d, n in enumerate(arr.shape)]
    indices = indices.expand(shape)
    return arr.scatter(axis, indices, tensor(values).to(arr.dtype).expand(shape))


@_expression("fill_diagonal", table=IN_PLACE)
def _fill_diagonal(a: Tensor, val: Any, wrap: bool = False) -> Tensor:
    values = tensor(val).to(a.dtype).reshape(-1)
    if values.numel() != 1:
        raise Unmapped
    marks = np.zeros(tuple(a.shape), bool)
    np.fill_diagonal(marks, True, wrap)
    return torch.where(torch.from_numpy(marks), values, a)
