"""Runs many sessions in one step of the engines: each session is a row of a batch.

The batch always has the same number of rows, so a row is computed in the same way however many sessions wait. Before the first
session, the independence of the rows is tested: a bundle whose rows affect each other is refused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from leapp.bundle.contract_yaml import dump_contract
from leapp.bundle.reading import Bundle
from leapp.errors import BundleError, UnknownPortError
from leapp.graph.contract import Contract, Port
from leapp.graph.tolerances import ATOL, RTOL
from leapp.runtime import Pipeline
from leapp.runtime.arrays import Array, random_array
from leapp.runtime.distance import beyond, gaps
from leapp.runtime.engine import NoEngine
from leapp.runtime.plan import make_plan
from leapp.runtime.runner import NonFinite
from leapp.serve.engine import SharedEngine, State
from leapp.serve.metrics import Metrics
from leapp.serve.options import Options

_SCALES = (1e-6, 1e2, 1e4, 1e8, 1e30)
"""Factors for the other rows in the test: some models mix rows only if values are very small or very large."""


@dataclass(slots=True)
class _Job:
    asked: float
    state: State
    inputs: dict[str, Array]
    done: asyncio.Future[tuple[dict[str, Array], State]]


class RowEngine(SharedEngine):
    """Runs as many waiting sessions at once as the batch has rows. A session sees ports of one row.

    Args:
        options: The options of the server; ``batch`` is the number of rows.
        metrics: Where durations are counted.

    Raises:
        BundleError: The bundle does not take that batch, or its rows are not independent.
    """

    def __init__(self, options: Options, metrics: Metrics) -> None:
        # The inputs of each session are checked alone, before they become a row of the batch.
        super().__init__(replace(options, nonfinite="ignore"), metrics)
        assert options.batch is not None
        self._rows = options.batch
        self._whole = self.pipeline
        self._axes = axes = _batch_axes(self._whole, self._rows)
        start = self._whole.state()
        _check_same_start(start, axes)
        _check_independent(self._whole, self._rows, axes)
        contract = _one_row(self.bundle.contract)
        self.description = dump_contract(contract)
        one = Bundle(self.bundle.path, contract, self.digest, self.bundle.files)
        self.pipeline = self._checks = _InputCheck(one, options.nonfinite)
        self.initial = {k: np.take(v, [0], axes[k]) for k, v in start.items()}
        self._waiting: list[_Job] = []
        self._running: asyncio.Task[None] | None = None

    async def step(self, state: State, inputs: Mapping[str, Any]) -> tuple[dict[str, Array], State]:
        """Run one step of a session, in a batch with the other sessions that wait."""
        values, before = self._checks.checked(state, inputs)
        job = _Job(time.perf_counter(), before, values, asyncio.get_running_loop().create_future())
        self._waiting.append(job)
        if self._running is None:
            self._running = asyncio.ensure_future(self._work())
        return await job.done

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            jobs, self._waiting = self._waiting[: self._rows], self._waiting[self._rows :]
            try:
                results = await loop.run_in_executor(self._thread, self._run, jobs)
            except RuntimeError as error:  # the thread has ended: pass the error to the waiting callers
                results = [error] * len(jobs)
            for job, result in zip(jobs, results, strict=True):
                if job.done.cancelled():
                    continue
                if isinstance(result, Exception):
                    job.done.set_exception(result)
                else:
                    job.done.set_result(result)
        self._running = None

    def _run(self, jobs: Sequence[_Job]) -> list[tuple[dict[str, Array], State] | Exception]:
        began = self.busy_since = time.perf_counter()
        for job in jobs:
            self._metrics.time("leapp_wait_seconds", began - job.asked)
        try:
            return self._together(jobs)
        except Exception as error:  # an engine may raise any type; the error goes to the session
            if len(jobs) == 1:
                return [error]
            # Run each job alone, so that only the one that made the engines fail gets the error.
            return [result for job in jobs for result in self._run([job])]
        finally:
            self.busy_since = None

    def _together(self, jobs: Sequence[_Job]) -> list[tuple[dict[str, Array], State] | Exception]:
        began = time.perf_counter()
        # Rows without a session get a copy of the first row, which is a valid input.
        order = [*range(len(jobs)), *[0] * (self._rows - len(jobs))]
        axes = self._axes
        self._whole.load_state({k: np.concatenate([jobs[i].state[k] for i in order], axes[k]) for k in self.initial})
        outputs = self._whole({k: np.concatenate([jobs[i].inputs[k] for i in order], axes[k]) for k in self._whole.inputs})
        after = self._whole.state()
        self._metrics.time("leapp_step_seconds", time.perf_counter() - began)
        self._metrics.add("leapp_batched_steps_total", len(jobs))
        return [(_taken(outputs, i, axes), _taken(after, i, axes)) for i in range(len(jobs))]


class _InputCheck(Pipeline):
    """A pipeline of one row that checks inputs. It has no engine."""

    def __init__(self, bundle: Bundle, nonfinite: NonFinite) -> None:
        self._set_options(nonfinite=nonfinite)
        self._bundle = bundle
        self._engine = NoEngine(make_plan(bundle.contract))

    def checked(self, state: State, inputs: Mapping[str, Any]) -> tuple[dict[str, Array], State]:
        """The inputs of a step and the state before it, both checked. Changes nothing."""
        values, overrides, _ = self._gather(inputs)
        if set(state) != set(self._plan.feedback):
            raise UnknownPortError(f"The state has the keys {sorted(state)}, expected {sorted(self._plan.feedback)}.")
        ports = self._plan.input_ports
        return values, {k: overrides[k] if k in overrides else self._fit(k, ports[k], state[k]) for k in ports if k in state}


def _taken(values: Mapping[str, Array], row: int, axes: Mapping[str, int]) -> dict[str, Array]:
    return {k: np.take(v, [row], axes[k]) for k, v in values.items()}


def _batch_axes(pipeline: Pipeline, rows: int) -> dict[str, int]:
    """The axis of the rows in every port: the batch axis in a pipeline that takes any batch, else the first axis."""
    axes: dict[str, int] = {}
    for port in pipeline.ports:
        axis = port.batch_axis if pipeline.batch is not None else 0
        if axis is None or len(port.shape) <= axis or port.shape[axis] != rows or axes.setdefault(port.key, axis) != axis:
            raise BundleError(
                f"{port.role.capitalize()} {port.key!r} has the shape {list(port.shape)}, which is not a batch of {rows} rows, "
                "one for each session. Serve the bundle without a batch, or export it with that batch or for any."
            )
    return axes


def _check_same_start(initial: Mapping[str, Array], axes: Mapping[str, int]) -> None:
    for where, value in initial.items():
        rows = np.moveaxis(value, axes[where], 0)
        if any(row.tobytes() != rows[0].tobytes() for row in rows):
            raise BundleError(f"The initial values of {where!r} differ from row to row, but all sessions start equal.")


def _check_independent(pipeline: Pipeline, rows: int, axes: Mapping[str, int]) -> None:
    """Refuse a bundle in which the values of one row influence another row."""
    ports = [*pipeline.input_ports.values(), *pipeline.feedback_ports.values()]
    given = {port.key: random_array(Port(name=port.name, dtype=port.dtype, shape=port.shape)) for port in ports}
    try:
        whole = _made(pipeline, given)
    except BundleError:
        # Some integers are indices, and a random one may be out of range.
        given = {k: v if v.dtype.kind == "f" else np.zeros_like(v) for k, v in given.items()}
        whole = _made(pipeline, given)
    for row in {0, rows - 1}:
        for others in _fillings(given, axes):
            for k, value in others.items():
                np.moveaxis(value, axes[k], 0)[row] = np.moveaxis(given[k], axes[k], 0)[row]
            made = _made(pipeline, others)
            for where, value in _taken(made, row, axes).items():
                if value.tobytes() != np.take(whole[where], [row], axes[where]).tobytes():
                    raise BundleError(f"Row {row} of {where!r} changes with the other rows, so sessions cannot share a batch.")
    turned = _made(pipeline, {k: np.roll(v, 1, axes[k]) for k, v in given.items()})
    for where, value in turned.items():
        # At another position of the batch a kernel may round differently.
        if beyond(gaps(np.roll(value, -1, axes[where]), whole[where]), whole[where], RTOL, ATOL).any():
            raise BundleError(f"The rows of {where!r} depend on their place in the batch, so sessions cannot share one.")


def _fillings(given: Mapping[str, Array], axes: Mapping[str, int]) -> list[dict[str, Array]]:
    """Other values of the same shape: NaN, which spreads to every result that uses it, zeros, and the rows in another order."""
    return [
        {k: np.full_like(v, np.nan) if v.dtype.kind == "f" else np.array(v) for k, v in given.items()},
        {k: np.zeros_like(v) for k, v in given.items()},
        {k: np.flip(v, axes[k]).copy() for k, v in given.items()},
        *({k: _scaled(v, scale) for k, v in given.items()} for scale in _SCALES),
    ]


def _scaled(value: Array, scale: float) -> Array:
    if value.dtype.kind != "f":
        return np.array(value)
    with np.errstate(over="ignore"):
        return (value.astype(np.float64) * scale).astype(value.dtype)


def _made(pipeline: Pipeline, given: Mapping[str, Array]) -> dict[str, Array]:
    before = pipeline.state()
    try:
        pipeline.load_state({k: given[k] for k in pipeline.feedback_inputs})
        outputs = pipeline({k: given[k] for k in pipeline.inputs})
        return {**outputs, **pipeline.state()}
    finally:
        pipeline.load_state(before)


def _one_row(contract: Contract) -> Contract:
    """A contract for one row of the batch."""
    nodes = {
        name: msgspec.structs.replace(node, inputs=tuple(map(_row, node.inputs)), outputs=tuple(map(_row, node.outputs)))
        for name, node in contract.nodes.items()
    }
    return msgspec.structs.replace(contract, nodes=nodes)


def _row(port: Port) -> Port:
    axis = port.batch_axis or 0
    if not port.shape:
        return port
    names = port.element_names
    if names is not None and len(names) == len(port.shape):
        names = [*names[:axis], None, *names[axis + 1 :]]
    shape = (*port.shape[:axis], 1, *port.shape[axis + 1 :])
    return msgspec.structs.replace(port, shape=shape, element_names=names, batch_axis=None)
