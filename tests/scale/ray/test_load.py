"""Replicas that Ray adds and takes away by load, under sessions that go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
import ray.cluster_utils

from leapp.client import Client
from leapp.errors import SessionLostError
from leapp.runtime import Pipeline
from leapp.serve import Options
from leapp.serve.cluster import Cluster
from tests.fleet.fleets import write_policy
from tests.scale.ray.robots import equal, free_port, inputs, together, until

TARGET = 4
AUTOSCALING = {
    "min_replicas": 1,
    "max_replicas": 2,
    "target_ongoing_requests": TARGET,
    "upscale_delay_s": 0.5,
    "downscale_delay_s": 2.0,
    "metrics_interval_s": 0.5,
    "look_back_period_s": 1.0,
}


@pytest.fixture
def stranger() -> Iterator[str]:
    """The address of a Ray cluster on this machine that is none of our business."""
    cluster = ray.cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    yield cluster.address
    cluster.shutdown()


def test_sessions_stay_right_while_replicas_come_and_go(tmp_path: Path, stranger: str) -> None:
    bundle = write_policy(tmp_path / "leg")
    options = Options(str(bundle), port=free_port())
    with Cluster(options, autoscaling=AUTOSCALING, resources={"num_cpus": 0.5}, drain=3.0) as cluster:
        assert ray.get_runtime_context().gcs_address != stranger
        crowd = [Client(cluster.url, timeout=120) for _ in range(TARGET + 2)]
        assert len({client.replica for client in crowd}) == 1
        until(lambda: len(cluster.figures()) == 2)  # the crowd was too much for one

        kept: dict[tuple[str, bool], Client] = {}

        def keep() -> bool:
            """On each replica one that resumes and one that does not. The proxy may not know the second one yet."""
            for resumes in (True, False):
                client = Client(cluster.url, resume=resumes, timeout=120)
                crowd.append(client)
                kept.setdefault((client.replica, resumes), client)
            return len(kept) == 4

        until(keep)
        robots = list(kept.items())
        lost: list[tuple[str, bool]] = []
        left, gone = threading.Event(), threading.Event()

        def run(number: int) -> None:
            if number == len(robots):
                for client in crowd:
                    if client not in kept.values():
                        client.close()
                left.set()
                until(lambda: len(cluster.figures()) == 1)  # the rest is not enough for two
                gone.set()
                return
            (where, resumes), remote = robots[number]
            local = Pipeline(bundle)
            after = 50
            for given in inputs(1_000_000, number):
                try:
                    found = remote(given)
                except SessionLostError:
                    assert left.is_set()
                    lost.append((where, resumes))
                    remote.reset()
                    local.reset()
                    found = remote(given)
                equal(found, local(given))
                after -= gone.is_set()
                if not after:
                    break
            equal(remote.state(), local.state())

        together(run, len(robots) + 1)
        (survivor,) = cluster.figures()
        assert lost == [(where, resumes) for (where, resumes), _ in robots if where != survivor and not resumes]
        assert {client.replica for _, client in robots} == {survivor}
        for _, client in robots:
            client.close()
