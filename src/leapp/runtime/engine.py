"""Engines: they run the steps of a pipeline and keep its state, in this process or on a server.

A pipeline checks the inputs of its callers and passes them to its engine. ``LocalEngine`` has the models in this process, the
engine in ``leapp.client`` calls a server, and ``NoEngine`` belongs to a pipeline that can only be inspected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn, Protocol

import numpy as np

from leapp.errors import BundleError, InputError
from leapp.runtime.arrays import Array
from leapp.runtime.buffers import Frame, Program, Slot
from leapp.runtime.codegen import CallerCode, write_steps
from leapp.runtime.load import Unit
from leapp.runtime.plan import Plan
from leapp.runtime.values import spread


class Turn(Protocol):
    """The step that is next."""

    @property
    def step(self) -> Callable[..., dict[str, Any] | None]:
        """Takes the caller's inputs. Returns the outputs, or None if the inputs must be checked first."""


class Engine(Protocol):
    """Runs steps and keeps everything that a pipeline has between two steps.

    The pipeline holds its lock whenever it calls a method.

    Attributes:
        kept_inputs: Values of inputs that the next step need not give.
    """

    kept_inputs: dict[str, Any]

    @property
    def plan(self) -> Plan:
        """The wiring, for the present number of rows."""

    @property
    def initial(self) -> Mapping[str, Array]:
        """The state that a pipeline begins with."""

    @property
    def frame(self) -> Turn:
        """The step that is next."""

    def run(self, values: Mapping[str, Any], overrides: Mapping[str, Array], kept_inputs: dict[str, Any]) -> dict[str, Any]:
        """Run one step on checked values. A step that fails leaves the state and the kept inputs as they were.

        Args:
            values: A value for each input.
            overrides: States that are replaced for this step.
            kept_inputs: The new ``kept_inputs``, set when the step is done.
        """

    def read(self, key: str) -> Array:
        """A copy of a state."""

    def replace(self, values: Mapping[str, Array]) -> None:
        """Replace the values of some states: of all of these, or of none if it is interrupted."""

    def load(self, state: Mapping[str, Array]) -> None:
        """Replace the whole state. The present state is not read, since it may be lost."""

    def reset(self) -> None:
        """Put the initial values in place of all states, and forget the kept inputs."""

    def resize(self, rows: int, install: Callable[[Engine], None]) -> None:
        """Install an engine for another number of rows, with the initial state in it."""


class _CheckFirst:
    """The turn of an engine whose inputs are always checked first."""

    def step(self, inputs: Mapping[str, Any]) -> None:
        """Return None: the inputs must be checked."""


CHECK_FIRST = _CheckFirst()


class NoEngine:
    """The engine of a pipeline that cannot run."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.kept_inputs: dict[str, Any] = {}

    def refuse(self, *_: object) -> NoReturn:
        """Say why nothing can run.

        Raises:
            BundleError: Always.
        """
        names = ", ".join(map(repr, self.plan.missing))
        raise BundleError(f"The bundle has no model for node {names}, so it can be inspected but not run.")

    initial = frame = property(refuse)
    run = read = replace = load = reset = resize = refuse


class LocalEngine:
    """The models of a bundle in this process.

    Args:
        plan: The wiring.
        units: The loaded models, in execution order.
        initial: The state to begin with.
        tensors_enter: Whether the caller's tensors go to torch units as they are, without host memory between.
        caller_code: Makes the object that writes the checks and copies of the caller's values.
        lock: Held during a step; its holder may take it again.
        trust_form: Whether inputs of the right form may be used at once. Otherwise all of them are checked first.

    Attributes:
        frame: The frame that runs next.
        ran: The frame with the results of the last step.
    """

    def __init__(
        self,
        plan: Plan,
        units: Sequence[Unit],
        initial: Mapping[str, Array],
        tensors_enter: bool,
        caller_code: Callable[[Plan, Program], CallerCode],
        lock: AbstractContextManager[Any],
        trust_form: bool,
    ) -> None:
        self.plan, self.units, self.initial = plan, units, initial
        self.kept_inputs: dict[str, Any] = {}
        self._options = tensors_enter, caller_code, lock, trust_form
        self.program = Program(plan, units, tensors_enter)
        self._caller = caller_code(plan, self.program)
        self.frame: Frame = self.program.frames[0]
        self.ran: Frame = self.frame
        write_steps(self, self.program, lock, self._caller, plan.outputs, trust_form)
        for key, value in initial.items():
            _place(self.program.inputs[key], self.frame, value)

    def run(self, values: Mapping[str, Any], overrides: Mapping[str, Array], kept_inputs: dict[str, Any]) -> dict[str, Any]:
        """See ``Engine``."""
        before = {k: self.read(k) for k in overrides}
        began = None
        try:
            self.replace(overrides)
            began = self.frame
            results: dict[str, Any] = began.step(None, self._caller.in_order(values))
            self.kept_inputs = kept_inputs
        except BaseException:  # also on Ctrl-C a step changes all of the state or nothing
            if began is None or self.frame is began:
                self.replace(before)
            else:  # an interrupt after the step was done: the state is the new one, and the results are lost
                self.kept_inputs = kept_inputs
            raise
        return results

    def read(self, key: str) -> Array:
        """See ``Engine``."""
        slot = self.program.inputs[key]
        value = slot.value(self.frame)
        if slot.arrays is None:
            from leapp.runtime.torch_engines import array_over

            value = array_over(value)
        return np.array(value)

    def replace(self, values: Mapping[str, Array]) -> None:
        """See ``Engine``."""
        if values:
            there = self.frame.next
            for k in self.plan.feedback:
                _place(self.program.inputs[k], there, values[k] if k in values else self.read(k))
            self.frame = there

    load = replace

    def reset(self) -> None:
        """See ``Engine``."""
        self.replace(self.initial)
        self.kept_inputs.clear()

    def resize(self, rows: int, install: Callable[[Engine], None]) -> None:
        """See ``Engine``."""
        if rows < 1:
            raise InputError(f"A batch has one row or more, not {rows}.")
        plan = self.plan.at(rows)
        initial = {k: spread(k, v, plan.input_ports[k]) for k, v in self.initial.items()}
        engine = LocalEngine(plan, self.units, initial, *self._options)
        engine.kept_inputs = self.kept_inputs
        install(engine)
        # A thread that has already read this engine continues with a step of the new one.
        self.frame = engine.frame

    def release(self) -> None:
        """Free the models at once, without waiting for the garbage collector. No step runs afterwards."""
        for frame in self.program.frames:
            frame.step.__globals__.clear()  # they name the engine, which holds the frames
            del frame.next, frame.step


def _place(slot: Slot, frame: Frame, value: Array) -> None:
    """Put a value where a frame reads it."""
    if slot.arrays is not None:
        slot.arrays[frame.index][...] = value
    else:
        from leapp.runtime.torch_engines import tensor_over

        # A fresh tensor: the one in the register may be an inference tensor, which cannot be written.
        frame.registers[slot.register] = tensor_over(np.array(value, order="C"), slot.port.dtype)
