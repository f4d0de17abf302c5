"""``leapp trust``: record that the programs in a bundle may run on this machine."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from leapp.bundle import load_contract
from leapp.bundle.trust import record, remember
from leapp.cli.arguments import add_bundle
from leapp.cli.output import Answer, Text
from leapp.errors import StorageError
from leapp.graph.formats import is_program


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of ``leapp trust``."""
    add_bundle(parser)


def command(arguments: Namespace) -> Answer:
    """Record that the user trusts the programs in a bundle."""
    contract = load_contract(arguments.bundle)
    found = {name: node.model.sha256sum for name, node in contract.nodes.items() if is_program(node.model.backend)}
    if not remember(contract):
        raise StorageError(
            f"The trust in this bundle cannot be recorded in {record()}: you must own the file and its directory, and no "
            "other user may be able to write to them. Pass --allow-code instead."
        )
    words = f"{', '.join(found)} may run on this machine" if found else "The bundle has no programs; ONNX models need no trust"
    return Answer({"trusted": found}, [Text(f"{words}.")])
