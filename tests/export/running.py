"""Runs a written model file in a fresh engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import torch

from leapp.export import ExportJob, ExportResult, export_node

from .cases import Case

onnxruntime.set_default_logger_severity(4)


def job_of(case: Case, backend: str, **params: object) -> ExportJob:
    module, example = case.module(), case.inputs(0)
    with torch.no_grad():
        count = len(module(*example))
    return ExportJob("node", module, example, names("in", len(example)), names("out", count), backend, dict(params))


def names(kind: str, count: int) -> list[str]:
    return [f"{kind}{position}" for position in range(count)]


def write(case: Case, backend: str, directory: Path, **params: object) -> tuple[ExportJob, ExportResult]:
    job = job_of(case, backend, **params)
    return job, export_node(job, directory)


def run(result: ExportResult, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    if result.backend == "onnx":
        return run_onnx(result.path, inputs)
    if result.backend == "jit":
        out = torch.jit.load(str(result.path))(*inputs)
        return (out,) if isinstance(out, torch.Tensor) else tuple(out)
    return tuple(torch.export.load(str(result.path)).module()(*inputs))


def run_onnx(path: Path, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feeds = {port.name: _ort_value(tensor) for port, tensor in zip(session.get_inputs(), inputs, strict=True)}
    return tuple(torch.from_numpy(np.array(value.numpy())) for value in session.run_with_ort_values(None, feeds))


def _ort_value(tensor: torch.Tensor) -> onnxruntime.OrtValue:
    if tensor.dtype == torch.bfloat16:
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(tensor.view(torch.uint16).numpy(), 16)
    return onnxruntime.OrtValue.ortvalue_from_numpy(np.array(tensor.numpy()))


def assert_equal(got: torch.Tensor, want: torch.Tensor, rtol: float, atol: float) -> None:
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)
