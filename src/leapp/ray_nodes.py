"""A Ray cluster that only this machine can reach. Private names of Ray, in one place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

__all__ = ["keep_replica_here", "only_here"]

_SWITCH = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Off, all that Ray starts listens on loopback only, metrics included; Linux is on by default."""
_PATIENCE = "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S"
"""A proxy that does not answer three times in a row is killed. On a busy machine it needs longer than 5 seconds to start."""


@contextmanager
def only_here() -> Iterator[None]:
    """A cluster that is started within the block listens on loopback. Ray takes 127.0.0.1 as an address for another one."""
    from ray._private import ray_constants

    cluster = getattr(ray_constants, "ENABLE_RAY_CLUSTER", None)
    before = {name: os.environ.get(name) for name in (_SWITCH, _PATIENCE)}
    os.environ.update({_SWITCH: "0", _PATIENCE: before[_PATIENCE] or "20"})
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = cluster
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def keep_replica_here() -> None:
    """Let the replica of Ray Serve that this process is about to become listen on loopback. It knows no option for that."""
    with suppress(ImportError, AttributeError):
        from ray.serve._private import replica

        listen = replica.add_port_to_grpc_server

        def listen_here(server: Any, address: str) -> Any:
            return listen(server, address.replace("[::]", "127.0.0.1"))

        replica.add_port_to_grpc_server = listen_here
