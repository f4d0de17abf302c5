"""How close files come to what was traced: figures for people, beside the verdicts of ``replay``.

Runs each node alone on each of its samples, twice, so that a node that draws random numbers shows itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from leapp.bundle import Bundle, Sample
from leapp.check.compare import compare
from leapp.check.engines import Array, engines
from leapp.check.replay import Verdict, element_name
from leapp.runtime.values import from_raw

__all__ = ["Figures", "NodeFigures", "measure_node"]


@dataclass(slots=True)
class Figures:
    """The absolute differences of one output over all samples.

    Attributes:
        largest: The largest difference; NaN where only one side has a value.
        mean: The mean difference.
        count: How many values were compared.
        exact: How many were equal.
        bins: How many of the others fell into each power of ten.
    """

    largest: float = 0.0
    mean: float = 0.0
    count: int = 0
    exact: int = 0
    bins: dict[int, int] = field(default_factory=dict)

    def add(self, got: Array, want: Array) -> None:
        """Count the values of one sample. Both arrays have the same shape."""
        wide = np.complex128 if want.dtype.kind == "c" else np.float64
        a, b = got.astype(wide).reshape(-1), want.astype(wide).reshape(-1)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        with np.errstate(invalid="ignore"):
            gap = np.where(same, 0.0, np.abs(a - b))
        if gap.size:
            self.largest = float(np.fmax(self.largest, gap.max())) if not np.isnan(gap).any() else float("nan")
            self.mean = (self.mean * self.count + float(gap.sum())) / (self.count + gap.size)
        self.count += gap.size
        self.exact += int(same.sum())
        for power in np.floor(np.log10(gap[np.isfinite(gap) & (gap > 0)])).astype(int).tolist():
            self.bins[power] = self.bins.get(power, 0) + 1

    def as_dict(self) -> dict[str, Any]:
        """The figures as plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """What running one node showed: figures for each output, what differs too much, and whether it draws random numbers."""

    outputs: dict[str, Figures]
    verdicts: list[Verdict]
    random: bool


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
    ports = {port.name: port for port in bundle.contract.nodes[name].outputs}
    for label, engine in engines(bundle, name, thorough):
        for number, sample in enumerate(samples):
            given = {port: from_raw(value) for port, value in sample.inputs.items()}
            outputs, again = engine(given), engine(given)
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
    return NodeFigures(figures, verdicts, random)
