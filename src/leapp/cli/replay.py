"""``leapp replay``: runs a bundle on recordings and compares its outputs and states."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from typing import TYPE_CHECKING

from leapp.cli.arguments import add_engine, add_opened_bundle, add_tolerances, count
from leapp.cli.opening import consent, open_for
from leapp.cli.output import Answer, Cell, Table, Text, announce, progress

if TYPE_CHECKING:
    from leapp.fleet import FleetReport


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of ``leapp replay``."""
    add = parser.add_argument
    add_opened_bundle(parser)
    add("recordings", nargs="+", metavar="RECORDING", help="a file, or a pattern such as 'runs/**/*.mcap'")
    add("--baseline", metavar="BUNDLE", help="compare with the outputs of this bundle instead of the recorded ones")
    add("--output", metavar="FILE.parquet", help="write a table with one row for each port of each recording")
    add("--journal", metavar="FILE", help="file to resume from (default: the name of --output with .journal)")
    add("--worst", type=count, default=5, metavar="N", help="worst recordings to list for each port (default: %(default)s)")
    add("--engine", choices=("local", "ray"), default="local", help="run in this process, or on Ray (default: local)")
    add("--address", help="the address of the Ray cluster (default: start one on this machine)")
    add("--workers", type=count, metavar="N", help="recordings that Ray replays at a time (default: all cores)")
    add_tolerances(parser)
    add_engine(parser)


def command(arguments: Namespace) -> Answer:
    """Run a bundle on recordings and compare its outputs and states."""
    from leapp.fleet import find_recordings, replay_fleet

    bundle = open_for(arguments)
    baseline = [] if arguments.baseline is None else [open_for(arguments, arguments.baseline)]
    allow_code = consent(arguments, bundle, *baseline)
    names = find_recordings(arguments.recordings)
    if arguments.engine == "ray":
        announce("starting workers ...")
    with progress("replaying", len(names)) as advance:
        report = replay_fleet(
            bundle,
            names,
            baseline=baseline[0] if baseline else None,
            engine=arguments.engine,
            address=arguments.address,
            workers=arguments.workers,
            rtol=arguments.rtol,
            atol=arguments.atol,
            journal=arguments.journal,
            output=arguments.output,
            worst=arguments.worst,
            allow_outside=arguments.allow_outside,
            progress=advance,
            threads=arguments.threads,
            providers=arguments.provider,
            allow_code=allow_code,
        )
    data = {"graph": bundle.graph, "same": report.same, **asdict(report), "output": arguments.output}
    parts = [*_tables(report, len(names)), *_verdict(report, len(names), arguments.baseline)]
    if arguments.output:
        parts.append(Text(f"wrote {arguments.output}"))
    return Answer(data, parts, 2 if report.failed else 1 if report.differing else 0)


def _tables(report: FleetReport, total: int) -> list[Table | Text]:
    if total == 1 and report.same:
        return []
    resumed = f" ({report.resumed} replayed before)" if report.resumed else ""
    ports: list[list[Cell]] = []
    worst: list[list[Cell]] = []
    for port in report.ports:
        figures = [f"{value:.3g}" for value in (port.mean, *port.percentiles.values(), port.largest)]
        ports.append([(port.key, "bold"), port.role, str(port.count), str(port.equal), str(port.beyond), *figures])
        worst += [[d.recording, d.key, str(d.step), d.element, f"{d.largest:.6g}"] for d in port.worst]
    names = [f"{percent} %" for percent in (report.ports[0].percentiles if report.ports else ())]
    plural = "s" if report.recordings != 1 else ""
    title = f"Differences over {report.recordings} recording{plural}{resumed}, {report.steps} steps"
    head = ("port", "role", "values", "equal", "beyond tolerance", "mean", *names, "largest")
    worst_head = ("recording", "port", "step", "element", "difference")
    return [
        Table(title, head, ports, spare=(*names, "mean", "role", "equal", "values")),
        Table("Worst recordings of each port", worst_head, worst, spare=("element",)),
        Table("Not replayed", ("recording", "why"), list(report.failed.items())),
    ]


def _verdict(report: FleetReport, total: int, baseline: str | None) -> list[Text]:
    reference = f"that of {baseline}" if baseline else "the recording"
    equal = f"as with {baseline}" if baseline else "as recorded"
    lines = []
    if report.missing:
        why = "only one of the bundles has it" if baseline else "no recording holds it"
        lines.append(Text(f"Not compared, because {why}: {', '.join(report.missing)}.", "yellow"))
    if report.difference is not None:
        found = report.difference
        place = f"Step {found.step}: '{found.key}' differs from {reference} by up to {found.largest:.6g}, at {found.element}."
        first = f"{report.differing} of {total} recordings differ, the first is {found.recording}. "
        lines.append(Text(place if total == 1 else first + place, "red"))
    elif total == 1:
        lines.append(Text(f"{report.steps} steps, every output {equal}.", "green"))
    else:
        lines.append(Text(f"{report.recordings} recordings, {report.steps} steps, every output {equal}.", "green"))
    if report.failed:
        lines.append(Text(f"{len(report.failed)} of {total} recordings could not be replayed.", "red"))
    return lines
