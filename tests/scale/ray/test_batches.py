"""Sessions as rows of a batch on a real Ray cluster: many clients at the same time, and a replica that dies."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from leapp.client import Client
from leapp.errors import InputError, SessionLostError
from leapp.runtime import Pipeline
from leapp.serve import Options
from leapp.serve.cluster import Cluster
from tests.fleet.fleets import write_policy
from tests.scale.ray.robots import count, equal, free_port, inputs, kill, together, until

ROWS, CLIENTS, STEPS = 4, 10, 240


def alike(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    """Outputs may differ in the last bits from row to row."""
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-5, atol=1e-6, err_msg=key)


def asked(remote: Client, given: dict[str, np.ndarray], state_too: bool) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """One step, and the state after it if it is wanted."""
    found = remote(given)
    return found, remote.state() if state_too else {}


def test_clients_share_runs_and_see_only_themselves(tmp_path: Path) -> None:
    bundle = write_policy(tmp_path / "leg", any_batch=True)
    options = Options(str(bundle), port=free_port(), batch=ROWS)
    with Cluster(options, replicas=2, resources={"num_cpus": 0.5}) as cluster:
        resuming = [number % 2 == 0 for number in range(CLIENTS)]
        clients = [Client(cluster.url, resume=resumes, timeout=120) for resumes in resuming]
        victim = clients[1].replica
        on_victim = [client.replica == victim for client in clients]
        lost = [0] * CLIENTS
        halfway, killed = threading.Barrier(CLIENTS + 1, timeout=300), threading.Event()

        def run(number: int) -> None:
            if number == CLIENTS:
                halfway.wait()
                kill(victim)
                killed.set()
                return
            remote, local = clients[number], Pipeline(bundle)
            for step, given in enumerate(inputs(STEPS, number)):
                if step == STEPS // 2:
                    halfway.wait()
                if step == STEPS - 20:
                    assert killed.wait(300)
                if number in (0, 3) and step % 7 == 3:
                    given["policy/q"][:] = np.nan  # a dye that would show in every row it reached
                if step % 50 == 49:
                    remote.reset()
                    local.reset()
                if step == 30:
                    with pytest.raises(InputError, match="policy/q"):
                        remote({"policy/q": np.zeros((ROWS, 3), np.float32)})
                state_too = step % 20 == 0 or step == STEPS - 1
                try:
                    found, state = asked(remote, given, state_too)
                except SessionLostError:  # from the step or from the question for the state: the kill falls anywhere
                    lost[number] += 1
                    remote.reset()
                    local.reset()
                    found, state = asked(remote, given, state_too)
                alike(found, local(given))
                if state_too:
                    equal(state, local.state())  # made element by element, so to the bit

        together(run, CLIENTS + 1)
        assert lost == [int(held and not resumes) for held, resumes in zip(on_victim, resuming, strict=True)]
        assert lost[1] == 1
        until(lambda: len(cluster.figures()) == 2)
        rows, steps = count(cluster, "leapp_batched_steps_total"), count(cluster, "leapp_steps_total")
        assert rows == steps
        runs = {replica: sum(found["times"]["leapp_step_seconds"][:-1]) for replica, found in cluster.figures().items()}
        assert sum(runs.values()) < sum(rows.values())  # some ran together
        for client in clients:
            client.close()
