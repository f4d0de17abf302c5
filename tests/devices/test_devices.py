"""A node is traced where its tensors are, its model is written for the CPU, and the runner puts it where the user says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from filelock import FileLock

import leapp
from leapp import annotate
from tests.devices import mixes, policies, robot
from tests.warm import run_python


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The device, built once for all workers."""
    made = tmp_path_factory.getbasetemp().parent / "robot.so"
    with FileLock(f"{made}.lock"):
        return made if made.exists() else robot.build(made)


def run(module: str, *arguments: str | Path, cwd: Path) -> str:
    done = run_python("-m", f"tests.devices.{module}", *arguments, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("default", ["cpu", policies.HERE])
@pytest.mark.parametrize("backend", ["jit", "onnx", "pt2"])
def test_policies(backend: str, default: str, library: Path, tmp_path: Path) -> None:
    """Also in a program that has called ``torch.set_default_device()``."""
    said = run("policies", library, backend, default, cwd=tmp_path)
    assert [line.split()[1] for line in said.splitlines() if line.startswith("right")] == [*policies.NAMES, "any_batch"]


@pytest.mark.parametrize("backend", ["jit", "onnx", "pt2"])
def test_a_default_device_is_left_to_the_program(backend: str, tmp_path: Path) -> None:
    """leapp makes its own tensors on the CPU: on "meta" they would have no values, on another device not the same ones."""
    network = torch.nn.Linear(3, 3)

    def step(x: torch.Tensor) -> torch.Tensor:
        x = annotate.input_tensors("n", {"x": x})
        return annotate.output_tensors("n", {"y": network(x).tanh().cumsum(-1)}, export_with=backend)

    with torch.no_grad():
        leapp.start("g", save_path=tmp_path)
        for _ in range(2):
            step(torch.randn(2, 3))
        leapp.stop()
        with torch.device("meta"):
            assert leapp.compile_graph(visualize=False) == {"n": True}
            pipeline = leapp.InferenceManager(tmp_path / "g")
            assert torch.empty(1).is_meta
        for _ in range(3):
            x = torch.randn(2, 3)
            torch.testing.assert_close(pipeline.run_policy({"n/x": x})["n/y"], step(x))


def test_mixes_are_refused_with_the_line(library: Path, tmp_path: Path) -> None:
    product, module, state = run("mixes", library, cwd=tmp_path).splitlines()
    source = Path(mixes.__file__).read_text().splitlines()

    def at(text: str) -> str:
        (line,) = (number for number, row in enumerate(source, 1) if text in row)
        return f"{mixes.__file__}:{line}"

    assert product == (
        f"TraceError: node 'policy': mul at {at('obs * torch.ones')} mixes devices: a value of the node (float32 [4]) on "
        "robot:0, a tensor from outside (float32 [4]) on cpu. Move them to one device with .to(), or make the tensor there "
        "with device=."
    )
    assert module.startswith(f"TraceError: node 'policy': linear at {at('.to(HERE)(obs)')} mixes devices: a value of the node")
    assert state == (
        f"TraceError: node 'policy': state 'h' is on robot:0, and the update at {at('(h + obs).cpu()')} puts it on cpu. "
        "Move the update with .to('robot:0')."
    )
