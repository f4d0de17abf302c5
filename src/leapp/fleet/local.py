"""The engine that needs nothing: one recording after the other, in this process."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence

from leapp.fleet.outcome import Outcome
from leapp.fleet.worker import Job, Worker

__all__ = ["replay_here"]


def replay_here(job: Job, paths: Sequence[str], known: Collection[bytes]) -> Generator[Outcome, None, None]:
    """The outcome of every recording, as they come."""
    worker = Worker(job, known)
    for number, path in enumerate(paths):
        yield worker.run(number, path)
