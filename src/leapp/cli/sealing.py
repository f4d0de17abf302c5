"""``leapp seal``: a new seal after an edit by hand."""

from __future__ import annotations

from argparse import Namespace

from leapp.bundle import open_bundle, seal_again
from leapp.cli.output import Answer, Text

__all__ = ["seal"]


def seal(arguments: Namespace) -> Answer:
    """Seal a bundle anew."""
    path, digest = seal_again(arguments.bundle)
    open_bundle(path, expect_digest=digest)
    return Answer({"path": str(path), "digest": digest}, [Text(f"sealed {path}, digest {digest}")])
