"""Filters of ``scipy.signal`` for tensors.

A filter with constant coefficients is a linear map of the samples and of its state. Its matrices are found by running scipy
itself on unit vectors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from leapp.capture.mode_stacks import silence
from leapp.capture.numpy.table import Unmapped
from leapp.capture.numpy.table.tensors import double

Tensor = torch.Tensor
_LONGEST = 1024
"""Filters over more samples are not recorded: their matrix is too large for a model."""


def _scipy() -> Any:
    # It is loaded, because one of its functions was called.
    return sys.modules["scipy.signal"]


def _constant(value: Any) -> Any:
    """A coefficient as an array for scipy. Reading a traced one is reported as an escape."""
    if isinstance(value, Tensor):
        return np.array(value.detach().cpu().numpy())
    return np.asarray(value)


def _matrix(made: Any) -> Tensor:
    with silence():
        return torch.from_numpy(np.ascontiguousarray(made)).to(torch.float64)


def _samples(x: Any, axis: int) -> Tensor:
    found = double(x)
    if found.shape[axis] > _LONGEST:
        raise Unmapped
    return found.movedim(axis, -1)


def _mapped(matrix: Tensor, x: Tensor) -> Tensor:
    """The product along the last axis."""
    return (x.unsqueeze(-2) * matrix).sum(-1) if x.dim() == 1 else x @ matrix.mT


def _with_state(function: Callable[..., Any], x: Any, axis: int, zi: Any, order: tuple[int, ...]) -> Any:
    """A filter along ``axis``. ``function`` is scipy's filter along the first axis, called with unit samples and states."""
    moved = _samples(x, axis)
    n, k = moved.shape[-1], int(np.prod(order))
    if zi is None:
        return _mapped(_matrix(function(np.eye(n), None)), moved).movedim(-1, axis)
    states = np.eye(k).reshape(*order, k)
    by_x, rest = function(np.eye(n), np.zeros((*order, n)))
    by_z, last = function(np.zeros((n, k)), states)
    z = double(zi)
    # In the state, the filter's order replaces the axis of the samples, and the sections are the first axis.
    place = axis % moved.dim() + len(order) - 1
    z = z.movedim(place, -1)
    flat = z.movedim(0, -2).reshape(*z.shape[1:-1], k) if len(order) == 2 else z
    y = _mapped(_matrix(by_x), moved) + _mapped(_matrix(by_z), flat)
    zf = _mapped(_matrix(rest.reshape(k, n)), moved) + _mapped(_matrix(last.reshape(k, k)), flat)
    if len(order) == 2:
        zf = zf.reshape(*zf.shape[:-1], *order).movedim(-2, 0)
    return y.movedim(-1, axis), zf.movedim(-1, place)


def lfilter(b: Any, a: Any, x: Any, axis: int = -1, zi: Any = None) -> Any:
    b, a = np.atleast_1d(_constant(b)), np.atleast_1d(_constant(a))

    def function(samples: Any, states: Any) -> Any:
        return _scipy().lfilter(b, a, samples, axis=0, zi=states)

    return _with_state(function, x, axis, zi, (max(len(a), len(b)) - 1,))


def sosfilt(sos: Any, x: Any, axis: int = -1, zi: Any = None) -> Any:
    sos = _constant(sos)

    def function(samples: Any, states: Any) -> Any:
        return _scipy().sosfilt(sos, samples, axis=0, zi=states)

    return _with_state(function, x, axis, zi, (len(sos), 2))


def _plain(name: str, coefficients: int, place: int) -> Callable[..., Any]:
    """A filter without state. ``coefficients`` arguments come before the samples; ``place`` is the position of ``axis``."""

    def filtered(*args: Any, **options: Any) -> Tensor:
        given = list(args)
        axis = given.pop(place) if len(given) > place else options.pop("axis", -1)
        before, x, after = [_constant(v) for v in given[:coefficients]], given[coefficients], given[coefficients + 1 :]
        moved = _samples(x, axis)
        made = getattr(_scipy(), name)(*before, np.eye(moved.shape[-1]), *after, axis=0, **options)
        return _mapped(_matrix(made), moved).movedim(-1, axis)

    return filtered


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "lfilter": lfilter,
    "sosfilt": sosfilt,
    "filtfilt": _plain("filtfilt", 2, 3),
    "sosfiltfilt": _plain("sosfiltfilt", 1, 2),
    "savgol_filter": _plain("savgol_filter", 0, 5),
}
