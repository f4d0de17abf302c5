"""Measures how long a step takes, and how often it misses its deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Latency:
    """Times of a run, in microseconds.

    Attributes:
        steps: How many steps were timed.
        p50: The median.
        p99: One step in a hundred takes longer.
        p999: One step in a thousand takes longer.
        longest: The longest step.
        jitter: The standard deviation.
        rate: The rate in hertz at which the steps were started; None if each started when the one before ended.
        misses: How many steps ended later than one period after they were due. None without a rate.
        noise_p50: The median of an empty step, timed the same way: the cost of the clock.
        noise_p999: One empty step in a thousand takes longer: interruptions by the machine.
        noise_misses: How many empty steps were late: deadlines that no step could have met. None without a rate.

    Example:
        >>> pipeline.bench(steps=100).steps
        100
    """

    steps: int
    p50: float
    p99: float
    p999: float
    longest: float
    jitter: float
    rate: float | None
    misses: int | None
    noise_p50: float
    noise_p999: float
    noise_misses: int | None


def measure(step: Callable[[], object], steps: int, rate: float | None) -> Latency:
    """Time a step. With a rate the steps start when they are due, as in a control loop."""
    times, misses = _run(step, steps, rate)
    noise, late = _run(lambda: None, steps, rate)
    p50, p99, p999 = (float(v) for v in np.percentile(times, (50, 99, 99.9)))
    return Latency(
        steps, p50, p99, p999, float(times.max()), float(times.std()), rate, misses if rate else None,
        float(np.percentile(noise, 50)), float(np.percentile(noise, 99.9)), late if rate else None,
    )  # fmt: skip


def _run(
    step: Callable[[], object], steps: int, rate: float | None
) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], int]:
    times = np.empty(steps)
    misses = 0
    clock = time.perf_counter_ns
    period = 1e9 / rate if rate else 0.0
    begin = clock()
    for index in range(steps):
        due = begin + index * period
        while period and clock() < due:
            # sleep() returns late by the time a wake-up takes, so the last part is waited for in a busy loop.
            rest = due - clock()
            if rest > 2e5:
                time.sleep((rest - 1e5) / 1e9)
        start = clock()
        step()
        end = clock()
        times[index] = (end - start) / 1e3
        misses += bool(period) and end > due + period
    return times, misses
