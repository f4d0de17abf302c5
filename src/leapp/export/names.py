"""Which exporters exist, what they are called and which parameters they take.

Checked while the user's annotation runs, so it must not import torch or onnx.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from leapp.errors import ExportError
from leapp.graph.words import nearest

__all__ = ["FAMILY", "PARAMS", "check_params", "resolve_backend"]

_CANONICAL = {
    "jit": "jit",
    "jit-script": "jit",
    "jit-trace": "jit-trace",
    "onnx": "onnx",
    "onnx-dynamo": "onnx",
    "onnx-torchscript": "onnx-torchscript",
    "pt2": "pt2",
    "exported-program": "pt2",
}

FAMILY = {"jit": "jit", "jit-trace": "jit", "onnx": "onnx", "onnx-torchscript": "onnx", "pt2": "pt2"}
"""Canonical exporter name to the runtime family written in the YAML."""

_TRACE_PARAMS: dict[str, tuple[type, ...]] = {
    "check_trace": (bool,),
    "check_tolerance": (float, int),
    "strict": (bool,),
}
_ONNX_PARAMS: dict[str, tuple[type, ...]] = {
    "opset_version": (int,),
    "report": (bool,),
    "skip_validation": (bool,),
}
PARAMS: dict[str | None, dict[str, tuple[type, ...]]] = {
    "jit": _TRACE_PARAMS,
    "jit-trace": _TRACE_PARAMS,
    "onnx": {**_ONNX_PARAMS, "verify": (bool,), "optimize": (bool,)},
    "onnx-torchscript": {**_ONNX_PARAMS, "prescript": (bool,)},
    "pt2": {"strict": (bool,)},
    None: {"model_path": (object,), "copy_original_model": (bool,), "device": (object,)},
}
"""Canonical exporter name to the keys of ``backend_params`` and their types.

``prescript`` is taken for compatibility: the trace it used to prepare is no longer made with TorchScript.
"""


def resolve_backend(export_with: str | None) -> str | None:
    """The canonical exporter name of ``export_with``, or ``None`` for a node without an export.

    Raises:
        ExportError: The name is unknown, or the exporter does not exist yet.
    """
    if export_with is None:
        return None
    if isinstance(export_with, str) and export_with in _CANONICAL:
        return _CANONICAL[export_with]
    if export_with in ("cpp", "py"):
        raise ExportError(f"export_with={export_with!r} is not implemented; use {_listed(_CANONICAL)}.")
    raise ExportError(f"export_with={export_with!r} names no backend.{nearest(str(export_with), [*_CANONICAL, 'None'])}")


def check_params(backend: str | None, params: Mapping[str, Any] | None) -> None:
    """Refuse ``backend_params`` that the canonical ``backend`` does not take.

    Raises:
        ExportError: A key is unknown or its value has the wrong type.
    """
    known = PARAMS[backend]
    spoken = f"backend {backend!r}" if backend else "export_with=None"
    for key, value in (params or {}).items():
        if key not in known:
            raise ExportError(f"backend_params key {key!r} is unknown to {spoken}.{nearest(str(key), known)}")
        wanted = known[key]
        if value is None or (isinstance(value, wanted) and not (isinstance(value, bool) and bool not in wanted)):
            continue
        if object not in wanted:
            names = " or ".join(kind.__name__ for kind in wanted)
            raise ExportError(f"backend_params[{key!r}] of {spoken} must be {names}, not {value!r}.")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
