"""The end of a server while Ray adds and takes away replicas by load."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from leapp.client import Client
from leapp.errors import ServerTimeoutError
from leapp.runtime import Pipeline
from leapp.serve import Options
from leapp.serve.cluster import Cluster
from tests.fleet.fleets import write_policy
from tests.scale.ray.robots import count, equal, free_port, inputs, replicas, together, until, welcomed_by

TARGET = 2
AUTOSCALING = {
    "min_replicas": 1,
    "max_replicas": 2,
    "target_ongoing_requests": TARGET,
    "upscale_delay_s": 0.2,
    "downscale_delay_s": 15.0,
    "metrics_interval_s": 0.2,
    "look_back_period_s": 0.5,
}


def test_draining_holds_while_replicas_are_added_and_taken_away(tmp_path: Path) -> None:
    bundle = write_policy(tmp_path / "leg")
    options = Options(str(bundle), port=free_port())
    with Cluster(options, autoscaling=AUTOSCALING, resources={"num_cpus": 0.5}) as cluster:
        (first,) = cluster.figures()
        robots = [Client(cluster.url, timeout=10) for _ in range(TARGET)]
        stepped, added = threading.Barrier(TARGET + 1, timeout=120), threading.Event()

        def run(number: int) -> None:
            if number == TARGET:
                stepped.wait()
                crowd = [Client(cluster.url, timeout=120) for _ in range(TARGET)]
                until(lambda: len(replicas()) == 2)  # the crowd was too much for one; the other is not open yet
                added.set()
                assert cluster.drain()
                for client in crowd:
                    client.close()
                return
            remote, local, given = robots[number], Pipeline(bundle), iter(inputs(1_000_000, number))
            values = next(given)
            equal(remote(values), local(values))
            stepped.wait()
            with pytest.raises(ServerTimeoutError):
                for values in given:
                    found = remote(values)
                    equal(found, local(values))
            assert added.is_set()
            equal(remote.state(), local.state())  # the step that was not answered left no trace

        together(run, TARGET + 1)
        # The added one opened into the end and took no session, however often the robots asked.
        until(lambda: len(cluster.figures()) == 2)
        assert cluster.drain()
        opened = count(cluster, "leapp_sessions_total")
        assert opened.pop(first) == 2 * TARGET
        assert list(opened.values()) == [0]
        assert welcomed_by(cluster.url) is None
        until(lambda: len(replicas()) == 1)  # without load one is taken away, whichever
        assert cluster.drain()
        assert welcomed_by(cluster.url) is None
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(f"{cluster.url}/healthz", timeout=60)
