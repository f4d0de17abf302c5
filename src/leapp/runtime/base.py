"""The base class of runners: the bundle, the engine, and the methods that convert values of the caller.

``Pipeline`` takes NumPy arrays and ``InferenceManager`` torch tensors. Everything else is written once, for this base class.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from leapp.bundle.reading import Bundle
from leapp.errors import InputTypeError
from leapp.graph.contract import Port
from leapp.runtime.arrays import Array, allocate
from leapp.runtime.engine import Engine, NoEngine
from leapp.runtime.plan import Plan


class RunnerBase:
    """The methods and attributes that every part of a runner uses.

    All state is in the engine. Every public method that reads or changes it holds the lock, so threads that share a runner
    wait for each other and get right results.
    """

    _bundle: Bundle
    _engine: Engine
    _lock: threading.RLock
    _cast: bool

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run one step."""
        raise NotImplementedError

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse copies: engines and locks cannot be copied."""
        raise InputTypeError(
            f"{type(self).__name__} cannot be copied or pickled: it holds open engines. Open the bundle once more where it is "
            "needed, in each process for itself, and carry the state over with state() and load_state()."
        )

    def get_mock_input(self) -> dict[str, Any]:
        """A random value for each input."""
        raise NotImplementedError

    def _fit(self, where: str, port: Port, value: Any) -> Any:
        """Convert a value of the caller to the type that a step takes."""
        raise NotImplementedError

    def _host(self, where: str, value: Any) -> Array:
        """Convert a value of the type that a step takes to an array."""
        raise NotImplementedError

    def _own(self, where: str, array: Array) -> Any:
        """Convert an array to the type that a step takes. The array is not used anywhere else, so it need not be copied."""
        raise NotImplementedError

    def _duplicate(self, value: Any) -> Any:
        """Copy a value of the type that a step takes."""
        raise NotImplementedError

    def _finite(self, value: Any) -> bool:
        """Whether a value has neither NaN nor infinity."""
        raise NotImplementedError

    @property
    def _plan(self) -> Plan:
        return self._engine.plan

    def _zeros(self) -> dict[str, Any]:
        return {k: self._own(k, allocate(self._plan.input_ports[k])) for k in self._plan.inputs}

    def _check_runnable(self) -> None:
        if isinstance(self._engine, NoEngine):
            self._engine.refuse()
