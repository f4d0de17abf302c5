"""Record a run and replay it: inputs, outputs, state and time of every step in one ``.npz`` file.

A replay starts from the recorded state and gives the recorded inputs, so the first step that differs is where the bundle,
the engine or the machine behaves otherwise.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from leapp.errors import InputError
from leapp.graph.contract import Port
from leapp.runtime.arrays import Array, numpy_dtype

__all__ = ["Difference", "Recorder", "Recording", "Replay", "compare", "read_recording"]


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded run.

    Attributes:
        inputs: What each step was given.
        outputs: What each step returned.
        state: The state before each step.
        start_ns: When each step started, in nanoseconds of a monotonic clock.
        duration_ns: How long each step took, in nanoseconds.
    """

    inputs: list[dict[str, Array]]
    outputs: list[dict[str, Array]]
    state: list[dict[str, Array]]
    start_ns: Array
    duration_ns: Array


@dataclass(frozen=True, slots=True)
class Difference:
    """The first value that a replay computed otherwise: in which step, at which output, by how much at most."""

    step: int
    key: str
    largest: float


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of a replay: how many steps ran, and the first difference, if there was one."""

    steps: int
    difference: Difference | None


class Recorder:
    """A step function that keeps what passes through. Writes the file when it is closed.

    Args:
        path: The ``.npz`` file to write.
        step: The step to record.
        state: Gives a copy of the state as arrays.
        arrays: Gives copies of values as arrays, by the full name of their port.
        ports: The input ports and the output ports.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        step: Callable[[Mapping[str, Any]], dict[str, Any]],
        state: Callable[[], dict[str, Array]],
        arrays: Callable[[Mapping[str, Any], Mapping[str, Port]], dict[str, Array]],
        ports: tuple[Mapping[str, Port], Mapping[str, Port]],
    ) -> None:
        if Path(path).suffix != ".npz":
            raise InputError(f"Recordings are .npz files, got {os.fspath(path)!r}.")
        self._path, self._step, self._state = Path(path), step, state
        self._arrays, self._ports = arrays, ports
        self._columns: dict[str, list[Array]] = {}
        self._steps: dict[str, list[int]] = {}
        self._times: list[tuple[int, int]] = []

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run one step and keep it. A step that fails is not kept."""
        state = self._state()
        start = time.perf_counter_ns()
        outputs = self._step(inputs)
        duration = time.perf_counter_ns() - start
        given, made = (self._arrays(v, p) for v, p in zip((inputs, outputs), self._ports, strict=True))
        for side, values in (("in", given), ("out", made), ("state", state)):
            for key, value in values.items():
                self._columns.setdefault(f"{side}:{key}", []).append(value)
                self._steps.setdefault(f"{side}:{key}", []).append(len(self._times))
        self._times.append((start, duration))
        return outputs

    def close(self) -> None:
        """Write the file."""
        times = np.array(self._times, np.int64).reshape(-1, 2)
        columns: dict[str, Array] = {"start_ns": times[:, 0], "duration_ns": times[:, 1]}
        for name, values in self._columns.items():
            # Bits, because the file format knows NumPy's own dtypes only.
            columns[name] = np.stack([np.frombuffer(value.tobytes(), np.uint8) for value in values])
            columns[f"steps:{name}"] = np.array(self._steps[name], np.int64)
        np.savez(self._path, allow_pickle=False, **columns)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def read_recording(path: str | os.PathLike[str], inputs: Mapping[str, Port], outputs: Mapping[str, Port]) -> Recording:
    """Read a recording of a bundle with the given ports.

    Raises:
        InputError: The file holds ports that the bundle does not have, or in another form.
    """
    with np.load(path, allow_pickle=False) as file:
        columns = dict(file)
    try:
        start, duration = columns.pop("start_ns"), columns.pop("duration_ns")
        found: dict[str, list[dict[str, Array]]] = {side: [{} for _ in start] for side in ("in", "out", "state")}
        for name, values in columns.items():
            side, _, key = name.partition(":")
            if side == "steps":
                continue
            port = (outputs if side == "out" else inputs)[key]
            for step, bits in zip(columns[f"steps:{name}"].tolist(), values, strict=True):
                value = np.frombuffer(bits.tobytes(), numpy_dtype(port.dtype)).reshape(port.shape)
                found[side][step][key] = value
    except (KeyError, ValueError, IndexError) as error:
        raise InputError(f"{os.fspath(path)} is no recording of this bundle: {error}") from error
    return Recording(found["in"], found["out"], found["state"], start, duration)


def compare(step: int, made: Mapping[str, Array], want: Mapping[str, Array], rtol: float, atol: float) -> Difference | None:
    """The first output of a step that differs. NaN equals NaN."""
    for key, value in want.items():
        got, expected = (np.asarray(v, np.complex128 if v.dtype.kind == "c" else np.float64) for v in (made[key], value))
        if not np.allclose(got, expected, rtol=rtol, atol=atol, equal_nan=True):
            with np.errstate(invalid="ignore"):
                return Difference(step, key, float(np.max(np.abs(got - expected))))
    return None
