"""Runs the files of a bundle on recorded samples."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from leapp.bundle import Bundle, RawTensor, Sample
from leapp.check.compare import Difference, Figures, compare, nonfinite
from leapp.check.engines import Array, Engine, Place, engines, here, open_pipeline
from leapp.graph.contract import Contract, Port, key, split_key
from leapp.runtime.distance import gaps
from leapp.runtime.values import from_raw

Samples = Mapping[str, Sequence[Sample]]

_RUNS = 12
"""An output that stays the same in this many runs counts as fixed."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One output that differs from the traced value.

    Attributes:
        node: The node.
        port: Its output.
        sample: Which recorded pass, from 0.
        difference: How it differs.
        element: The name of the worst element, if the port names its elements.
        engine: The engine, if it is not the runtime's own.
    """

    node: str
    port: str
    sample: int
    difference: Difference
    element: str = ""
    engine: str = ""

    def __str__(self) -> str:
        element = f"; the worst element is {self.element}" if self.element else ""
        engine = f", {self.engine}" if self.engine else ""
        return f"{self.node}/{self.port}, sample {self.sample}{engine}: {self.difference.reason}{element}"


@dataclass(slots=True)
class Outcome:
    """What running one node on its samples showed.

    Attributes:
        verdicts: The outputs that differ; empty for a node that passed.
        nonfinite: Outputs that do not differ and hold NaN or infinity.
        random: Outputs that change from run to run, as they did when traced. Only shape and dtype were compared.
        passes: How many samples were run.
        figures: How close each output came to the traced values, outputs that change from run to run left out.
    """

    verdicts: list[Verdict] = field(default_factory=list)
    nonfinite: list[Verdict] = field(default_factory=list)
    random: set[str] = field(default_factory=set)
    passes: int = 0
    figures: dict[str, Figures] = field(default_factory=dict)


def check_node(
    bundle: Bundle,
    name: str,
    samples: Sequence[Sample],
    rtol: float,
    atol: float,
    opened: Iterable[tuple[str, Engine]],
    random: bool | None = None,
    form_only: Collection[str] = (),
    measured: bool = True,
) -> Outcome:
    """Run one node's file on each of its samples.

    Args:
        bundle: The bundle.
        name: The node, which must have a model.
        samples: Its recorded passes.
        rtol: Relative tolerance for floats.
        atol: Absolute tolerance for floats.
        opened: The engines that run it, see ``engines``.
        random: Whether the node draws random numbers. ``None`` finds out by running it several times.
        form_only: Outputs of which only shape and dtype are compared.
        measured: Whether figures are wanted.
    """
    outcome = Outcome(passes=len(samples))
    ports = {port.name: port for port in bundle.contract.nodes[name].outputs}
    runs = {True: _RUNS, None: 1, False: 0}[random]
    for label, engine in opened:
        for number, sample in enumerate(samples):
            given = {port: from_raw(value) for port, value in sample.inputs.items()}
            outputs = engine(given)
            varying = _varying(engine, given, outputs, runs)
            outcome.random |= varying
            for port, raw in sample.outputs.items():
                got, want = outputs[port], from_raw(raw)
                difference = None
                if port not in varying | set(form_only) or (got.shape, got.dtype) != (want.shape, want.dtype):
                    gap = gaps(got, want) if measured and got.shape == want.shape else None
                    if gap is not None:
                        outcome.figures.setdefault(port, Figures()).add_gaps(gap)
                    difference = compare(got, want, rtol, atol, gap)
                into = outcome.nonfinite if difference is None else outcome.verdicts
                difference = difference or nonfinite(got, want)
                if difference is not None:
                    into.append(Verdict(name, port, number, difference, element_name(ports[port], difference.index), label))
    return outcome


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
    """The outcome of ``check_node``, and the seconds of the shortest run on a sample (None without samples)."""
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


def _varying(engine: Engine, given: Mapping[str, Array], outputs: Mapping[str, Array], runs: int) -> set[str]:
    """The outputs that differ in other runs on the same inputs. Several runs, because a random choice may repeat itself."""
    varying: set[str] = set()
    for _ in range(runs):
        again = engine(given)
        varying |= {port for port, value in outputs.items() if value.tobytes() != again[port].tobytes()}
        if len(varying) == len(outputs):
            break
    return varying


def element_name(port: Port, index: Sequence[int]) -> str:
    """The name of the element at ``index`` in the port's ``element_names``; empty if it has none."""
    names = port.element_names or []
    first = len(index) - len(names)
    if not index or first < 0:
        return ""
    found = [
        str(axis[at])
        for axis, at, size in zip(names, index[first:], port.shape[first:], strict=True)
        if isinstance(axis, list) and len(axis) == size
    ]
    return "/".join(found)


class Stepper(Protocol):
    """A pipeline that can be stepped and put back to its start."""

    def __call__(self, inputs: dict[str, Array], /) -> Mapping[str, Array]:
        """One step."""

    def reset(self) -> None:
        """Set the state to the initial values."""


def check_pipeline(
    bundle: Bundle,
    samples: Samples,
    rtol: float,
    atol: float,
    random: Collection[str] = (),
    stepper: Callable[[Bundle], Stepper] = open_pipeline,
    engine: str = "",
) -> list[Verdict]:
    """Run the whole pipeline over all recorded passes, its own outputs fed back, and compare every graph output.

    A pass whose recorded feedback is the initial value again was reset by the traced program; so is the pipeline. Outputs
    of a pipeline with ``random`` nodes are compared by shape and dtype, which the runtime does at every step.
    """
    contract = bundle.contract
    passes = min((len(s) for s in samples.values()), default=0)
    if not passes or any(n.model.model_path is None for n in contract.nodes.values()) or not _connected(contract, samples):
        return []
    running = stepper(bundle)
    described = {key(n, p.name): p for n, node in contract.nodes.items() for p in node.outputs}
    verdicts = []
    for number in range(passes):
        if number and _was_reset(contract, samples, number):
            running.reset()
        outputs = running(graph_inputs(contract, samples, number))
        for where, got in outputs.items():
            node, port = split_key(where)
            difference = compare(got, from_raw(samples[node][number].outputs[port]), rtol, atol)
            if difference is not None and not random:
                element = element_name(described[where], difference.index)
                verdicts.append(Verdict(node, port, number, difference, element, engine))
    return verdicts


def graph_inputs(contract: Contract, samples: Samples, number: int) -> dict[str, Array]:
    """The inputs of the graph in one recorded pass."""
    entering = [(n, p) for n, ports in contract.pipeline.inputs.items() for p in ports]
    return {key(n, p): from_raw(samples[n][number].inputs[p]) for n, p in entering}


def _connected(contract: Contract, samples: Samples) -> bool:
    return all(n in samples and len(samples[n]) for n in contract.nodes)


def _was_reset(contract: Contract, samples: Samples, number: int) -> bool:
    """Whether every fed-back input of a pass has its initial value again, although its source had another value."""
    targets = [(s, t) for s, ts in contract.pipeline.feedback_flow.items() for t in ts]
    if not targets:
        return False
    moved = False
    for source, target in targets:
        node, port = split_key(target)
        now, first = samples[node][number].inputs[port], samples[node][0].inputs[port]
        if not _equal(now, first):
            return False
        origin, name = split_key(source)
        moved = moved or not _equal(now, samples[origin][number - 1].outputs[name])
    return moved


def _equal(a: RawTensor, b: RawTensor) -> bool:
    return bytes(a.data) == bytes(b.data)
