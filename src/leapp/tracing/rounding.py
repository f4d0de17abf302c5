"""Estimates how far two runs of the same calls may differ by rounding alone."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from leapp.capture.aliasing import storage_id
from leapp.capture.replay import Replay
from leapp.capture.tape import Call
from leapp.capture.trees import tensors
from leapp.tracing.log import logger

Tensor = torch.Tensor
_FURTHER = 16
"""The estimate is multiplied by this: NumPy and torch sum in different orders, which random rounding steps do not show."""
_LAST_STEPS = 8
"""By how many rounding steps the last call may differ."""
_TRIES = 5
_MOST_STEPS = 3
"""By how many steps a value is moved at most. If all moved by one step, the moves of a short chain would often cancel out."""
_LARGE = 1 << 20
"""Constants with more numbers are not moved."""


def rounding(replay: Replay, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> list[float]:
    """For each output the largest difference that rounding may cause between two runs of the same calls.

    The calls are run a few times with every value moved by a few rounding steps, up or down at random, so that the result
    includes how the computation amplifies rounding. The median of the runs counts, because a single run may step across an
    edge of ``floor``.
    """
    steps = [0.0]
    _run(replay, inputs, lambda t: steps.append(_step(t)))
    runs = []
    for seed in range(_TRIES):
        move = functools.partial(_move, torch.Generator().manual_seed(seed))
        # Inputs and constants are moved too: a call that sums them may cancel, and then its result alone hides its rounding.
        moved = [t.clone() for t in inputs]
        held = {s: c.value.clone() for s, c in replay.program.constants.items() if c.value.numel() <= _LARGE}
        for t in (*moved, *held.values()):
            move(t, max(steps))
        try:
            with replay.holding({s: t for s, t in held.items() if s not in replay.program.spread}):
                runs.append(_run(replay, moved, move))
        except Exception as error:  # torch raises many types: the user's code may reject such values
            logger.debug("the recorded calls refuse values that are a rounding step away: %s", error)
    found = []
    for i, want in enumerate(outputs):
        apart = sorted(_distance(run[i], want) for run in runs) or [0.0]
        found.append(_FURTHER * apart[len(apart) // 2] + last_rounding(want))
    return found


def last_rounding(t: Tensor) -> float:
    """The largest difference of an output that the rounding of the last call alone may cause."""
    step = _step(t)
    return _FURTHER * _LAST_STEPS * step * _largest(t) if step else 0.0


def _run(replay: Replay, inputs: Sequence[Tensor], change: Callable[[Tensor], Any]) -> list[Tensor]:
    """The outputs if ``change`` is applied to each result of a call before the next call reads it."""

    def run(_: int, call: Call, args: Any, kwargs: Any) -> Any:
        result = call.func(*args, **kwargs)
        given = {storage_id(t) for t in tensors((args, kwargs))}
        for t in tensors(result):
            if storage_id(t) not in given:  # else it is a view, or was written to
                change(t)
        return result

    with torch.no_grad():
        env = replay.run(inputs, run)
    return [env[s] for s in replay.program.outputs]


def _move(generator: torch.Generator, t: Tensor, step: float = 0.0) -> None:
    """Move each number of a tensor up or down by a few rounding steps: ``step``, or that of its dtype."""
    step = (step or _step(t)) if _step(t) else 0.0
    if step and 0 not in t.stride():  # else several elements are one number in memory
        up = torch.randint(0, 2, t.shape, generator=generator).mul_(2).sub_(1)
        count = torch.randint(1, _MOST_STEPS + 1, t.shape, generator=generator)
        t.mul_((1 + step * (up * count).double()).to(t.device, t.dtype))


def _step(t: Tensor) -> float:
    """The rounding step of the dtype of a tensor; 0 for a dtype that does not round."""
    rounds = (t.is_floating_point() or t.is_complex()) and t.layout == torch.strided and t.dtype.itemsize > 1
    return torch.finfo(t.dtype).eps if rounds else 0.0


def _distance(a: Tensor, b: Tensor) -> float:
    """How far two tensors are apart where both are finite."""
    wide = torch.complex128 if a.is_complex() else torch.float64
    return _largest(a.to(wide) - b.to(wide)) if a.shape == b.shape else 0.0


def _largest(t: Tensor) -> float:
    """The largest size of a finite number of a floating type."""
    largest = float(t.abs().max()) if t.numel() else 0.0
    if math.isfinite(largest):
        return largest
    finite = t[torch.isfinite(t)]
    return float(finite.abs().max()) if finite.numel() else 0.0
