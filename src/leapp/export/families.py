"""More operators that ONNX lacks, by family: lists of tensors, shifts, indexed writes, complex numbers, recurrent layers.

Same rules as ``operators``: each is written as other ATen operators, and ``NotImplemented`` leaves it as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .operators import aten, replaces

__all__: list[str] = []


# Lists of tensors: one operator for each entry.


def _each(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **named: Any) -> Any:
        if any(isinstance(arg, Tensor) and arg.dim() for arg in args):
            return NotImplemented  # one-dimensional tensors of numbers
        lists = [arg for arg in args if isinstance(arg, (list, tuple))]
        entries = range(len(lists[0]))
        return [function(*(arg[i] if isinstance(arg, (list, tuple)) else arg for arg in args), **named) for i in entries]

    return run


_SPELLED: dict[str, Callable[..., Any]] = {
    "addcmul": lambda x, a, b, value=1: torch.addcmul(x, a, b, value=value),
    "addcdiv": lambda x, a, b, value=1: torch.addcdiv(x, a, b, value=value),
    "copy": lambda x, source, non_blocking=False: source.to(x.dtype).expand(x.shape).clone(),
    "norm": lambda x, ord=2, dtype=None: torch.linalg.vector_norm(x, ord, dtype=dtype),
    "zero": torch.zeros_like,
}


def _register_lists() -> None:
    prefix = "aten::_foreach_"
    for full in torch._C._dispatch_get_all_op_names():
        name, _, overload = full.partition(".")
        plain = name.removeprefix(prefix)
        if not name.startswith(prefix) or plain.endswith("_") or overload.endswith("out") or overload == "out":
            continue
        function = _SPELLED.get(plain) or getattr(torch, plain, None)
        if function is not None:
            replaces(getattr(getattr(aten, f"_foreach_{plain}"), overload or "default"))(_each(function))


_register_lists()


# Shifts


@replaces(aten.__lshift__.Tensor, aten.__lshift__.Scalar)
def _left_shift(x: Tensor, count: Any) -> Any:
    return torch.bitwise_left_shift(x, count)


@replaces(aten.__rshift__.Tensor, aten.__rshift__.Scalar)
def _right_shift(x: Tensor, count: Any) -> Any:
    return torch.bitwise_right_shift(x, count)


# Shapes


@replaces(aten.squeeze.dim, aten.squeeze.dims)
def _squeeze(x: Tensor, dim: int | Sequence[int]) -> Any:
    wanted = [d % x.dim() for d in ([dim] if isinstance(dim, int) else dim)] if x.dim() else []
    single = [d for d in wanted if x.shape[d] == 1]
    if len(single) == len(wanted) and wanted:
        return NotImplemented
    # A dimension of another length stays; the engine would call it an error.
    return x.reshape([size for d, size in enumerate(x.shape) if d not in single])


# Indices and indexed writes


_INDEX_TYPES = (torch.int8, torch.int16, torch.int32)


@replaces(aten.index.Tensor)
def _index(x: Tensor, indices: Sequence[Tensor | None]) -> Any:
    if not any(i is not None and i.dtype in _INDEX_TYPES for i in indices):
        return NotImplemented
    return aten.index.Tensor(x, [i.to(torch.int64) if i is not None and i.dtype in _INDEX_TYPES else i for i in indices])


@replaces(aten.index_put.default)
def _masked_write(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Any:
    """A mask over some axes and everything along the others, written with values that do not count the hits."""
    masks = [(axis, i) for axis, i in enumerate(indices) if i is not None]
    if len(masks) != 1 or masks[0][1].dtype != torch.bool or accumulate:
        return NotImplemented
    axis, mask = masks[0]
    behind = x.dim() - axis - mask.dim()
    hits = values.shape[values.dim() - behind - 1] if values.dim() > behind else 1
    if not isinstance(hits, int) or hits != 1:
        return NotImplemented
    if values.dim() > behind:
        # The axis of hits has length one: it becomes the axes of the mask.
        front, back = values.shape[: values.dim() - behind - 1], values.shape[values.dim() - behind :]
        values = values.reshape(*front, *([1] * mask.dim()), *back)
    spread = mask.reshape(*mask.shape, *([1] * behind))
    return torch.where(spread, values.to(x.dtype), x)


@replaces(aten.unfold_backward.default)
def _unfold_backward(written: Tensor, sizes: Sequence[int], dim: int, size: int, step: int) -> Any:
    """Windows put back where they came from."""
    dim = dim % len(sizes)
    places = torch.arange(sizes[dim]).unfold(0, size, step).reshape(-1)
    values = written.movedim(-1, dim + 1).flatten(dim, dim + 1)
    return aten.index_add.default(written.new_zeros(sizes), dim, places, values)


@replaces(aten.put.default)
def _put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Any:
    flat = aten.index_put.default(x.reshape(-1), [index.reshape(-1)], source.reshape(-1), accumulate)
    return flat.reshape(x.shape)


@replaces(aten.scatter.reduce)
def _scatter_reduce(x: Tensor, dim: int, index: Tensor, source: Tensor, *, reduce: str) -> Any:
    used = source[tuple(slice(size) for size in index.shape)]
    return aten.scatter_reduce.two(x, dim, index, used, {"add": "sum", "multiply": "prod"}[reduce])


@replaces(aten.scatter.value_reduce)
def _scatter_value_reduce(x: Tensor, dim: int, index: Tensor, value: Any, *, reduce: str) -> Any:
    return _scatter_reduce(x, dim, index, torch.full_like(index, value, dtype=x.dtype), reduce=reduce)


@replaces(aten.index_reduce.default)
def _index_reduce(x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True) -> Any:
    shape = [-1 if d == dim % x.dim() else 1 for d in range(x.dim())]
    spread = index.to(torch.int64).reshape(shape).expand(source.shape)
    return aten.scatter_reduce.two(x, dim, spread, source, reduce, include_self=include_self)


@replaces(aten.nonzero_static.default)
def _nonzero_static(x: Tensor, *, size: int, fill_value: int = -1) -> Any:
    hits = (x != 0).reshape(-1)
    place = torch.cumsum(hits.to(torch.int64), 0) - 1
    # What is no hit, or one too many, goes to a last row that is cut off.
    place = torch.where(hits & (place < size), place, torch.full_like(place, size))
    found = torch.full((size + 1,), -1, dtype=torch.int64).scatter(0, place, torch.arange(hits.numel()))[:size]
    columns, stride = [], 1
    for length in reversed(x.shape):
        columns.append(torch.div(found, stride, rounding_mode="trunc") % length)
        stride *= length
    at = torch.stack(columns[::-1], 1) if columns else torch.zeros((size, 0), dtype=torch.int64)
    return torch.where((found < 0).unsqueeze(1), torch.full_like(at, fill_value), at)


@replaces(aten.mode.default)
def _mode(x: Tensor, dim: int = -1, keepdim: bool = False) -> Any:
    if x.dim() == 0:
        return NotImplemented
    rows = x.movedim(dim, -1)
    count = (rows.unsqueeze(-1) == rows.unsqueeze(-2)).to(torch.int64).sum(-1)
    frequent = count == count.amax(-1, keepdim=True)
    # Among the most frequent values the smallest wins; a wide type holds a value above all others.
    wide = rows.to(torch.float64 if x.is_floating_point() else torch.int64)
    above = math.inf if x.is_floating_point() else torch.iinfo(torch.int64).max
    best = torch.where(frequent, wide, torch.full_like(wide, above)).amin(-1, keepdim=True)
    last = rows.shape[-1] - 1 - (wide == best).to(torch.int32).flip(-1).argmax(-1, keepdim=True)
    value = best.to(x.dtype)
    if keepdim:
        return value.movedim(-1, dim), last.movedim(-1, dim)
    return value.squeeze(-1), last.squeeze(-1)


# Geometry


@replaces(aten._pdist_forward.default)
def _pdist(x: Tensor, p: float = 2.0) -> Any:
    pairs = torch.triu_indices(x.shape[0], x.shape[0], 1)
    apart = (x.index_select(0, pairs[0]) - x.index_select(0, pairs[1])).abs()
    if p == 0:
        return (apart != 0).to(x.dtype).sum(-1)
    if p == 1:
        return apart.sum(-1)
    if p == 2:
        return (apart * apart).sum(-1).sqrt()
    return apart.amax(-1) if math.isinf(p) else apart.pow(p).sum(-1).pow(1 / p)


@replaces(aten.linalg_inv_ex.default)
def _inverse(a: Tensor, *, check_errors: bool = False) -> Any:
    return torch.linalg.inv(a), torch.zeros(a.shape[:-2], dtype=torch.int32)


@replaces(aten.linalg_tensorinv.default)
def _tensor_inverse(a: Tensor, ind: int = 2) -> Any:
    size = math.prod(a.shape[ind:])
    return torch.linalg.inv(a.reshape(size, size)).reshape(*a.shape[ind:], *a.shape[:ind])


# Complex numbers: the real and the imaginary part, computed apart.


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


# Recurrent layers: the ONNX operator has no projection.


@replaces(aten.lstm.input)
def _lstm(
    x: Tensor,
    hx: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    if hx[0].shape[-1] == hx[1].shape[-1] or (train and dropout):
        return NotImplemented
    steps = x.transpose(0, 1) if batch_first else x
    count, directions = 5 if has_biases else 3, 2 if bidirectional else 1
    hidden, cells = [], []
    for layer in range(num_layers):
        made = []
        for direction in range(directions):
            position = layer * directions + direction
            weights = params[position * count : (position + 1) * count]
            out, h, c = _lstm_layer(steps, hx[0][position], hx[1][position], weights, has_biases, direction == 1)
            made.append(out)
            hidden.append(h)
            cells.append(c)
        steps = torch.cat(made, -1)
    return steps.transpose(0, 1) if batch_first else steps, torch.stack(hidden), torch.stack(cells)


def _lstm_layer(
    steps: Tensor, h: Tensor, c: Tensor, weights: Sequence[Tensor], has_biases: bool, backwards: bool
) -> tuple[Tensor, Tensor, Tensor]:
    entering, within, *biases, project = weights
    outputs = []
    for step in reversed(range(steps.shape[0])) if backwards else range(steps.shape[0]):
        gates = steps[step] @ entering.mT + h @ within.mT
        if has_biases:
            gates = gates + biases[0] + biases[1]
        i, f, g, o = gates.chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = (o.sigmoid() * c.tanh()) @ project.mT
        outputs.append(h)
    return torch.stack(outputs[::-1] if backwards else outputs), h, c
