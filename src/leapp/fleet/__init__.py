"""Replay many recordings through a bundle: in one process, or on the cores and machines of a Ray cluster.

Both engines run the same worker code and gather the results in the same way, so they give equal reports. Ray is imported by its
own engine only.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Literal

from leapp.bundle import Bundle, open_bundle
from leapp.bundle.reading import require_signed
from leapp.bundle.signing import Keys
from leapp.bundle.trust import require_trust
from leapp.errors import InputError
from leapp.fleet.journal import Journal
from leapp.fleet.parquet import check_output, write_table
from leapp.fleet.report import Departure, FleetReport, PortReport, Ports, make_report, rows
from leapp.fleet.worker import Job, Outcome, Worker, make_job
from leapp.graph.tolerances import ATOL, RTOL, check_tolerances

__all__ = ["Departure", "FleetReport", "PortReport", "find_recordings", "replay_fleet"]


def find_recordings(patterns: Iterable[str | os.PathLike[str]]) -> list[str]:
    """The files that match names and patterns such as ``runs/**/*.mcap``, each once, sorted.

    Raises:
        InputError: A name or pattern matches no file.

    Example:
        >>> find_recordings(["run*.npz"])
        ['run.npz']
    """
    found: set[str] = set()
    for pattern in [os.fspath(one) for one in patterns]:
        # A file name may contain brackets, which glob() would read as a pattern.
        files = [pattern] if os.path.isfile(pattern) else [p for p in glob.glob(pattern, recursive=True) if os.path.isfile(p)]
        if not files:
            raise InputError(f"No file matches {pattern!r}.")
        found.update(files)
    return sorted(found)


def replay_fleet(
    bundle: str | os.PathLike[str] | Bundle,
    recordings: Iterable[str | os.PathLike[str]],
    *,
    baseline: str | os.PathLike[str] | Bundle | None = None,
    engine: Literal["local", "ray"] = "local",
    address: str | None = None,
    workers: int | None = None,
    rtol: float = RTOL,
    atol: float = ATOL,
    journal: str | os.PathLike[str] | None = None,
    output: str | os.PathLike[str] | None = None,
    worst: int = 5,
    allow_outside: bool = False,
    trust: Keys | None = None,
    progress: Callable[[], None] | None = None,
    **options: Any,
) -> FleetReport:
    """Run a bundle on every recording and compare its outputs and states.

    Each replay starts from the recorded state and gets the recorded inputs. Outputs and states are compared with the recorded
    ones, or with those of the ``baseline``, which gets the same inputs and starts from the same state. A recording that cannot
    be replayed is reported, and the others are still replayed.

    Args:
        bundle: The bundle's YAML file, its directory, or the opened bundle.
        recordings: Files and patterns.
        baseline: Another bundle to compare with, instead of the recorded values.
        engine: ``local`` runs in this process, ``ray`` on Ray.
        address: The Ray cluster; None starts one on this machine, or takes the one that is already connected.
        workers: How many recordings Ray replays at a time; None takes all cores.
        rtol: How much a value may differ, relative to the wanted one. Integers and truth values must be equal.
        atol: How much a value may differ in any case.
        journal: A file that keeps finished recordings. A run with the same file does not replay them again.
        output: A Parquet file to write, one row for each port of each recording. Without ``journal`` the journal is
            this name with ``.journal``.
        worst: How many of the worst recordings to list for each port.
        allow_outside: Let files of unsealed bundles lie outside their directories.
        trust: Files with public keys. Refuse bundles that none of them signed.
        progress: Called after each recording.
        options: Further arguments of ``leapp.runtime.Pipeline``, the same for both bundles.

    Raises:
        InputError: There is no recording, none of them could be replayed, or a tolerance is negative or not finite.
        BundleError: A bundle is damaged, or the two cannot be compared.
        MissingDependencyError: Ray or pyarrow is asked for and not installed.

    Example:
        >>> report = replay_fleet("policy", ["run*.npz"])
        >>> report.differing, report.failed
        (0, {})
    """
    check_tolerances(rtol, atol)
    if output is not None:
        check_output(output)
        journal = journal or f"{os.fspath(output)}.journal"
    names = find_recordings(recordings)
    new, *old = (
        one if isinstance(one, Bundle) else open_bundle(one, allow_outside=allow_outside, trust=trust)
        for one in (bundle, baseline)
        if one is not None
    )
    for one in (new, *old):
        require_signed(one, trust)
        require_trust(one, options.get("allow_code"))
    # Workers open the same bundles, and this process has already decided that their programs may run.
    # One thread each, since there is a worker for every core.
    options |= {"allow_code": True, "threads": options.get("threads") or 1}
    job, ports = make_job(new, old[0] if old else None, rtol, atol, options)
    with Journal(journal) as kept:
        places: dict[int, bytes] = {}
        errors: dict[int, str] = {}
        resumed = 0
        with closing(_outcomes(job, names, kept, engine, address, workers)) as outcomes:
            for outcome in outcomes:
                if outcome.error:
                    # Show the path as the caller wrote it, not the absolute one of the worker.
                    name = names[outcome.number]
                    errors[outcome.number] = outcome.error.replace(os.path.abspath(name), name)
                else:
                    places[outcome.number] = outcome.key
                    resumed += outcome.result is None
                    if outcome.result is not None:
                        kept.add(outcome.key, outcome.result)
                if progress is not None:
                    progress()
        failed = {names[number]: errors[number] for number in sorted(errors)}
        if not places:
            name, why = next(iter(failed.items()))
            none = f"None of {len(names)} recordings could be replayed. " if len(names) > 1 else ""
            raise InputError(none + (why if name in why else f"{name}: {why}"))
        results = ((names[number], kept.read(places[number])) for number in sorted(places))
        report = make_report(results, ports, worst, resumed, failed)
        if output is not None:
            write_table(output, _rows(names, places, errors, kept, ports))
    return report


def _outcomes(
    job: Job, names: Sequence[str], kept: Journal, engine: str, address: str | None, workers: int | None
) -> Generator[Outcome, None, None]:
    paths = [os.path.abspath(name) for name in names]
    if engine == "ray":
        from leapp.fleet.ray_engine import replay_on_ray

        return replay_on_ray(job, paths, frozenset(kept.keys()), address, workers)
    if address is not None or workers is not None:
        raise InputError("The local engine is one process on this machine. An address or workers need the engine ray.")
    worker = Worker(job, kept.keys())
    return (worker.run(number, path) for number, path in enumerate(paths))


def _rows(
    names: Sequence[str], places: Mapping[int, bytes], errors: Mapping[int, str], kept: Journal, ports: Ports
) -> Iterator[dict[str, Any]]:
    for number, name in enumerate(names):
        if number in errors:
            yield {"recording": name, "error": errors[number]}
        else:
            yield from rows(name, kept.read(places[number]), ports)
