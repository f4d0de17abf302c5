"""A bundle on a real Ray cluster: many clients, a killed replica, bad requests, a clean end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed

from leapp.client import Client
from leapp.client.wire import pack
from leapp.errors import BundleError, InputError, ServerError, ServerTimeoutError, SessionLostError
from leapp.runtime import Pipeline
from leapp.serve import Options
from leapp.serve.cluster import Cluster
from tests.fleet.fleets import WEIGHT, write_policy
from tests.scale.ray.robots import count, equal, free_port, inputs, kill, posted, settled, together, until, welcomed_by
from tests.serve.sessions import raw

TOKEN = "correct-horse-battery"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_policy(tmp_path_factory.mktemp("served") / "leg")


@pytest.fixture(scope="module")
def cluster(bundle: Path) -> Iterator[Cluster]:
    with Cluster(Options(str(bundle), port=free_port()), replicas=2, resources={"num_cpus": 0.5}) as made:
        yield made


def test_eight_clients_of_a_thousand_steps_equal_local_runs(bundle: Path, cluster: Cluster) -> None:
    def steps() -> float:
        return sum(count(cluster, "leapp_steps_total").values())

    before = steps()

    def run(number: int) -> None:
        local = Pipeline(bundle)
        with Client(cluster.url, resume=number % 2 == 0, timeout=120, expect_digest=local.digest) as remote:
            for step, given in enumerate(inputs(1000, number)):
                if number == 0 and step % 50 == 49:
                    given["policy/q"][0, 0] = np.nan  # a dye that would show in every state it reached
                if number in (0, 5) and step % 100 == 99:
                    remote.reset()
                    local.reset()
                equal(remote(given), local(given))
            equal(remote.state(), local.state())

    together(run, 8)
    until(lambda: steps() >= before + 8000)
    assert steps() == before + 8000  # no step ran twice
    with urllib.request.urlopen(f"{cluster.url}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    lines = [line for line in text.splitlines() if line.startswith("leapp_steps_total")]
    assert sum(float(line.split()[-1]) for line in lines) == before + 8000
    assert len(lines) == 2  # one for each replica, whichever answers


def test_json_steps_reach_any_replica_and_equal_a_local_run(bundle: Path, cluster: Cluster) -> None:
    local, state = Pipeline(bundle), None
    for given in inputs(40, 3):
        body = json.dumps({"inputs": {"policy/q": given["policy/q"].tolist()}, "state": state}).encode()
        status, answer = posted(f"{cluster.url}/v1/step", body)
        assert status == 200, answer
        assert np.array(answer["outputs"]["policy/target"], np.float32).tobytes() == local(given)["policy/target"].tobytes()
        state = answer["state"]


def test_another_bundle_is_refused(bundle: Path, cluster: Cluster, tmp_path: Path) -> None:
    other = Pipeline(write_policy(tmp_path / "leg", WEIGHT * 2)).digest
    assert other is not None
    with pytest.raises(BundleError, match=other):
        Client(cluster.url, expect_digest=other)
    body = json.dumps({"inputs": {}, "digest": other}).encode()
    assert posted(f"{cluster.url}/v1/step", body)[0] == 409


def test_bad_requests_leave_the_state_untouched(bundle: Path, cluster: Cluster) -> None:
    local = Pipeline(bundle)
    good = inputs(3, 9)
    q = good[0]["policy/q"]
    with raw(cluster.url) as session:
        equal(session.step(0, good[0], "initial").group("out"), local(good[0]))
        bad = {
            "policy/q": ({}, {"policy/q": q[0]}, {"policy/q": q.astype(np.float64)}),
            "policy/z": ({**good[0], "policy/z": q},),
            "other/q": ({**good[0], "other/q": q},),
        }
        for port, cases in bad.items():
            for given in cases:
                refused = session.step(1, given).head
                assert port in refused["message"], refused
        assert session.step(7, good[0]).head["error"] == "SessionLostError"
        assert session.send(b"\xff" * 100).head["error"] == "InputError"
        equal(session.step(1, good[1]).group("out"), local(good[1]))
        large = session.step(2, {"policy/q": np.zeros((1 << 21, 3), np.float32)})
        assert large.head["final"] and "policy/q 12" in large.head["message"]
        with pytest.raises(ConnectionClosed):
            session.read()
    assert posted(f"{cluster.url}/v1/step", b" " * (4 << 20))[0] == 413


def test_who_does_not_read_answers_gets_no_more_of_them(bundle: Path, cluster: Cluster) -> None:
    local, given = Pipeline(bundle), inputs(20, 11)
    before = settled(cluster, "leapp_steps_total")
    with raw(cluster.url) as greedy, Client(cluster.url, timeout=120) as other:
        greedy.flood(pack("step", {"step": 0, "begin": "initial"}, **{"in": given[0]}), 200)
        for values in given:
            equal(other(values), local(values))
        local.reset()
        equal(greedy.read().group("out"), local(given[0]))
        assert "ticket" in greedy.read().head["message"]
        with pytest.raises(ConnectionClosed):
            greedy.read()
    # All its other requests went to nobody, and no answer waits in a proxy.
    assert settled(cluster, "leapp_steps_total") == before + len(given) + 1
    assert settled(cluster, "leapp_sessions") == 0


def test_a_killed_replica_costs_no_wrong_action(bundle: Path, cluster: Cluster) -> None:
    resuming = [True]
    clients = [Client(cluster.url, resume=True, timeout=120)]
    victim = clients[0].replica
    while len(clients) < 6 or not any(c.replica == victim and not r for c, r in zip(clients, resuming, strict=True)):
        assert len(clients) < 60
        resuming.append(not resuming[-1])
        clients.append(Client(cluster.url, resume=resuming[-1], timeout=120))
    lost = [0] * len(clients)
    ready, killed = threading.Barrier(len(clients) + 1), threading.Event()

    def run(number: int) -> None:
        if number == len(clients):
            ready.wait()
            kill(victim)
            killed.set()
            return
        remote, local = clients[number], Pipeline(bundle)
        for step, given in enumerate(inputs(200, number)):
            if step == 50:
                ready.wait()
            if step == 150:
                assert killed.wait(300)
            try:
                found = remote(given)
            except SessionLostError as error:
                assert "reset()" in str(error)
                lost[number] += 1
                with pytest.raises(SessionLostError):  # still lost: only reset() begins anew
                    remote(given)
                remote.reset()
                local.reset()
                found = remote(given)
            equal(found, local(given))
        equal(remote.state(), local.state())
        remote.close()

    on_victim = [c.replica == victim for c in clients]
    together(run, len(clients) + 1)
    assert lost == [int(held and not resumes) for held, resumes in zip(on_victim, resuming, strict=True)]
    assert sum(lost) >= 1
    assert clients[0].replica != victim


def test_draining_ends_sessions_after_their_step(bundle: Path, cluster: Cluster) -> None:
    """The last test of this cluster."""
    local = Pipeline(bundle)
    refused = threading.Event()

    def run(number: int) -> None:
        if number == 4:
            time.sleep(1.0)
            assert cluster.drain()
            refused.set()
            return
        mine = Pipeline(bundle)
        with Client(cluster.url, resume=number % 2 == 0, timeout=3) as remote:
            with pytest.raises((ServerTimeoutError, SessionLostError)):
                for given in inputs(100_000, number):
                    equal(remote(given), mine(given))
            if number % 2 == 0:
                equal(remote.state(), mine.state())  # to go on from, elsewhere

    together(run, 5)
    assert refused.is_set()
    with pytest.raises(urllib.error.HTTPError, match="503"):
        urllib.request.urlopen(f"{cluster.url}/healthz", timeout=60)
    assert [welcomed_by(cluster.url) for _ in range(8)] == [None] * 8
    with pytest.raises(ServerError, match="No session within 2 s"):
        Client(cluster.url, timeout=2)
    assert local.digest == cluster.digest


def test_the_command_serves_until_it_is_told_to_stop(bundle: Path, cluster: Cluster, tmp_path: Path) -> None:
    cluster.close()  # one Ray at a time is enough for a small machine
    (tmp_path / "token").write_text(TOKEN + "\n")
    port = free_port()
    autoscaling = {"min_replicas": 1, "max_replicas": 2, "target_ongoing_requests": 4}
    command = [
        sys.executable, "-m", "leapp", "serve", str(bundle), "--json", "--port", str(port), "--host", "0.0.0.0",
        "--token-file", str(tmp_path / "token"), "--nonfinite", "raise", "--rate", "50",
        "--autoscaling", json.dumps(autoscaling), "--resources", '{"num_cpus": 0.5}', "--batch", "1",
    ]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if name != "LEAPP_TOKEN"}
    open_to_all = [sys.executable, "-m", "leapp", "serve", str(bundle), "--host", "0.0.0.0"]
    refused = subprocess.run(open_to_all, capture_output=True, text=True, timeout=120, env=environment)
    assert (refused.returncode, "Give a token" in refused.stderr) == (2, True), refused.stderr
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        text = ""
        while "}" not in text:
            line = process.stdout.readline()
            assert line, "the server ended"
            text += line
        said = json.loads(text)
        local = Pipeline(bundle)
        assert said["digest"] == local.digest
        url = f"http://127.0.0.1:{port}"
        for wrong in (None, "correct-horse-batterx"):
            with pytest.raises(ServerError, match="token"):
                Client(url, token=wrong, timeout=60)
        assert posted(f"{url}/v1/step", b"{}")[0] == 401
        with Client(url, token=TOKEN, timeout=60) as remote:
            given = inputs(10_000, 1)
            equal(remote(given[0]), local(given[0]))
            with pytest.raises(InputError, match="policy/q"):
                remote({"policy/q": given[0]["policy/q"] * np.nan})
            with pytest.raises(ServerError, match="50 requests a second"):
                for one in given:
                    equal(remote(one), local(one))
            time.sleep(1.0)
            equal(remote(given[1]), local(given[1]))
            process.send_signal(signal.SIGTERM)
            assert json.loads(process.stdout.read()) == {"drained": True}
            assert process.wait(120) == 0
            equal(remote.state(), local.state())
    finally:
        process.kill()
        process.wait()
