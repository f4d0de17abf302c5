"""Connects to Ray: to a cluster, or to a new one that only this machine can reach. Private names of Ray are used only here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from leapp.errors import InputError

__all__ = ["connect", "keep_replica_here"]

_SWITCH = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""If it is off, everything that Ray starts listens on loopback only, metrics included. On Linux it is on by default."""
_PATIENCE = "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S"
"""How long Ray waits for its proxy. It kills a proxy that is late three times; on a busy machine 5 seconds are too short."""


def connect(address: str | None, **options: Any) -> None:
    """Connect this process to Ray.

    Args:
        address: The cluster to join. None starts one that listens on loopback only.
        **options: Further arguments of ``ray.init``.

    Raises:
        InputError: No cluster answers at the address.
    """
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is None:
        with _only_here():
            # Without the address "local" Ray would join a cluster that already runs on this machine.
            ray.init(address="local", include_dashboard=False, log_to_driver=False, **options)
        return
    try:
        ray.init(address=address, log_to_driver=False, **options)
    except ConnectionError as error:
        raise InputError(f"No Ray cluster answers at {address!r}: {error}") from error


@contextmanager
def _only_here() -> Iterator[None]:
    """Make a cluster that is started within the block listen on loopback only. Ray has no option for that."""
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
    """Make the replica of Ray Serve in this process listen on loopback only. Ray has no option for that."""
    with suppress(ImportError, AttributeError):
        from ray.serve._private import replica

        listen = replica.add_port_to_grpc_server

        def listen_here(server: Any, address: str) -> Any:
            return listen(server, address.replace("[::]", "127.0.0.1"))

        replica.add_port_to_grpc_server = listen_here
