"""``leapp check``: whether a target can take a bundle."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from leapp.bundle import open_bundle
from leapp.cli.arguments import add_bundle
from leapp.cli.output import Answer, Cell, Table, Text
from leapp.deploy.targets import TARGETS, check_target


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of ``leapp check``."""
    add_bundle(parser)
    parser.add_argument("--target", "--profile", required=True, choices=tuple(TARGETS), help="the program that will run it")


def command(arguments: Namespace) -> Answer:
    """Whether a target can take a bundle."""
    bundle = open_bundle(arguments.bundle, allow_outside=True)
    findings = check_target(bundle, arguments.target)
    errors = sum(finding.level == "error" for finding in findings)
    data = {
        "graph": bundle.graph,
        "target": arguments.target,
        "ok": not errors,
        "findings": [{"level": f.level, "where": f.where, "text": f.text} for f in findings],
    }
    style = {"error": "red", "warning": "yellow"}
    rows: list[list[Cell]] = [[(f.level, style[f.level]), (f.where, "bold"), f.text] for f in findings]
    verdict = "can take this bundle." if not errors else f"cannot take this bundle: {errors} error{'s' * (errors > 1)}."
    parts: list[Table | Text] = [
        Text(TARGETS[arguments.target].about),
        Table("Findings", ("level", "where", "what"), rows),
        Text(f"{arguments.target} {verdict}", "red" if errors else "green"),
    ]
    return Answer(data, parts, 1 if errors else 0)
