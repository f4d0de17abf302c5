"""Compares values of two runs: to the last bit, or as the literals of two recordings."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

Tensor = torch.Tensor


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same value, bit for bit: NaN equals itself."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(_bits(a), _bits(b))


def _bits(t: Tensor) -> Tensor:
    t = t.detach() if t.requires_grad else t
    t = t if t.layout == torch.strided else t.to_dense()
    if t.is_quantized:
        return t
    if not (t.dim() and t.is_contiguous() and t.stride(-1) == 1) or t.is_conj() or t.is_neg():
        t = t.reshape(t.shape or (1,)).clone(memory_format=torch.contiguous_format)
    return t.view(torch.uint8)


def same_rows(t: Tensor, axis: int = 0) -> bool:
    """Whether all rows along an axis are the same, bit for bit."""
    return same_bits(t, t.narrow(axis, 0, 1).expand_as(t))


def same_value(a: Any, b: Any) -> bool:
    """Whether two literals are equal; NaN equals NaN. Objects without ``__eq__`` count as equal if their types are."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return a == b or (a != a and b != b)
    if isinstance(a, Tensor):
        return _same_tensor(a, b)
    if isinstance(a, (np.ndarray, np.generic)):
        return bool(a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes())
    compare: Any = type(a).__eq__
    if compare is object.__eq__:
        return True  # such as a torch.Generator, or a function made anew in every pass
    try:
        equal = compare(a, b)
    except NotImplementedError:  # an object of TorchScript, such as the packed weights of a quantised layer
        return False
    return equal if isinstance(equal, bool) else True


def _same_tensor(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype or a.layout != b.layout or a.device != b.device:
        return False
    if a.is_quantized or a.layout != torch.strided:
        a, b = (t.dequantize() if t.is_quantized else t.to_dense() for t in (a, b))
    a, b = a.detach(), b.detach()
    if torch.equal(a, b):
        return True
    if not (a.is_floating_point() or a.is_complex()):
        return False
    return bool(((a == b) | ((a != a) & (b != b))).all())
