"""The model that runs a whole bundle with ``leapp.runtime`` inside Triton's Python backend.

Importable in a server only. One pipeline serves all sequences of an instance; each sequence has its own state.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from leapp.deploy.loop_model import Sequences, error, settings
from leapp.runtime import Pipeline


class TritonPythonModel:
    """One step of the pipeline for each request."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Open the bundle in the directory of this version."""
        found = settings(args)
        bundle = Path(args["model_repository"]) / args["model_version"] / found["bundle"]
        # The server accepts only the dtypes of the configuration. cast=True converts a dtype that is not the port's own.
        # Programs were allowed when the bundle was deployed; the digest shows that they are unchanged.
        self._pipeline = Pipeline(
            bundle,
            threads=found["threads"],
            nonfinite=found["nonfinite"],
            expect_digest=found["digest"],
            cast=True,
            allow_code=True,
        )
        self._pipeline.warm_up()
        self._shapes = {key: port.shape for key, port in self._pipeline.input_ports.items()}
        self._outputs: dict[str, str] = found["outputs"]
        self._dtypes = {key: np.dtype(name) for key, name in found["dtypes"].items()}
        self._sequences: Sequences | None = None
        if self._pipeline.feedback_inputs:
            self._sequences = Sequences(self._fresh, found["idle_seconds"])

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer requests one by one. A request that fails does not affect the others."""
        return [self._answer(request) for request in requests]

    def _fresh(self) -> dict[str, Any]:
        self._pipeline.reset()
        return self._pipeline.state()

    def _answer(self, request: Any) -> Any:
        sequences = self._sequences
        try:
            if sequences is None:
                return self._step(request)
            self._pipeline.load_state(sequences.find(request))
            response = self._step(request)
            sequences.keep(request, self._pipeline.state())
            return response
        except Exception as reason:  # an engine may raise any type; the other requests must still be answered
            return error(reason)
        finally:
            if sequences is not None:
                sequences.leave(request)

    def _step(self, request: Any) -> Any:
        given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        made = self._pipeline({key: value.reshape(self._shapes.get(key, value.shape)) for key, value in given.items()})
        return pb_utils.InferenceResponse([self._tensor(key, name, made[key]) for key, name in self._outputs.items()])

    def _tensor(self, key: str, name: str, value: Any) -> Any:
        return pb_utils.Tensor(name, value.astype(self._dtypes[key], copy=False).reshape(value.shape or (1,)))
