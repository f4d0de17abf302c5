"""Translates a traced node for exporters and files: port names, export job, samples."""

from __future__ import annotations

from dataclasses import dataclass

from leapp.bundle import RawTensor
from leapp.bundle import Sample as RawSample
from leapp.capture.devices import on_cpu
from leapp.deploy.targets import TargetRules
from leapp.errors import AnnotationError
from leapp.export import ExportJob, is_onnx
from leapp.tracing.node import NodeTrace, Sample


@dataclass(slots=True)
class FileNames:
    """The names of a node's ports in files. ONNX keeps inputs and outputs in one name space."""

    inputs: dict[str, str]
    outputs: dict[str, str]


def file_names(node: NodeTrace) -> FileNames:
    """The names of a node's ports in its file."""
    inputs, outputs = {n: n for n in node.inputs}, {n: n for n in node.outputs}
    if is_onnx(node.backend):
        for name in [n for n in inputs if n in outputs]:
            renamed = (f"{name}_in", f"{name}_out")
            for new in renamed:
                if new in inputs.values() or new in outputs.values():
                    raise AnnotationError(
                        f"node '{node.name}': '{name}' is an input and an output, so ONNX needs the names "
                        f"'{renamed[0]}' and '{renamed[1]}', but '{new}' is taken. Rename a port."
                    )
            inputs[name], outputs[name] = renamed
    return FileNames(inputs, outputs)


def export_job(node: NodeTrace, names: FileNames, target: TargetRules | None = None) -> ExportJob:
    """The export of a node as it was recorded."""
    assert node.replay is not None
    assert node.backend is not None
    params = dict(node.backend_params)
    if target is not None and is_onnx(node.backend):
        params.setdefault("opset_version", target.opset)
    example = tuple(node.samples[0].inputs[n] for n in node.inputs)
    return ExportJob(
        node=node.name,
        module=on_cpu(node.replay, example),
        example=tuple(t.cpu() for t in example),
        input_names=[names.inputs[n] for n in node.inputs],
        output_names=[names.outputs[n] for n in node.outputs],
        backend=node.backend,
        params=params,
        batch_axes=tuple(p.axis for p in node.inputs.values()) if node.program is not None and node.program.batch else (),
    )


def in_step(nodes: list[NodeTrace]) -> dict[str, list[int]]:
    """For each node the numbers of those samples that form consecutive passes of the whole pipeline.

    They begin at the first pass in which every node ran, and end before the first pass of which a node has no sample.
    """
    if not nodes or not all(n.samples for n in nodes):
        return {n.name: [] for n in nodes}
    first = max(n.samples[0].passno for n in nodes)
    by_pass = [{s.passno: number for number, s in enumerate(n.samples)} for n in nodes]
    passes = 0
    while all(first + passes in numbers for numbers in by_pass):
        passes += 1
    return {n.name: [numbers[first + i] for i in range(passes)] for n, numbers in zip(nodes, by_pass, strict=True)}


def raw_samples(nodes: list[NodeTrace], names: dict[str, FileNames]) -> dict[str, list[RawSample]]:
    """The samples of every node, with the port names of its file."""
    return {n.name: [raw_sample(names[n.name], s) for s in n.samples] for n in nodes}


def raw_sample(names: FileNames, sample: Sample) -> RawSample:
    """One sample with the port names of the file."""
    return RawSample(
        {names.inputs[p]: RawTensor.of(t) for p, t in sample.inputs.items()},
        {names.outputs[p]: RawTensor.of(t) for p, t in sample.outputs.items()},
    )
