"""Products with vectors, and linear algebra of small matrices as unrolled arithmetic, which torchlib lacks."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from leapp.compat.core import find_operator
from leapp.export.operators.arithmetic import sign
from leapp.export.operators.table import aten, broadcast_shapes, is_float, replaces, torch_replaces

_UNROLL_LIMIT = 32
"""Matrices up to this size are unrolled; larger ones would need too many operators."""


# Products with a vector: ONNX Runtime fuses a transpose into MatMul and loses it if the other operand has one dimension.


@replaces(aten.matmul.default, aten.mv.default, aten.dot.default)
def _matmul(a: Tensor, b: Tensor) -> Any:
    if a.dim() > 1 and b.dim() > 1:
        return NotImplemented
    left = a.unsqueeze(0) if a.dim() == 1 else a
    right = b.unsqueeze(1) if b.dim() == 1 else b
    out = aten.matmul(left, right)
    out = out.squeeze(-1) if b.dim() == 1 else out
    return out.squeeze(-1 if b.dim() == 1 else -2) if a.dim() == 1 else out


torch_replaces(aten.addmv.default)


@replaces(aten.vdot.default)
def _vdot(a: Tensor, b: Tensor) -> Any:
    return NotImplemented if a.is_complex() else a.dot(b)


# Sums of a product and a tensor, each with a factor. The factors are attributes of ``Gemm``, which are float32.


@replaces(aten.addmm.default, aten.baddbmm.default)
def _addmm(x: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    if a.dim() == 2 and a.dtype in (torch.float32, torch.float16):
        return NotImplemented
    return _weighted_sum(x, a @ b, beta, alpha) if _multiplies(a, beta, alpha) else NotImplemented


@replaces(aten.addbmm.default)
def _addbmm(x: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return aten.addmm.default(x, a.transpose(0, 1).flatten(1), b.flatten(0, 1), beta=beta, alpha=alpha)


@replaces(aten.addr.default)
def _addr(x: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return _weighted_sum(x, a.unsqueeze(1) * b, beta, alpha) if _multiplies(a, beta, alpha) else NotImplemented


def _multiplies(a: Tensor, *factors: Any) -> bool:
    """Whether eager code multiplies by these factors. It cuts those of integers down to integers."""
    return a.is_floating_point() or (not is_float(*factors) and a.dtype != torch.bool)


def _weighted_sum(x: Tensor, product: Tensor, beta: Any, alpha: Any) -> Tensor:
    product = product if alpha == 1 else product * alpha
    if beta == 0:
        return product
    return (x if beta == 1 else x * beta) + product


# Linear algebra of small matrices


def _fits(a: Tensor) -> bool:
    return a.dim() >= 2 and a.shape[-1] <= _UNROLL_LIMIT and a.is_floating_point()


def _eliminated(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The solution of ``a @ x = b`` by Gauss-Jordan elimination with partial pivoting, and the first pivot that is zero.

    Pivots are counted from 1 as LAPACK does it; 0 stands for none.
    """
    n = a.shape[-1]
    work = torch.cat([a, b], -1)
    rows = torch.arange(n)
    info = torch.zeros(work.shape[:-2], dtype=torch.int32)
    for k in range(n):
        pivot = work[..., k:, k].abs().argmax(-1, keepdim=True) + k
        order = torch.where(rows == k, pivot, torch.where(rows == pivot, torch.full_like(rows, k), rows))
        work = work.gather(-2, order.unsqueeze(-1).expand(*work.shape))
        info = torch.where((info == 0) & (work[..., k, k] == 0), torch.full_like(info, k + 1), info)
        scaled = work[..., k : k + 1, :] / work[..., k : k + 1, k : k + 1]
        reduced = work - work[..., :, k : k + 1] * scaled
        work = torch.where((rows == k).unsqueeze(-1), scaled, reduced)
    return work[..., n:], info


@replaces(aten.linalg_inv_ex.default)
def _inverse(a: Tensor, *, check_errors: bool = False) -> Any:
    if not _fits(a):
        return NotImplemented
    return _eliminated(a, torch.eye(a.shape[-1], dtype=a.dtype, device=a.device).expand(*a.shape))


@replaces(aten.linalg_inv.default, aten.inverse.default)
def _inv(a: Tensor) -> Any:
    return _inverse(a)[0] if _fits(a) else NotImplemented


@replaces(aten.linalg_tensorinv.default)
def _tensor_inverse(a: Tensor, ind: int = 2) -> Any:
    size = math.prod(a.shape[ind:])
    return torch.linalg.inv(a.reshape(size, size)).reshape(*a.shape[ind:], *a.shape[:ind])


@replaces(aten.linalg_solve_ex.default)
def _solve_ex(a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False) -> Any:
    if not _fits(a):
        return NotImplemented
    if not left:
        solution, info = _solve_ex(a.mT, b.mT)
        return solution.mT, info
    vector = b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1])
    right = b.unsqueeze(-1) if vector else b
    batch = broadcast_shapes(a.shape[:-2], right.shape[:-2])
    solution, info = _eliminated(a.expand(*batch, *a.shape[-2:]), right.expand(*batch, *right.shape[-2:]))
    return solution.squeeze(-1) if vector else solution, info


@replaces(aten.linalg_solve.default)
def _solve(a: Tensor, b: Tensor, *, left: bool = True) -> Any:
    return _solve_ex(a, b, left=left)[0] if _fits(a) else NotImplemented


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


@replaces(aten.linalg_cholesky_ex.default)
def _cholesky_ex(a: Tensor, *, upper: bool = False, check_errors: bool = False) -> Any:
    if not _fits(a):
        return NotImplemented
    n = a.shape[-1]
    columns: list[Tensor] = []
    info = torch.zeros(a.shape[:-2], dtype=torch.int32)
    for j in range(n):
        column = a[..., j:, j]
        for done in columns:
            column = column - done[..., j:] * done[..., j : j + 1]
        info = torch.where((info == 0) & ~(column[..., 0] > 0), torch.full_like(info, j + 1), info)
        column = column / column[..., :1].sqrt()
        columns.append(torch.cat([torch.zeros_like(a[..., :j, 0]), column], -1))
    lower = torch.stack(columns, -1)
    return lower.mT if upper else lower, info


@replaces(aten.linalg_cholesky.default, find_operator("cholesky.default"))
def _cholesky(a: Tensor, upper: bool = False) -> Any:
    return _cholesky_ex(a, upper=upper)[0] if _fits(a) else NotImplemented


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


# Functions of the singular values. Singular vectors are not translated: each engine chooses their signs.

_JACOBI_LIMIT = 8
"""Matrices whose shorter side is at most this long are rotated by unrolled Jacobi sweeps."""

_SWEEPS = 10
"""How often each pair of columns is rotated. The remaining angles shrink quadratically."""


def _rounds(n: int) -> list[tuple[list[int], list[int]]]:
    """Every pair of ``n`` columns, in rounds in which no column occurs twice: the circle method of tournaments."""
    seats = [*range(n), *([] if n % 2 == 0 else [-1])]
    found = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        pairs = [(a, b) for a, b in zip(seats[:half], reversed(seats[half:]), strict=True) if a >= 0 and b >= 0]
        if pairs:
            found.append(([min(p) for p in pairs], [max(p) for p in pairs]))
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return found


def _orthogonal_columns(a: Tensor) -> tuple[Tensor, Tensor]:
    """``a @ v`` with orthogonal columns, and the orthogonal ``v``, by one-sided Jacobi rotations."""
    m, n = a.shape[-2:]
    work = torch.cat([a, torch.eye(n, dtype=a.dtype, device=a.device).expand(*a.shape[:-2], n, n)], -2)
    kept = list(work.unbind(-1))
    for first, second in _rounds(n) * _SWEEPS:
        p, q = torch.stack([kept[i] for i in first], -1), torch.stack([kept[i] for i in second], -1)
        pa, qa = p[..., :m, :], q[..., :m, :]
        common = (pa * qa).sum(-2, keepdim=True)
        apart = (qa * qa).sum(-2, keepdim=True) - (pa * pa).sum(-2, keepdim=True)
        turned = common != 0
        ratio = apart / (2 * torch.where(turned, common, torch.ones_like(common)))
        tangent = 1 / (ratio.abs() + (1 + ratio * ratio).sqrt())
        tangent = torch.where(turned, torch.where(ratio < 0, -tangent, tangent), torch.zeros_like(tangent))
        cosine = 1 / (1 + tangent * tangent).sqrt()
        sine = cosine * tangent
        for columns, made in ((first, cosine * p - sine * q), (second, sine * p + cosine * q)):
            for i, column in zip(columns, made.unbind(-1), strict=True):
                kept[i] = column
    work = torch.stack(kept, -1)
    return work[..., :m, :], work[..., m:, :]


def _fits_jacobi(a: Tensor) -> bool:
    return a.dim() >= 2 and 0 < min(a.shape[-2:]) <= _JACOBI_LIMIT and a.is_floating_point()


@replaces(aten.linalg_svdvals.default)
def _svdvals(a: Tensor, *, driver: str | None = None) -> Any:
    if not _fits_jacobi(a):
        return NotImplemented
    columns, _ = _orthogonal_columns(a if a.shape[-2] >= a.shape[-1] else a.mT)
    return (columns * columns).sum(-2).sqrt().sort(-1, descending=True)[0]


@replaces(aten.linalg_pinv.atol_rtol_tensor, aten.linalg_pinv.atol_rtol_float)
def _pinv(a: Tensor, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Any:
    if hermitian or not _fits_jacobi(a):
        return NotImplemented
    wide = a.shape[-2] < a.shape[-1]
    columns, turned = _orthogonal_columns(a.mT if wide else a)
    square = (columns * columns).sum(-2, keepdim=True)
    sizes = square.sqrt()
    if rtol is None:
        rtol = max(a.shape[-2:]) * torch.finfo(a.dtype).eps if atol is None else 0.0
    limit = _like(rtol, a) * sizes.amax(-1, keepdim=True)
    limit = limit if atol is None else torch.maximum(limit, _like(atol, a))
    kept = sizes > limit
    scale = torch.where(kept, 1 / torch.where(kept, square, torch.ones_like(square)), torch.zeros_like(square))
    found = (turned * scale) @ columns.mT
    return found.mT if wide else found


def _like(value: Any, a: Tensor) -> Tensor:
    if not isinstance(value, Tensor):
        return torch.full((), float(value), dtype=a.dtype, device=a.device)
    return value.to(a.dtype)[(..., None, None) if value.dim() else ...]


# Scaling and squaring with a Pade approximant of order 13. Up to this norm its error is below the rounding of float64.
_REACH = 5.371920351148152
_PADE = [
    64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0, 129060195264000.0, 10559470521600.0,
    670442572800.0, 33522128640.0, 1323241920.0, 40840800.0, 960960.0, 16380.0, 182.0, 1.0,
]  # fmt: skip
_SQUARINGS = 16


@replaces(aten.linalg_matrix_exp.default, aten.matrix_exp.default)
def _matrix_exp(a: Tensor) -> Any:
    if not _fits(a):
        return NotImplemented
    x = a.to(torch.float64)
    size = x.abs().sum(-2, keepdim=True).amax(-1, keepdim=True)
    halvings = (size.clamp(min=_REACH) / _REACH).log2().ceil()
    x = x * torch.exp(-halvings * math.log(2))
    one = torch.eye(a.shape[-1], dtype=torch.float64, device=a.device)
    x2 = x @ x
    x4 = x2 @ x2
    x6 = x4 @ x2
    b = _PADE
    odd = x @ (x6 @ (b[13] * x6 + b[11] * x4 + b[9] * x2) + b[7] * x6 + b[5] * x4 + b[3] * x2 + b[1] * one)
    even = x6 @ (b[12] * x6 + b[10] * x4 + b[8] * x2) + b[6] * x6 + b[4] * x4 + b[2] * x2 + b[0] * one
    found = torch.linalg.solve(even - odd, even + odd)
    for k in range(_SQUARINGS):
        found = torch.where(halvings > k, found @ found, found)
    # More squarings would leave no correct digits.
    found = torch.where(halvings > _SQUARINGS, torch.full_like(found, math.nan), found)
    return found.to(a.dtype)
