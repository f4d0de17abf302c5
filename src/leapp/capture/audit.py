"""Finds recorded calls that read a value out of a tensor inside torch.

``torch.zeros(n)`` or ``x[:n]`` with a tensor ``n`` look like calls on tensors, but torch turns ``n`` into a number, which an
exporter freezes. To find them, the calls are run again one by one under a dispatch mode that sees the ATen ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

from leapp.capture.call_kinds import classes_given
from leapp.capture.replay import Replay
from leapp.capture.tape import Call
from leapp.capture.trees import ATOMS, tensors
from leapp.compat.core import DispatchMode

# These read a value only to check their arguments.
_CHECKS = frozenset({"gaussian_nll_loss", "cov", "corrcoef", "quantile", "nanquantile"})


class _Watch(DispatchMode):  # type: ignore[no-untyped-call]
    """Notes every number that an ATen op reads out of a tensor that is not a constant.

    Attributes:
        constants: The identities of the constants.
        found: The numbers that were read.
        reads: Whether a number was read out of any tensor, constants included.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.constants: set[int] = set()
        self.found: list[Any] = []
        self.reads = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, (bool, int, float, complex)):
            leaves = list(tensors(args))
            self.reads = self.reads or bool(leaves)
            if leaves and not all(id(t) in self.constants for t in leaves):
                self.found.append(out)
        return out


def hidden_reads(
    replay: Replay, inputs: Sequence[torch.Tensor], harmless: set[Any]
) -> dict[int, tuple[Call, list[Any]]]:
    """The calls that read values out of their arguments, by index, each with the values that it reads on these inputs.

    The search ends at the first call that raises an error on these inputs.

    Args:
        replay: The recorded calls.
        inputs: The inputs to run them on.
        harmless: Gets the forms of calls that read nothing, and calls of these forms are not watched again. This is safe,
            because a call that reads no value depends only on the shapes and dtypes of its tensors and on its numbers.
    """
    found: dict[int, tuple[Call, list[Any]]] = {}
    watch = _Watch()

    def run(index: int, call: Call, args: Any, kwargs: Any) -> Any:
        form: Any = call.func, _form(args), _form(kwargs)
        try:
            known = form in harmless
        except TypeError:  # an argument that cannot be hashed
            form, known = None, False
        if known:
            return call.func(*args, **kwargs)
        watch.found, watch.reads = [], False
        with watch:
            result = call.func(*args, **kwargs)
        if watch.found and not _only_checks(call):
            found[index] = (call, watch.found)
        if form is not None and not watch.reads:
            harmless.add(form)
        return result

    with torch.no_grad(), suppress(Exception):  # torch raises many types if a call does not take these inputs
        replay.run(inputs, run, watch.constants)
    return found


def _form(value: Any) -> Any:
    """An argument in which each tensor is replaced by its type, dtype, shape and device."""
    if type(value) in ATOMS:
        return type(value), value  # True, 1 and 1.0 are equal, but not the same argument
    if isinstance(value, torch.Tensor):
        return type(value), value.dtype, value.shape, value.device
    if isinstance(value, (list, tuple)):
        return type(value), *map(_form, value)
    if isinstance(value, slice):
        return slice, _form(value.start), _form(value.stop), _form(value.step)
    if isinstance(value, dict):
        return tuple((name, _form(part)) for name, part in value.items())
    return type(value), value


def _only_checks(call: Call) -> bool:
    name = getattr(call.func, "__name__", "")
    return name in _CHECKS or (name == "one_hot" and classes_given(call.args, call.kwargs))
