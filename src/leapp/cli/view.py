"""``leapp view``: the page of a bundle."""

from __future__ import annotations

import webbrowser
from argparse import ArgumentParser, Namespace

from leapp.bundle.trust import require_trust
from leapp.cli.arguments import add_code, add_opened_bundle
from leapp.cli.bundle_page import write_bundle_page
from leapp.cli.opening import open_for
from leapp.cli.output import Answer, Text


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of ``leapp view``."""
    add_opened_bundle(parser)
    parser.add_argument("--output", metavar="DIRECTORY", help="where to write it (default: a temporary directory)")
    parser.add_argument("--verify", action="store_true", help="replay the samples and show differences from the traced values")
    parser.add_argument("--recording", metavar="FILE", help="show this recorded run on the graph")
    add_code(parser)
    parser.add_argument("--no-open", action="store_true", help="write the page without opening it")


def command(arguments: Namespace) -> Answer:
    """Write the page of a bundle and open it."""
    bundle = open_for(arguments)
    if arguments.verify:
        require_trust(bundle, arguments.allow_code or None)
    # The page inside the bundle is never opened: it may come from an attacker, and a browser would run it.
    path = write_bundle_page(bundle, arguments.output, arguments.recording, measured=arguments.verify)
    opened = not arguments.no_open and webbrowser.open(path.resolve().as_uri())
    return Answer({"page": str(path), "opened": opened}, [Text(str(path))])
