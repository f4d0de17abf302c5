"""Tensors whose values only ATen operators see.

A node that is traced on them computes with its example inputs, so a trace costs what the operators cost. torch's fake tensors
would load its compiler first, which takes seconds. Code that reads a value in any other way raises an error, so no value is
frozen. Operators run on them; a tracer that follows writes calls :meth:`HiddenValues.write`. Knows nothing of graphs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from leapp.compat.core import disabled_torch_function, plain_dispatch, wrapper_tensor


class HiddenValueError(Exception):
    """Code reads the value of a tensor without an operator, or an operator cannot run."""


class HiddenTensor(torch.Tensor):
    """A tensor without values of its own; ``hidden`` has them. Only a dispatch mode can compute with it."""

    hidden: torch.Tensor
    view_of: Any = None
    """How it was taken from another tensor, if a tracer follows that."""

    @staticmethod
    def __new__(cls, tensor: torch.Tensor) -> HiddenTensor:
        """Hide a tensor."""
        made: HiddenTensor = wrapper_tensor(cls, tensor)
        made.hidden = tensor
        return made

    __torch_function__ = disabled_torch_function

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Raise an error: no dispatch mode handled the operator."""
        raise HiddenValueError(str(func))


class HiddenValues:
    """Hides tensors, and runs operators on them."""

    hides: type[torch.Tensor] = HiddenTensor

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor that hides this one."""
        plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided
        if not plain or tensor.is_conj() or tensor.is_neg() or tensor.is_quantized:
            raise HiddenValueError("a tensor of another class or layout")
        return HiddenTensor(tensor)

    def run(self, func: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """What an operator returns.

        Raises:
            HiddenValueError: It cannot run, or returns something other than tensors.
        """
        try:
            with plain_dispatch():
                out = func(*map(_revealed, args), **{name: _revealed(value) for name, value in named.items()})
        except Exception as error:  # such as a division by zero in a branch that is not taken
            raise HiddenValueError(str(func)) from error
        if isinstance(out, torch.Tensor):
            return self.of(out)
        if type(out) not in (list, tuple) or not all(isinstance(part, torch.Tensor) for part in out):
            raise HiddenValueError(str(func))
        return type(out)(map(self.of, out))

    def copy(self, tensor: HiddenTensor) -> HiddenTensor:
        """The same value in memory of its own."""
        with plain_dispatch():
            return HiddenTensor(tensor.hidden.clone())

    def write(self, target: HiddenTensor, value: HiddenTensor) -> None:
        """Copy a value into the memory of a tensor.

        Raises:
            HiddenValueError: Elements of the tensor share memory. A few operators of torch write there all the same.
        """
        try:
            with plain_dispatch():
                target.hidden.copy_(value.hidden)
        except RuntimeError as error:
            raise HiddenValueError("a write to a tensor that repeats elements") from error


def _revealed(value: Any) -> Any:
    if type(value) is HiddenTensor:
        return value.hidden
    return [_revealed(item) for item in value] if isinstance(value, (list, tuple)) else value
