"""The engine on Ray Data: a pool of workers on this machine or on a cluster. The only module that imports Ray.

Ray carries names to workers and outcomes back, in any order. Where a worker dies, Ray starts another and repeats what it had
in hand. A recording whose worker dies each time is reported like any other that cannot be replayed.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from leapp.errors import InputError, MissingDependencyError
from leapp.fleet.outcome import Outcome
from leapp.fleet.worker import Job, Worker, reason

try:
    import ray
    import ray.data
except ImportError as error:
    raise MissingDependencyError("The engine ray needs the package ray: pip install 'leapp[ray]'.") from error

__all__ = ["replay_on_ray"]

_LOST_WORKERS = 3
"""How many workers a recording may take along before it is given up."""

_TOGETHER = 16
"""The most recordings in one task: tasks have a price, but what a task has done is known only at its end."""


def replay_on_ray(
    job: Job, paths: Sequence[str], known: frozenset[bytes], address: str | None, workers: int | None
) -> Generator[Outcome, None, None]:
    """The outcome of every recording, as they come."""
    with _cluster(address, workers):
        cores = int(job.options.get("threads", 1))
        pool = workers or max(1, int(ray.cluster_resources().get("CPU", 1)) // cores)
        items = [{"number": number, "path": path} for number, path in enumerate(paths)]
        # Enough tasks for every worker to have some left when the others are done.
        together = max(1, min(_TOGETHER, len(items) // (32 * pool)))
        ledger = ray.remote(num_cpus=0)(_Ledger).remote()
        context = ray.data.DataContext.get_current().copy()
        context.enable_progress_bars = False
        with ray.data.DataContext.current(context):
            outcomes = ray.data.from_items(items, override_num_blocks=-(-len(items) // together)).map_batches(
                _RayWorker,
                fn_constructor_args=(job, known, ledger),
                compute=ray.data.ActorPoolStrategy(min_size=1, max_size=pool, initial_size=pool),
                batch_size=None,
                num_cpus=cores,
            )
            for batch in outcomes.iter_batches(batch_size=None, batch_format="numpy"):
                for data in batch["outcome"]:
                    yield msgspec.msgpack.decode(data, type=Outcome)


class _Ledger:
    """Counts what was begun and not finished, in a process that outlives the workers."""

    def __init__(self) -> None:
        self._begun: Counter[str] = Counter()

    def begin(self, name: str) -> int:
        """How often this was begun, now included."""
        self._begun[name] += 1
        return self._begun[name]

    def finish(self, name: str) -> None:
        """It did not take its worker along."""
        del self._begun[name]


class _RayWorker:
    """A worker as Ray Data calls it. Engines that cannot be opened are the outcome of every recording."""

    def __init__(self, job: Job, known: frozenset[bytes], ledger: Any) -> None:
        self._ledger, self._error = ledger, ""
        try:
            self._worker = Worker(job, known)
        except Exception as error:  # Ray would start such a worker again and again.
            self._error = reason(error)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[bytes]]:
        """The outcomes of some recordings."""
        pairs = list(zip(batch["number"].tolist(), batch["path"].tolist(), strict=True))
        # Asking for each recording takes time. It is worth it when this task was begun before: a worker died over it.
        task = f"from {pairs[0][0]}"
        run = self._run if ray.get(self._ledger.begin.remote(task)) == 1 else self._run_careful
        outcomes = [msgspec.msgpack.encode(run(number, path)) for number, path in pairs]
        return {"outcome": outcomes}

    def _run(self, number: int, path: str) -> Outcome:
        return Outcome(number, error=self._error) if self._error else self._worker.run(number, path)

    def _run_careful(self, number: int, path: str) -> Outcome:
        # The task itself was the first time.
        if ray.get(self._ledger.begin.remote(str(number))) >= _LOST_WORKERS:
            return Outcome(number, error=f"Its worker died {_LOST_WORKERS} times. Replay it alone with the local engine.")
        outcome = self._run(number, path)
        ray.get(self._ledger.finish.remote(str(number)))
        return outcome


@contextmanager
def _cluster(address: str | None, workers: int | None) -> Iterator[None]:
    """Ray, connected: what the program is connected to already, the cluster at the address, or one on this machine."""
    if ray.is_initialized():
        yield
        return
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    try:
        if address is None:
            # A cluster that starts here tells nobody.
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            ray.init(address="local", num_cpus=workers, include_dashboard=False, **quiet)
        else:
            ray.init(address=address, **quiet)
    except ConnectionError as error:
        raise InputError(f"There is no Ray cluster at {address!r}: {error}") from error
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        ray.shutdown()
