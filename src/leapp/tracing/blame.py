"""Finds the first recorded call whose value in the written file differs from PyTorch, and the user's line of that call.

Runs only after a check failed. It exports the node once more with every intermediate value as an output.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from leapp.bundle import Bundle, RawTensor
from leapp.bundle.reading import model_file
from leapp.bundle.sidecars import describe_model
from leapp.capture.batch.symbolic_size import Measure
from leapp.capture.replay import results
from leapp.capture.tape import Call
from leapp.check.compare import compare
from leapp.check.engines import Engine, open_engine, open_level
from leapp.export import ExportJob, export_node
from leapp.export.failures import spelled_call
from leapp.graph.contract import Contract, Node, Port, Wiring
from leapp.runtime.values import from_raw
from leapp.tracing.node import NodeTrace

_LACKING = re.compile(r"Could not find an implementation for (\w+)\(\d+\) node with name '([^']*)'")

_SIZED = re.compile(r"unbacked symbol|in the bundle, but ")


class _Probe(torch.nn.Module):
    """A replay with every value that its calls make as an output, copied right after the call.

    Attributes:
        calls: The calls that are run.
        positions: For each output the position of the call that made it. Filled by running the module.
    """

    def __init__(self, replay: Any) -> None:
        super().__init__()
        self.replay = replay
        self.calls: list[Call] = replay.program.calls
        self.positions: list[int] = []
        self.train(False)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """All values the calls make or change, in order."""
        env: dict[int, Any] = {}
        made: list[torch.Tensor] = []
        self.positions = []

        def run(position: int, call: Call, args: Any, kwargs: Any) -> Any:
            result = call.func(*args, **kwargs)
            values = results(call, result) if type(call.func) is not Measure else []
            if call.writes:
                values += [env[slot] for slot in call.reads if slot in env and all(env[slot] is not v for v in values)]
            made.extend(value.clone() for value in values)
            self.positions += [position] * len(values)
            return result

        self.replay.run(inputs, run, into=env)
        return tuple(made)


def recording_departs(
    job: ExportJob, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], rtol: float, atol: float
) -> bool:
    """Whether the recorded calls, run again in PyTorch, give other outputs than the program computed from these inputs."""
    with torch.no_grad():
        again = job.module(*(value.clone() for value in inputs))
    return any(_departs(a, b, rtol, atol) for a, b in zip(again, outputs, strict=True))


def first_departure(job: ExportJob, inputs: Sequence[torch.Tensor], rtol: float, atol: float) -> str:
    """A sentence that says which recorded call gives another value in the file than in PyTorch.

    Args:
        job: The node as it was exported.
        inputs: The sample that fails.
        rtol: Relative tolerance for floats.
        atol: Absolute tolerance for floats.
    """
    probe = _Probe(job.module)
    with torch.no_grad():
        wanted = probe(*(value.clone() for value in inputs))
    for got in _runs(job, probe, inputs, wanted):
        for position, (a, b) in enumerate(zip(got, wanted, strict=True)):
            difference = compare(from_raw(a), from_raw(RawTensor.of(b)), rtol, atol)
            if difference is not None:
                call = probe.calls[probe.positions[position]]
                return f"the first operation that differs from PyTorch is {spelled_call(call)}: {difference.reason}."
    return (
        "every single operation agrees with PyTorch when its value is an output of the file, so the difference comes from "
        "operations that the engine fuses. Set validate='thorough' to see at which optimisation level."
    )


def _departs(got: torch.Tensor, want: torch.Tensor, rtol: float, atol: float) -> bool:
    return compare(from_raw(RawTensor.of(got)), from_raw(RawTensor.of(want)), rtol, atol) is not None


def _runs(
    job: ExportJob, probe: _Probe, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> Iterator[list[RawTensor]]:
    """The values of a probe's outputs in the engine that runs the node.

    First, if the engine optimises models when it opens them, without that. It takes long for a model with many outputs.
    """
    names = [f"leapp_probe_{position}" for position in range(len(outputs))]
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        result = export_node(replace(job, module=probe, output_names=names), directory)
        model = describe_model(result.path, directory, result.backend)
        node = Node(inputs=_ports(job.input_names, inputs), outputs=_ports(names, outputs), model=model)
        bundle = Bundle(directory / "probe.yaml", Contract(nodes={job.node: node}, pipeline=Wiring()), None, {})
        given = {name: from_raw(RawTensor.of(value)) for name, value in zip(job.input_names, inputs, strict=True)}
        plain: list[Callable[[Bundle, str], Engine]]
        plain = [partial(open_level, level="disable_all")] if result.backend == "onnx" else []
        for way in (*plain, open_engine):
            found = way(bundle, job.node)(given)
            yield [RawTensor.of(found[name]) for name in names]


def _ports(names: Sequence[str], values: Sequence[torch.Tensor]) -> tuple[Port, ...]:
    return tuple(
        Port(name=name, dtype=str(value.dtype).removeprefix("torch."), shape=tuple(value.shape))
        for name, value in zip(names, values, strict=True)
    )


def why_not_run(bundle: Bundle, node: NodeTrace, error: Exception) -> str:
    """The error of an engine, or an explanation with a remedy: a size depends on values, or ONNX Runtime lacks an operator."""
    sizes = set[int]() if node.tape is None else node.tape.dynamic
    sized = next((c for c in node.program.calls if not sizes.isdisjoint(c.outs)), None) if node.program is not None else None
    if sized is not None and _SIZED.search(str(error)):
        return (
            f"the size of a tensor depends on values, first at {spelled_call(sized)}, where this backend needs a fixed one. "
            "Use torch.where() and a fixed size, or another backend."
        )
    lacking = _LACKING.search(str(error))
    if lacking is None or bundle.contract.nodes[node.name].model.backend != "onnx":
        return str(error)
    kind, at = lacking.groups()
    dtypes = _types_at(bundle, node.name, at)
    return (
        f"ONNX Runtime has no {kind} for {' and '.join(dtypes) or 'these types'} on this processor{_first_of(node, dtypes)}. "
        "Export the node with export_with='jit' or 'pt2', or compute in float32 inside it."
    )


def _first_of(node: NodeTrace, dtypes: list[str]) -> str:
    """The first call that makes a value of one of some types, as part of a sentence; empty if there is none."""
    found: list[Call] = []

    def run(_: int, call: Call, args: Any, kwargs: Any) -> Any:
        result = call.func(*args, **kwargs)
        if not found and any(str(t.dtype).removeprefix("torch.") in dtypes for t in results(call, result)):
            found.append(call)
        return result

    if node.replay is not None:
        with torch.no_grad():
            node.replay.run([node.samples[0].inputs[name].clone() for name in node.inputs], run)
    return f" (such values are first made by {spelled_call(found[0])})" if found else ""


def _types_at(bundle: Bundle, name: str, at: str) -> list[str]:
    import onnx

    model = onnx.shape_inference.infer_shapes(onnx.load(str(model_file(bundle, name))))
    graph = model.graph
    types = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.output, *graph.value_info)}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    found = {types.get(value, 0) for node in graph.node if node.name == at for value in node.input}
    return sorted(onnx.TensorProto.DataType.Name(code).lower() for code in found if code)
