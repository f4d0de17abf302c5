"""``leapp bench``: how long the steps of a bundle take."""

from __future__ import annotations

import math
from argparse import ArgumentParser, Namespace
from typing import Any

from leapp.cli.arguments import add_engine, add_opened_bundle, count, rate
from leapp.cli.bundle_page import write_bundle_page
from leapp.cli.opening import open_pipeline
from leapp.cli.output import Answer, Table, Text, announce

_MICROSECONDS = ("p50", "p99", "p999", "longest", "jitter", "noise_p50", "noise_p999")


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of ``leapp bench``."""
    add_opened_bundle(parser)
    parser.add_argument("--rate", type=rate, metavar="HZ", help="start steps at this rate and count late ones")
    parser.add_argument("--steps", type=count, metavar="N", help="how many steps (default: 1000, or 5 seconds at the rate)")
    parser.add_argument("--page", metavar="DIRECTORY", help="also write a page that shows where the time goes")
    add_engine(parser)


def command(arguments: Namespace) -> Answer:
    """Time the steps of a bundle."""
    import numpy.random  # noqa: F401 - bench needs it, and a Ctrl-C while its compiled parts load is lost

    bundle, pipeline, opened = open_pipeline(arguments)
    steps = arguments.steps or (max(1, round(5 * arguments.rate)) if arguments.rate else 1000)
    if arguments.rate and steps > arguments.rate:
        # The steps, then as many empty ones, which show the machine's own noise.
        announce(f"timing {steps} steps at {arguments.rate:g} Hz takes {2 * steps / arguments.rate:.0f} s ...")
    latency = pipeline.bench(steps, arguments.rate)
    frequency = pipeline.frequency
    late = is_late(latency.misses or 0, latency.noise_misses or 0)
    data: dict[str, Any] = {
        "graph": bundle.graph,
        "ok": not late,
        "opened_s": opened,
        "frequency_hz": frequency,
        "steps": latency.steps,
        "rate_hz": latency.rate,
        "misses": latency.misses,
        "noise_misses": latency.noise_misses,
        **{f"{name}_us": getattr(latency, name) for name in _MICROSECONDS},
    }
    figures = {"median": "p50", "99 %": "p99", "99.9 %": "p999", "longest": "longest", "jitter": "jitter"}
    rows = [[name, f"{getattr(latency, attribute):.1f} µs"] for name, attribute in figures.items()]
    rows.append(["this machine, doing nothing", f"{latency.noise_p50:.1f} µs, 99.9 % {latency.noise_p999:.1f} µs"])
    rows.append(["opened in", f"{opened:.2f} s"])
    parts: list[Table | Text] = [Table(f"{bundle.graph}: {steps} steps", ("what", "time"), rows)]
    rate = arguments.rate or frequency
    if rate:
        share = latency.p50 * rate / 1e4
        parts.append(Text(f"At {rate:g} Hz a step may take {1e6 / rate:.0f} µs; the median takes {share:.2f} % of it."))
    if latency.misses is not None:
        words = f"{latency.misses} of {steps} steps were late." if latency.misses else "No step was late."
        if latency.noise_misses:
            words += f" This machine, doing nothing, was late {latency.noise_misses} times."
            words += "" if late or not latency.misses else " That is its own noise."
        parts.append(Text(words, "red" if late else "green"))
    if arguments.page:
        page = write_bundle_page(bundle, arguments.page, measured=True)
        data["page"] = str(page)
        parts.append(Text(f"wrote {page}"))
    return Answer(data, parts, 1 if late else 0)


def is_late(misses: int, noise: int) -> bool:
    """Whether more steps were late than empty steps, by more than two standard deviations."""
    return misses > noise + 2 * math.sqrt(noise)
