"""Whose bundle it is: what a command opens, and whether it may run the programs in it."""

from __future__ import annotations

from argparse import Namespace

from leapp.bundle import Bundle, load_contract, open_bundle
from leapp.bundle.trust import record, remember, require_trust
from leapp.cli.output import Answer, Text
from leapp.errors import StorageError
from leapp.graph.formats import is_program

__all__ = ["consent", "open_for", "trust"]


def open_for(arguments: Namespace, path: str | None = None) -> Bundle:
    """The bundle of a command, as the options ``--allow-outside``, ``--digest`` and ``--trust`` want it."""
    return open_bundle(
        arguments.bundle if path is None else path,
        allow_outside=arguments.allow_outside,
        expect_digest=getattr(arguments, "digest", None),
        trust=arguments.trust,
    )


def consent(arguments: Namespace, *bundles: Bundle) -> bool | None:
    """What to pass as ``allow_code`` for the options ``--allow-code`` and ``--no-code``.

    Raises:
        BundleError: A bundle holds programs of somebody who is not trusted, or ``--no-code`` refuses them.
    """
    allow_code = False if arguments.no_code else True if arguments.allow_code else None
    for bundle in bundles:
        require_trust(bundle, allow_code)
    return allow_code


def trust(arguments: Namespace) -> Answer:
    """Note that the user trusts the programs in a bundle."""
    contract = load_contract(arguments.bundle)
    found = {name: node.model.sha256sum for name, node in contract.nodes.items() if is_program(node.model.backend)}
    if not remember(contract):
        raise StorageError(
            f"The note that you trust this bundle cannot be kept in {record()}: the file and its directory must be yours, and "
            "no other user may write to them. Pass --allow-code instead."
        )
    words = f"{', '.join(found)} may run on this machine" if found else "The bundle has no programs; ONNX models need no trust"
    return Answer({"trusted": found}, [Text(f"{words}.")])
