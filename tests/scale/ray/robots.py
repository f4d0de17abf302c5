"""What the tests of a served bundle share: inputs, clients at the same time, and the end of a replica."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable

import numpy as np
import ray
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from leapp.client.wire import Assembly, unpack
from leapp.serve.cluster import Cluster


def free_port() -> int:
    """A port that nothing listens on, and that neither the kernel nor Ray gives to a process by itself: Ray starts many."""
    for port in random.sample(range(20_000, 32_000), 100):
        with socket.socket() as listening, contextlib.suppress(OSError):
            listening.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port")


def inputs(count: int, seed: int) -> list[dict[str, np.ndarray]]:
    generator = np.random.default_rng(seed)
    return [{"policy/q": value} for value in generator.standard_normal((count, 1, 3)).astype(np.float32)]


def equal(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        assert (found[key].dtype, found[key].tobytes()) == (value.dtype, value.tobytes()), (key, found[key], value)


def together(run: Callable[[int], None], count: int) -> None:
    """Run a function for every number at the same time. The first failure is the test's."""
    failures: list[BaseException] = []

    def one(number: int) -> None:
        try:
            run(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def posted(url: str, body: bytes, headers: dict[str, str] | None = None) -> tuple[int, dict]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers or {}), timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def welcomed_by(url: str) -> str | None:
    """The replica that gives a session to somebody who comes now."""
    try:
        with connect(url.replace("http", "ws") + "/v1/session", compression=None, proxy=None, open_timeout=60) as socket:
            message = Assembly(1 << 20).add(socket.recv(timeout=60))
    except (WebSocketException, OSError):
        return None
    return unpack(message).head.get("replica") if message is not None else None


def count(cluster: Cluster, name: str) -> dict[str, float]:
    """A figure of every replica."""
    return {replica: sum(found["values"][name].values()) for replica, found in cluster.figures().items()}


def settled(cluster: Cluster, name: str) -> float:
    """A figure of all replicas together, when it stands still: they tell theirs now and then."""
    found, before = sum(count(cluster, name).values()), None
    while found != before:
        time.sleep(2)
        found, before = sum(count(cluster, name).values()), found
    return found


def until(said: Callable[[], bool], seconds: float = 120) -> None:
    """Wait for something to come true."""
    deadline = time.monotonic() + seconds
    while not said():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)


def replicas() -> dict[str, dict[str, str]]:
    """The actors of all replicas that live, starting ones included, by the name of the replica."""
    actors = ray.util.list_named_actors(all_namespaces=True)
    return {actor["name"].split("#")[-1]: actor for actor in actors if actor["name"].startswith("SERVE_REPLICA::")}


def kill(replica: str) -> None:
    ray.kill(ray.get_actor(**replicas()[replica]))
