"""Writes a node as ONNX, operator by operator.

If :mod:`leapp.export.operators` translates every operator of a node, each is written while the node is traced. Otherwise
:mod:`leapp.export.torchlib` writes the node with the help of onnxscript's torchlib. The backends ``onnx`` and
``onnx-torchscript`` both come here: torch's TorchScript-based exporter computes floor division and writes through views
differently from eager code. Like that exporter, this one keeps ``GRU`` and ``LSTM`` as single operators.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import torch

from leapp.errors import ExportError
from leapp.export.hidden_values import HiddenValues
from leapp.export.job import ExportJob, ExportResult, tell_loading
from leapp.export.onnx_file import OnnxModel, build_model, write_model
from leapp.export.onnx_graph import ONNX_TYPES, GraphWriter, UnknownSizeError, Value
from leapp.export.op_tracer import (
    GraphBuilder,
    NotPlainError,
    OperatorRules,
    OpTracer,
    UnknownOperatorError,
    WriteError,
    trace_ops,
)
from leapp.export.operators import DECOMPOSITIONS, TRANSLATIONS, whole_composites
from leapp.export.shared_setup import made_once

DEFAULT_OPSET = 20

_OWN_OPSETS = range(18, 21)
"""The opsets in which the operators that we write mean the same."""


def export_onnx(job: ExportJob, directory: Path) -> ExportResult:
    """Write ``<node>.onnx`` with the port names as input and output names."""
    path = directory / f"{job.node}.onnx"
    opset = job.params.get("opset_version") or DEFAULT_OPSET
    try:
        model = _build(job, opset)
    except (NotPlainError, UnknownOperatorError) as reason:
        tell_loading(job.node, f"for {reason}", __package__ + ".torchlib")
        from leapp.export.torchlib import build_with_torchlib

        model = build_with_torchlib(job, opset)
    if job.params.get("report"):
        text = f"{job.node}, ONNX opset {opset}\n\n{onnx.printer.to_text(model.proto)}\n"
        (directory / f"{job.node}_report.txt").write_text(text, encoding="utf-8")
    write_model(model, path, check=not job.params.get("skip_validation"))
    if job.params.get("verify"):
        _verify(job, path)
    return ExportResult(path=path, backend="onnx", extra={"opset_version": opset})


def _build(job: ExportJob, opset: int) -> OnnxModel:
    """The model of a node whose operators are all in our tables.

    Raises:
        NotPlainError, UnknownOperatorError: The node needs torchlib.
    """
    if opset not in _OWN_OPSETS:
        raise UnknownOperatorError(f"opset {opset}")
    if any(axis is not None for axis in job.batch_axes):
        raise NotPlainError("a batch of any size")
    try:
        builder, outputs = _trace(job, OpTracer)
    except WriteError:
        from leapp.export.write_tracer import WriteTracer

        builder, outputs = _trace(job, WriteTracer)
    inputs = list(zip(job.input_names, builder.inputs, strict=True))
    return build_model(builder.writer, inputs, list(zip(job.output_names, outputs, strict=True)), opset)


def _trace(job: ExportJob, tracer: type[OpTracer]) -> tuple[_OnnxBuilder, list[Value]]:
    builder = _OnnxBuilder()
    try:
        return builder, trace_ops(job.module, job.example, made_once(_rules), builder, HiddenValues(), tracer)
    except UnknownSizeError as error:
        raise UnknownOperatorError(str(error)) from error


def _rules() -> OperatorRules:
    return OperatorRules(DECOMPOSITIONS, whole_composites(), TRANSLATIONS)


class _OnnxBuilder(GraphBuilder):
    """Writes each operator as ONNX operators."""

    def __init__(self) -> None:
        self.writer = GraphWriter()
        self.inputs: list[Value] = []

    def input(self, position: int, tensor: torch.Tensor) -> Any:
        """Add an input of the node."""
        self.inputs.append(Value(_known_type(tensor), tuple(tensor.shape)))
        return self.inputs[-1]

    def weight(self, name: str, tensor: torch.Tensor, shown: torch.Tensor) -> Any:
        """Add a parameter or buffer of the node."""
        _known_type(tensor)
        return self.writer.weight(tensor, name)

    def constant(self, tensor: torch.Tensor) -> Any:
        """Add a constant that is not a parameter or buffer."""
        return self.weight("constant", tensor, tensor)

    def call(self, func: Any, args: list[Any], named: dict[str, Any], out: Any) -> Any:
        """Add an operator that returned ``out``."""
        result = TRANSLATIONS[func](self.writer, *args, **named)
        if result is NotImplemented:
            raise UnknownOperatorError(str(func))
        if isinstance(out, torch.Tensor):
            return self._as_eager(result, out)
        return [self._as_eager(value, like) for value, like in zip(result, out, strict=True)]

    def _as_eager(self, value: Value, like: torch.Tensor) -> Value:
        """``value`` with the type and sizes that eager code gives it."""
        value, shape = self.writer.cast(value, _known_type(like)), tuple(like.shape)
        assert value.shape in (None, shape), f"{value.shape} is not {shape}"
        value.shape = shape
        return value


def _known_type(tensor: torch.Tensor) -> torch.dtype:
    if tensor.dtype not in ONNX_TYPES:
        raise UnknownOperatorError(f"tensors of {tensor.dtype}")
    return tensor.dtype


def _verify(job: ExportJob, path: Path) -> None:
    import numpy as np
    import onnxruntime

    with torch.no_grad():
        expected = job.module(*job.example)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feeds = {name: tensor.detach().cpu().numpy() for name, tensor in zip(job.input_names, job.example, strict=True)}
    for name, got, want in zip(job.output_names, session.run(None, feeds), expected, strict=True):
        if not np.allclose(got, want.detach().cpu().numpy(), rtol=1e-3, atol=1e-5, equal_nan=True):
            raise ExportError(f"verify: output {name!r} of the written model differs from eager.")
