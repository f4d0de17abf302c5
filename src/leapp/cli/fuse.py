"""``leapp fuse``: the whole pipeline as one ONNX model."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from leapp.cli.arguments import add_opened_bundle
from leapp.cli.opening import open_for
from leapp.cli.output import Answer, Text, progress
from leapp.deploy.fuse import fuse_onnx


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of ``leapp fuse``."""
    add_opened_bundle(parser)
    parser.add_argument("-o", "--output", required=True, metavar="FILE.onnx", help="the file to write")


def command(arguments: Namespace) -> Answer:
    """Write the pipeline of a bundle as one ONNX model."""
    bundle = open_for(arguments)
    with progress("fusing"):
        path = fuse_onnx(bundle, arguments.output)
    return Answer({"graph": bundle.graph, "output": str(path)}, [Text(f"wrote {path}")])
