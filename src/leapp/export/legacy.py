"""Writes a node as ONNX with torch's TorchScript-based exporter."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch

from .job import ExportJob, ExportResult
from .onnxfile import name_values, strip_metadata, write_model

__all__ = ["export_onnx_torchscript"]

DEFAULT_OPSET = 20


def export_onnx_torchscript(job: ExportJob, directory: Path) -> ExportResult:
    """Write ``<node>.onnx`` with the port names as input and output names."""
    raise NotImplementedError
