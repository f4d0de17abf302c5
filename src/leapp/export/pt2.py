"""Writes a node as a ``torch.export`` program (``.pt2``)."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch

from leapp.export.job import ExportJob, ExportResult, tell_loading
from leapp.export.rewrites import RewrittenCalls
from leapp.export.torch_archives import save_archive

_TRACES = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node", "seq_nr")


def export_pt2(job: ExportJob, directory: Path) -> ExportResult:
    """Write ``<node>.pt2``: positional inputs in port order, one output per port."""
    path = directory / f"{job.node}.pt2"
    tell_loading(job.node, "for .pt2 files", "torch._dynamo")
    with torch.no_grad(), RewrittenCalls():
        program = torch.export.export(
            job.module, job.example, strict=bool(job.params.get("strict", False)), dynamic_shapes=_dynamic_shapes(job)
        )
    # Stack traces hold paths of this machine and differ from run to run.
    for module in program.graph_module.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            for key in _TRACES:
                node.meta.pop(key, None)
    program.example_inputs = None

    def as_bytes() -> bytes:
        buffer = io.BytesIO()
        torch.export.save(program, buffer)
        return buffer.getvalue()

    weights = [*program.state_dict.values(), *(v for v in program.constants.values() if isinstance(v, torch.Tensor))]
    save_archive(path, weights, as_bytes, lambda name: torch.export.save(program, name))
    return ExportResult(path=path, backend="pt2", extra={"torch_version": str(torch.__version__)})


def _dynamic_shapes(job: ExportJob) -> Any:
    """The axes that take any batch; ``None`` if all sizes are fixed."""
    if not job.batch_axes:
        return None
    batch = torch.export.Dim("batch", min=1)
    # ``forward`` takes its inputs as one variadic argument.
    return (tuple(None if axis is None else {axis: batch} for axis in job.batch_axes),)
