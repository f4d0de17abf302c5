"""Traces one function over arrays and replays what was recorded on other inputs, without writing a bundle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import leapp
from leapp.annotations import annotate

__all__ = ["Trace", "trace"]


@dataclass
class Trace:
    """What a traced run left behind."""

    results: list[Any]
    escapes: list[str]
    replay: torch.nn.Module

    def run(self, *inputs: Any) -> list[np.ndarray]:
        """The recorded calls on other inputs."""
        with torch.no_grad():
            return [t.numpy() for t in self.replay(*(torch.from_numpy(np.array(i)) for i in inputs))]


def trace(function: Callable[..., Any], inputs: Sequence[np.ndarray], where: Path, **start: Any) -> Trace:
    """Run ``function`` as a node named ``n``."""
    leapp.start("graph", save_path=where, **start)
    try:
        declared = {f"i{k}": value for k, value in enumerate(inputs)}
        values = annotate.input_tensors("n", declared)
        result = function(*values) if len(inputs) > 1 else function(values)
        results = list(result) if isinstance(result, (tuple, list)) else [result]
        annotate.output_tensors("n", {f"o{k}": r for k, r in enumerate(results)}, export_with="jit")
        node = leapp.ExportManager().session.nodes["n"]
        escapes = [e.kind for e in node.tape.escapes]
        plain = [np.array(r) if isinstance(r, np.ndarray) else r for r in results]
        return Trace(plain, escapes, node.replay)
    finally:
        leapp.stop()
