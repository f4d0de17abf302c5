"""The end of a server whose replicas come and go, on a real Ray cluster."""

from __future__ import annotations

import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import ray

from leapp.client import Client
from leapp.errors import ServerError
from leapp.serve import Options
from leapp.serve.cluster import Cluster
from tests.fleet.fleets import write_policy
from tests.scale.ray.robots import count, free_port, kill, replicas, until, welcomed_by


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_policy(tmp_path_factory.mktemp("served") / "leg")


@contextmanager
def without_news() -> Iterator[None]:
    """No replica hears from the board, as on a machine that is too busy."""
    board = ray.get_actor("leapp-board", namespace="leapp")
    process = ray.get(board.__ray_call__.remote(lambda _: os.getpid()))
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def test_a_replica_that_starts_after_the_end_takes_no_session(bundle: Path) -> None:
    with Cluster(Options(str(bundle), port=free_port()), replicas=2, resources={"num_cpus": 0.5}) as cluster:
        until(lambda: len(cluster.figures()) == 2)
        first = set(cluster.figures())
        assert welcomed_by(cluster.url) in first
        kill(min(first))  # one replacement that starts while the end is announced
        assert cluster.drain()
        until(lambda: len(cluster.figures()) == 2)
        second = set(cluster.figures())
        with without_news():
            kill(max(first))  # and one that starts when nobody can tell it
            until(lambda: bool(replicas().keys() - second))
            start = time.monotonic()
            while time.monotonic() < start + 10:
                assert welcomed_by(cluster.url) is None
        until(lambda: bool(cluster.figures().keys() - second))
        assert cluster.drain()
        assert len(cluster.figures()) == 2
        assert not any(count(cluster, "leapp_sessions_total").values())
        for _ in range(8):  # whichever replica answers
            with pytest.raises(urllib.error.HTTPError, match="503"):
                urllib.request.urlopen(f"{cluster.url}/healthz", timeout=60)
        with pytest.raises(ServerError, match="No session within 2 s"):
            Client(cluster.url, timeout=2)
