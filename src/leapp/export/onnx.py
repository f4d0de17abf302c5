"""Writes a node as ONNX: an ATen graph, translated operator by operator.

Most nodes need only operators that :mod:`leapp.export.operators` translates, and are written from the list of their calls. The
others are written with torch's own ONNX library, by :mod:`leapp.export.library`. ``onnx`` and ``onnx-torchscript`` are both
written here: torch's TorchScript-based exporter gives other values than eager for floor division, writes through views and
more, and its gain, whole ``GRU`` and ``LSTM`` operators, is kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import torch

from leapp.errors import ExportError
from leapp.export.job import ExportJob, ExportResult, tell_loading
from leapp.export.listing import NotPlainError, Taker, UnknownOperatorError, follow
from leapp.export.onnxfile import Draft, draft_of, write_model
from leapp.export.onnxgraph import ONNX_TYPES, Sheet, UnknownSizeError, Value
from leapp.export.operators import DECOMPOSITIONS, TRANSLATIONS, whole_composites
from leapp.export.veils import Veils

DEFAULT_OPSET = 20

_OWN_OPSETS = range(18, 21)
"""The opsets between which the operators that we write keep their meaning."""


def export_onnx(job: ExportJob, directory: Path) -> ExportResult:
    """Write ``<node>.onnx`` with the port names as input and output names."""
    path = directory / f"{job.node}.onnx"
    opset = job.params.get("opset_version") or DEFAULT_OPSET
    try:
        draft = _draft(job, opset)
    except (NotPlainError, UnknownOperatorError) as reason:
        tell_loading(job.node, f"for {reason}", __package__ + ".library")
        from leapp.export.library import draft_with_library

        draft = draft_with_library(job, opset)
    if job.params.get("report"):
        text = f"{job.node}, ONNX opset {opset}\n\n{onnx.printer.to_text(draft.proto)}\n"
        (directory / f"{job.node}_report.txt").write_text(text, encoding="utf-8")
    write_model(draft, path, check=not job.params.get("skip_validation"))
    if job.params.get("verify"):
        _verify(job, path)
    return ExportResult(path=path, backend="onnx", extra={"opset_version": opset})


def _draft(job: ExportJob, opset: int) -> Draft:
    """The model, if every operator of the node is one that we translate."""
    if opset not in _OWN_OPSETS:
        raise UnknownOperatorError(f"opset {opset}")
    if any(axis is not None for axis in job.batch_axes):
        raise NotPlainError("a batch of any size")
    pen = _Pen()
    try:
        outputs = follow(job.module, job.example, DECOMPOSITIONS, whole_composites(), pen, Veils(), TRANSLATIONS)
    except UnknownSizeError as error:
        raise UnknownOperatorError(str(error)) from error
    inputs = list(zip(job.input_names, pen.inputs, strict=True))
    return draft_of(pen.sheet, inputs, list(zip(job.output_names, outputs, strict=True)), opset)


class _Pen(Taker):
    """Writes each operator as ONNX when it has run."""

    def __init__(self) -> None:
        self.sheet = Sheet()
        self.inputs: list[Value] = []

    def input(self, position: int, tensor: torch.Tensor) -> Any:
        """An input of the node."""
        self.inputs.append(Value(_known_type(tensor), tuple(tensor.shape)))
        return self.inputs[-1]

    def weight(self, name: str, tensor: torch.Tensor, shown: torch.Tensor) -> Any:
        """A tensor of the user's model."""
        _known_type(tensor)
        return self.sheet.weight(tensor, name)

    def constant(self, tensor: torch.Tensor) -> Any:
        """Any other tensor."""
        return self.weight("constant", tensor, tensor)

    def call(self, func: Any, args: list[Any], named: dict[str, Any], out: Any) -> Any:
        """An operator that ran and returned ``out``."""
        result = TRANSLATIONS[func](self.sheet, *args, **named)
        if result is NotImplemented:
            raise UnknownOperatorError(str(func))
        if isinstance(out, torch.Tensor):
            return self._formed(result, out)
        return [self._formed(value, like) for value, like in zip(result, out, strict=True)]

    def _formed(self, value: Value, like: torch.Tensor) -> Value:
        """A result with the type and sizes that eager gives it."""
        value, shape = self.sheet.cast(value, _known_type(like)), tuple(like.shape)
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
