"""Warns of modules in training mode that compute other values in evaluation mode: dropout, batch normalisation.

They are recorded as they ran; most likely the user forgot ``.eval()``.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from types import CodeType
from typing import NamedTuple

from torch import nn

from leapp.capture.user_line import Where, where

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_ATTENTION = (nn.MultiheadAttention,)
_NORMS = (
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d,
)  # fmt: skip


class _Found(NamedTuple):
    module: weakref.ref[nn.Module]
    name: str
    effect: str
    node: str
    where: Where


class TrainingModes:
    """The modules in training mode that a session met.

    Args:
        modules: The modules that were called, outermost first.
    """

    def __init__(self, modules: Mapping[int, weakref.ref[nn.Module]]) -> None:
        self._modules = modules
        self._found: list[_Found] = []

    def look(self, module: nn.Module, node: str) -> None:
        """Note a module that an open node calls for the first time."""
        effect = _effect(module) if getattr(module, "training", False) else ""  # a frozen script has no such attribute
        if effect:
            self._found.append(_Found(weakref.ref(module), type(module).__name__, effect, node, where()))

    def lines(self) -> Iterator[str]:
        """One sentence for each of the modules."""
        for found in self._found:
            root, path = self._place(found.module())
            named = f"{path} ({found.name})" if path != found.name else found.name
            yield (
                f"{found.node}: {named} is in training mode, called at {found.where.quoted}. {found.effect} "
                f"Call .eval() on the {root or found.name} before tracing."
            )

    def _place(self, module: nn.Module | None) -> tuple[str, str]:
        """The class of the outermost module that holds a module, and the path through it."""
        for ref in self._modules.values():
            root = ref()
            for path, part in root.named_modules() if root is not None and module is not None else ():
                if part is module:
                    name = type(root).__name__
                    return name, f"{name}.{path}" if path else name
        return "", type(module).__name__


def _effect(module: nn.Module) -> str:
    """A sentence about what a module does in training mode only; empty if it does the same in both modes."""
    if isinstance(module, _DROPOUTS):
        return "It drops values at random." if module.p else ""
    if isinstance(module, nn.RNNBase):
        return "It drops values at random between its layers." if module.dropout and module.num_layers > 1 else ""
    if isinstance(module, _ATTENTION):
        return "It drops weights of the attention at random." if module.dropout else ""
    if isinstance(module, nn.RReLU):
        return "It draws its slope at random."
    asks = _asks(type(module), "forward")
    if getattr(module, "running_mean", None) is not None and (asks or isinstance(module, _NORMS)):
        return "It normalises with the statistics of the batch and changes its own."
    if asks:
        return "Its forward() reads self.training."
    hooked = any(_asks(type(hook), "__call__") for hook in module._forward_pre_hooks.values())
    return "A hook that runs before its forward() reads self.training." if hooked else ""


def _asks(cls: type, method: str) -> bool:
    """Whether the code of a method, or of a method that it calls, names ``training``.

    Methods of torch's own layers are skipped, since ``_effect`` knows them, but not those of ``torch.nn.utils``, such as a
    spectral norm.
    """
    seen: set[str] = set()
    todo = [method]
    while todo:
        name = todo.pop()
        function = getattr(cls, name, None)
        code = getattr(function, "__code__", None)
        package = f"{getattr(function, '__module__', '')}."
        if name in seen or code is None or (package.startswith("torch.") and not package.startswith("torch.nn.utils.")):
            continue
        seen.add(name)
        names = set(_names(code))
        if "training" in names:
            return True
        todo += names
    return False


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _names(part)
