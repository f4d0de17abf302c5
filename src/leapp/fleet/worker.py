"""Replays recordings one after another in one bundle, or in two that are compared.

A worker opens the engines once and then holds one recording at a time. The result of a recording depends only on the job
and on the file, not on other workers.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from leapp.bundle import Bundle, open_bundle
from leapp.bundle.files import hash_file
from leapp.bundle.reading import fingerprint
from leapp.bundle.system import leapp_version, package_version
from leapp.errors import BundleError, InputError, LeappError
from leapp.fleet.report import Ports
from leapp.fleet.statistics import Result, Statistics
from leapp.graph.contract import Port
from leapp.runtime import Pipeline
from leapp.runtime.arrays import Array, form
from leapp.runtime.plan import Plan, make_plan
from leapp.runtime.recording import Recording, RunStep

_CHUNK = 128
"""How many steps are compared in one call: many for speed, few for little memory."""


@dataclass(frozen=True, slots=True)
class Job:
    """The task for every recording.

    Attributes:
        bundles: The YAML files of the bundle and of the baseline, if there is one.
        prints: The fingerprints of both, so that every machine can check that it has the same bundles.
        rtol: How much a value may differ, relative to the wanted one.
        atol: How much a value may differ in any case.
        allow_outside: Let files of unsealed bundles lie outside their directories.
        options: Further arguments of ``Pipeline``.
    """

    bundles: tuple[str, ...]
    prints: tuple[str, ...]
    rtol: float
    atol: float
    allow_outside: bool
    options: dict[str, Any]

    def conditions(self) -> bytes:
        """A key of everything that a result depends on, except the recording."""
        engines = {name: package_version(name) for name in ("numpy", "onnxruntime", "torch")}
        versions = {"leapp": leapp_version(), **engines}
        facts = [self.prints, self.rtol, self.atol, self.options, versions]
        return msgspec.json.encode(facts, order="sorted")


class Outcome(msgspec.Struct):
    """The outcome of one recording.

    Attributes:
        number: Which recording, counted from 0.
        key: The key of its result in the journal; empty if it could not be replayed.
        result: Its result; None if the journal has it already, or if it could not be replayed.
        error: Why it could not be replayed.
    """

    number: int
    key: bytes = b""
    result: Result | None = None
    error: str = ""


def make_job(
    bundle: Bundle, baseline: Bundle | None, rtol: float, atol: float, options: dict[str, Any]
) -> tuple[Job, Ports]:
    """The job, and the ports that it compares, including outputs that only one of the bundles has.

    Raises:
        BundleError: The two bundles do not take the same inputs and states, or have no output in common.
    """
    plan = make_plan(bundle.contract)
    outputs = {k: plan.output_ports[k] for k in plan.outputs}
    states = {k: plan.input_ports[k] for k in plan.feedback}
    if baseline is not None:
        other = make_plan(baseline.contract)
        _require_same(plan, other, bundle, baseline)
        common = [k for k in outputs if k in other.outputs]
        if not common and not states:
            raise BundleError(f"{bundle.path} and {baseline.path} have no output in common, so there is nothing to compare.")
        for where in common:
            _require_form(where, outputs[where], other.output_ports[where], bundle, baseline)
        outputs |= {k: other.output_ports[k] for k in other.outputs if k not in outputs}
    both = [bundle] if baseline is None else [bundle, baseline]
    paths, prints = (tuple(map(of, both)) for of in (lambda one: os.path.abspath(one.path), fingerprint))
    return Job(paths, prints, rtol, atol, bundle.allow_outside, options), {"output": outputs, "state": states}


def _require_same(plan: Plan, other: Plan, bundle: Bundle, baseline: Bundle) -> None:
    for what, mine, theirs in (("input", plan.inputs, other.inputs), ("state", plan.feedback, other.feedback)):
        for where in (*mine, *theirs):
            for keys, lacking in ((mine, bundle), (theirs, baseline)):
                if where not in keys:
                    raise BundleError(
                        f"{lacking.path} has no {what} {where!r}, so one recording cannot be given to both bundles. "
                        "Compare each with the recordings instead, without --baseline."
                    )
            _require_form(where, plan.input_ports[where], other.input_ports[where], bundle, baseline)


def _require_form(where: str, mine: Port, theirs: Port, bundle: Bundle, baseline: Bundle) -> None:
    if (mine.dtype, mine.shape) != (theirs.dtype, theirs.shape):
        forms = f"{form(mine.dtype, mine.shape)} in {bundle.path} and {form(theirs.dtype, theirs.shape)} in {baseline.path}"
        raise BundleError(f"{where!r} is {forms}, so the two bundles cannot be compared.")


class Worker:
    """The engines of a job, opened once.

    Args:
        job: What to do.
        known: Keys of results that need not be made again.

    Raises:
        BundleError: A bundle is not the one that the job was made for.
    """

    def __init__(self, job: Job, known: Collection[bytes]) -> None:
        bundles = [open_bundle(path, allow_outside=job.allow_outside) for path in job.bundles]
        for bundle, expected in zip(bundles, job.prints, strict=True):
            if fingerprint(bundle) != expected:
                raise BundleError(
                    f"{bundle.path} is not the bundle that this replay was started with. Copy it to all machines."
                )
        self._job, self._known = job, known
        self._pipelines = [Pipeline(bundle, **job.options) for bundle in bundles]
        self._conditions = job.conditions()

    def run(self, number: int, path: str) -> Outcome:
        """Replay one recording. An error becomes the outcome of the recording and is not raised."""
        try:
            before = _stamp(path)
            key = hashlib.sha256(self._conditions + hash_file(Path(path))[1].encode()).digest()
            if key in self._known:
                return Outcome(number, key)
            result = self._replay(path)
            if _stamp(path) != before:
                raise InputError("The file changed while it was replayed. Run again when it is complete.")
        except Exception as error:  # an engine may raise any type, and one recording must not stop the run
            return Outcome(number, error=reason(error))
        return Outcome(number, key, result)

    def _replay(self, path: str) -> Result:
        recording = self._pipelines[0].read_recording(path, outputs=len(self._pipelines) == 1)
        made = self._follow(self._pipelines[0], recording)
        if len(self._pipelines) == 1:
            return self._compare(made, recording.steps())
        return self._compare(made, self._follow(self._pipelines[1], recording))

    @staticmethod
    def _follow(pipeline: Pipeline, recording: Recording) -> Iterator[RunStep]:
        # A recording without an initial state must not start from the last state of the recording before.
        pipeline.reset()
        return pipeline.follow(recording)

    def _compare(self, made: Iterable[RunStep], want: Iterable[RunStep]) -> Result:
        outputs, states = (_Comparison(self._job.rtol, self._job.atol) for _ in range(2))
        step = -1
        for step, (got, need) in enumerate(zip(made, want, strict=True)):
            outputs.add(step, got.outputs, need.outputs)
            if got.state is not None and need.state is not None:
                # The state before a step is the state after the step before it.
                states.add(step - 1, got.state, need.state)
        return Result(step + 1, outputs.finish(), states.finish())


class _Comparison:
    """Compares the outputs or the states of one recording, many steps in one call for speed."""

    def __init__(self, rtol: float, atol: float) -> None:
        self._tolerances = rtol, atol
        self._statistics: dict[str, Statistics] = {}
        self._waiting: list[tuple[int, Mapping[str, Array], Mapping[str, Array]]] = []

    def add(self, step: int, got: Mapping[str, Array], want: Mapping[str, Array]) -> None:
        """Compare one step."""
        self._waiting.append((step, got, want))
        if len(self._waiting) == _CHUNK:
            self._flush()

    def finish(self) -> dict[str, Statistics]:
        """The figures of all steps, by port."""
        self._flush()
        return self._statistics

    def _flush(self) -> None:
        for where in dict.fromkeys(where for _, _, want in self._waiting for where in want):
            rows = [(step, got[where], want[where]) for step, got, want in self._waiting if where in want and where in got]
            if rows:
                self._count(self._statistics.setdefault(where, Statistics()), rows)
        self._waiting.clear()

    def _count(self, statistics: Statistics, rows: Sequence[tuple[int, Array, Array]]) -> None:
        # Most values are equal, and comparing bytes is faster.
        if b"".join([got.tobytes() for _, got, _ in rows]) == b"".join([want.tobytes() for _, _, want in rows]):
            count = sum(want.size for _, _, want in rows)
            statistics.count += count
            statistics.equal += count
            return
        # Steps may have different numbers of rows.
        for _, alike in groupby(rows, key=lambda row: (row[1].shape, row[2].shape)):
            steps, got, want = zip(*alike, strict=True)
            statistics.add(steps, np.stack(got), np.stack(want), *self._tolerances)


def _stamp(path: str) -> tuple[int, int, int]:
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns


def reason(error: Exception) -> str:
    """An error on one line."""
    text = " ".join(str(error).split())
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return text if isinstance(error, LeappError) else f"{type(error).__name__}: {text}"
