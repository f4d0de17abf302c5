"""What the parts of a running pipeline have in common: the plan, the memory, and what a face must provide.

A face is how values come in and go out: as NumPy arrays or as torch tensors. Everything else is written against this.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from leapp.bundle.reading import Bundle
from leapp.errors import BundleError, InputTypeError
from leapp.graph.contract import Port
from leapp.runtime.arrays import Array, allocate
from leapp.runtime.engines import Unit
from leapp.runtime.plan import Plan

__all__ = ["Face"]


class Face:
    """What every part of a runner may use.

    All state lives in the program. Every public method that touches it holds the lock, so a runner shared by threads is
    slow at worst, never wrong.
    """

    _register_inputs = False
    """Whether the caller's values go to torch nodes as they are, without host memory between."""

    _bundle: Bundle
    _plan: Plan
    _engines: list[Unit]
    _program: Any
    _lock: threading.RLock
    _initial: dict[str, Array]
    _held: dict[str, Any]
    _cast: bool

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run one step."""
        raise NotImplementedError

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse copies: engines and locks have none."""
        raise InputTypeError(
            f"{type(self).__name__} cannot be copied or pickled: it holds open engines. Open the bundle once more where it is "
            "needed, in each process for itself, and carry the state over with state() and load_state()."
        )

    def get_mock_input(self) -> dict[str, Any]:
        """A random value for each input."""
        raise NotImplementedError

    def _prepare(self) -> None:
        """Build what the face needs for its step."""
        raise NotImplementedError

    def _fit(self, where: str, port: Port, value: Any) -> Any:
        """The value in the form the face loads."""
        raise NotImplementedError

    def _host(self, where: str, value: Any) -> Array:
        """A value in the form the face loads, as an array."""
        raise NotImplementedError

    def _own(self, where: str, array: Array) -> Any:
        """An array nobody else holds, in the form the face loads."""
        raise NotImplementedError

    def _in_order(self, values: Mapping[str, Any]) -> list[Any]:
        """The values of all inputs as the step takes them."""
        raise NotImplementedError

    def _duplicate(self, value: Any) -> Any:
        """A copy of a value in the form the face loads."""
        raise NotImplementedError

    def _finite(self, value: Any) -> bool:
        """Whether a value has neither NaN nor infinity."""
        raise NotImplementedError

    def _zeros(self) -> dict[str, Any]:
        return {k: self._own(k, allocate(self._plan.input_ports[k])) for k in self._plan.inputs}

    def _check_runnable(self) -> None:
        if self._plan.missing:
            names = ", ".join(map(repr, self._plan.missing))
            raise BundleError(f"The bundle has no model for node {names}, so it can be inspected but not run.")
