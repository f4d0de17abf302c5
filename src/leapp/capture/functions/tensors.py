"""Arguments of functions of other packages as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["stacked"]

Tensor = torch.Tensor


def stacked(value: Any) -> Tensor:
    """A number, a tensor, or a nested list of them, as one tensor."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Sequence) and not isinstance(value, str):
        parts = [stacked(v) for v in value]
        dtype = torch.float64 if any(p.is_floating_point() for p in parts) else None
        return torch.stack([p.to(dtype) if dtype is not None else p for p in parts]) if parts else torch.zeros(0)
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)
