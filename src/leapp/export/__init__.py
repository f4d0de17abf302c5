"""Writes one node as a model file: TorchScript, ONNX or an ExportedProgram.

A backend gets a module, example inputs and port names. It knows nothing of sessions, pipelines or YAML. torch and onnx
are imported when a node is written, not with this package.

| you look for | module |
|---|---|
| the backends, one record each | ``backends`` |
| what writes a file | ``onnx``, ``torchscript``, ``pt2`` |
| how an operator is written as ONNX | ``operators`` |
| how a node becomes a list of operators | ``op_tracer``, ``aten`` |
| calls that are traced as other calls | ``rewrites`` |
| what an error says | ``failures`` |
"""

from __future__ import annotations

from pathlib import Path

from leapp.export.backends import BACKENDS, check_params, is_onnx, resolve_backend
from leapp.export.job import ExportJob, ExportResult
from leapp.export.shared_setup import end_sharing, sharing_setup

__all__ = ["ExportJob", "ExportResult", "check_params", "export_node", "is_onnx", "resolve_backend", "sharing_setup"]


def export_node(job: ExportJob, directory: Path) -> ExportResult:
    """Write ``job`` into ``directory`` with the backend it names.

    Raises:
        ExportError: The backend cannot write the node. The message starts with the node's name; the original error is
            its ``__cause__``.
    """
    backend = resolve_backend(job.backend)
    check_params(backend, job.params)
    import warnings

    from leapp.export.failures import explained, require_dense

    with explained(job, backend, _write), warnings.catch_warnings():
        # Exporters warn about themselves: functions that are deprecated, modules that are not installed.
        warnings.simplefilter("ignore")
        require_dense(job)
        return _write(job, directory)


def _write(job: ExportJob, directory: Path) -> ExportResult:
    backend = resolve_backend(job.backend)
    assert backend is not None
    if not is_onnx(backend):
        end_sharing()
    return BACKENDS[backend].load()(job, directory)
