"""Runs a service on Ray Serve: replicas behind one address, their metrics, draining and stopping.

Ray is imported when it is used. It keeps replicas alive, scales them and passes connections on to them; ``Service`` answers
the requests.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from leapp.bundle.files import memory_of_machine
from leapp.bundle.trust import require_trust
from leapp.check.engine_process import limit_memory
from leapp.errors import InputError, MissingDependencyError, ServerError
from leapp.ray_nodes import connect, keep_replica_here
from leapp.serve.metrics import Snapshot
from leapp.serve.options import Options, open_served
from leapp.serve.service import Service

_APPLICATION, _NAMESPACE, _BOARD = "leapp", "leapp", "leapp-board"
_POST_EVERY = 0.25
_OTHER_REQUESTS = 64
"""How many requests a replica accepts beside its sessions: HTTP requests, and clients that are told that it is full."""


class Cluster:
    """A bundle served on Ray, until ``stop``.

    Args:
        options: The options of the server.
        replicas: How many replicas. None is one, or what ``autoscaling`` decides.
        autoscaling: Ray Serve's ``autoscaling_config``. A session counts as one ongoing request.
        resources: Ray's options of one replica, such as ``{"num_gpus": 1}``.
        address: The Ray cluster to join. None starts one on this machine.
        drain: The most seconds that ``stop`` waits for sessions to end.

    Raises:
        BundleError: The bundle cannot be opened.
        InputError: Both replicas and autoscaling are given, Ray refuses them, or this machine is too small for them.
        MissingDependencyError: Ray is not installed.
        ServerError: Ray Serve already runs there, or the replicas do not start.
    """

    def __init__(
        self,
        options: Options,
        *,
        replicas: int | None = None,
        autoscaling: Mapping[str, Any] | None = None,
        resources: Mapping[str, Any] | None = None,
        address: str | None = None,
        drain: float = 20.0,
    ) -> None:
        if replicas is not None and autoscaling is not None:
            raise InputError("Give the number of replicas or let Ray decide by autoscaling, not both.")
        if address is None:
            _check_free(options.host, options.port)
        bundle = open_served(options)
        require_trust(bundle, options.allow_code)
        # Every replica, whenever it starts, must open the same bundle.
        options = replace(options, bundle=str(Path(bundle.path).resolve()), expect_digest=bundle.digest)
        if bundle.digest is not None and options.allow_code is None:
            # Replicas open the same bundle, and this process has already decided that its programs may run.
            options = replace(options, allow_code=True, trust=None)
        self.digest, self._drain, self._closed = bundle.digest, drain, False
        host = f"[{options.host}]" if ":" in options.host else options.host
        self.url = f"http://{host}:{options.port}"
        deployment = _deployment(options, replicas, autoscaling, resources, drain, local=address is None)
        ray, serve = _ray()
        self._started = not ray.is_initialized()
        if self._started:
            connect(address, namespace=_NAMESPACE, logging_level="WARNING")
        try:
            if _serve_runs(ray):
                # Its proxies listen on an address that this call did not choose, which other machines may reach.
                raise ServerError("Ray Serve already runs on this cluster. End it ('serve shutdown') or use another one.")
            if address is None and self._started:
                _check_enough(ray.cluster_resources(), autoscaling, replicas, resources or {})
            self._board = ray.remote(num_cpus=0)(_Board).options(name=_BOARD, namespace=_NAMESPACE).remote()
            ray.get(self._board.draining.remote())
            serve.start(http_options={"host": options.host, "port": options.port}, logging_config={"log_level": "WARNING"})
            serve.run(deployment.bind(), name=_APPLICATION, route_prefix="/")
        except BaseException as error:  # also after Ctrl-C, the cluster must not stay behind
            why = _why(error)
            self.close()
            if isinstance(error, RuntimeError) and not isinstance(error, ServerError):
                raise ServerError(f"The replicas did not start: {why}") from error
            raise

    def figures(self) -> dict[str, Snapshot]:
        """The latest figures of every replica, by its name."""
        ray, _ = _ray()
        found: dict[str, Snapshot] = ray.get(self._board.latest.remote())
        return found

    def drain(self) -> bool:
        """Let every session finish its current step, and refuse new ones. Returns whether all ended in time.

        A replica that Ray starts afterwards takes no session.
        """
        ray, _ = _ray()
        ray.get(self._board.drain.remote())
        deadline = time.monotonic() + self._drain
        while time.monotonic() < deadline:
            values = [snapshot["values"] for snapshot in self.figures().values()]
            if all(sum(v["leapp_draining"].values()) and not sum(v["leapp_sessions"].values()) for v in values):
                return True
            time.sleep(0.05)
        return False

    def stop(self) -> None:
        """Drain, and end the replicas."""
        try:
            if not self._closed:
                self.drain()
        finally:
            self.close()

    def close(self) -> None:
        """End the replicas without waiting for sessions."""
        ray, serve = _ray()
        if ray.is_initialized() and not self._closed:
            with suppress(Exception):  # Ray raises many types for a cluster that is gone already
                serve.shutdown()
            if self._started:
                ray.shutdown()
        self._closed = True

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


class _Board:
    """An actor to which replicas post their metrics. The answer to a post says whether the replica should drain.

    A replica accepts sessions only after its first post, so no replica accepts sessions without knowing whether the server is
    draining.
    """

    def __init__(self) -> None:
        self._posted: dict[str, tuple[str, Snapshot]] = {}
        self._draining = False

    def post(self, actor: str, replica: str, snapshot: Snapshot) -> bool:
        self._posted[actor] = replica, snapshot
        return self._draining

    def latest(self) -> dict[str, Snapshot]:
        # Ray is asked which replicas are alive, so that a slow one stays in the list.
        ray, _ = _ray()
        alive = {actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)}
        self._posted = {actor: posted for actor, posted in self._posted.items() if actor in alive}
        return dict(self._posted.values())

    def drain(self) -> None:
        self._draining = True

    def draining(self) -> bool:
        return self._draining


def _ray() -> tuple[Any, Any]:
    try:
        import ray
        from ray import serve
    except ImportError as error:
        raise MissingDependencyError("Serving needs Ray Serve: pip install 'leapp[ray]'.") from error
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    return ray, serve


def _serve_runs(ray: Any) -> bool:
    actors = ray.util.list_named_actors(all_namespaces=True)
    return any(actor["name"] == "SERVE_CONTROLLER_ACTOR" for actor in actors)


def _check_free(host: str, port: int) -> None:
    """Refuse an address that is in use or does not exist, before anything is started."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(place)
    except OSError as error:
        raise InputError(f"Port {port} of {host} cannot be used: {error.strerror or error}. Give another --port.") from error


def _deployment(
    options: Options,
    replicas: int | None,
    autoscaling: Mapping[str, Any] | None,
    resources: Mapping[str, Any] | None,
    drain: float,
    *,
    local: bool,
) -> Any:
    """The deployment of the replicas for Ray Serve.

    Raises:
        InputError: Ray does not take the options.
    """
    _, serve = _ray()
    unknown = sorted(set(autoscaling or {}) - set(serve.config.AutoscalingConfig.model_fields))
    if unknown:  # Ray would ignore them silently
        known = ", ".join(sorted(serve.config.AutoscalingConfig.model_fields))
        raise InputError(f"Autoscaling has no {', '.join(unknown)}. Ray Serve takes: {known}.")
    try:
        return serve.deployment(
            _replica(options, local),
            name="replica",
            num_replicas=None if autoscaling is not None else replicas or 1,
            autoscaling_config=dict(autoscaling) if autoscaling is not None else None,
            ray_actor_options=dict(resources or {}),
            max_ongoing_requests=options.sessions + _OTHER_REQUESTS,
            graceful_shutdown_timeout_s=drain,
            # Checked often, because a robot waits until Ray has replaced a replica that died.
            health_check_period_s=1.0,
        )
    except (ValueError, TypeError) as error:
        raise InputError(f"Ray does not take these options: {' '.join(str(error).split())}") from error


def _check_enough(
    machine: Mapping[str, float], autoscaling: Mapping[str, Any] | None, replicas: int | None, resources: Mapping[str, Any]
) -> None:
    """Refuse more replicas than this machine has resources for. Ray would wait for them for ever."""
    count = replicas or 1 if autoscaling is None else autoscaling.get("min_replicas", 1)
    wanted = {"CPU": resources.get("num_cpus", 1), "GPU": resources.get("num_gpus", 0), **resources.get("resources", {})}
    for name, each in wanted.items():
        has = machine.get(name, 0)
        if (each or 0) * count > has:
            raise InputError(
                f"{count} replicas with {each:g} {name} each do not fit on this machine, which has {has:g}. Ask for less "
                "with --replicas or --resources, such as '{\"num_cpus\": 0.5}'."
            )


def _why(error: BaseException) -> str:
    """The reason why replicas did not start, from the status of the deployment."""
    _, serve = _ray()
    with suppress(Exception):  # without a status, the message of the error is the reason
        status = serve.status().applications[_APPLICATION].deployments["replica"]
        found: list[str] = re.findall(r"^leapp\.errors\.\w+: (.+)$", status.message, re.MULTILINE)
        if found:
            return found[-1]
    return " ".join(str(error).split())


def _replica(options: Options, local: bool) -> Any:
    """The class of a replica for Ray Serve."""
    _, serve = _ray()

    def build() -> Service:
        if local:
            keep_replica_here()
        return _open(options)

    @serve.ingress(build)
    class Replica:
        """Holds the service; Ray Serve hands it every connection."""

    return Replica


def _open(options: Options) -> Service:
    """The service of this process, which is a replica."""
    ray, serve = _ray()
    board = ray.get_actor(_BOARD, namespace=_NAMESPACE)
    me = ray.get_runtime_context().get_actor_name()

    async def gather(replica: str, snapshot: Snapshot) -> Mapping[str, Snapshot]:
        await board.post.remote(me, replica, snapshot)
        found: Mapping[str, Snapshot] = await board.latest.remote()
        return found

    # A model may take all memory or never end. Engines have no limits for that, so the process gets limits. The timer of
    # faulthandler also ends a process whose engine never returns to Python.
    limit_memory(memory_of_machine())
    faulthandler.dump_traceback_later(options.timeout, exit=True, file=2)
    service = Service(options, serve.get_replica_context().replica_id.unique_id, gather)
    faulthandler.cancel_dump_traceback_later()
    loop = asyncio.get_running_loop()

    def post(timeout: float | None) -> bool:
        draining: bool = ray.get(board.post.remote(me, service.replica, service.metrics.snapshot()), timeout=timeout)
        return draining

    def keep_posting() -> None:
        while True:
            time.sleep(_POST_EVERY)
            if service.engine.is_stuck(options.timeout):
                logging.getLogger("leapp").error("a step took longer than %g s; this replica ends", options.timeout)
                os._exit(70)
            # A board that does not answer must not stop a working replica.
            with suppress(Exception):
                if post(10):
                    loop.call_soon_threadsafe(service.drain)

    # The server may be draining already when this replica starts.
    if post(None):
        service.drain()
    threading.Thread(target=keep_posting, name="leapp-board", daemon=True).start()
    return service
