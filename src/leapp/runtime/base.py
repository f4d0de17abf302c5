"""What the parts of a pipeline share: the bundle, the engine, and the methods by which values come in and go out.

``Pipeline`` takes NumPy arrays and ``InferenceManager`` torch tensors. Everything else is written once, against this.
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
    """What every part of a runner may use.

    All state lives in the engine. Every public method that touches it holds the lock, so a runner shared by threads is
    slow at worst, never wrong.
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
        """The value in the form that a step takes."""
        raise NotImplementedError

    def _host(self, where: str, value: Any) -> Array:
        """A value in the form that a step takes, as an array."""
        raise NotImplementedError

    def _own(self, where: str, array: Array) -> Any:
        """An array that is used nowhere else, in the form that a step takes."""
        raise NotImplementedError

    def _duplicate(self, value: Any) -> Any:
        """A copy of a value in the form that a step takes."""
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
