"""Finds the recorded call that a backend cannot write. It runs only after an export failed.

The export is run once more with an eye on the calls: the one that raises, or that made the operator which cannot be
translated, is the one. A failure that no operator is to blame for is searched by exporting ever shorter beginnings of the node.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from leapp.capture.batch.symbolic_size import Measure
from leapp.capture.replay import Replay, fill, results
from leapp.capture.tape import Call
from leapp.export.job import ExportJob, ExportResult
from leapp.export.listing import RUNNING

__all__ = ["Prefix", "first_failing", "spelled_call"]


class Noted(torch.nn.Module):
    """A replay that tells which of its calls is running.

    Attributes:
        failed: The calls that raised, with what they raised. A backend may try again in another way.
    """

    def __init__(self, replay: Replay) -> None:
        super().__init__()
        self.replay = replay
        self.failed: list[tuple[Exception, Call]] = []
        self.train(False)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The outputs of the replay."""
        env = self.replay.run(inputs, self._around)
        return tuple(env[slot] for slot in self.replay.program.outputs)

    def _around(self, index: int, call: Call, args: Any, kwargs: Any) -> Any:
        token = RUNNING.set(call)
        try:
            return call.func(*args, **kwargs)
        except Exception as error:
            self.failed.append((error, call))
            raise
        finally:
            RUNNING.reset(token)


class Prefix(torch.nn.Module):
    """The first calls of a replay. Every value they make is an output, as it was right after its call.

    Attributes:
        calls: The calls that are run.
        positions: For each output the position of the call that made it. Filled by running the module.
    """

    def __init__(self, replay: Any, count: int | None = None) -> None:
        super().__init__()
        self.replay = replay
        self.calls: list[Call] = replay.program.calls[:count]
        self.positions: list[int] = []
        self.train(False)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """All values the calls make or change, in order."""
        env: dict[int, Any] = self.replay.sources(inputs)
        made: list[torch.Tensor] = []
        self.positions = []
        for position, call in enumerate(self.calls):
            result = call.func(*fill(call.args, env), **fill(call.kwargs, env))
            values = results(call, result)
            env.update(zip(call.outs, values, strict=True))
            if type(call.func) is Measure:
                continue
            if call.writes:
                values += [env[slot] for slot in call.reads if slot in env and all(env[slot] is not v for v in values)]
            made += [value.clone() for value in values]
            self.positions += [position] * len(values)
        return tuple(made)


def first_failing(
    job: ExportJob, export: Callable[[ExportJob, Path], ExportResult], same: Callable[[Exception], bool]
) -> Call | None:
    """The call without which ``export`` does not fail as it did; ``None`` if the node is no recording or all is well."""
    if not isinstance(job.module, Replay):
        return None
    noted = Noted(job.module)
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        try:
            export(replace(job, module=noted), Path(folder))
        except Exception as error:  # whatever the exporter raises: only its likeness counts
            causes = list(_causes(error))
            raised = (call for cause, call in noted.failed if any(cause is c for c in causes))
            found = next(raised, None) or next((c.call for c in causes if hasattr(c, "call")), None)
            if same(error) and isinstance(found, Call):
                return found

    def fails(count: int) -> bool:
        probe = Prefix(job.module, count)
        with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
            try:
                made = probe(*(value.clone() for value in job.example))
                names = [f"leapp_probe_{position}" for position in range(len(made))]
                export(replace(job, module=probe, output_names=names), Path(folder))
            except Exception as error:  # whatever the exporter raises: only its likeness counts
                return same(error)
        return False

    low, high = 0, len(job.module.program.calls)
    if not high or not fails(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fails(middle) else (middle, high)
    return job.module.program.calls[high - 1]


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def spelled_call(call: Call) -> str:
    """A call as messages name it: the function, the user's line and its text."""
    name = getattr(call.func, "__name__", str(call.func))
    text = f": {call.where.text}" if call.where.text else ""
    return f"{name} at {call.where}{text}"
