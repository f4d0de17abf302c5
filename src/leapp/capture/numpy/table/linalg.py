"""Linear algebra."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from leapp.capture.numpy.table.table import Unmapped, expression
from leapp.capture.numpy.table.tensors import floating, tensor

Tensor = torch.Tensor


@expression("trace", np.linalg)
def _trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Tensor:
    found = torch.diagonal(tensor(x), offset, -2, -1)
    return found.sum(-1)


@expression("vector_norm", np.linalg)
def _vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
    return torch.linalg.vector_norm(floating(tensor(x)), ord, axis, keepdims)


@expression("svdvals", np.linalg)
def _svdvals(x: Any, /) -> Any:
    return torch.linalg.svdvals(floating(tensor(x)))


@expression("lstsq", np.linalg)
def _lstsq(a: Any, b: Any, rcond: Any = None) -> Any:
    a, b = (floating(tensor(v)) for v in (a, b))
    if rcond is not None or a.shape[0] < a.shape[1]:
        raise Unmapped
    columns = b if b.dim() > 1 else b.unsqueeze(1)
    q, r = torch.linalg.qr(a)
    x = torch.linalg.solve_triangular(r, q.mT @ columns, upper=True)
    rest = ((columns - a @ x) ** 2).sum(0) if a.shape[0] > a.shape[1] else a.new_zeros(0)
    return (x if b.dim() > 1 else x.squeeze(1)), rest, a.shape[1], torch.linalg.svdvals(a)
