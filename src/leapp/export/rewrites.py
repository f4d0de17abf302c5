"""Recorded calls that tracers cannot follow, written as other calls with the same result.

Every backend traces a node inside of :class:`RewrittenCalls`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class RewrittenCalls(TorchFunctionMode):
    """Replaces calls that tracers cannot follow."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Run the call or its replacement."""
        func, args, named = self.rewritten(func, args, kwargs or {})
        return func(*args, **named)

    def rewritten(self, func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """The call to run in place of a call: a function, its arguments and its keywords."""
        if "generator" in named and named["generator"] is None:  # the default; given, it selects overloads that backends lack
            named = {name: value for name, value in named.items() if name != "generator"}
        target = named.get("out")
        if isinstance(target, torch.Tensor) and not target.numel():
            return _into_empty, (func, target, args), {name: value for name, value in named.items() if name != "out"}
        replacement = _REPLACED.get(func)
        if replacement is not None:
            return replacement, args, named
        name = getattr(func, "__name__", "")
        if name.startswith("_foreach_") and name.endswith("_"):
            return _one_by_one, (getattr(torch.Tensor, name.removeprefix("_foreach_")), *args), named
        return func, args, named


class FunctionalCalls(RewrittenCalls):
    """For tracers that turn a write into a new value, which elements that share memory would not share."""

    def rewritten(self, func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """The call to run in place of a call."""
        target, name = args[0] if args else None, getattr(func, "__name__", "")
        if (name in _SPREADING or (name == "__setitem__" and _by_tensor(args[1]))) and _repeats(target):
            raise NotImplementedError("a write to a tensor that repeats elements, as expand() makes it. Write to its clone().")
        return super().rewritten(func, args, named)


def _repeats(x: Any) -> bool:
    """Whether elements of a tensor share memory."""
    return isinstance(x, torch.Tensor) and any(step == 0 and size > 1 for step, size in zip(x.stride(), x.shape, strict=True))


def _by_tensor(index: Any) -> bool:
    """Whether an index chooses by tensors, and otherwise whole axes or slices of them."""
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, torch.Tensor) for part in parts) and not any(isinstance(part, int) for part in parts)


_SPREADING = frozenset({"index_put_", "masked_fill_", "index_fill_", "masked_scatter_"})
"""Writes that torch allows, with a warning, where elements share memory. It refuses all others."""


def _into_empty(func: Any, target: torch.Tensor, args: tuple[Any, ...], /, **named: Any) -> torch.Tensor:
    """The result of a call that would resize its target. Nothing else reads the memory of a tensor without elements."""
    made: torch.Tensor = func(*args, **named)
    return made.to(target.dtype)


def _resize(x: torch.Tensor, *size: Any, memory_format: Any = None) -> torch.Tensor:
    """A tensor to go on with in place of ``x.resize_(size)``. TorchScript freezes what was in the memory while it traced."""
    shape = torch.Size(size[0] if len(size) == 1 and not isinstance(size[0], int) else size)
    if memory_format is None and not x.numel():
        return x.new_empty(shape)
    if memory_format is None and x.is_contiguous() and shape.numel() <= x.numel():
        return x.view(-1)[: shape.numel()].view(shape)
    raise NotImplementedError("resize_() of a tensor that grows, or whose elements are not in order, cannot be exported")


def _resize_as(x: torch.Tensor, like: torch.Tensor, *, memory_format: Any = None) -> torch.Tensor:
    return _resize(x, like.shape, memory_format=memory_format)


def _set_item(x: torch.Tensor, index: Any, value: Any) -> None:
    """``x[index] = value``. For an index by a mask or by positions, torch drops a leading axis of size one from ``value``.

    A mask with one hit while TorchScript traces would have one hit for ever.
    """
    chosen, *rest = index if isinstance(index, tuple) and index else (index,)
    tensors = isinstance(chosen, torch.Tensor) and isinstance(value, torch.Tensor)
    if tensors and chosen.dim() and {slice, int}.issuperset(map(type, rest)):
        taken, left = (chosen.dim(), 1) if chosen.dtype in (torch.bool, torch.uint8) else (1, chosen.dim())
        view = x[(slice(None),) * taken + tuple(rest)] if rest else x
        if value.dim() == view.dim() - taken + left:
            view.index_put_((chosen,), value.to(x.dtype))
            return
    x[index] = value


def _one_by_one(write: Callable[..., Any], targets: list[torch.Tensor], *args: Any, **named: Any) -> Any:
    """A write to a list of tensors, one tensor after the other: a later write may read what an earlier one wrote."""

    def at(value: Any, position: int) -> Any:
        return value[position] if isinstance(value, (list, tuple)) else value

    if write is torch.Tensor.addcmul_ or write is torch.Tensor.addcdiv_:
        named = {"value": args[2] if len(args) > 2 else 1, **named}
        args = args[:2]
    for position, target in enumerate(targets):
        write(target, *(at(a, position) for a in args), **{k: at(v, position) for k, v in named.items()})
    return targets


def _gaussian_nll_loss(
    input: torch.Tensor,
    target: torch.Tensor,
    var: torch.Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> torch.Tensor:
    """The loss without the check that no variance is negative, which reads values."""
    spread = var if isinstance(var, torch.Tensor) else torch.full_like(input, var)
    if spread.shape != input.shape and spread.shape == input.shape[:-1]:
        spread = spread.unsqueeze(-1)
    spread = spread.clamp(min=eps)
    loss = 0.5 * (spread.log() + (input - target) ** 2 / spread)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    if reduction == "none":
        return loss
    return loss.mean() if reduction == "mean" else loss.sum()


def _cov(
    input: torch.Tensor,
    *,
    correction: int = 1,
    fweights: torch.Tensor | None = None,
    aweights: torch.Tensor | None = None,
) -> torch.Tensor:
    """The covariance without the checks of torch, which read values."""
    if fweights is not None or aweights is not None or input.is_complex():
        return torch.cov(input, correction=correction, fweights=fweights, aweights=aweights)
    rows = input if input.dim() == 2 else input.reshape(1, -1)
    rows = rows if rows.is_floating_point() else rows.to(torch.get_default_dtype())
    centred = rows - rows.mean(1, keepdim=True)
    return (centred @ centred.mT / max(rows.shape[1] - correction, 0)).squeeze()


def _corrcoef(input: torch.Tensor) -> torch.Tensor:
    """The correlation by the covariance above."""
    if input.is_complex():
        return torch.corrcoef(input)
    spread = _cov(input)
    if spread.dim() == 0:
        return spread / spread
    deviation = spread.diagonal().sqrt()
    return (spread / deviation.unsqueeze(1) / deviation.unsqueeze(0)).clip(-1, 1)


def _instance_norm(
    input: torch.Tensor,
    running_mean: torch.Tensor | None = None,
    running_var: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    """The layer with the write to its running statistics as calls of their own. Tracers lose a write inside of the operator."""
    if use_input_stats and running_mean is not None and running_var is not None:
        inner = list(range(2, input.dim()))
        mean, var = input.mean(inner).mean(0), input.var(inner).mean(0)
        running_mean.mul_(1 - momentum).add_(mean, alpha=momentum)
        running_var.mul_(1 - momentum).add_(var, alpha=momentum)
        running_mean = running_var = None
    return functional.instance_norm(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)


def _combinations(input: torch.Tensor, r: int = 2, with_replacement: bool = False) -> torch.Tensor:
    """The indices are constants. torch computes them with sizes that ``torch.export`` cannot follow."""
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    chosen = torch.tensor(list(choose(range(input.shape[0]), r)), dtype=torch.int64).reshape(-1, r)
    return input.index_select(0, chosen.reshape(-1)).reshape(chosen.shape)


def _quantile(skip_nan: bool) -> Callable[..., torch.Tensor]:
    """Quantiles without the checks of torch 2.7, which read values."""

    def quantile(
        input: torch.Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
    ) -> torch.Tensor:
        rows = input.flatten() if dim is None or not input.dim() else input.movedim(dim, -1)
        wanted = torch.as_tensor(q, dtype=input.dtype, device=input.device)
        nan = rows.isnan()
        if skip_nan:
            ranks = (wanted.reshape(-1) * ((~nan).sum(-1, keepdim=True) - 1)).clamp(min=0)
        else:
            last = rows.shape[-1] - 1
            ranks = torch.where(nan.any(-1, keepdim=True), last, wanted.reshape(-1) * last)
        if interpolation in _ROUNDED:
            ranks = _ROUNDED[interpolation](ranks)
        ordered, below = rows.sort(-1).values, ranks.to(torch.int64)
        values = ordered.gather(-1, below)
        if interpolation not in _ROUNDED:
            weights = torch.full_like(ranks, 0.5) if interpolation == "midpoint" else ranks - below
            values = values.lerp(ordered.gather(-1, ranks.ceil().to(torch.int64)), weights)
        if keepdim:
            kept = [1] * input.dim() if dim is None else [1 if d == dim % input.dim() else s for d, s in enumerate(input.shape)]
            return values.movedim(-1, 0).reshape([*wanted.shape, *kept])
        return values.movedim(-1, 0) if wanted.dim() else values.squeeze(-1)

    return quantile


_ROUNDED = {"lower": torch.floor, "higher": torch.ceil, "nearest": torch.round}

_REPLACED: dict[Any, Callable[..., Any]] = {
    torch.quantile: _quantile(skip_nan=False),
    torch.Tensor.quantile: _quantile(skip_nan=False),
    torch.nanquantile: _quantile(skip_nan=True),
    torch.Tensor.nanquantile: _quantile(skip_nan=True),
    functional.gaussian_nll_loss: _gaussian_nll_loss,
    torch.cov: _cov,
    torch.Tensor.cov: _cov,
    torch.corrcoef: _corrcoef,
    torch.Tensor.corrcoef: _corrcoef,
    torch.combinations: _combinations,
    functional.instance_norm: _instance_norm,
    torch.Tensor.__setitem__: _set_item,
    torch.Tensor.resize_: _resize,
    torch.Tensor.resize_as_: _resize_as,
    torch.resize_as_: _resize_as,
    torch.ops.aten.resize_.default: _resize,
    torch.ops.aten.resize_as_.default: _resize_as,
}
