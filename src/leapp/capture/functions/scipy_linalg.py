"""Functions of ``scipy.linalg`` for tensors: single matrices, as filters and controllers use them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from typing import Any

import torch

from leapp.capture.numpy.table import Unmapped
from leapp.capture.numpy.table.tensors import tensor

Tensor = torch.Tensor
FUNCTIONS: dict[str, Callable[..., Any]] = {}
_DOUBLINGS = 24


def _form(function: Callable[..., Any]) -> Callable[..., Any]:
    FUNCTIONS[function.__name__] = function
    return function


def _floats(*values: Any) -> list[Tensor]:
    found = [tensor(v) for v in values]
    dtype = torch.float32
    for t in found:
        dtype = torch.promote_types(dtype, t.dtype if t.is_floating_point() else torch.float64)
    if any(t.is_complex() for t in found):
        raise Unmapped
    return [t.to(dtype) for t in found]


def _from_half(a: Tensor, lower: bool) -> Tensor:
    """The symmetric matrix made from the lower or upper half, since LAPACK reads only one of them."""
    return torch.tril(a) + torch.tril(a, -1).mT if lower else torch.triu(a) + torch.triu(a, 1).mT


@_form
def inv(a: Any, overwrite_a: bool = False, check_finite: bool = True, **options: Any) -> Any:
    (a,) = _floats(a)
    return torch.linalg.inv(a)


@_form
def det(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    (a,) = _floats(a)
    return torch.linalg.det(a)


@_form
def solve(
    a: Any, b: Any, lower: bool = False, overwrite_a: bool = False, overwrite_b: bool = False, check_finite: bool = True,
    assume_a: str | None = None, transposed: bool = False,
) -> Any:  # fmt: skip
    a, b = _floats(a, b)
    if assume_a in ("sym", "her", "pos", "symmetric", "hermitian", "positive definite"):
        a = _from_half(a, lower)
    elif assume_a not in (None, "gen", "general"):
        raise Unmapped
    return torch.linalg.solve(a.mT if transposed else a, b)


@_form
def solve_triangular(
    a: Any, b: Any, trans: Any = 0, lower: bool = False, unit_diagonal: bool = False, overwrite_b: bool = False,
    check_finite: bool = True,
) -> Any:  # fmt: skip
    a, b = _floats(a, b)
    a = torch.tril(a) if lower else torch.triu(a)
    turned = trans in (1, 2, "T", "C")
    columns = b.unsqueeze(-1) if b.dim() == 1 else b
    found = torch.linalg.solve_triangular(
        a.mT if turned else a, columns, upper=lower if turned else not lower, unitriangular=unit_diagonal
    )
    return found.squeeze(-1) if b.dim() == 1 else found


@_form
def pinv(
    a: Any, *, atol: Any = None, rtol: Any = None, return_rank: bool = False, check_finite: bool = True
) -> Any:
    (a,) = _floats(a)
    if return_rank:
        raise Unmapped
    rows, columns = a.shape[-2:]
    relative = max(rows, columns) * torch.finfo(a.dtype).eps if rtol is None else rtol
    return torch.linalg.pinv(a, atol=0.0 if atol is None else atol, rtol=relative)


@_form
def pinvh(
    a: Any, atol: Any = None, rtol: Any = None, lower: bool = True, return_rank: bool = False, check_finite: bool = True
) -> Any:
    (a,) = _floats(a)
    return pinv(_from_half(a, lower), atol=atol, rtol=rtol, return_rank=return_rank)


@_form
def cholesky(a: Any, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    (a,) = _floats(a)
    factor = torch.linalg.cholesky(_from_half(a, lower))
    return factor if lower else factor.mT


@_form
def cho_factor(a: Any, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    (a,) = _floats(a)
    factor = cholesky(a, lower)
    if _zeros_other_half():
        return factor, lower
    return (torch.tril(factor) + torch.triu(a, 1) if lower else torch.triu(factor) + torch.tril(a, -1)), lower


@cache
def _zeros_other_half() -> bool:
    """Whether ``cho_factor`` writes zeros to the half without the factor. scipy before 1.18 leaves that half unchanged."""
    return tuple(int(part) for part in version("scipy").split(".")[:2]) >= (1, 18)


@_form
def cho_solve(c_and_lower: Any, b: Any, overwrite_b: bool = False, check_finite: bool = True) -> Any:
    factor, lower = c_and_lower
    first, second = (0, 1) if lower else (1, 0)
    return solve_triangular(factor, solve_triangular(factor, b, first, bool(lower)), second, bool(lower))


@_form
def expm(a: Any) -> Any:
    (a,) = _floats(a)
    return torch.linalg.matrix_exp(a)


@_form
def norm(a: Any, ord: Any = None, axis: Any = None, keepdims: bool = False, check_finite: bool = True) -> Any:
    (a,) = _floats(a)
    if ord is None and axis is None:
        whole = torch.sqrt((a * a).sum())
        return whole.reshape([1] * a.dim()) if keepdims else whole
    return torch.linalg.norm(a, ord, axis, keepdims)


@_form
def solve_discrete_are(a: Any, b: Any, q: Any, r: Any, e: Any = None, s: Any = None, balanced: bool = True) -> Any:
    """Uses the doubling algorithm, which squares the error in every step."""
    if e is not None or s is not None:
        raise Unmapped
    a, b, q, r = _floats(*(t if t.dim() == 2 else t.reshape(1, -1) for t in map(tensor, (a, b, q, r))))
    g, h = b @ torch.linalg.solve(r, b.mT), q
    one = torch.eye(a.shape[-1], dtype=a.dtype)
    for _ in range(_DOUBLINGS):
        both = torch.linalg.solve(one + g @ h, torch.cat([a, g], -1))
        left, right = both[..., : a.shape[-1]], both[..., a.shape[-1] :]
        g, h, a = g + a @ right @ a.mT, h + a.mT @ h @ left, a @ left
    return (h + h.mT) / 2


@_form
def solve_discrete_lyapunov(a: Any, q: Any, method: str | None = None) -> Any:
    a, q = _floats(a, q)
    n = a.shape[-1]
    found = torch.linalg.solve(torch.eye(n * n, dtype=a.dtype) - torch.kron(a, a), q.reshape(-1))
    return found.reshape(n, n)
