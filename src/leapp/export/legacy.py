"""Writes a node as ONNX with torch's TorchScript-based exporter.

That exporter works from recorded calls one by one. It is kept for engines and habits that expect its graphs, such as
``GRU`` and ``LSTM`` operators. What goes through :mod:`leapp.export.onnxfile` afterwards is the same as for ``onnx``.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import torch
from torch.nn.utils.stateless import _reparametrize_module

from .job import ExportJob, ExportResult
from .onnxfile import name_values, strip_metadata, write_model

__all__ = ["DEFAULT_OPSET", "export_onnx_torchscript"]

DEFAULT_OPSET = 20


def export_onnx_torchscript(job: ExportJob, directory: Path) -> ExportResult:
    """Write ``<node>.onnx`` with the port names as input and output names."""
    path = directory / f"{job.node}.onnx"
    opset = job.params.get("opset_version") or DEFAULT_OPSET
    proto = _exported(job, opset)
    model = ir.serde.deserialize_model(proto)
    _fill_weights(model, job.module)
    name_values(model, job.input_names, job.output_names)
    strip_metadata(model)
    write_model(model, path, check=not job.params.get("skip_validation"))
    return ExportResult(path=path, backend="onnx", extra={"opset_version": opset})
