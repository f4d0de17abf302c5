"""Converts arguments of NumPy functions to the tensors, dtypes and axes that expressions use."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from leapp.capture.numpy.plain import asarray, torch_dtype
from leapp.capture.trees import tensors

Tensor = torch.Tensor


def tensor(value: Any) -> Tensor:
    """One tensor made of a number, or of a nested list of numbers and tensors. Plain values become a new constant."""
    if isinstance(value, Tensor):
        return value
    if next(tensors(value), None) is not None:
        return torch.stack(promoted(*value))
    plain = asarray(value)
    return torch.tensor(plain.tolist(), dtype=torch_dtype(plain.dtype)).reshape(plain.shape)


def double(value: Any) -> Tensor:
    """A value as a tensor of double precision."""
    return tensor(value).to(torch.float64)


def floating(x: Tensor) -> Tensor:
    """A tensor in the float dtype in which NumPy computes means and roots: integers become float64."""
    return x if x.dtype.is_floating_point or x.dtype.is_complex else x.to(torch.float64)


def promoted(*values: Any) -> list[Tensor]:
    """Values as tensors of one dtype."""
    found = [tensor(v) for v in values]
    dtype = dtype_of(np.result_type(*(str(t.dtype).removeprefix("torch.") for t in found)))
    return [t.to(dtype) for t in found]


def axes_of(x: Tensor, axis: Any) -> tuple[int, ...]:
    """The axes that NumPy means by ``axis``, none of them negative."""
    if axis is None:
        return tuple(range(x.dim()))
    return tuple(int(a) % max(x.dim(), 1) for a in (axis if isinstance(axis, (tuple, list)) else (axis,)))


def dtype_of(dtype: Any) -> torch.dtype | None:
    """The torch dtype of a NumPy dtype; ``None`` for ``None``."""
    return None if dtype is None else torch_dtype(dtype)
