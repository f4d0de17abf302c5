"""``leapp seal``: a new seal after an edit by hand."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from leapp.bundle import open_bundle
from leapp.bundle.sealing import seal_again
from leapp.cli.arguments import add_bundle
from leapp.cli.output import Answer, Text


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of ``leapp seal``."""
    add_bundle(parser)


def command(arguments: Namespace) -> Answer:
    """Seal a bundle again."""
    path, digest = seal_again(arguments.bundle)
    open_bundle(path, expect_digest=digest)
    return Answer({"path": str(path), "digest": digest}, [Text(f"sealed {path}, digest {digest}")])
