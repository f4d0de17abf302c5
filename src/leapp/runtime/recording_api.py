"""Runs of many steps: recording, replaying, timing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from leapp.errors import InputError
from leapp.graph.contract import Port
from leapp.graph.tolerances import check_tolerances
from leapp.runtime.arrays import Array
from leapp.runtime.bench import Latency, measure
from leapp.runtime.recording import Recorder, Recording, Replay, RunStep, compare, read_recording
from leapp.runtime.state import Stateful
from leapp.runtime.values import is_tensor, to_array


class RecordingApi(Stateful):
    """The methods of a runner that run many steps."""

    def warm_up(self, steps: int = 3) -> None:
        """Run a few steps on zeros, so that engines finish their preparations, and put the state back.

        Example:
            >>> pipeline.warm_up()
        """
        self._check_runnable()
        with self._lock:
            before, kept = self._state(), dict(self._engine.kept_inputs)
            try:
                for _ in range(steps):
                    self(self._zeros())
            finally:
                self._restore(before, kept)

    def bench(self, steps: int = 1000, rate: float | None = None) -> Latency:
        """Time steps on random inputs and put the state back.

        Args:
            steps: How many.
            rate: Start them at this rate in hertz, and count those that are late.

        Raises:
            InputError: Steps or rate are not positive.

        Example:
            >>> latency = pipeline.bench(steps=100)
        """
        if steps < 1 or (rate is not None and not rate > 0):
            raise InputError(f"bench takes at least one step and a positive rate, got steps={steps} and rate={rate}.")
        inputs, before, kept = self.get_mock_input(), self._state(), dict(self._engine.kept_inputs)
        self.warm_up()
        try:
            return measure(lambda: self(inputs), steps, rate)
        finally:
            with self._lock:
                self._restore(before, kept)

    def _restore(self, state: Mapping[str, Array], kept_inputs: dict[str, Any]) -> None:
        self._engine.load(state)
        self._engine.kept_inputs = kept_inputs

    def record(self, path: str | os.PathLike[str]) -> Recorder:
        """A step function that keeps inputs, outputs, state and time of every step, to be used in a ``with`` block.

        Args:
            path: The ``.npz`` or ``.mcap`` file written at the end of the block.

        Raises:
            MissingDependencyError: The file is an ``.mcap`` and the package that writes it is not installed.

        Example:
            >>> with pipeline.record("run.npz") as step:
            ...     outputs = step({"policy/obs": obs})
        """
        self._check_runnable()
        return Recorder(path, self if self._plan.batch is None else self._in_one_batch(), self._state, self._passed, self._lock)

    def _in_one_batch(self) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        """A step that refuses any other number of rows, because all steps of a recording have the same shapes."""
        batch = self._plan.batch

        def step(inputs: Mapping[str, Any]) -> dict[str, Any]:
            if self._rows_of(inputs) not in (None, batch):
                raise InputError(f"A recording has one batch, this one {batch} rows. Call reset(batch=...) before record().")
            return self(inputs)

        return step

    def replay(self, path: str | os.PathLike[str], rtol: float = 0.0, atol: float = 0.0) -> Replay:
        """Give a recording's inputs to this bundle, from the recorded state on, until a step differs.

        Outputs and state are compared. Where the recorded run was reset or given a state, so is this one. The state is
        left as the last step made it.

        Args:
            path: What ``record`` wrote.
            rtol: How much a value may differ, relative to the recorded one.
            atol: How much a value may differ in any case.

        Raises:
            InputError: The file is not a recording of a bundle with these ports, or a tolerance is negative or not finite.

        Example:
            >>> pipeline.replay("run.npz").difference
        """
        check_tolerances(rtol, atol)
        recording = self.read_recording(path)
        difference = None
        for index, (made, want) in enumerate(zip(self.follow(recording), recording.steps(), strict=True)):
            if made.state is not None and want.state is not None:
                difference = compare(index - 1, made.state, want.state, rtol, atol)
            if difference is None:
                difference = compare(index, made.outputs, want.outputs, rtol, atol)
            if difference is not None:
                return Replay(difference.step + 1, difference)
        return Replay(len(recording.inputs), None)

    def read_recording(self, path: str | os.PathLike[str], *, outputs: bool = True) -> Recording:
        """Read what ``record`` wrote.

        Args:
            path: The ``.npz`` or ``.mcap`` file.
            outputs: Whether to read the recorded outputs, which must then be outputs of this bundle.

        Raises:
            InputError: The file is not a recording of a bundle with these ports.

        Example:
            >>> recording = pipeline.read_recording("run.npz")
            >>> first = recording.inputs[0], recording.outputs[0]
        """
        made = {k: self._plan.output_ports[k] for k in self._plan.outputs}
        kept = {k: self._plan.input_ports[k] for k in self._plan.feedback}
        return read_recording(path, self._plan.input_ports, made if outputs else None, kept)

    def follow(self, recording: Recording) -> Iterator[RunStep]:
        """Give a recording's inputs to this bundle step by step, from the recorded state on.

        Where the recorded run was reset or given a state, so is this one; elsewhere the bundle's own state goes on. The
        state is left as the last step made it.

        Args:
            recording: What ``read_recording`` returned.

        Example:
            >>> recording = pipeline.read_recording("run.npz")
            >>> actions = [step.outputs["policy/action"] for step in pipeline.follow(recording)]
        """
        self._check_runnable()
        for inputs, state, placed in zip(recording.inputs, recording.state, recording.placed.tolist(), strict=True):
            if placed:
                self.load_state(state)
            found = None if placed else self._state()
            yield RunStep(found, self._own_arrays(self(inputs)))

    def _passed(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> tuple[dict[str, Array], dict[str, Array]]:
        """Copies of all inputs of a step, held values included, and of its outputs."""
        given = {**self._engine.kept_inputs, **inputs}
        return self._arrays(given, self._plan.input_ports), self._arrays(outputs, self._plan.output_ports)

    def _arrays(self, values: Mapping[str, Any], ports: Mapping[str, Port]) -> dict[str, Array]:
        """Copies of inputs or outputs, as arrays."""
        found = {}
        for name, value in values.items():
            where = name if name in ports else self._plan.input_key(name)
            array = to_array(where, ports[where], value.cpu() if is_tensor(value) else value, True)
            found[where] = np.array(array)
        return found

    def _own_arrays(self, outputs: dict[str, Any]) -> dict[str, Array]:
        """The outputs of a step as arrays that the next step does not overwrite."""
        return self._arrays(outputs, self._plan.output_ports)
