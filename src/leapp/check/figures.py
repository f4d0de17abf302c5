"""A node checked and timed, for people who ask how a bundle does on this machine."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from leapp.bundle import Bundle, Sample
from leapp.check.engines import Array, Engine, Place, engines, here
from leapp.check.samples import Outcome, check_node

__all__ = ["measure_node"]


def measure_node(
    bundle: Bundle,
    name: str,
    samples: Sequence[Sample],
    rtol: float,
    atol: float,
    *,
    thorough: bool = False,
    place: Place = here,
) -> tuple[Outcome, float | None]:
    """What ``check_node`` finds, and the seconds of the shortest run on a sample; None without samples."""
    times: list[float] = []

    def timed(engine: Engine) -> Engine:
        def run(given: Mapping[str, Array]) -> Mapping[str, Array]:
            began = time.perf_counter()
            outputs = engine(given)
            times.append(time.perf_counter() - began)
            return outputs

        return run

    opened = ((label, timed(engine)) for label, engine in engines(bundle, name, thorough, place))
    return check_node(bundle, name, samples, rtol, atol, opened), min(times, default=None)
