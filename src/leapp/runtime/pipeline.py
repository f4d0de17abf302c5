"""``Pipeline``: a bundle that takes and returns NumPy arrays. Imports neither torch nor onnx."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from leapp.graph.contract import Port
from leapp.runtime.arrays import Array, numpy_dtype, random_array
from leapp.runtime.buffers import Program, Slot
from leapp.runtime.codegen import CallerCode, Names
from leapp.runtime.plan import Plan
from leapp.runtime.runner import Runner
from leapp.runtime.values import to_array


class _ArrayCode:
    """The lines of a step that take and return NumPy arrays. See ``CallerCode``."""

    def __init__(self, plan: Plan, program: Program, copy: bool) -> None:
        self.inputs = plan.inputs
        self._plan, self._program, self._copy = plan, program, copy

    def check(self, name: Names, values: Sequence[str]) -> list[str]:
        ports = [self._plan.input_ports[k] for k in self.inputs]
        exact = name(ndarray)
        tests = (
            f"{v}.__class__ is not {exact} or {v}.shape != {name(p.shape)} or {v}.dtype != {name(numpy_dtype(p.dtype))}"
            for v, p in zip(values, ports, strict=True)
        )
        return [f"if {' or '.join(tests)}: return None"]

    def load(self, name: Names, values: Sequence[str]) -> list[str]:
        arrays = [self._program.inputs[k].array(0) for k in self.inputs]
        return [f"{name(array)}[...] = {value}" for array, value in zip(arrays, values, strict=True)]

    def result(self, name: Names, where: str, slot: Slot, made: str) -> str:
        if slot.arrays is not None:
            return f"{name.each([array.copy for array in slot.arrays])}()" if self._copy else name.each(slot.arrays)
        from leapp.runtime.torch_engines import array_over

        over = f"{name(array_over)}({made})"
        return f"{over}.copy()" if self._copy and where in self._plan.feedback.values() else over

    def in_order(self, values: Mapping[str, Array]) -> list[Array]:
        return list(values.values())


class Pipeline(Runner):
    """A bundle that takes and returns NumPy arrays.

    A bundle of ONNX nodes runs without torch. TorchScript and ``.pt2`` nodes import it when the bundle is opened.

    Example:
        >>> pipeline = Pipeline("policy/policy.yaml")
        >>> outputs = pipeline({"policy/obs": obs})
    """

    def _caller_code(self) -> Callable[[Plan, Program], CallerCode]:
        return partial(_ArrayCode, copy=self._copy)

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Run one step.

        Args:
            inputs: A value for each of ``inputs``. A key of ``feedback_inputs`` replaces that state for this step.

        Returns:
            A value for each of ``outputs``.

        Raises:
            InputError: A value is missing or does not fit. The state is untouched then.
            UnknownPortError: A key names no input. The state is untouched then.
        """
        # Written by ``codegen`` when the bundle was opened: all the time of a step is spent there, or in ``_step_checked``.
        made = self._engine.frame.step(inputs)
        return self._step_checked(inputs) if made is None else made

    def state(self) -> dict[str, Array]:
        """A copy of all state, for ``load_state``.

        Example:
            >>> list(pipeline.state())
            ['policy/h_in']
        """
        return self._state()

    def zeros_input(self) -> dict[str, Array]:
        """A zero for each input.

        Example:
            >>> outputs = pipeline(pipeline.zeros_input())
        """
        return self._zeros()

    def get_mock_input(self) -> dict[str, Array]:
        """A random value for each input: normal floats, integers from 0 to 255 (127 for int8), random truth values.

        Example:
            >>> outputs = pipeline(pipeline.get_mock_input())
        """
        ports = self._plan.input_ports
        return {k: random_array(ports[k]) for k in self._plan.inputs}

    def _fit(self, where: str, port: Port, value: Any) -> Array:
        return to_array(where, port, value, self._cast)

    def _host(self, where: str, value: Array) -> Array:
        return value

    def _own(self, where: str, array: Array) -> Array:
        return array

    def _duplicate(self, value: Array) -> Array:
        return np.array(value)

    def _own_arrays(self, outputs: dict[str, Array]) -> dict[str, Array]:
        return outputs if self._copy else super()._own_arrays(outputs)

    def _finite(self, value: Array) -> bool:
        return bool(np.isfinite(value).all())
