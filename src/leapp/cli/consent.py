"""Whether a command may run the programs in a bundle."""

from __future__ import annotations

from argparse import Namespace

from leapp.bundle import Bundle
from leapp.bundle.trust import require_trust

__all__ = ["consent"]


def consent(arguments: Namespace, *bundles: Bundle) -> bool | None:
    """What to pass as ``allow_code`` for the options ``--allow-code`` and ``--no-code``.

    Raises:
        BundleError: A bundle holds programs of somebody else, and neither option was given.
    """
    if arguments.no_code:
        return False
    for bundle in bundles:
        require_trust(bundle.contract, arguments.allow_code)
    return True if arguments.allow_code else None
