"""Record a run and replay it: inputs, outputs, state and time of every step in one ``.npz`` or ``.mcap`` file.

A replay starts from the recorded state and runs on the recorded inputs, so the first step that differs is where the bundle, the
engine or the machine computes other values. ``recording_files`` defines the bytes of the files.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from leapp.errors import InputError
from leapp.graph.contract import Port
from leapp.runtime.arrays import Array
from leapp.runtime.distance import beyond, gaps
from leapp.runtime.recording_files import Column, Columns, read, writer


@dataclass(slots=True)  # not frozen: it is made for every step, and freezing would double its cost
class RunStep:
    """One step of a run, recorded or repeated.

    Attributes:
        state: The state before the step; None if it was set from outside, because then the step before did not make it.
        outputs: The outputs of the step.

    Example:
        >>> [list(step.outputs) for step in pipeline.follow(pipeline.read_recording("run.npz"))]
        [['policy/action']]
    """

    state: dict[str, Array] | None
    outputs: dict[str, Array]


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded run.

    Attributes:
        inputs: The inputs of each step, held values included.
        outputs: The outputs of each step.
        state: The state before each step.
        start_ns: When each step started, in nanoseconds of a monotonic clock.
        duration_ns: How long each step took, in nanoseconds.
        placed: Whether the state before a step was set from outside (reset, load_state, an unrecorded step).

    Example:
        >>> pipeline.read_recording("run.npz").inputs[0]["policy/obs"]
        array([0., 0.], dtype=float32)
    """

    inputs: list[dict[str, Array]]
    outputs: list[dict[str, Array]]
    state: list[dict[str, Array]]
    start_ns: Array
    duration_ns: Array
    placed: Array

    def steps(self) -> Iterator[RunStep]:
        """The steps as they were recorded.

        Example:
            >>> [list(step.outputs) for step in pipeline.read_recording("run.npz").steps()]
            [['policy/action']]
        """
        for state, outputs, placed in zip(self.state, self.outputs, self.placed.tolist(), strict=True):
            yield RunStep(None if placed else state, outputs)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first output or state that a replay computed differently: in which step, which one, and by how much at most.

    Example:
        >>> pipeline.replay("run.npz").difference is None
        True
    """

    step: int
    key: str
    largest: float


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of a replay: how many steps ran, and the first difference, if there was one.

    Example:
        >>> replay = pipeline.replay("run.npz")
        >>> assert replay.difference is None, replay.difference
    """

    steps: int
    difference: Difference | None


class Recorder:
    """A step function that keeps what passes through, and writes the file when it is closed.

    Nothing is written while steps run, so a slow disk delays none of them.

    Args:
        path: The ``.npz`` or ``.mcap`` file to write.
        step: The step to record.
        state: Gives a copy of the state as arrays.
        arrays: Gives copies of the inputs and outputs of a step, as arrays.
        lock: Held while one step runs and its state is copied, so that no other thread steps in between.

    Example:
        >>> with pipeline.record("run.mcap") as step:
        ...     action = step({"policy/obs": obs})["policy/action"]
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        step: Callable[[Mapping[str, Any]], dict[str, Any]],
        state: Callable[[], dict[str, Array]],
        arrays: Callable[[Mapping[str, Any], Mapping[str, Any]], tuple[dict[str, Array], dict[str, Array]]],
        lock: AbstractContextManager[Any],
    ) -> None:
        # Refuse a file that cannot be written before the run, not after it.
        self._write = writer(path)
        self._step, self._state, self._arrays, self._lock = step, state, arrays, lock
        self._columns: Columns = {}
        self._times: list[tuple[int, int, bool]] = []
        self._left: dict[str, Array] | None = None

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run one step and keep it. A step that fails is not kept."""
        with self._lock:
            state = self._state()
            start = time.perf_counter_ns()
            outputs = self._step(inputs)
            duration = time.perf_counter_ns() - start
            given, made = self._arrays(inputs, outputs)
            for side, values in (("in", given), ("out", made), ("state", state)):
                for key, value in values.items():
                    column = self._columns.setdefault((side, key), Column([], []))
                    column.steps.append(len(self._times))
                    column.values.append(value)
            self._times.append((start, duration, not _same(state, self._left)))
            self._left = self._state()
        return outputs

    def close(self) -> None:
        """Write the file. The end of the ``with`` block does this.

        Example:
            >>> recorder = pipeline.record("short.npz")
            >>> outputs = recorder({"policy/obs": obs})
            >>> recorder.close()
        """
        self._write(self._columns, np.array(self._times, np.int64).reshape(-1, 3))

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def read_recording(
    path: str | os.PathLike[str], inputs: Mapping[str, Port], outputs: Mapping[str, Port] | None, state: Mapping[str, Port]
) -> Recording:
    """Read a recording of a bundle with the given ports. Without ``outputs`` the recorded outputs are skipped.

    Raises:
        InputError: The file is not a recording, or it has ports that the bundle lacks or that have another form.
        MissingDependencyError: The file is an ``.mcap`` and the package that reads it is not installed.
    """
    sides = {"in": inputs, "out": outputs, "state": state}
    columns, times = read(path, sides)
    found: dict[str, list[dict[str, Array]]] = {side: [{} for _ in times] for side in sides}
    for (side, key), column in columns.items():
        for step, value in zip(column.steps, column.values, strict=True):
            if not 0 <= step < len(times):
                raise InputError(f"{os.fspath(path)} is not a recording of this bundle: {key!r} has a value for step {step}.")
            found[side][step][key] = value
    return Recording(found["in"], found["out"], found["state"], times[:, 0], times[:, 1], times[:, 2] != 0)


def _same(state: Mapping[str, Array], other: Mapping[str, Array] | None) -> bool:
    return other is not None and all(value.tobytes() == other[key].tobytes() for key, value in state.items())


def compare(step: int, made: Mapping[str, Array], want: Mapping[str, Array], rtol: float, atol: float) -> Difference | None:
    """The first value of a step that differs."""
    for key, value in want.items():
        # Most values are equal, and comparing bytes is faster.
        if made[key].tobytes() == value.tobytes():
            continue
        gap = gaps(made[key], value)
        if beyond(gap, value, rtol, atol).any():
            return Difference(step, key, float(gap.max()))
    return None
