"""What cannot be served is said in words, before Ray waits for it."""

from __future__ import annotations

import os
import socket

import pytest

from leapp.errors import InputError, ServerError
from leapp.serve import Options
from leapp.serve.cluster import Cluster
from tests.fleet.fleets import write_policy
from tests.scale.ray.robots import free_port


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_policy(tmp_path_factory.mktemp("served") / "leg"))


def test_a_port_that_is_taken(bundle: str) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        with pytest.raises(InputError, match="Address already in use. Give another --port"):
            Cluster(Options(bundle, port=listening.getsockname()[1]))
    with pytest.raises(InputError, match="65535"):
        Options(bundle, port=65536)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"autoscaling": {"min_replica": 1}}, "has no min_replica. Ray Serve takes: .*min_replicas"),
        ({"autoscaling": {"min_replicas": "x"}}, "min_replicas"),
        ({"resources": {"num_cpu": 1}}, "num_cpu"),
        ({"replicas": 2, "autoscaling": {}}, "not both"),
    ],
)
def test_options_that_ray_does_not_know(bundle: str, options: dict, says: str) -> None:
    with pytest.raises(InputError, match=says):
        Cluster(Options(bundle, port=free_port()), **options)


def test_more_than_the_machine_has(bundle: str) -> None:
    with pytest.raises(InputError, match=r"1 replicas with 64 GPU each do not fit .* --resources"):
        Cluster(Options(bundle, port=free_port()), resources={"num_gpus": 64, "num_cpus": 0.5})


def test_the_reason_of_a_replica_that_does_not_start_is_told(bundle: str) -> None:
    with pytest.raises(ServerError, match=r"'policy/q' has the shape \[1, 3\], which is not a batch of 4 rows"):
        Cluster(Options(bundle, port=free_port(), batch=4), resources={"num_cpus": 0.5})


def test_nothing_listens_on_other_addresses(bundle: str) -> None:
    """Neither the server nor anything of Ray: metrics, agents, workers, replicas."""
    import psutil

    port = free_port()
    before = {process.pid for process in psutil.process_iter()}
    with Cluster(Options(bundle, port=port), resources={"num_cpus": 0.5}):
        found = set()
        for process in psutil.process_iter():
            if process.pid not in before or process.pid == os.getpid():
                found |= {c.laddr for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    assert ("127.0.0.1", port) in found
    assert {ip.removeprefix("::ffff:") for ip, _ in found} == {"127.0.0.1"}, found
