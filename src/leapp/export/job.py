"""What a backend gets for one node, and what it returns."""

from __future__ import annotations

import logging
import sys
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

RUNNING: ContextVar[Any] = ContextVar("RUNNING", default=None)
"""The recorded call that is being traced, set while a failed export is repeated to find the call that fails."""

_SHOWN = logging.WARNING + 1
"""The log level of messages that the console shows and that are not warnings."""


def tell_loading(node: str, why: str, module: str) -> None:
    """Log that an exporter is being loaded, unless ``module``, which is slow to import, is imported already."""
    if module not in sys.modules:
        logging.getLogger("leapp").log(_SHOWN, "%s: loading the exporter (once) %s", node, why)


@dataclass(slots=True)
class ExportJob:
    """A node ready to be written.

    ``module.forward`` takes the inputs positionally in the order of ``input_names`` and returns a tuple in the order of
    ``output_names``. It may run in-place ops on its own intermediate values, never on its inputs. Parameters and buffers
    of ``module`` carry the names they should have in the file.
    """

    node: str
    module: torch.nn.Module
    example: tuple[torch.Tensor, ...]
    input_names: list[str]
    output_names: list[str]
    backend: str
    params: dict[str, Any] = field(default_factory=dict)
    batch_axes: tuple[int | None, ...] = ()
    """For each input the axis that takes any size, the same in all of them. Empty for a node of fixed sizes."""


@dataclass(slots=True)
class ExportResult:
    """The file a backend wrote, with what the YAML says about it."""

    path: Path
    backend: str
    """``jit``, ``onnx`` or ``pt2``: the runtime family, not the exporter variant."""
    extra: dict[str, Any] = field(default_factory=dict)
    dropped_inputs: list[str] = field(default_factory=list)
    """Inputs the exporter removed because nothing depends on them."""
