"""Turns one node into a model file: TorchScript, ONNX or an ExportedProgram.

A backend sees a module, example inputs and port names. It knows nothing of sessions, pipelines or YAML. torch and onnx
are imported when a node is written, not when this package is.
"""

from __future__ import annotations

from pathlib import Path

from leapp.export.backends import BACKENDS, check_params, is_onnx, resolve_backend
from leapp.export.job import ExportJob, ExportResult
from leapp.export.shared_setup import end_sharing, series

__all__ = ["ExportJob", "ExportResult", "check_params", "export_node", "is_onnx", "resolve_backend", "series"]


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
        # Exporters warn about their own workings: deprecations of what they call, modules they did not find.
        warnings.simplefilter("ignore")
        require_dense(job)
        return _write(job, directory)


def _write(job: ExportJob, directory: Path) -> ExportResult:
    backend = resolve_backend(job.backend)
    assert backend is not None
    if not is_onnx(backend):
        end_sharing()
    return BACKENDS[backend].load()(job, directory)
