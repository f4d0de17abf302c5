"""The NumPy face of a running pipeline. Imports neither torch nor onnx."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy import ndarray

from leapp.graph.contract import Port
from leapp.runtime.arrays import Array, numpy_dtype, random_array
from leapp.runtime.runner import Runner
from leapp.runtime.values import to_array

__all__ = ["Pipeline"]


class Pipeline(Runner):
    """A bundle that takes and returns NumPy arrays.

    A bundle of ONNX nodes runs without torch. TorchScript and ``.pt2`` nodes import it when the bundle is opened.

    Example:
        >>> pipeline = Pipeline("policy/policy.yaml")
        >>> outputs = pipeline({"policy/obs": obs})
    """

    def _prepare(self) -> None:
        ports, program = self._plan.input_ports, self._program
        self._checks = tuple(
            (k, ports[k].shape, numpy_dtype(ports[k].dtype), program.inputs[k].array(0)) for k in self._plan.inputs
        )
        slots = [(k, program.outputs[k]) for k in self._plan.outputs]
        self._results = tuple(
            tuple((k, slot.value(frame), slot.register) for k, slot in slots) for frame in (program.frame, program.frame.next)
        )
        if not all(slot.arrays for _, slot in slots):
            from leapp.runtime.torch_engines import array_over

            self._array_over = array_over

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
        if self._program is None:
            self._check_runnable()
        checks = self._checks
        with self._lock:
            plain = self._plain and inputs.__class__ is dict and len(inputs) == len(checks)
            if plain:
                try:
                    for key, shape, dtype, _ in checks:
                        value = inputs[key]
                        if value.__class__ is not ndarray or value.shape != shape or value.dtype != dtype:
                            plain = False
                except KeyError:
                    plain = False
            if plain:
                for key, _, _, array in checks:
                    array[...] = inputs[key]
                frame = self._program.frame.run()
            else:
                values, overrides, held = self._gather(inputs)
                for key, _, _, array in checks:
                    array[...] = values[key]
                frame = self._run_careful(overrides, held)
            results = {}
            for key, array, register in self._results[frame.index]:
                if array is None:
                    array = self._array_over(frame.registers[register])
                results[key] = array.copy() if self._copy else array
            return results

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

    def _finite(self, value: Array) -> bool:
        return bool(np.isfinite(value).all())
