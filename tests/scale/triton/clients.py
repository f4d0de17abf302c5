"""Clients of a served bundle: one sequence each, NumPy in and out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as grpc
from tritonclient.utils import np_to_triton_dtype

from leapp.runtime import Pipeline


class Client:
    """One sequence of a served model."""

    def __init__(self, url: str, model: str, sequence: int | str) -> None:
        self._client, self._model, self._sequence = grpc.InferenceServerClient(url), model, sequence

    def step(
        self, values: dict[str, Any], start: bool = False, end: bool = False, outputs: list[str] | None = None
    ) -> dict[str, Any]:
        inputs = []
        for name, value in values.items():
            shape = list(value.shape) or [1]
            one = grpc.InferInput(name, shape, np_to_triton_dtype(value.dtype))
            one.set_data_from_numpy(value.reshape(shape))
            inputs.append(one)
        wanted = None if outputs is None else [grpc.InferRequestedOutput(name) for name in outputs]
        result = self._client.infer(
            self._model, inputs, outputs=wanted, sequence_id=self._sequence, sequence_start=start, sequence_end=end,
            client_timeout=60,
        )  # fmt: skip
        return {tensor.name: result.as_numpy(tensor.name) for tensor in result.get_response().outputs}


def local(bundle: Path, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the local runtime returns for the same inputs."""
    pipeline = Pipeline(bundle)
    return [pipeline(values) for values in inputs]


def differing(expected: list[dict[str, Any]], got: list[dict[str, Any]]) -> list[tuple[int, str]]:
    """The steps and outputs that are not the very same values. NaN is the same as NaN."""
    return [
        (step, key)
        for step, (one, other) in enumerate(zip(expected, got, strict=True))
        for key in one.keys() | other.keys()
        if not np.array_equal(one[key], other[key], equal_nan=True)
    ]
