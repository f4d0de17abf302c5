"""``leapp serve``: a bundle for many clients, on Ray Serve."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from argparse import ArgumentParser, Namespace
from contextlib import redirect_stdout
from dataclasses import fields
from pathlib import Path
from typing import Any

from leapp.cli.arguments import add_engine, add_opened_bundle, count, rate, seconds
from leapp.cli.opening import consent, open_for
from leapp.cli.output import Answer, Text, progress, write
from leapp.errors import InputError

_TOKEN = "LEAPP_TOKEN"


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of ``leapp serve``."""
    add = parser.add_argument
    add_opened_bundle(parser)
    add("--digest", help="refuse any bundle but the one with this digest")
    add("--host", default="127.0.0.1",
        help="the address to listen on (default: %(default)s); a non-loopback address requires a token")  # fmt: skip
    add("--port", type=count, default=8000, metavar="N", help="the port to listen on (default: %(default)s)")
    add("--token-file", metavar="FILE", help=f"file with the token that clients must send (default: the variable {_TOKEN})")
    add("--replicas", type=count, metavar="N", help="how many replicas (default: 1)")
    add("--autoscaling", metavar="JSON", help="Ray Serve's autoscaling_config, instead of --replicas")
    add("--resources", metavar="JSON", help="Ray's options of one replica, such as its GPUs")
    add("--address", help="the address of the Ray cluster to join (default: start one on this machine)")
    add("--nonfinite", choices=("ignore", "raise"), default="ignore",
        help="accept or refuse NaN and infinity in inputs (default: %(default)s)")  # fmt: skip
    add("--batch", type=count, metavar="ROWS", help="run up to this many sessions at once, as rows of a batch")
    add("--max-bytes", type=count, metavar="N", help="largest request in bytes (default: what the ports need)")
    add("--rate", type=rate, default=1000.0, metavar="HZ", help="most requests of a client per second (default: %(default)s)")
    add("--sessions", type=count, default=256, metavar="N", help="most sessions in a replica (default: %(default)s)")
    add("--sessions-per-client", type=count, metavar="N",
        help="most sessions of one client address in a replica (default: half of --sessions)")  # fmt: skip
    add("--idle", type=seconds, default=600.0, metavar="S",
        help="seconds after which an idle session is closed (default: %(default)s)")  # fmt: skip
    add("--timeout", type=seconds, default=600.0, metavar="S",
        help="seconds that opening or a step may take before the replica is restarted (default: %(default)s)")  # fmt: skip
    add("--drain", type=seconds, default=20.0, metavar="S",
        help="seconds that sessions have to finish when the server stops (default: %(default)s)")  # fmt: skip
    add_engine(parser)


def command(arguments: Namespace) -> Answer:
    """Serve a bundle until a signal ends it."""
    from leapp.serve.cluster import Cluster
    from leapp.serve.options import Options

    # Most arguments have the names of fields of Options. The others are handled one by one below.
    given = {field.name: getattr(arguments, field.name) for field in fields(Options) if hasattr(arguments, field.name)}
    given |= {
        "allow_code": consent(arguments, open_for(arguments)),
        "expect_digest": arguments.digest,
        "providers": tuple(arguments.provider) if arguments.provider else None,
        "token": _token(arguments.token_file),
        "trust": tuple(arguments.trust) if arguments.trust else None,
    }
    options = Options(**given)
    own = sys.stdout
    # Ray prints to standard output, which is for the answer of this command.
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
        # Set after Ray has started, because Ray installs signal handlers of its own.
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
    text = "Drained: every session had ended." if drained else f"Some sessions had not ended after {arguments.drain:g} s."
    return Answer({"drained": drained}, [Text(text)], 0 if drained else 1)


def _token(path: str | None) -> str | None:
    """The token from a file or from the environment. Other users of the machine can read a command line."""
    if path is not None:
        return Path(path).read_text().strip()
    return os.environ.get(_TOKEN)


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
