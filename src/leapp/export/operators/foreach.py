"""Operators on lists of tensors, which torchlib lacks, written as one operator for each tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from leapp.compat.core import operator_names
from leapp.export.operators.table import aten, replaces


def _each(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **named: Any) -> Any:
        if any(isinstance(arg, Tensor) and arg.dim() for arg in args):
            return NotImplemented  # a tensor with one number for each entry of the list
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
    for full in operator_names():
        if not full.startswith(prefix):
            continue
        plain, _, overload = full.removeprefix(prefix).partition(".")
        if plain.endswith("_") or overload.endswith("out"):
            continue
        function = _SPELLED.get(plain) or getattr(torch, plain, None)
        if function is not None:
            replaces(getattr(getattr(aten, f"_foreach_{plain}"), overload or "default"))(_each(function))


_register_lists()
