"""Recorded samples run through the files of a bundle."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from leapp.bundle import Bundle, RawTensor, Sample
from leapp.check.compare import Difference, compare
from leapp.graph.contract import Contract, Pipeline, key, split_key
from leapp.runtime import Pipeline as Running
from leapp.runtime.values import from_raw

__all__ = ["Verdict", "check_nodes", "check_pipeline"]

Samples = Mapping[str, Sequence[Sample]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One output that is not what was traced."""

    node: str
    port: str
    sample: int
    difference: Difference

    def __str__(self) -> str:
        return f"{self.node}/{self.port}, sample {self.sample}: {self.difference.reason}"


def check_nodes(
    bundle: Bundle,
    samples: Samples,
    rtol: float,
    atol: float,
    random: Collection[str] = (),
    coarse: Mapping[str, float] | None = None,
) -> dict[str, list[Verdict] | Exception]:
    """Run each node's file on each of its samples.

    Args:
        bundle: The bundle. Nodes without a model are left out.
        samples: The recorded passes of each node.
        rtol: Relative tolerance for floats.
        atol: Absolute tolerance for floats.
        random: Nodes that draw random numbers: only shapes and dtypes are compared.
        coarse: Nodes that compute with less than float32, and the rounding step of their type: a lower bound of the tolerance.

    Returns:
        For each node what differs (an empty list if nothing does), or the error that running it raised.
    """
    found: dict[str, list[Verdict] | Exception] = {}
    for name, node in bundle.contract.nodes.items():
        if node.model.model_path is None:
            continue
        try:
            step = 2 * (coarse or {}).get(name, 0.0)
            tolerance = max(rtol, step), max(atol, step)
            found[name] = _check_node(bundle, name, samples.get(name, ()), *tolerance, name in random)
        except Exception as error:  # any engine may raise anything: the caller reports it with the node's name
            found[name] = error
    return found


def _check_node(
    bundle: Bundle, name: str, samples: Sequence[Sample], rtol: float, atol: float, random: bool
) -> list[Verdict]:
    running = Running(_alone(bundle, name))
    verdicts = []
    for number, sample in enumerate(samples):
        outputs = running({key(name, port): from_raw(value) for port, value in sample.inputs.items()})
        for port, want in sample.outputs.items():
            got = outputs[key(name, port)]
            difference = compare(got, from_raw(want), rtol, atol)
            if difference is not None and not (random and got.shape == want.shape and str(got.dtype) == want.dtype):
                verdicts.append(Verdict(name, port, number, difference))
    return verdicts


def _alone(bundle: Bundle, name: str) -> Bundle:
    """A bundle with one node, all of whose ports are the graph's."""
    node = bundle.contract.nodes[name]
    pipeline = Pipeline(
        inputs={name: tuple(p.name for p in node.inputs)}, outputs={name: tuple(p.name for p in node.outputs)}
    )
    return replace(bundle, contract=Contract(nodes={name: node}, pipeline=pipeline, system=bundle.contract.system))


def check_pipeline(
    bundle: Bundle, samples: Samples, rtol: float, atol: float, random: Collection[str] = ()
) -> list[Verdict]:
    """Run the whole pipeline over all recorded passes, its own outputs fed back, and compare every graph output.

    A pass whose recorded feedback is the initial value again was reset by the traced program; so is the pipeline.
    """
    contract = bundle.contract
    passes = min((len(s) for s in samples.values()), default=0)
    if not passes or any(n.model.model_path is None for n in contract.nodes.values()) or not _connected(contract, samples):
        return []
    running = Running(bundle)
    verdicts = []
    for number in range(passes):
        given = {
            key(n, p): from_raw(samples[n][number].inputs[p]) for n, ports in contract.pipeline.inputs.items() for p in ports
        }
        if number and _was_reset(contract, samples, number):
            running.reset()
        outputs = running(given)
        for where, got in outputs.items():
            node, port = split_key(where)
            difference = compare(got, from_raw(samples[node][number].outputs[port]), rtol, atol)
            if difference is not None and not random:
                verdicts.append(Verdict(node, port, number, difference))
    return verdicts


def _connected(contract: Contract, samples: Samples) -> bool:
    return all(n in samples and len(samples[n]) for n in contract.nodes)


def _was_reset(contract: Contract, samples: Samples, number: int) -> bool:
    """Whether every fed-back input of a pass has its initial value again, though its source says otherwise."""
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
