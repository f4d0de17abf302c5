"""Functions of ``scipy.linalg`` for tensors: single matrices, as filters and controllers use them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import torch

from leapp.capture.numpy.plain import by_name
from leapp.capture.numpy.table import Unmapped
from leapp.capture.numpy.table.tensors import tensor

Tensor = torch.Tensor
FUNCTIONS: dict[str, Callable[..., Any]] = {}
_DOUBLINGS = 24
_MATRICES = frozenset("abqr")
_NO_EFFECT = frozenset({"overwrite_a", "overwrite_b", "check_finite", "balanced", "method"})
"""Options that do not change the values of a result."""


def _form(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add a torch form. It gets the arguments by name: matrices in one float type, and options that change values."""
    name = function.__name__

    def form(*args: Any, **kwargs: Any) -> Any:
        given = by_name(getattr(sys.modules["scipy.linalg"], name), args, kwargs)
        given = {n.lower(): v for n, v in given.items()}  # the matrix of expm() is called A
        matrices = {n: tensor(v) for n, v in given.items() if n in _MATRICES}
        dtype = functools.reduce(torch.promote_types, (_float_type(t.dtype) for t in matrices.values()), torch.float32)
        options = {n: v for n, v in given.items() if n not in _MATRICES | _NO_EFFECT}
        return function(**{n: t.to(dtype) for n, t in matrices.items()}, **options)

    FUNCTIONS[name] = form
    return function


def _float_type(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        raise Unmapped
    return dtype if dtype.is_floating_point else torch.float64


def _from_half(a: Tensor, lower: bool) -> Tensor:
    """The symmetric matrix made from the lower or upper half, since LAPACK reads only one of them."""
    return torch.tril(a) + torch.tril(a, -1).mT if lower else torch.triu(a) + torch.triu(a, 1).mT


def _assumed(a: Tensor, assume_a: str | None, lower: bool) -> Tensor:
    """The matrix that scipy takes ``a`` for."""
    if assume_a in ("sym", "her", "pos", "symmetric", "hermitian", "positive definite"):
        return _from_half(a, lower)
    if assume_a not in (None, "gen", "general"):
        raise Unmapped
    return a


@_form
def inv(a: Tensor, assume_a: str | None = None, lower: bool = False) -> Any:
    return torch.linalg.inv(_assumed(a, assume_a, lower))


@_form
def det(a: Tensor) -> Any:
    return torch.linalg.det(a)


@_form
def expm(a: Tensor) -> Any:
    return torch.linalg.matrix_exp(a)


@_form
def solve(a: Tensor, b: Tensor, lower: bool = False, assume_a: str | None = None, transposed: bool = False) -> Any:
    a = _assumed(a, assume_a, lower)
    return torch.linalg.solve(a.mT if transposed else a, b)


@_form
def solve_triangular(a: Tensor, b: Tensor, trans: Any = 0, lower: bool = False, unit_diagonal: bool = False) -> Any:
    a = torch.tril(a) if lower else torch.triu(a)
    turned = trans in (1, 2, "T", "C")
    columns = b.unsqueeze(-1) if b.dim() == 1 else b
    found = torch.linalg.solve_triangular(
        a.mT if turned else a, columns, upper=lower if turned else not lower, unitriangular=unit_diagonal
    )
    return found.squeeze(-1) if b.dim() == 1 else found


@_form
def pinv(a: Tensor, atol: Any = None, rtol: Any = None) -> Any:
    relative = max(a.shape[-2:]) * torch.finfo(a.dtype).eps if rtol is None else rtol
    return torch.linalg.pinv(a, atol=0.0 if atol is None else atol, rtol=relative)


@_form
def pinvh(a: Tensor, atol: Any = None, rtol: Any = None, lower: bool = True) -> Any:
    return pinv(_from_half(a, lower), atol, rtol)


@_form
def cholesky(a: Tensor, lower: bool = False) -> Any:
    factor = torch.linalg.cholesky(_from_half(a, lower))
    return factor if lower else factor.mT


@_form
def cho_factor(a: Tensor, lower: bool = False) -> tuple[Tensor, bool]:
    factor = cholesky(a, lower)
    if _zeros_other_half():
        return factor, lower
    return (torch.tril(factor) + torch.triu(a, 1) if lower else torch.triu(factor) + torch.tril(a, -1)), lower


@functools.cache
def _zeros_other_half() -> bool:
    """Whether ``cho_factor`` writes zeros to the half without the factor. scipy before 1.18 leaves that half unchanged."""
    return tuple(int(part) for part in version("scipy").split(".")[:2]) >= (1, 18)


@_form
def cho_solve(c_and_lower: Any, b: Tensor) -> Any:
    factor, lower = c_and_lower
    first, second = (0, 1) if lower else (1, 0)
    dtype = torch.promote_types(tensor(factor).dtype, b.dtype)
    factor, b = tensor(factor).to(dtype), b.to(dtype)
    return solve_triangular(factor, solve_triangular(factor, b, first, bool(lower)), second, bool(lower))


@_form
def norm(a: Tensor, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    if ord is None and axis is None:
        whole = torch.sqrt((a * a).sum())
        return whole.reshape([1] * a.dim()) if keepdims else whole
    return torch.linalg.norm(a, ord, axis, keepdims)


@_form
def solve_discrete_are(a: Tensor, b: Tensor, q: Tensor, r: Tensor) -> Any:
    """Uses the doubling algorithm, which squares the error in every step."""
    a, b, q, r = (t if t.dim() == 2 else t.reshape(1, -1) for t in (a, b, q, r))
    g, h = b @ torch.linalg.solve(r, b.mT), q
    one = torch.eye(a.shape[-1], dtype=a.dtype)
    for _ in range(_DOUBLINGS):
        both = torch.linalg.solve(one + g @ h, torch.cat([a, g], -1))
        left, right = both[..., : a.shape[-1]], both[..., a.shape[-1] :]
        g, h, a = g + a @ right @ a.mT, h + a.mT @ h @ left, a @ left
    return (h + h.mT) / 2


@_form
def solve_discrete_lyapunov(a: Tensor, q: Tensor) -> Any:
    n = a.shape[-1]
    found = torch.linalg.solve(torch.eye(n * n, dtype=a.dtype) - torch.kron(a, a), q.reshape(-1))
    return found.reshape(n, n)
