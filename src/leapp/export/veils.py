"""Tensors whose values only operators see.

A node that is listed on them computes with its example, at the price of the operators alone; torch's own tensors without memory
load its compiler first, which takes seconds. Code that reads a value in any other way fails, so that none is frozen unseen.
Only operators that change nothing but their results may be run. Knows nothing of graphs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from leapp.compat.core import disabled_torch_function, plain_dispatch, wrapper_tensor


class HiddenValueError(Exception):
    """Something other than an operator asks for the values of a tensor, or an operator cannot run."""


class Veil(torch.Tensor):
    """A tensor in front of another. Only a mode can compute with it."""

    behind: torch.Tensor

    @staticmethod
    def __new__(cls, tensor: torch.Tensor) -> Veil:
        """Hide a tensor."""
        made: Veil = wrapper_tensor(cls, tensor)
        made.behind = tensor
        return made

    __torch_function__ = disabled_torch_function

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Refuse: no mode lists the operator."""
        raise HiddenValueError(str(func))


class Veils:
    """Hides tensors, and runs operators on them."""

    hides = Veil

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor in front of this one."""
        plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided
        if not plain or tensor.is_conj() or tensor.is_neg() or tensor.is_quantized:
            raise HiddenValueError("a tensor of another class or layout")
        return Veil(tensor)

    def run(self, func: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """What an operator returns.

        Raises:
            HiddenValueError: It cannot run, or returns something other than tensors.
        """
        try:
            with plain_dispatch():
                out = func(*map(_behind, args), **{name: _behind(value) for name, value in named.items()})
        except Exception as error:  # such as a division by zero in a branch that is not taken
            raise HiddenValueError(str(func)) from error
        if isinstance(out, torch.Tensor):
            return self.of(out)
        if type(out) not in (list, tuple) or not all(isinstance(part, torch.Tensor) for part in out):
            raise HiddenValueError(str(func))
        return type(out)(map(self.of, out))


def _behind(value: Any) -> Any:
    if type(value) is Veil:
        return value.behind
    return [_behind(item) for item in value] if isinstance(value, (list, tuple)) else value
