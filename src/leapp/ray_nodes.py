"""A Ray cluster that only this machine can reach. Private names of Ray, in one place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

__all__ = ["keep_replica_here", "only_here"]

_SWITCH = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Off, all that Ray starts listens on loopback only, metrics included; Linux is on by default."""


@contextmanager
def only_here() -> Iterator[None]:
    """A cluster that is started within the block listens on loopback. Ray takes 127.0.0.1 as an address for another one."""
    from ray._private import ray_constants

    before = os.environ.get(_SWITCH), getattr(ray_constants, "ENABLE_RAY_CLUSTER", None)
    os.environ[_SWITCH] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before[1]
        if before[0] is None:
            del os.environ[_SWITCH]
        else:
            os.environ[_SWITCH] = before[0]


def keep_replica_here() -> None:
    """Let the replica of Ray Serve that this process is about to become listen on loopback. It knows no option for that."""
    with suppress(ImportError, AttributeError):
        from ray.serve._private import replica

        listen = replica.add_port_to_grpc_server

        def listen_here(server: Any, address: str) -> Any:
            return listen(server, address.replace("[::]", "127.0.0.1"))

        replica.add_port_to_grpc_server = listen_here
