"""Values that a recorded call reads out by itself.

``torch.zeros(n)`` or ``x[:n]`` with a tensor ``n`` look like tensor calls but turn a value into a number inside torch, where an
exporter freezes it. Running the calls again, one by one, with an eye on the ATen ops shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

from leapp.capture.replay import Replay
from leapp.capture.tape import Call
from leapp.capture.trees import ATOMS, tensors
from leapp.compat.core import DispatchMode

# These read a value only to refuse bad arguments.
_CHECKS = frozenset({"gaussian_nll_loss", "cov", "corrcoef", "quantile", "nanquantile"})


class _Watch(DispatchMode):  # type: ignore[no-untyped-call]
    """Notes every number that an op reads out of a tensor, constants excepted.

    Attributes:
        constants: The identities of the constants.
        found: The numbers.
        reads: Whether any tensor was read, constants included.
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
    """For each call that reads values out of its arguments: the call, and what it reads on these inputs.

    Calls that come after one which does not take these inputs are not looked at.

    Args:
        replay: The calls.
        inputs: What to run them on.
        harmless: Gets the calls that read nothing, and spares them the next time. Up to its first read, what a call does
            depends on the form of its tensors and on its numbers only.
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

    with torch.no_grad(), suppress(Exception):  # any error: a recorded call does not take these inputs
        replay.run(inputs, run, watch.constants)
    return found


def _form(value: Any) -> Any:
    """An argument without the values of its tensors, to be compared."""
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
    classes = call.args[1] if len(call.args) > 1 else call.kwargs.get("num_classes", -1)
    return name in _CHECKS or (name == "one_hot" and isinstance(classes, int) and classes >= 0)
