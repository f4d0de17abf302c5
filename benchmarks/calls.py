"""The time of calls by one and by many callers at the same time, for the benchmarks of servers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

CLIENTS = (1, 8, 32)
WARM = 20
"""The first calls, which do not count."""

Step = Callable[[Any], object]


def timed(step: Step, inputs: Sequence[Any]) -> np.ndarray:
    """The median and the 99th percentile of a step in milliseconds, and calls a second."""
    times = _times(step, inputs)
    return _figures(times, 1e3 / times.mean())


def timed_at_once(make: Callable[[int], tuple[Step, Sequence[Any]]], clients: int) -> np.ndarray:
    """The same for some clients, each in a thread; ``make`` gives the step and the inputs of one."""
    gate = threading.Barrier(clients + 1)

    def drive(number: int) -> np.ndarray:
        step, inputs = make(number)
        gate.wait()
        return _times(step, inputs)

    with ThreadPoolExecutor(clients) as pool:
        running = [pool.submit(drive, number) for number in range(clients)]
        gate.wait()
        began = time.perf_counter()
        found = [one.result() for one in running]
        took = time.perf_counter() - began
    return _figures(np.concatenate(found), sum(len(times) + WARM for times in found) / took)


def _times(step: Step, inputs: Sequence[Any]) -> np.ndarray:
    found = []
    for values in inputs:
        began = time.perf_counter()
        step(values)
        found.append(time.perf_counter() - began)
    return np.array(found[WARM:]) * 1e3


def _figures(times: np.ndarray, rate: float) -> np.ndarray:
    return np.array([*np.percentile(times, [50, 99]), rate])


def take_turns(ways: dict[str, Callable[[], np.ndarray]], rounds: int) -> None:
    """Measure all ways in every round, and print the median of the rounds. The first way is the one to compare with.

    A machine changes while this lasts, so no way has a time of its own.
    """
    found = [{name: measure() for name, measure in ways.items()} for _ in range(rounds)]
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, median of {rounds} rounds")
    print(f"{'milliseconds':<26}" + "".join(f"{head:>12}" for head in ("p50", "p99", "p50 over", "calls/s")))
    table = {name: np.median([one[name] for one in found], axis=0) for name in ways}
    base = next(iter(table.values()))[0]
    for name, (p50, p99, rate) in table.items():
        print(f"{name:<26}{p50:>12.3f}{p99:>12.3f}{p50 - base:>12.3f}{rate:>12.0f}")
