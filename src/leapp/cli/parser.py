"""The verbs of the command line, and the parser. A verb's module is imported only when its arguments are needed."""

from __future__ import annotations

import argparse
import re
from collections.abc import Collection, Sequence
from importlib import import_module
from typing import Any, NoReturn

from leapp.graph.suggest import close

VERBS = {
    "inspect": "show what to feed a bundle, what it returns and what it lacks",
    "verify": "check every file and replay the recorded samples on this machine",
    "run": "run a bundle and show its outputs",
    "bench": "time the steps of a bundle",
    "replay": "give recordings to a bundle and compare what it returns",
    "view": "write the page of a bundle and open it",
    "diff": "show what changed between two bundles",
    "seal": "seal a bundle again after an edit by hand",
    "sign": "sign a bundle with a private key",
    "sbom": "list what a bundle is made of, as a CycloneDX bill of materials",
    "trust": "allow the TorchScript and .pt2 models of a bundle to run on this machine",
    "fuse": "write the whole pipeline as one ONNX model",
    "deploy": "write a bundle for an inference server, or for C++",
    "serve": "serve a bundle to many clients, on Ray Serve",
    "check": "check whether a target can take a bundle",
    "schema": "print the JSON Schema of a bundle's description",
    "doctor": "list versions, engines and known problems of this machine",
    "completion": "print a shell's completion script",
}
"""Each verb with its line of help.

The module ``leapp.cli.<verb>`` has ``command(arguments)`` and, if the verb takes arguments, ``add_arguments(parser)``.
"""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The parsed arguments. Raises ``SystemExit`` on ``--help``, ``--version`` and wrong usage."""
    return build(argv).parse_args(argv)


def build(verbs: Collection[str]) -> argparse.ArgumentParser:
    """The parser. It knows the name and help of every verb, and the arguments of the given ones."""
    parser = _Parser(
        prog="leapp",
        description="Look at exported policy pipelines, verify them, run them.",
        epilog="BUNDLE is the directory of a bundle or its .yaml file. Exit codes: 0 ok, 1 check failed, 2 error.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for verb, text in VERBS.items():
        one = commands.add_parser(verb, help=text, description=text[0].upper() + text[1:] + ".")
        if verb in verbs:
            module = import_module(f"leapp.cli.{verb}")
            getattr(module, "add_arguments", lambda _: None)(one)
            one.set_defaults(command=module.command)
            one.add_argument("--json", action="store_true", help="answer as JSON")
            one.add_argument("--traceback", action="store_true", help=argparse.SUPPRESS)
    return parser


class _Parser(argparse.ArgumentParser):
    """Reports wrong usage on one line, like every other error."""

    def error(self, message: str) -> NoReturn:
        """Exit with the message. A word that is not one of the choices gets the nearest one as a suggestion."""
        wrong = re.match(r"argument .*?: invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if wrong is not None:
            message += close(wrong[1], [choice.strip(" '") for choice in wrong[2].split(",")], 0.6)
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


class _Version(argparse.Action):
    """Prints the version, which is imported only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from leapp.bundle.system import leapp_version

        print(f"leapp {leapp_version()}")
        parser.exit()
