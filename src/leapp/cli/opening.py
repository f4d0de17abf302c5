"""Opens the bundle of a command, and decides whether the programs in it may run."""

from __future__ import annotations

import time
from argparse import Namespace
from typing import TYPE_CHECKING

from leapp.bundle import Bundle, open_bundle
from leapp.bundle.trust import require_trust
from leapp.cli.output import progress

if TYPE_CHECKING:
    from leapp.runtime import Pipeline


def open_for(arguments: Namespace, path: str | None = None) -> Bundle:
    """The bundle of a command, opened as ``--allow-outside``, ``--digest`` and ``--trust`` ask."""
    return open_bundle(
        arguments.bundle if path is None else path,
        allow_outside=arguments.allow_outside,
        expect_digest=getattr(arguments, "digest", None),
        trust=arguments.trust,
    )


def consent(arguments: Namespace, *bundles: Bundle) -> bool | None:
    """The value of ``allow_code`` that ``--allow-code`` and ``--no-code`` ask for.

    Raises:
        BundleError: A bundle holds programs from an untrusted source, or ``--no-code`` refuses them.
    """
    allow_code = False if arguments.no_code else True if arguments.allow_code else None
    for bundle in bundles:
        require_trust(bundle, allow_code)
    return allow_code


def open_pipeline(arguments: Namespace) -> tuple[Bundle, Pipeline, float]:
    """The bundle of a command, its pipeline, and how many seconds it took to open both."""
    from leapp.runtime import Pipeline

    began = time.perf_counter()
    bundle = open_for(arguments)
    allow_code = consent(arguments, bundle)
    with progress("opening engines"):
        pipeline = Pipeline(bundle, threads=arguments.threads, providers=arguments.provider, allow_code=allow_code)
    return bundle, pipeline, time.perf_counter() - began
