"""The two tables of operators for ONNX, and the decorators that add a function to them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from leapp.compat.core import find_operator
from leapp.compat.graphs import core_decompositions, is_whole_composite

aten: Any = torch.ops.aten
broadcast_shapes: Any = torch.broadcast_shapes

DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {}
"""ATen overload to the function that writes it as other ATen operators."""

TRANSLATIONS: dict[Any, Callable[..., Any]] = {}
"""ATen overload to the function that writes it as ONNX operators. torchlib translates the other overloads."""


class Replacement:
    """Two functions that may replace an operator; the second is asked where the first returns ``NotImplemented``.

    Attributes:
        dtypes: The types of arguments for which one of them may replace the operator; ``None`` for all types.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        otherwise: Callable[..., Any] | None,
        dtypes: frozenset[torch.dtype] | None = None,
    ) -> None:
        """Ask ``function``, for calls with an argument of ``dtypes`` or for all calls, and then ``otherwise``."""
        self._function = function
        self._otherwise = otherwise
        self._dtypes = dtypes
        self.dtypes = dtypes
        if otherwise is not None:
            others = otherwise.dtypes if isinstance(otherwise, Replacement) else None
            self.dtypes = None if dtypes is None or others is None else dtypes | others

    def applies(self, args: Sequence[Any]) -> bool:
        """Whether a call with these arguments may be replaced."""
        return _has(args, self.dtypes)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """What the call is written as, or ``NotImplemented``."""
        if _has(args, self._dtypes):
            result = self._function(*args, **named)
            if result is not NotImplemented:
                return result
        return NotImplemented if self._otherwise is None else self._otherwise(*args, **named)


def _has(args: Sequence[Any], dtypes: frozenset[torch.dtype] | None) -> bool:
    """Whether a tensor or a complex number among ``args`` has one of these types."""
    if dtypes is None:
        return True
    for arg in args:
        if isinstance(arg, torch.Tensor):
            if arg.dtype in dtypes:
                return True
        elif isinstance(arg, complex) and torch.complex64 in dtypes:
            return True
    return False


_WHOLE = (
    "avg_pool1d.default", "bilinear.default", "fake_quantize_per_channel_affine.default",
    "fake_quantize_per_tensor_affine.default", "fake_quantize_per_tensor_affine.tensor_qparams", "logdet.default",
    "max_pool1d.default", "stft.default", "upsample_bicubic2d.vec", "upsample_bilinear2d.vec", "upsample_nearest1d.vec",
    "upsample_nearest2d.vec", "upsample_nearest3d.vec", "upsample_trilinear3d.vec",
)  # fmt: skip
"""Composites for which torchlib writes fewer operators than for what they consist of, or which it takes only whole."""


@functools.cache
def whole_composites() -> frozenset[Any]:
    """The composite operators that a trace must keep whole: those in our tables, and some that torchlib translates."""
    named = (find_operator(name) for name in _WHOLE)
    return frozenset(op for op in (*DECOMPOSITIONS, *TRANSLATIONS, *named) if op is not None and is_whole_composite(op))


def replaces(*targets: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function that writes overloads as other ATen operators. ``None`` is an overload that this torch lacks."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        DECOMPOSITIONS.update((target, function) for target in targets if target is not None)
        return function

    return register


def replaces_some(
    dtypes: Iterable[torch.dtype], *targets: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function that writes overloads as other ATen operators if an argument has one of ``dtypes``.

    It is asked before the function that is registered so far.
    """
    chosen = frozenset(dtypes)

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        DECOMPOSITIONS.update((target, Replacement(function, DECOMPOSITIONS.get(target), chosen)) for target in targets)
        return function

    return register


def torch_replaces(*targets: Any, dtypes: Iterable[torch.dtype] | None = None) -> None:
    """Register torch's own decomposition of overloads, for all types or for some.

    Many of them import sympy when they first run, which takes a second. A common operator has a function of ours instead.
    """
    for target in targets:
        register = replaces(target) if dtypes is None else replaces_some(dtypes, target)
        register(core_decompositions()[target])


def translates(*targets: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function that writes overloads as ONNX operators.

    The function gets a writer and the overload's arguments, with tensors as values of the ONNX graph. It returns the value, or
    the list of values, that the overload returns, or ``NotImplemented``, which leaves the call to torchlib.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        TRANSLATIONS.update((target, function) for target in targets if target is not None)
        return function

    return register


def is_float(*values: Any) -> bool:
    """Whether one of these tensors and numbers is a float."""
    return any(v.is_floating_point() if isinstance(v, Tensor) else isinstance(v, float) for v in values)


def promoted(a: Any, b: Any) -> tuple[Tensor, Tensor]:
    """Both operands as tensors of the type that eager arithmetic would give them."""
    dtype = torch.result_type(a, b)
    like = a if isinstance(a, Tensor) else b

    def cast(value: Any) -> Tensor:
        return value.to(dtype) if isinstance(value, Tensor) else torch.full((), value, dtype=dtype, device=like.device)

    return cast(a), cast(b)
