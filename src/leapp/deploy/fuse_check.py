"""Runs a fused model in plain ONNX Runtime, passing its states from step to step, and compares it with the recorded passes."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from leapp.bundle import Bundle
from leapp.check.engines import Array, Place, here
from leapp.check.samples import Samples, Verdict, check_pipeline
from leapp.deploy.fuse import read_fused
from leapp.runtime.load import open_session
from leapp.runtime.plan import make_plan
from leapp.runtime.values import from_raw, rows_of, spread


class FusedModel:
    """A fused model as a pipeline: graph inputs in, graph outputs out, states kept between steps.

    Args:
        path: A file that ``fuse_onnx`` wrote.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        import onnxruntime as ort

        contract, initial = read_fused(path)
        self._plan = make_plan(contract)
        self._initial = {where: from_raw(value) for where, value in initial.items()}
        self._session = open_session(Path(path), ort.SessionOptions(), providers=["CPUExecutionProvider"])
        self._names = [value.name for value in self._session.get_outputs()]
        self.reset()

    def reset(self) -> None:
        """Set the states to the initial values."""
        self._state = dict(self._initial)

    def __call__(self, inputs: dict[str, Array], /) -> dict[str, Array]:
        """Run one step."""
        if self._plan.batch is not None:
            self._follow_batch(inputs)
        outputs = dict(zip(self._names, self._session.run(None, {**inputs, **self._state}), strict=True))
        self._state = {target: outputs[source] for target, source in self._plan.feedback.items()}
        return {where: outputs[where] for where in self._plan.outputs}

    def _follow_batch(self, inputs: dict[str, Array]) -> None:
        """Start again from the initial values when the number of rows changes."""
        rows = next((n for k, v in inputs.items() if (n := rows_of(v, self._plan.input_ports[k])) is not None), None)
        if rows is not None and rows != self._plan.batch:
            self._plan = self._plan.at(rows)
            self._initial = {k: spread(k, v, self._plan.input_ports[k]) for k, v in self._initial.items()}
            self.reset()


def check_fused(
    path: Path,
    bundle: Bundle,
    samples: Samples,
    rtol: float,
    atol: float,
    random: Collection[str] = (),
    place: Place = here,
) -> list[Verdict]:
    """Run a fused model over all recorded passes in closed loop. See ``check_pipeline``."""
    return check_pipeline(bundle, samples, rtol, atol, random, lambda _: place(FusedModel, path), f"in {path.name}")
