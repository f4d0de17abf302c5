"""Sequences of samples: steps, integrals, convolution, polynomials, Fourier transforms."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import torch

from leapp.capture.numpy.table.registry import Expression, Unmapped, expression
from leapp.capture.numpy.table.tensors import dtype_of, floating, promoted, tensor
from leapp.compat.numpy import torch_numpy as tnp

Tensor = torch.Tensor


@expression("unwrap")
def _unwrap(p: Any, discont: float | None = None, axis: int = -1, *, period: float = 2 * math.pi) -> Tensor:
    p = tensor(p)
    if not p.dtype.is_floating_point:
        raise Unmapped
    n = p.shape[axis]
    steps = torch.diff(p, dim=axis)
    low = -period / 2
    wrapped = torch.remainder(steps - low, period) + low
    wrapped = torch.where((wrapped == low) & (steps > 0), -low, wrapped)
    jump = torch.where(steps.abs() < (period / 2 if discont is None else discont), 0.0, wrapped - steps)
    rest = p.narrow(axis, 1, n - 1) + torch.cumsum(jump, axis)
    return torch.cat([p.narrow(axis, 0, 1), rest], axis)


@expression("vander")
def _vander(x: Any, N: int | None = None, increasing: bool = False) -> Tensor:  # noqa: N803 - NumPy's name
    x = tensor(x)
    x = x.to(dtype_of(np.promote_types(str(x.dtype).removeprefix("torch."), np.int64)))
    n = x.shape[0] if N is None else N
    powers = [torch.ones_like(x)]
    for _ in range(n - 1):
        powers.append(powers[-1] * x)
    return torch.stack(powers[:n] if increasing else powers[:n][::-1], 1)


@expression("correlate")
def _correlate(a: Any, v: Any, mode: str = "valid") -> Tensor:
    a, v = promoted(a, v)
    if a.numel() < v.numel():
        raise Unmapped
    return _sliding(a, v, mode)


@expression("convolve")
def _convolve(a: Any, v: Any, mode: str = "full") -> Tensor:
    a, v = promoted(a, v)
    if a.numel() < v.numel():
        a, v = v, a
    return _sliding(a, torch.flip(v, (0,)), mode)


def _sliding(a: Tensor, v: Tensor, mode: str) -> Tensor:
    n = v.numel()
    before = {"valid": 0, "same": n // 2, "full": n - 1}[mode]
    after = {"valid": 0, "same": n - 1 - n // 2, "full": n - 1}[mode]
    padded = torch.cat([a.new_zeros(before), a, a.new_zeros(after)])
    length = padded.numel() - n + 1
    places = torch.arange(length).unsqueeze(1) + torch.arange(n)
    return (padded[places] * v).sum(1)


def _fourier(name: str) -> Expression:
    """A transform of ``torch._numpy`` without its conversion to double precision, which NumPy 2 does not do either."""
    function = inspect.unwrap(getattr(tnp.fft, name))
    keeps_precision = np.fft.fft(np.zeros(1, np.float32)).dtype == np.complex64

    def transform(a: Any, *args: Any, **options: Any) -> Any:
        a = floating(tensor(a))
        return function(a if keeps_precision else a.to(torch.promote_types(a.dtype, torch.float64)), *args, **options)

    return transform


for _names in "fft ifft rfft irfft hfft ihfft fft2 ifft2 rfft2 irfft2 fftn ifftn rfftn irfftn".split():
    expression(_names, np.fft)(_fourier(_names))
