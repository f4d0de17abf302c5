"""The options of a server: the bundle, its engines, which clients may connect, and their limits. Checked once."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from leapp.bundle import Bundle, open_bundle
from leapp.errors import InputError
from leapp.runtime.runner import NonFinite

_SHORTEST_TOKEN = 16


@dataclass(frozen=True, slots=True)
class Options:
    """How a bundle is served.

    Attributes:
        bundle: The bundle's YAML file or its directory, at a path where every replica finds it.
        expect_digest: Refuse any bundle but the one with this digest.
        host: The address to listen on. Any but a loopback address needs a token.
        port: The port to listen on.
        token: The token that every request must have, at least 16 characters.
        threads: Threads of one ONNX session.
        providers: ONNX Runtime execution providers.
        device: Where TorchScript and ``.pt2`` nodes run.
        allow_code: As for ``leapp.runtime.Pipeline``.
        allow_outside: As for ``leapp.runtime.Pipeline``.
        trust: As for ``leapp.runtime.Pipeline``.
        nonfinite: What to do about NaN and infinity in inputs.
        batch: Run up to this many sessions at once, as rows of a bundle in which every port has that many rows. A few values
            are tried to see whether rows affect each other; ``docs/scale.md`` says what that cannot show. None runs each
            session alone.
        max_bytes: The most bytes of one request. None takes what the ports of the bundle need.
        rate: The most requests a second of one session, or of one address over HTTP.
        sessions: The most sessions in one replica.
        sessions_per_client: The most sessions of one address in one replica. None takes half of ``sessions``.
        timeout: The most seconds that opening the bundle or one step may take. A replica that takes longer is ended, and Ray
            starts another one.
        idle: After how many seconds without a request a session is ended.

    Raises:
        InputError: An option has a value that is not allowed, or other machines could reach the server without a token.

    Example:
        >>> Options("policy", host="192.0.2.7")
        Traceback (most recent call last):
        leapp.errors.InputError: Other machines can reach 192.0.2.7. Give a token, or listen on 127.0.0.1.
    """

    bundle: str
    expect_digest: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = field(default=None, repr=False)
    threads: int = 1
    providers: tuple[str, ...] | None = None
    device: str | None = None
    allow_code: bool | None = None
    allow_outside: bool = False
    trust: tuple[str, ...] | None = None
    nonfinite: NonFinite = "ignore"
    batch: int | None = None
    max_bytes: int | None = None
    rate: float = 1000.0
    sessions: int = 256
    sessions_per_client: int | None = None
    timeout: float = 600.0
    idle: float = 600.0

    def __post_init__(self) -> None:
        if self.token is None and not is_loopback(self.host):
            raise InputError(f"Other machines can reach {self.host}. Give a token, or listen on 127.0.0.1.")
        if self.token is not None and (len(self.token) < _SHORTEST_TOKEN or not self.token.isascii() or " " in self.token):
            raise InputError(f"A token has at least {_SHORTEST_TOKEN} ASCII characters and no spaces.")
        if not 0 < self.port < 1 << 16:
            raise InputError(f"A port is a number from 1 to 65535, not {self.port}.")
        for name in ("rate", "sessions", "sessions_per_client", "timeout", "idle", "max_bytes", "batch"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"{name} must be positive, not {value}.")


def open_served(options: Options) -> Bundle:
    """Open the bundle that the options name."""
    path, digest = options.bundle, options.expect_digest
    return open_bundle(path, allow_outside=options.allow_outside, expect_digest=digest, trust=options.trust)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
