"""Makes further samples for the proof: inputs near the first sample, and other numbers of rows.

Recorded samples may be special (a robot at rest, zeros, an identity) and hide an error of an engine. So each file is also
compared with the recorded calls on inputs near the first sample, and a model that takes any batch also on other batch sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from leapp.bundle import Bundle
from leapp.bundle import Sample as RawSample
from leapp.capture.equality import same_rows
from leapp.capture.tape import Call
from leapp.errors import ExportError
from leapp.export.failures import spelled_call
from leapp.graph.contract import key
from leapp.runtime.plan import Plan, make_plan
from leapp.tracing.batching import ROWS, resized
from leapp.tracing.log import logger
from leapp.tracing.node import NodeTrace, Sample
from leapp.tracing.node_files import FileNames, raw_sample


def _moved_inputs(node: NodeTrace, rows: int | None = None, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    first = node.samples[0].inputs
    return {n: _moved(first[n] if rows is None else resized(node, n, rows), generator) for n in node.inputs}


def moved_sample(node: NodeTrace, rows: int | None = None) -> Sample | None:
    """The first sample with its float inputs moved a little, and the outputs that the recorded calls compute from them.

    Args:
        node: The node.
        rows: The batch size, if it is to differ from the recorded one.

    Returns:
        The sample, or ``None`` if the recorded calls fail on such inputs.
    """
    if node.replay is None:
        return None
    inputs = _moved_inputs(node, rows)
    try:
        with torch.no_grad():
            outputs = node.replay.forward(*(t.clone() for t in inputs.values()))
    except Exception as error:  # the user's code may reject such inputs with any error
        logger.info("node '%s': its calls refuse inputs near its first sample: %s", node.name, error)
        return None
    return Sample(node.samples[0].passno, inputs, dict(zip(node.outputs, outputs, strict=True)))


def _moved(t: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if not t.is_floating_point() or not t.numel():
        return t
    sizes = t.float().abs()
    scale = sizes.mean().item()
    if not math.isfinite(scale):
        scale = sizes.nan_to_num_(0.0, 0.0, 0.0).mean().item()
    wide = t.float() if t.dtype.itemsize == 1 else t  # torch cannot add float8
    return wide.add(torch.randn(t.shape, generator=generator).to(wide), alpha=0.1 * (scale or 1.0)).to(t.dtype)


def repeated_sample(node: NodeTrace, rows: int) -> Sample | Exception:
    """The first sample with its rows repeated, or the error that the recorded calls raise on it."""
    assert node.replay is not None
    inputs = {n: resized(node, n, rows) for n in node.inputs}
    reached: list[Call] = []

    def run(_: int, call: Call, args: Any, kwargs: Any) -> Any:
        reached.append(call)
        return call.func(*args, **kwargs)

    try:
        with torch.no_grad():
            values = node.replay.run([t.clone() for t in inputs.values()], run)
    except Exception as error:  # torch raises many types: in any case the code does not take this number of rows
        line = f" at {spelled_call(reached[-1])}" if reached else ""
        return ExportError(f"the batch size is baked into the code: with {rows} rows it fails{line}: {error}")
    return Sample(0, inputs, {n: values[p.slot] for n, p in node.outputs.items() if p.slot is not None})


def batch_loops(bundle: Bundle, nodes: list[NodeTrace], names: dict[str, FileNames], passes: int) -> Iterator[Any]:
    """Samples of the whole pipeline in closed loop, computed by the recorded calls, for each other batch size."""
    described = bundle.contract.nodes.values()
    if all(port.batch_axis is None for node in described for port in (*node.inputs, *node.outputs)):
        return
    plan = make_plan(bundle.contract, checked=True)
    traced = {n.name: n for n in nodes}
    for rows in ROWS:
        fed_back = [(traced[n].inputs[p].axis, traced[n].samples[0].inputs[p]) for n, p in _fed_back(plan, names)]
        if not all(axis is None or same_rows(value, axis) for axis, value in fed_back):
            logger.warning("a state begins with different rows, so the bundle takes a batch of %d only.", plan.batch)
            return
        values: dict[str, torch.Tensor] = {}
        samples: dict[str, list[RawSample]] = {n.name: [] for n in nodes}
        for number in range(passes):
            before = dict(values)
            for node in (traced[name] for name in plan.order):
                assert node.replay is not None
                drawn = _moved_inputs(node, rows, seed=number)
                inputs = {}
                for port in node.inputs:
                    where = key(node.name, names[node.name].inputs[port])
                    source = plan.feedback.get(where)
                    if where in plan.edges:
                        inputs[port] = values[plan.edges[where]]
                    elif source is not None:
                        inputs[port] = before[source] if number else resized(node, port, rows)
                    else:
                        inputs[port] = drawn[port]
                with torch.no_grad():
                    made = node.replay(*(t.clone() for t in inputs.values()))
                outputs = dict(zip(node.outputs, made, strict=True))
                values |= {key(node.name, names[node.name].outputs[p]): t for p, t in outputs.items()}
                samples[node.name].append(raw_sample(names[node.name], Sample(number, inputs, outputs)))
        yield samples


def _fed_back(plan: Plan, names: dict[str, FileNames]) -> Iterator[tuple[str, str]]:
    ports = {key(n, written): (n, port) for n, own in names.items() for port, written in own.inputs.items()}
    return (ports[where] for where in plan.feedback)
