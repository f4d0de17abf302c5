"""``leapp fuse``: the whole pipeline as one ONNX model."""

from __future__ import annotations

from argparse import Namespace

from leapp.bundle.fuse import fuse as write_fused
from leapp.cli.consent import open_for
from leapp.cli.output import Answer, Text, progress

__all__ = ["fuse"]


def fuse(arguments: Namespace) -> Answer:
    """Write the pipeline of a bundle as one ONNX model."""
    bundle = open_for(arguments)
    with progress("fusing"):
        path = write_fused(bundle, arguments.output)
    return Answer({"graph": bundle.graph, "output": str(path)}, [Text(f"wrote {path}")])
