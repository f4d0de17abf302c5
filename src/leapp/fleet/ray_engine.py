"""The engine on Ray Data: a pool of workers on this machine or on a cluster.

Ray sends file names to workers and outcomes back, in any order. If a worker dies, Ray starts another one and repeats its
tasks. A recording whose worker dies each time is reported as one that cannot be replayed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from leapp.errors import MissingDependencyError
from leapp.fleet.worker import Job, Outcome, Worker, reason
from leapp.ray_nodes import connect

try:
    import ray
    import ray.data
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as error:
    raise MissingDependencyError("The engine ray needs the package ray: pip install 'leapp[ray]'.") from error

_LOST_WORKERS = 3
"""How many workers may die with a recording before it is given up."""

_AHEAD = 4
"""How many tasks are queued at a worker. Ray Data looks for free workers only ten times a second, too slow for short tasks."""

_TOGETHER = 16
"""The most recordings in one task. Fewer tasks cost less, but the results of a task are known only at its end."""


def replay_on_ray(
    job: Job, paths: Sequence[str], known: frozenset[bytes], address: str | None, workers: int | None
) -> Generator[Outcome, None, None]:
    """The outcomes of all recordings, in the order in which they finish."""
    with _cluster(address, workers):
        cores = int(job.options["threads"])
        pool = workers or max(1, int(ray.cluster_resources().get("CPU", 1)) // cores)
        numbered = list(enumerate(paths))
        tasks = [msgspec.msgpack.encode(numbered[begin:end]) for begin, end in _division(len(paths), pool)]
        context = ray.data.DataContext.get_current().copy()
        context.enable_progress_bars = False
        with ray.data.DataContext.current(context):
            outcomes = ray.data.from_items([{"task": task} for task in tasks], override_num_blocks=len(tasks)).map_batches(
                _RayWorker,
                fn_constructor_args=(job, known, _start_ledger()),
                compute=ray.data.ActorPoolStrategy(
                    min_size=1, max_size=pool, initial_size=pool, max_tasks_in_flight_per_actor=_AHEAD
                ),
                batch_size=None,
                num_cpus=cores,
            )
            for batch in outcomes.iter_batches(batch_size=None, batch_format="numpy"):
                for data in batch["outcome"]:
                    yield msgspec.msgpack.decode(data, type=Outcome)


def _division(count: int, workers: int) -> Iterator[tuple[int, int]]:
    """The first and one-past-last recording of each task. Tasks get shorter, so that all workers end at about the same time."""
    begin = 0
    while begin < count:
        end = begin + max(1, min(_TOGETHER, (count - begin) // (4 * workers)))
        yield begin, end
        begin = end


def _start_ledger() -> Any:
    """Start an actor that counts recordings that were begun and not finished, and that outlives the workers.

    Its class is defined inside this function, so that Ray sends it by value: a process that only counts need not load this
    package. It runs on the machine of this program, because on another machine it could die together with its workers.
    """

    class Ledger:
        def __init__(self) -> None:
            self._begun: dict[int, int] = {}

        def begin(self, number: int) -> int:
            self._begun[number] = self._begun.get(number, 0) + 1
            return self._begun[number]

        def finish(self, number: int) -> None:
            del self._begun[number]

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(num_cpus=0, scheduling_strategy=here)(Ledger).remote()


class _RayWorker:
    """A worker for Ray Data. If the engines cannot be opened, every recording gets that error as its outcome."""

    def __init__(self, job: Job, known: frozenset[bytes], ledger: Any) -> None:
        self._ledger, self._error = ledger, ""
        # Counting costs a call for each recording, so only a worker that replaces a dead one counts.
        careful = ray.get_runtime_context().was_current_actor_reconstructed
        self._run = self._run_careful if careful else self._run_plain
        try:
            self._worker = Worker(job, known)
        except Exception as error:  # an engine may raise any type, and Ray would restart a worker that raises for ever
            self._error = reason(error)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[bytes]]:
        """The outcomes of the recordings of some tasks."""
        pairs = [pair for task in batch["task"] for pair in msgspec.msgpack.decode(task, type=list[tuple[int, str]])]
        return {"outcome": [msgspec.msgpack.encode(self._run(number, path)) for number, path in pairs]}

    def _run_plain(self, number: int, path: str) -> Outcome:
        return Outcome(number, error=self._error) if self._error else self._worker.run(number, path)

    def _run_careful(self, number: int, path: str) -> Outcome:
        # The first worker that died is not in the count.
        if ray.get(self._ledger.begin.remote(number)) >= _LOST_WORKERS:
            return Outcome(number, error=f"Its worker died {_LOST_WORKERS} times. Replay it alone with the local engine.")
        outcome = self._run_plain(number, path)
        ray.get(self._ledger.finish.remote(number))
        return outcome


@contextmanager
def _cluster(address: str | None, workers: int | None) -> Iterator[None]:
    """Connect to Ray for the block: the present connection, the cluster at the address, or a new one on this machine."""
    if ray.is_initialized():
        yield
        return
    if address is None:
        # Silence the internal log of a cluster that starts here.
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    connect(address, num_cpus=workers if address is None else None, logging_level=logging.ERROR)
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        ray.shutdown()
