"""How close files come to what was traced: figures for people, beside the verdicts of ``replay``.

Runs each node alone on each of its samples, twice, so that a node that draws random numbers shows itself.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from leapp.bundle import Bundle, Sample
from leapp.check.compare import Figures, compare
from leapp.check.engines import engines
from leapp.check.replay import Verdict, element_name
from leapp.runtime.values import from_raw

__all__ = ["NodeFigures", "measure_node"]


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """What running one node showed.

    Attributes:
        outputs: The differences of each output.
        verdicts: What differs too much.
        random: Whether it draws random numbers.
        seconds: The shortest run on a sample; None without samples.
    """

    outputs: dict[str, Figures]
    verdicts: list[Verdict]
    random: bool
    seconds: float | None


def measure_node(
    bundle: Bundle, name: str, samples: Sequence[Sample], rtol: float, atol: float, *, thorough: bool = False
) -> NodeFigures:
    """Run a node's file on its samples and compare every output with the traced one.

    Args:
        bundle: The bundle.
        name: The node, which must have a model.
        samples: Its recorded passes.
        rtol: Relative tolerance for floats.
        atol: Absolute tolerance for floats.
        thorough: Run an ONNX model at every level of graph optimisation.
    """
    figures: dict[str, Figures] = {}
    verdicts: list[Verdict] = []
    random = False
    seconds: float | None = None
    ports = {port.name: port for port in bundle.contract.nodes[name].outputs}
    for label, engine in engines(bundle, name, thorough):
        for number, sample in enumerate(samples):
            given = {port: from_raw(value) for port, value in sample.inputs.items()}
            outputs = engine(given)
            began = time.perf_counter()
            again = engine(given)
            took = time.perf_counter() - began
            seconds = took if seconds is None else min(seconds, took)
            if any(outputs[port].tobytes() != again[port].tobytes() for port in outputs):
                random = True
                continue
            for port, raw in sample.outputs.items():
                got, want = outputs[port], from_raw(raw)
                difference = compare(got, want, rtol, atol)
                if difference is not None:
                    element = element_name(ports[port], difference.index)
                    verdicts.append(Verdict(name, port, number, difference, element, label))
                if got.shape == want.shape:
                    figures.setdefault(port, Figures()).add(got, want)
    return NodeFigures(figures, verdicts, random, seconds)
