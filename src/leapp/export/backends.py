"""The backends: one record each, with its names, its parameters and the function that writes a file.

Annotations check their arguments here while the user's code runs, so this module must not import torch or onnx.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from leapp.errors import ExportError
from leapp.export.job import ExportJob, ExportResult
from leapp.graph.formats import FORMATS, Format
from leapp.graph.suggest import close, nearest

Params = Mapping[str, tuple[type, ...]]
Writer = Callable[[ExportJob, Path], ExportResult]

_TRACE_PARAMS: Params = {"check_trace": (bool,), "check_tolerance": (float, int), "strict": (bool,)}
_ONNX_PARAMS: Params = {"opset_version": (int,), "report": (bool,), "skip_validation": (bool,)}
_BROUGHT_PARAMS: Params = {"model_path": (object,), "copy_original_model": (bool,), "device": (object,)}
"""The keys of ``backend_params`` for a node whose model the user brings."""


@dataclass(frozen=True, slots=True)
class Backend:
    """One backend.

    Attributes:
        name: Its name.
        format: The format of its files.
        writer: The function that writes a node, as ``module:function`` of ``leapp.export``.
        params: The keys of ``backend_params`` it takes, and their types.
        aliases: Other values of ``export_with`` that mean it.
    """

    name: str
    format: Format
    writer: str
    params: Params
    aliases: tuple[str, ...] = ()

    def load(self) -> Writer:
        """Import the exporter and return the function that writes a node."""
        module, _, function = self.writer.partition(":")
        found: Writer = getattr(import_module(f"leapp.export.{module}"), function)
        return found


BACKENDS = {
    backend.name: backend
    for backend in (
        Backend("jit", FORMATS["jit"], "torchscript:export_torchscript", _TRACE_PARAMS, ("jit-script",)),
        Backend("jit-trace", FORMATS["jit"], "torchscript:export_torchscript", _TRACE_PARAMS),
        Backend(
            "onnx", FORMATS["onnx"], "onnx:export_onnx", {**_ONNX_PARAMS, "verify": (bool,), "optimize": (bool,)},
            ("onnx-dynamo",),
        ),
        # prescript has no effect: it prepared TorchScript for the exporter of earlier releases.
        Backend("onnx-torchscript", FORMATS["onnx"], "onnx:export_onnx", {**_ONNX_PARAMS, "prescript": (bool,)}),
        Backend("pt2", FORMATS["pt2"], "pt2:export_pt2", {"strict": (bool,)}, ("exported-program",)),
    )
}  # fmt: skip

_CANONICAL = {name: backend.name for backend in BACKENDS.values() for name in (backend.name, *backend.aliases)}


def is_onnx(backend: str | None) -> bool:
    """Whether the canonical ``backend`` writes ONNX."""
    return backend in BACKENDS and BACKENDS[backend].format is FORMATS["onnx"]


def resolve_backend(export_with: str | None) -> str | None:
    """The canonical name of the backend ``export_with``, or ``None`` for a node without an export.

    Raises:
        ExportError: The name is unknown, or the backend is not implemented.
    """
    if export_with is None:
        return None
    if isinstance(export_with, str) and export_with in _CANONICAL:
        return _CANONICAL[export_with]
    if export_with in ("cpp", "py"):
        raise ExportError(f"export_with={export_with!r} is not implemented; use {_listed(_CANONICAL)}.")
    hint = close(str(export_with), _CANONICAL)
    choices = f"Choose one of {_listed(_CANONICAL)}; None writes no model."
    raise ExportError(f"export_with={export_with!r} names no backend.{hint} {choices}")


def check_params(backend: str | None, params: Mapping[str, Any] | None) -> None:
    """Refuse ``backend_params`` that the canonical ``backend`` does not take.

    Raises:
        ExportError: A key is unknown or its value has the wrong type.
    """
    known = _BROUGHT_PARAMS if backend is None else BACKENDS[backend].params
    whose = f"backend {backend!r}" if backend else "export_with=None"
    for key, value in (params or {}).items():
        if key not in known:
            raise ExportError(f"backend_params key {key!r} is unknown to {whose}.{nearest(str(key), known)}")
        wanted = known[key]
        if value is None or (isinstance(value, wanted) and not (isinstance(value, bool) and bool not in wanted)):
            continue
        if object not in wanted:
            names = " or ".join(kind.__name__ for kind in wanted)
            raise ExportError(f"backend_params[{key!r}] of {whose} must be {names}, not {value!r}.")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
