"""``leapp deploy triton --backend python`` on a real server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from leapp.cli import main
from leapp.runtime import Pipeline
from tests.deploy.bundles import arm, arm_inputs, halved
from tests.scale.triton.clients import Client, differing, local
from tests.scale.triton.server import Server, serving

STEPS = 200
IDLE = 8.0


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return arm(tmp_path_factory.mktemp("bundle") / "arm")


@pytest.fixture(scope="module")
def server(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("python")
    options = ["--backend", "python", "--idle-seconds", str(IDLE), "--instances", "2"]
    assert main(["deploy", "triton", str(bundle), "-o", str(folder / "repository"), *options]) == 0
    with serving(folder / "repository", folder / "work") as running:
        yield running


def test_clients_at_the_same_time_get_what_the_local_runtime_returns(bundle: Path, server: Server) -> None:
    """Three closed loops; one turns into NaN half way, which would show in the others if a state leaked."""
    runs = [arm_inputs(seed, STEPS, dye=seed == 2) for seed in range(3)]
    together = threading.Barrier(3)

    def drive(index: int) -> list[dict[str, Any]]:
        client, made = Client(server.url, "arm", (1, 2, "1")[index]), []
        for step, values in enumerate(runs[index]):
            if step % 50 == 0:
                together.wait(60)
            made.append(client.step(values, start=step == 0, end=step == STEPS - 1))
        return made

    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(drive, range(3)))
    for values, made in zip(runs, answers, strict=True):
        assert differing(local(bundle, values), made) == []
    assert np.isnan(answers[2][-1]["policy/y"]).all()
    assert not np.isnan(answers[0][-1]["policy/y"]).any()


def test_a_bad_request_names_the_port_and_changes_no_state(bundle: Path, server: Server) -> None:
    inputs, client, made = arm_inputs(11, 13), Client(server.url, "arm", 7), []
    wrong = [
        ({"arm/obs": np.zeros((1, 4), np.float32)}, "arm/obs"),
        ({"policy/gain": np.zeros(1, np.float64)}, "policy/gain"),
        ({"arm/obs": None}, "arm/obs"),
        ({"arm/unknown": np.zeros(1, np.float32)}, "arm/unknown"),
        ({"arm/last": np.zeros((1, 2), np.float32)}, "arm/last"),
        # An engine that fails, not a bad request: what it says is its own.
        ({"policy/mode": np.array([99])}, "out of data bounds"),
    ]
    for step, values in enumerate(inputs):
        made.append(client.step(values, start=step == 0))
        bad, named = wrong[step % len(wrong)]
        changed = {k: v for k, v in {**values, **bad}.items() if v is not None}
        with pytest.raises(InferenceServerException, match=named):
            client.step(changed)
    assert differing(local(bundle, inputs), made) == []


def test_start_resets_end_forgets_and_a_silent_sequence_expires(bundle: Path, server: Server) -> None:
    inputs, client = arm_inputs(12, 6), Client(server.url, "arm", 8)
    with pytest.raises(InferenceServerException, match="START"):
        client.step(inputs[0])
    expected = local(bundle, inputs)
    for _ in range(2):
        made = [client.step(values, start=step == 0) for step, values in enumerate(inputs)]
        assert differing(expected, made) == []
    client.step(inputs[0], end=True)
    with pytest.raises(InferenceServerException, match="START"):
        client.step(inputs[1])
    client.step(inputs[0], start=True)
    time.sleep(IDLE + 3)
    with pytest.raises(InferenceServerException, match=r"START|Start"):
        client.step(inputs[1])


def test_only_the_outputs_asked_for_come_back_and_the_state_goes_on(bundle: Path, server: Server) -> None:
    inputs, client = arm_inputs(13, 6), Client(server.url, "arm", 9)
    made = [client.step(values, start=i == 0, outputs=["arm/y"]) for i, values in enumerate(inputs)]
    assert all(list(values) == ["arm/y"] for values in made)
    expected = [{"arm/y": values["arm/y"]} for values in local(bundle, inputs)]
    assert differing(expected, made) == []


def test_clients_may_know_a_port_by_another_dtype(tmp_path: Path) -> None:
    """Clients know nothing of bfloat16: they send and receive float32, and what comes back is the very same value."""
    bundle = halved(tmp_path / "half")
    options = ["--backend", "python", "--dtype", "p/x=float32", "--dtype", "p/y=float32"]
    assert main(["deploy", "triton", str(bundle), "-o", str(tmp_path / "repository"), *options]) == 0
    inputs = [{"p/x": value} for value in np.random.default_rng(3).normal(size=(20, 1, 3)).astype(np.float32)]
    pipeline = Pipeline(bundle, cast=True)
    with serving(tmp_path / "repository", tmp_path / "work") as server:
        client = Client(server.url, "half", 1)
        for step, values in enumerate(inputs):
            (found,) = client.step(values, start=step == 0, end=step == len(inputs) - 1).values()
            assert found.dtype == np.float32
            assert np.array_equal(found, pipeline(values)["p/y"].astype(np.float32))
        assert server.stop() == 0


def test_nan_is_refused_by_name_on_request_and_the_server_stops_cleanly(bundle: Path, tmp_path: Path) -> None:
    options = ["--backend", "python", "--nonfinite", "raise", "--model-version", "4"]
    assert main(["deploy", "triton", str(bundle), "-o", str(tmp_path / "repository"), *options]) == 0
    inputs = arm_inputs(14, 8)
    with serving(tmp_path / "repository", tmp_path / "work") as server:
        client, made = Client(server.url, "arm", 1), []
        for step, values in enumerate(inputs):
            made.append(client.step(values, start=step == 0))
            dyed = {**values, "arm/obs": np.full((1, 3), np.nan, np.float32)}
            with pytest.raises(InferenceServerException, match="'arm/obs' holds NaN"):
                client.step(dyed)
        assert differing(local(bundle, inputs), made) == []
        # A stopping server waits for sequences that are still open.
        client.step(inputs[0], end=True)
        assert server.stop() == 0
    assert "Non-graceful" not in server.log.read_text()
