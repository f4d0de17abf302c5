"""The formats of model files: one record each. ``leapp.export.backends`` says which exporter writes a format."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

EXTERNAL_DATA = ".data"
"""The suffix of the file with the large weights of an ONNX file, after the name of that file."""


@dataclass(frozen=True, slots=True)
class Format:
    """How the model of a node is stored, and what runs it.

    Attributes:
        name: The ``backend`` in a bundle's YAML.
        title: What messages call it.
        suffixes: How its files end; the first is the one that leapp writes.
        engine: The package that runs it; None for a format that leapp describes but does not run.
        is_program: Whether opening such a file can run code that came with it.
    """

    name: str
    title: str
    suffixes: tuple[str, ...]
    engine: str | None = None
    is_program: bool = False


FORMATS = {
    format.name: format
    for format in (
        Format("onnx", "ONNX", (".onnx",), engine="onnxruntime"),
        Format("jit", "TorchScript", (".pt",), engine="torch", is_program=True),
        Format("pt2", ".pt2", (".pt2",), engine="torch", is_program=True),
        Format("cpp", "C++", (".cpp", ".cc")),
        Format("py", "Python", (".py",)),
        Format("trt", "TensorRT", (".engine", ".plan")),
    )
}

RUNNABLE = tuple(format.name for format in FORMATS.values() if format.engine is not None)
"""The formats that the runtime runs."""


def format_of(path: Path) -> Format | None:
    """The format of a model file by its suffix."""
    return next((format for format in FORMATS.values() if path.suffix in format.suffixes), None)


def is_program(backend: str | None) -> bool:
    """Whether opening a model of this ``backend`` can run code that came with it."""
    return backend in FORMATS and FORMATS[backend].is_program
