"""``leapp serve``: a bundle for many clients, on Ray Serve."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from argparse import Namespace
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from leapp.cli.consent import consent, open_for
from leapp.cli.output import Answer, Text, progress, write
from leapp.errors import InputError
from leapp.serve.cluster import Cluster
from leapp.serve.options import Options

__all__ = ["serve"]

TOKEN = "LEAPP_TOKEN"


def serve(arguments: Namespace) -> Answer:
    """Serve a bundle until a signal ends it."""
    options = Options(
        arguments.bundle,
        expect_digest=arguments.digest,
        host=arguments.host,
        port=arguments.port,
        token=_token(arguments.token_file),
        threads=arguments.threads,
        providers=tuple(arguments.provider) if arguments.provider else None,
        allow_code=consent(arguments, open_for(arguments)),
        allow_outside=arguments.allow_outside,
        trust=tuple(arguments.trust) if arguments.trust else None,
        nonfinite=arguments.nonfinite,
        batch=arguments.batch,
        max_bytes=arguments.max_bytes,
        rate=arguments.rate,
        sessions=arguments.sessions,
        sessions_per_client=arguments.sessions_per_client,
        idle=arguments.idle,
        timeout=arguments.timeout,
    )
    own = sys.stdout
    # Ray writes to standard output what is of no use to whoever reads our answer there.
    with redirect_stdout(sys.stderr):
        with progress("starting replicas"):
            cluster = Cluster(
                options,
                replicas=arguments.replicas,
                autoscaling=_mapping("--autoscaling", arguments.autoscaling),
                resources=_mapping("--resources", arguments.resources),
                address=arguments.address,
                drain=arguments.drain,
            )
        leave = threading.Event()
        # Now, because Ray puts handlers of its own in place when it starts.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: leave.set())
        try:
            with redirect_stdout(own):
                ready = Text(f"{arguments.bundle} is served at {cluster.url}, digest {cluster.digest}")
                write(Answer({"url": cluster.url, "digest": cluster.digest}, [ready]), as_json=arguments.json)
            while not leave.wait(1.0):
                pass
            drained = cluster.drain()
        finally:
            cluster.close()
    text = "Drained: every session had ended." if drained else f"Sessions were still at work after {arguments.drain:g} s."
    return Answer({"drained": drained}, [Text(text)], 0 if drained else 1)


def _token(path: str | None) -> str | None:
    """The token from a file or from the environment; never from the command line, which others can read."""
    if path is not None:
        return Path(path).read_text().strip()
    return os.environ.get(TOKEN)


def _mapping(option: str, text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InputError(f"{option} takes a JSON object: {error}.") from error
    if not isinstance(value, dict):
        raise InputError(f"{option} takes a JSON object, not {text}.")
    return value
