"""Operators on booleans and narrow integers that ONNX, or ONNX Runtime, has for wider types only.

They are computed in int32. The narrow type keeps the low bits of the result, as eager arithmetic does. Also products of
float16 and bfloat16 with numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from leapp.export.operators.arithmetic import BOUNDS_WRAP
from leapp.export.operators.table import aten, is_float, replaces_some

_NARROW = (torch.uint8, torch.int8, torch.int16)
_WHERE = (aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf)
_COMPARED = tuple(
    overload for kind in (aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge) for overload in (kind.Tensor, kind.Scalar)
)
_CLAMPED = (aten.clamp.default, aten.clamp_min.default, aten.clamp_max.default)
# ONNX Runtime 1.20 has hardly any arithmetic and comparisons of narrow integers; 1.23 lacks Max, Min, Clip and Where of them.
_WIDENED = {
    (torch.bool,): (aten.add.Tensor, aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor),
    _NARROW: (
        aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.tril.default, aten.triu.default, aten.mm.default,
        aten.bmm.default, aten.matmul.default, aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar,
        aten.rsub.Tensor, aten.rsub.Scalar, aten.mul.Tensor, aten.mul.Scalar, aten.maximum.default, aten.minimum.default,
        aten.bitwise_left_shift.Tensor, aten.bitwise_left_shift.Tensor_Scalar, aten.bitwise_right_shift.Tensor,
        aten.bitwise_right_shift.Tensor_Scalar, aten.clamp.Tensor, *_CLAMPED, *_COMPARED,
    ),
    (torch.uint8, torch.int16): (aten.neg.default,),
    (torch.int8, torch.int16): _WHERE,
    (torch.int16,): (aten.constant_pad_nd.default,),
}  # fmt: skip



def _widened(target: Any, dtypes: tuple[torch.dtype, ...]) -> Callable[..., Any]:
    def rewrite(*args: Any, **named: Any) -> Any:
        operands = [a for a in args if isinstance(a, Tensor) or (isinstance(a, (int, float)) and not isinstance(a, bool))]
        if target in _WHERE:
            del operands[0]
        if is_float(*operands) or not any(isinstance(o, Tensor) and o.dtype in dtypes for o in operands):
            return NotImplemented
        if any(isinstance(o, Tensor) and o.dtype not in (*_NARROW, torch.bool) for o in operands):
            return NotImplemented
        wide = [a.to(torch.int32) if any(a is o for o in operands) and isinstance(a, Tensor) else a for a in args]
        if target in _COMPARED or (target in _CLAMPED and BOUNDS_WRAP):
            dtype = _result(operands)
            wide, named = [_kept(a, dtype) for a in wide], {name: _kept(a, dtype) for name, a in named.items()}
        out = target(*wide, **named)
        return out if target in _COMPARED else out.to(_result(operands))

    return rewrite


def _kept(value: Any, dtype: torch.dtype) -> Any:
    """The low bits of a number, which are what eager code compares with."""
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    return (value - least) % (most - least + 1) + least if type(value) is int else value


def _result(operands: list[Any]) -> torch.dtype:
    """The type of the result in eager arithmetic."""
    tensors = [o for o in operands if isinstance(o, Tensor)]
    if len(tensors) > 1:
        return torch.result_type(tensors[0], tensors[1])
    number = next((o for o in operands if not isinstance(o, Tensor)), None)
    return tensors[0].dtype if number is None else torch.result_type(tensors[0], number)


for _dtypes, _targets in _WIDENED.items():
    for _target in _targets:
        replaces_some(_dtypes, _target)(_widened(_target, _dtypes))


# Narrow floats: eager code multiplies and divides them by a number in float32. float16 can hold neither 1e5 nor 1e-8.

_FLOATS = (torch.float16, torch.bfloat16)


def _holds(dtype: torch.dtype, size: float) -> bool:
    """Whether a type can hold this number exactly."""
    info = torch.finfo(dtype)
    exact = (math.frexp(size)[0] * 2 / info.eps).is_integer() if math.isfinite(size) else True
    return exact and (size == 0 or not math.isfinite(size) or info.tiny <= size <= info.max)


def _scaled(target: Any) -> Callable[..., Any]:
    def rewrite(x: Any, y: Any) -> Any:
        if not isinstance(x, Tensor) or torch.result_type(x, y) != x.dtype:
            return NotImplemented
        if isinstance(y, Tensor):
            if y.dim() or y.dtype == x.dtype:
                return NotImplemented
            y = y.to(torch.float32)
        elif _holds(x.dtype, abs(y)):
            return NotImplemented
        return target(x.to(torch.float32), y).to(x.dtype)

    return rewrite


for _target in (aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar):
    replaces_some(_FLOATS, _target)(_scaled(_target))
