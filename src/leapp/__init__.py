"""LEAPP: Lightweight Export Annotations for Policy Pipelines.

Importing this package loads neither torch nor onnx nor an engine; each name loads what it needs at first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from leapp.annotations import annotate

if TYPE_CHECKING:
    from leapp.runtime.inference_manager import InferenceManager
    from leapp.runtime.pipeline import Pipeline
    from leapp.semantics import GraphConfigs, InputKindEnum, OutputKindEnum, TemporalAxis, TensorSemantics
    from leapp.tracing.lifecycle import ExportManager, compile_graph, report, session, start, stop
    from leapp.tracing.patches import FunctionPatch

__version__ = "1.0.0.dev0"
__config_version__ = "1.3"

__all__ = [
    "ExportManager",
    "FunctionPatch",
    "GraphConfigs",
    "InferenceManager",
    "InputKindEnum",
    "OutputKindEnum",
    "Pipeline",
    "TemporalAxis",
    "TensorSemantics",
    "__version__",
    "annotate",
    "compile_graph",
    "report",
    "session",
    "start",
    "stop",
]

_HOMES = {
    "ExportManager": "leapp.tracing.lifecycle",
    "FunctionPatch": "leapp.tracing.patches",
    "GraphConfigs": "leapp.semantics",
    "InferenceManager": "leapp.runtime.inference_manager",
    "InputKindEnum": "leapp.semantics",
    "OutputKindEnum": "leapp.semantics",
    "Pipeline": "leapp.runtime.pipeline",
    "TemporalAxis": "leapp.semantics",
    "TensorSemantics": "leapp.semantics",
    "compile_graph": "leapp.tracing.lifecycle",
    "report": "leapp.tracing.lifecycle",
    "session": "leapp.tracing.lifecycle",
    "start": "leapp.tracing.lifecycle",
    "stop": "leapp.tracing.lifecycle",
}


def _hint(name: str) -> str:
    """A hint at the module that has a name which this package lacks."""
    if name.startswith("_"):
        return ""
    from leapp.errors import __all__ as errors
    from leapp.graph.suggest import close

    return f" It is leapp.errors.{name}." if name in errors else close(name, [*_HOMES, "annotate"])


if not TYPE_CHECKING:  # a type checker would accept every name of a module with __getattr__

    def __getattr__(name: str) -> Any:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'leapp' has no attribute '{name}'.{_hint(name)}")
        try:
            value = getattr(import_module(home), name)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            from leapp.errors import MissingDependencyError

            raise MissingDependencyError(
                f"leapp.{name} needs torch: install the build you train with, or pip install torch. On a robot, leapp.runtime "
                "runs ONNX bundles without it."
            ) from error
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
