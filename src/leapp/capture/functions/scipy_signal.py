"""Filters of ``scipy.signal`` for tensors.

A filter with constant coefficients is a linear map of the samples and of its state. Its matrix is found by running scipy itself
on unit vectors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from leapp.capture.mode_stacks import silence
from leapp.capture.numpy.plain import by_name
from leapp.capture.numpy.table import Unmapped
from leapp.capture.numpy.table.tensors import double

Tensor = torch.Tensor
_LONGEST = 1024
"""Filters over more samples are not recorded: their matrix is too large for a model."""
_STATES: dict[str, Callable[..., tuple[int, ...]]] = {
    "lfilter": lambda b, a: (max(np.size(b), np.size(a)) - 1,),
    "sosfilt": lambda sos: (len(sos), 2),
}
"""The shape of the state of a filter of one signal, by its coefficients."""


def _constant(value: Any) -> Any:
    """An argument for scipy. Reading a traced coefficient is reported as an escape."""
    return np.array(value.detach().cpu().numpy()) if isinstance(value, Tensor) else value


def _filter(name: str) -> Callable[..., Any]:
    """The torch form of a filter."""

    def filtered(*args: Any, **kwargs: Any) -> Any:
        function = getattr(sys.modules["scipy.signal"], name)
        given = by_name(function, args, kwargs)
        x, axis, zi = double(given.pop("x")), given.pop("axis", -1), given.pop("zi", None)
        constants = {option: _constant(value) for option, value in given.items()}
        if x.shape[axis] > _LONGEST:
            raise Unmapped
        x = x.movedim(axis, -1)
        n = x.shape[-1]
        if zi is None:
            return _mapped(function(x=np.eye(n), axis=0, **constants), x).movedim(-1, axis)
        order = _STATES[name](**constants)
        k = int(np.prod(order))
        units = np.eye(n + k)
        made, last = function(x=units[:n], axis=0, zi=units[n:].reshape(*order, n + k), **constants)
        # In the state, the filter's order replaces the axis of the samples, and the sections are the first axis.
        place = axis % x.dim() + len(order) - 1
        z = double(zi).movedim(place, -1)
        z = z.movedim(0, -2).reshape(*z.shape[1:-1], k) if len(order) == 2 else z
        both = _mapped(np.concatenate([made, last.reshape(k, n + k)]), torch.cat([x, z.expand(*x.shape[:-1], k)], -1))
        y, z = both[..., :n], both[..., n:]
        z = z.reshape(*z.shape[:-1], *order).movedim(-2, 0) if len(order) == 2 else z
        return y.movedim(-1, axis), z.movedim(-1, place)

    return filtered


def _mapped(matrix: Any, x: Tensor) -> Tensor:
    """The product along the last axis."""
    with silence():
        m = torch.from_numpy(np.ascontiguousarray(matrix)).to(torch.float64)
    return (x.unsqueeze(-2) * m).sum(-1) if x.dim() == 1 else x @ m.mT


FUNCTIONS = {name: _filter(name) for name in "lfilter sosfilt filtfilt sosfiltfilt savgol_filter".split()}
"""Torch forms by the name in ``scipy.signal``."""
