"""``leapp sbom``: writes the CycloneDX bill of materials of a bundle."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from leapp.bundle.sbom import bom_text
from leapp.cli.arguments import add_opened_bundle
from leapp.cli.opening import open_for
from leapp.cli.output import Answer, Text


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of ``leapp sbom``."""
    add_opened_bundle(parser)
    parser.add_argument("-o", "--output", metavar="FILE.json", help="write to this file (default: standard output)")
    parser.add_argument("--licence", "--license", metavar="SPDX", help="the licence of the bundle, such as Apache-2.0")


def command(arguments: Namespace) -> Answer:
    """The bill of materials of a bundle. It is JSON with or without ``--json``."""
    text = bom_text(open_for(arguments), licence=arguments.licence)
    if arguments.output is None:
        return Answer(json.loads(text), [Text(text.removesuffix("\n"))])
    Path(arguments.output).write_text(text, encoding="utf-8", newline="\n")
    return Answer({"output": arguments.output}, [Text(f"wrote {arguments.output}")])
