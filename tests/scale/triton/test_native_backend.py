"""The native repository on a real server: its ensemble, its sequences and the model above run as they were written.

The server of the pytriton wheel has no onnxruntime backend, so the models of the nodes, and only they, are run by
``engine_model.py`` from the same files.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2
from tritonclient.utils import InferenceServerException

from leapp.cli import main
from tests.deploy.bundles import arm, arm_inputs
from tests.deploy.interpreter import DESCRIPTOR, DTYPES
from tests.scale.triton.clients import Client, local
from tests.scale.triton.server import Server, serving

STEPS = 200


def with_stand_in(repository: Path, target: Path) -> None:
    """Copy a repository; its onnxruntime models become Python models that do the same."""
    shutil.copytree(repository, target)
    for path in target.glob("*/config.pbtxt"):
        config = text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())
        if config.backend != "onnxruntime":
            continue
        states = [
            {
                "input": state.input_name,
                "output": state.output_name,
                "file": state.initial_state[0].data_file,
                "dtype": DTYPES[model_config_pb2.DataType.Name(state.data_type)],
                "dims": list(state.dims),
            }
            for state in config.sequence_batching.state
        ]
        if states:
            config.sequence_batching.ClearField("state")
        config.backend, config.platform = "python", ""
        config.instance_group[0].kind = model_config_pb2.ModelInstanceGroup.KIND_CPU
        config.parameters["states"].string_value = json.dumps(states)
        path.write_text(text_format.MessageToString(config))
        for version in path.parent.glob("[0-9]*"):
            shutil.copy(Path(__file__).with_name("engine_model.py"), version / "model.py")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return arm(tmp_path_factory.mktemp("bundle") / "arm")


@pytest.fixture(scope="module")
def server(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("native")
    options = ["--kind", "cpu", "--model-version", "3", "--sequences", "64"]
    assert main(["deploy", "triton", str(bundle), "-o", str(folder / "repository"), *options]) == 0
    with_stand_in(folder / "repository", folder / "served")
    with serving(folder / "served", folder / "work") as running:
        yield running
        assert running.stop() == 0


def close(expected: list[dict[str, Any]], got: list[dict[str, Any]]) -> bool:
    """Equal up to rounding: nodes in one merged session and nodes alone may add up in another order."""
    return all(
        one.keys() == other.keys() and all(np.allclose(one[k], other[k], 1e-5, 1e-6, equal_nan=True) for k in one)
        for one, other in zip(expected, got, strict=True)
    )


def test_the_message_type_of_the_other_tests_is_the_one_clients_ship() -> None:
    assert DESCRIPTOR.read_bytes() == model_config_pb2.DESCRIPTOR.serialized_pb


def test_clients_at_the_same_time_get_what_the_local_runtime_returns(bundle: Path, server: Server) -> None:
    runs = [arm_inputs(20 + seed, STEPS, dye=seed == 2) for seed in range(3)]

    def drive(index: int) -> list[dict[str, Any]]:
        client = Client(server.url, "arm", 200 + index)
        return [client.step(v, start=i == 0, end=i == STEPS - 1) for i, v in enumerate(runs[index])]

    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(drive, range(3)))
    for values, made in zip(runs, answers, strict=True):
        assert close(local(bundle, values), made)
    assert np.isnan(answers[2][-1]["policy/y"]).all() and not np.isnan(answers[0][-1]["policy/y"]).any()


def test_bad_requests_and_partial_ones_leave_the_state_right(bundle: Path, server: Server) -> None:
    inputs, client, made = arm_inputs(31, 12), Client(server.url, "arm", 31), []
    for step, values in enumerate(inputs):
        with pytest.raises(InferenceServerException, match="arm/obs"):
            client.step({**values, "arm/obs": np.zeros((1, 4), np.float32)}, start=step == 0)
        wanted = ["arm/y"] if step % 2 else None
        made.append(client.step(values, start=step == 0, end=step == len(inputs) - 1, outputs=wanted))
        assert set(made[-1]) == ({"arm/y"} if step % 2 else {"arm/y", "policy/y"})
    expected = [{k: v for k, v in values.items() if k in got} for values, got in zip(local(bundle, inputs), made, strict=True)]
    assert close(expected, made)
    with pytest.raises(InferenceServerException, match="START"):
        client.step(inputs[0])


def test_a_step_that_fails_half_way_ends_the_sequence(bundle: Path, server: Server) -> None:
    """``arm`` has taken its step when ``policy`` fails: going on from there would be a wrong action."""
    inputs, client = arm_inputs(32, 8), Client(server.url, "arm", 32)
    client.step(inputs[0], start=True)
    with pytest.raises(InferenceServerException, match="The sequence is lost"):
        client.step({**inputs[1], "policy/mode": np.array([99])})
    with pytest.raises(InferenceServerException, match="sequence 32 has no state"):
        client.step(inputs[1])
    made = [client.step(values, start=i == 0, end=i == len(inputs) - 1) for i, values in enumerate(inputs)]
    assert close(local(bundle, inputs), made)
