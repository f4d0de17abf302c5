"""Products with vectors, and small linear algebra, unrolled."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from leapp.compat.core import find_operator
from leapp.export.operators.arithmetic import sign
from leapp.export.operators.table import aten, broadcast_shapes, replaces

_UNROLL_LIMIT = 32
"""Matrices up to this size are solved by unrolled elimination; larger ones would make unwieldy models."""


# Products with a vector: ONNX Runtime fuses a transpose into MatMul and loses it when the other side is one-dimensional.


@replaces(aten.mv.default)
def _mv(a: Tensor, b: Tensor) -> Any:
    return aten.mm(a, b.unsqueeze(1)).squeeze(1)


@replaces(aten.addmv.default)
def _addmv(c: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return aten.add(aten.mul(c, beta), aten.mul(aten.mm(a, b.unsqueeze(1)).squeeze(1), alpha))


@replaces(aten.dot.default)
def _dot(a: Tensor, b: Tensor) -> Any:
    return aten.mm(a.unsqueeze(0), b.unsqueeze(1)).reshape(())


@replaces(aten.matmul.default)
def _matmul(a: Tensor, b: Tensor) -> Any:
    if a.dim() > 1 and b.dim() > 1:
        return NotImplemented
    left = a.unsqueeze(0) if a.dim() == 1 else a
    right = b.unsqueeze(1) if b.dim() == 1 else b
    out = aten.matmul(left, right)
    out = out.squeeze(-1) if b.dim() == 1 else out
    return out.squeeze(-1 if b.dim() == 1 else -2) if a.dim() == 1 else out


# Small linear algebra, unrolled


def _fits(a: Tensor) -> bool:
    return a.dim() >= 2 and a.shape[-1] <= _UNROLL_LIMIT and a.is_floating_point()


def _eliminated(a: Tensor, b: Tensor) -> Tensor:
    """The solution of ``a @ x = b`` by Gauss-Jordan elimination with partial pivoting."""
    n = a.shape[-1]
    work = torch.cat([a, b], -1)
    rows = torch.arange(n)
    for k in range(n):
        pivot = work[..., k:, k].abs().argmax(-1, keepdim=True) + k
        order = torch.where(rows == k, pivot, torch.where(rows == pivot, torch.full_like(rows, k), rows))
        work = work.gather(-2, order.unsqueeze(-1).expand(*work.shape))
        scaled = work[..., k : k + 1, :] / work[..., k : k + 1, k : k + 1]
        reduced = work - work[..., :, k : k + 1] * scaled
        work = torch.where((rows == k).unsqueeze(-1), scaled, reduced)
    return work[..., n:]


@replaces(aten.linalg_inv.default, aten.inverse.default)
def _inv(a: Tensor) -> Any:
    if not _fits(a):
        return NotImplemented
    return _eliminated(a, torch.eye(a.shape[-1], dtype=a.dtype, device=a.device).expand(*a.shape))


@replaces(aten.linalg_inv_ex.default)
def _inverse(a: Tensor, *, check_errors: bool = False) -> Any:
    return torch.linalg.inv(a), torch.zeros(a.shape[:-2], dtype=torch.int32)


@replaces(aten.linalg_tensorinv.default)
def _tensor_inverse(a: Tensor, ind: int = 2) -> Any:
    size = math.prod(a.shape[ind:])
    return torch.linalg.inv(a.reshape(size, size)).reshape(*a.shape[ind:], *a.shape[:ind])


@replaces(aten.linalg_solve.default)
def _solve(a: Tensor, b: Tensor, *, left: bool = True) -> Any:
    if not _fits(a):
        return NotImplemented
    if not left:
        return _solve(a.mT, b.mT, left=True).mT
    vector = b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1])
    right = b.unsqueeze(-1) if vector else b
    batch = broadcast_shapes(a.shape[:-2], right.shape[:-2])
    solution = _eliminated(a.expand(*batch, *a.shape[-2:]), right.expand(*batch, *right.shape[-2:]))
    return solution.squeeze(-1) if vector else solution


@replaces(aten.linalg_det.default, aten.det.default)
def _det(a: Tensor) -> Any:
    """ONNX Runtime has determinants of float32 only."""
    if a.dtype != torch.float64 or not _fits(a):
        return NotImplemented
    n = a.shape[-1]
    found = torch.ones(a.shape[:-2], dtype=a.dtype, device=a.device)
    for _ in range(n):
        pivot = a[..., :, 0].abs().argmax(-1, keepdim=True)
        rows = torch.arange(a.shape[-2])
        order = torch.where(rows == 0, pivot, torch.where(rows == pivot, torch.zeros_like(rows), rows))
        a = a.gather(-2, order.unsqueeze(-1).expand(*a.shape))
        first = a[..., 0, 0]
        found = found * torch.where(pivot.squeeze(-1) == 0, first, -first)
        safe = torch.where(first == 0, torch.ones_like(first), first)
        a = a[..., 1:, 1:] - a[..., 1:, :1] * (a[..., :1, 1:] / safe[..., None, None])
    return found


@replaces(aten.linalg_slogdet.default, aten.slogdet.default)
def _slogdet(a: Tensor) -> Any:
    if not _fits(a):
        return NotImplemented
    determinant = torch.linalg.det(a)
    return sign(determinant), determinant.abs().log()


@replaces(aten.linalg_cholesky.default, find_operator("cholesky.default"))
def _cholesky(a: Tensor, upper: bool = False) -> Any:
    if not _fits(a):
        return NotImplemented
    n = a.shape[-1]
    columns: list[Tensor] = []
    for j in range(n):
        column = a[..., j:, j]
        for done in columns:
            column = column - done[..., j:] * done[..., j : j + 1]
        column = column / column[..., :1].sqrt()
        columns.append(torch.cat([torch.zeros_like(a[..., :j, 0]), column], -1))
    lower = torch.stack(columns, -1)
    return lower.mT if upper else lower


@replaces(aten.linalg_solve_triangular.default)
def _solve_triangular(a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    if not _fits(a):
        return NotImplemented
    if not left:
        return _solve_triangular(a.mT, b.mT, upper=not upper, unitriangular=unitriangular).mT
    n = a.shape[-1]
    solved: dict[int, Tensor] = {}
    for i in reversed(range(n)) if upper else range(n):
        row = b[..., i, :]
        for j, known in solved.items():
            row = row - a[..., i, j].unsqueeze(-1) * known
        solved[i] = row if unitriangular else row / a[..., i, i].unsqueeze(-1)
    return torch.stack([solved[i] for i in range(n)], -2)


@replaces(aten.cholesky_solve.default)
def _cholesky_solve(b: Tensor, factor: Tensor, upper: bool = False) -> Any:
    if not _fits(factor):
        return NotImplemented
    lower = factor.mT if upper else factor
    return _solve_triangular(lower.mT, _solve_triangular(lower, b, upper=False), upper=True)
