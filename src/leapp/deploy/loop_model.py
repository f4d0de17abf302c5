"""The Triton model that calls an ensemble and keeps, for each sequence, the values that one step passes to the next.

``leapp deploy triton`` copies this file into a repository as ``model.py``, and Triton's Python backend runs it. It imports
NumPy and the backend's own module, not leapp.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

_START = 1
_END = 2


class Sequences:
    """One state for each sequence. A sequence that is idle for too long is forgotten.

    Args:
        fresh: Makes the state with which a sequence starts.
        idle: After how many seconds without a request it is forgotten.
    """

    def __init__(self, fresh: Callable[[], Any], idle: float) -> None:
        self._fresh = fresh
        self._idle = idle
        # In the order of their last use, so that idle sequences come first.
        self._kept: dict[int | str, tuple[float, Any]] = {}

    def find(self, request: Any) -> Any:
        """The state before a request: a fresh one at the start of a sequence.

        Raises:
            LookupError: The sequence has no state: it never started, was idle for too long, or failed.
        """
        now, name = time.monotonic(), request.correlation_id()
        while self._kept and now - next(iter(self._kept.values()))[0] > self._idle:
            del self._kept[next(iter(self._kept))]
        if request.flags() & _START:
            self.keep(request, self._fresh())
        if name not in self._kept:
            raise LookupError(f"sequence {name} has no state: it ended or was idle for too long. Start it again.")
        return self._kept[name][1]

    def keep(self, request: Any, state: Any) -> None:
        """Store the state after a request."""
        name = request.correlation_id()
        self._kept.pop(name, None)
        self._kept[name] = (time.monotonic(), state)

    def drop(self, request: Any) -> None:
        """Forget a sequence."""
        self._kept.pop(request.correlation_id(), None)

    def leave(self, request: Any) -> None:
        """Forget a sequence if this was its last request."""
        if request.flags() & _END:
            self.drop(request)


def settings(args: Mapping[str, str]) -> dict[str, Any]:
    """The settings in the configuration of a model under ``leapp``."""
    found: dict[str, Any] = json.loads(json.loads(args["model_config"])["parameters"]["leapp"]["string_value"])
    return found


def error(reason: object) -> Any:
    """The answer to a request that failed."""
    return pb_utils.InferenceResponse(output_tensors=[], error=pb_utils.TritonError(str(reason)))


class TritonPythonModel:
    """Sends each request to the ensemble together with the fed-back values, and keeps the new values for the next request."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the initial values."""
        self._settings = settings(args)
        folder = Path(args["model_repository"]) / "initial_state"
        self._initial = {
            entry["input"]: np.fromfile(folder / entry["file"], np.dtype(entry["dtype"])).reshape(entry["dims"])
            for entry in self._settings["feedback"]
        }
        self._sequences = Sequences(lambda: self._initial, self._settings["idle_seconds"])

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer requests one by one. A request that fails does not affect the others."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        try:
            state = self._sequences.find(request)
            return self._step(request, state)
        except Exception as reason:  # the backend may raise any type; the other requests must still be answered
            return error(reason)
        finally:
            self._sequences.leave(request)

    def _step(self, request: Any, state: Mapping[str, Any]) -> Any:
        response = pb_utils.InferenceRequest(
            model_name=self._settings["ensemble"],
            model_version=self._settings["version"],
            requested_output_names=self._settings["requested"],
            inputs=[*request.inputs(), *(pb_utils.Tensor(name, value) for name, value in state.items())],
            correlation_id=request.correlation_id(),
            flags=request.flags(),
            preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0),
        ).exec()
        if response.has_error():
            # Some models of the ensemble may have run and some not, so their states no longer belong to the same step.
            self._sequences.drop(request)
            raise RuntimeError(f"{response.error().message()} The sequence is lost, start it again.")
        made = {tensor.name(): tensor for tensor in response.output_tensors()}
        self._sequences.keep(
            request, {entry["input"]: made[entry["output"]].as_numpy().copy() for entry in self._settings["feedback"]}
        )
        return pb_utils.InferenceResponse([made[name] for name in self._settings["outputs"]])
