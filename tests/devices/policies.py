"""The policies, traced on the device and run anywhere.

    python -m tests.devices.policies LIBRARY BACKEND [DEFAULT]    every policy exported with the backend, into the working
                                                                  directory, in a program with this default device
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import leapp
from leapp import InferenceManager, annotate
from leapp.bundle import open_bundle
from tests.devices import robot

HERE = "robot"


def draw(seed: int) -> torch.Tensor:
    return torch.randn(4, generator=torch.Generator().manual_seed(seed), device="cpu")


class Policies:
    """Each method is one step: an observation of the CPU and what the last step left; outputs and what it leaves."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ELU(), torch.nn.Linear(8, 2)).to(HERE)
        self.attention = torch.nn.MultiheadAttention(4, 2, batch_first=True).to(HERE).eval()
        self.gain = torch.tensor([2.0, 3.0], device=HERE)

    def given(self, **values: torch.Tensor) -> Any:
        return annotate.input_tensors("policy", values)

    def made(self, static: dict[str, torch.Tensor] | None = None, **values: torch.Tensor) -> dict[str, torch.Tensor]:
        annotate.output_tensors("policy", values, static_outputs=static, export_with=self.backend)
        return values | (static or {})

    def states_and_constants(self, obs: torch.Tensor, h: torch.Tensor | None) -> Any:
        obs = self.given(obs=obs.to(HERE))
        h = annotate.state_tensors("policy", {"h": torch.full((2,), 0.5, device=HERE) if h is None else h})
        y = self.net(obs) * self.gain + h + torch.arange(2, device=obs.device)
        turned = torch.zeros(2, device="robot")
        turned[:1] = y[1:]
        h = annotate.update_state("policy", {"h": 0.5 * h + y})
        return self.made({"kp": self.gain}, action=torch.tanh(y), turned=turned), h

    def carried_there_and_back(self, obs: torch.Tensor, _: Any) -> Any:
        """A copy to the device is a copy: writing to it leaves the input alone, also in a model for the CPU."""
        obs = self.given(obs=obs)
        there = obs.to(HERE)
        there += 1
        back = there.cpu()
        back *= 2
        wide = there.to("cpu", torch.float64)
        wide -= 3
        return self.made(action=self.net(there).cpu() + obs[:2], back=back + there.cpu() + obs, wide=wide), None

    def method_of_the_device(self, obs: torch.Tensor, _: Any) -> Any:
        obs = self.given(obs=obs)
        there = obs.robot()
        there *= 2
        return self.made(action=there.cpu() + obs), None

    def numpy_between(self, obs: torch.Tensor, _: Any) -> Any:
        obs = self.given(obs=obs.to(HERE))
        array = np.tanh(obs.cpu().numpy()) * 2
        return self.made(action=torch.from_numpy(array).to(HERE) + obs), None

    def attention_over_rows(self, obs: torch.Tensor, _: Any) -> Any:
        obs = self.given(obs=obs.to(HERE))
        rows = obs.view(1, 1, 4).expand(1, 3, 4) * torch.arange(3, device=HERE).view(1, 3, 1)
        out, weights = self.attention(rows, rows, rows)
        return self.made(action=out[0].sum(0), weights=weights), None

    def history_in_a_buffer(self, obs: torch.Tensor, history: torch.Tensor | None) -> Any:
        obs = self.given(obs=obs.to(HERE))
        history = torch.zeros(3, 4, device=HERE) if history is None else history
        history = annotate.register_buffer("policy", {"history": history})
        history[:-1] = history[1:].clone()
        history[-1] = obs
        return self.made(action=history.mean(0)), history

    def two_nodes(self, obs: torch.Tensor, _: Any) -> Any:
        obs = self.given(obs=obs.to(HERE))
        seen = annotate.output_tensors("policy", {"seen": self.net(obs)}, export_with=self.backend)
        seen = annotate.input_tensors("drive", {"seen": seen})
        torque = torch.where(seen > 0, seen, torch.zeros_like(seen)) + torch.full((2,), 3.0, device=HERE)
        annotate.output_tensors("drive", {"torque": torque}, export_with=self.backend)
        return {"torque": torque}, None

    def made_in_a_device_context(self, obs: torch.Tensor, _: Any) -> Any:
        obs = self.given(obs=obs.to(HERE))
        with torch.device(HERE):
            scale = torch.ones(4) + torch.tensor([1.0, 2.0, 3.0, 4.0])
        return self.made(action=obs * scale), None

    def inputs_of_two_devices(self, obs: torch.Tensor, _: Any) -> Any:
        """Each is used where it is: nothing is mixed."""
        there, here = self.given(obs=obs.to(HERE), command=obs.flip(0))
        return self.made(action=self.net(there), driven=here + here.sum()), None


NAMES = [name for name, value in vars(Policies).items() if callable(value) and name not in ("__init__", "given", "made")]


def trace(name: str, step: Callable[..., Any]) -> Path:
    leapp.start(name, save_path=".")
    left = None
    for seed in range(3):
        _, left = step(draw(seed), left)
    leapp.stop()
    leapp.compile_graph(visualize=False)
    return Path(name) / f"{name}.yaml"


def run(bundle: Path, step: Callable[..., Any], backend: str, device: str) -> None:
    """The bundle on new inputs beside the eager code; what it returns is where the user wants it."""
    runner = InferenceManager(bundle, device=device)
    where = "cpu" if backend.startswith("onnx") else device  # ONNX Runtime has its own devices, called providers
    left = None
    for seed in range(100, 104):
        wanted, left = step(draw(seed), left)
        given = {"policy/obs": draw(seed).to(where), "policy/command": draw(seed).flip(0).to(where)}
        got = runner.run_policy({key: value for key, value in given.items() if key in runner.inputs})
        for name, value in wanted.items():
            (answer,) = (v for key, v in got.items() if key.endswith(f"/{name}"))
            assert answer.device.type == where, (name, answer.device)
            torch.testing.assert_close(answer.cpu(), value.cpu(), msg=lambda m: f"{bundle.stem} on {device}, {name}: {m}")


def any_batch(backend: str) -> None:
    """A model of any number of rows, with a state that has a row for each."""
    policies = Policies(backend)

    def step(obs: torch.Tensor, h: torch.Tensor) -> Any:
        obs = annotate.input_tensors("policy", {"obs": obs.to(HERE)})
        h = annotate.state_tensors("policy", {"h": h})
        made = policies.net(obs) + h + torch.zeros(obs.shape[0], 2, device=obs.device)
        h = annotate.update_state("policy", {"h": 0.5 * made})
        return annotate.output_tensors("policy", {"action": made}, export_with=backend), h

    leapp.start("any_batch", save_path=".", dynamic_batch=True)
    h = torch.zeros(3, 2, device=HERE)
    for seed in range(3):
        _, h = step(torch.stack([draw(3 * seed + row) for row in range(3)]), h)
    leapp.stop()
    leapp.compile_graph(visualize=False)
    for device in ("cpu", HERE):
        runner = InferenceManager("any_batch/any_batch.yaml", device=device)
        where, h = "cpu" if backend.startswith("onnx") else device, torch.zeros(5, 2, device=HERE)
        for seed in range(3):
            obs = torch.stack([draw(100 + 5 * seed + row) for row in range(5)])
            wanted, h = step(obs, h)
            got = runner.run_policy({"policy/obs": obs.to(where)})["policy/action"]
            assert got.device.type == where
            torch.testing.assert_close(got.cpu(), wanted.cpu())


def main(library: str, backend: str, default: str = "cpu") -> None:
    robot.add(library)
    if default != "cpu":
        torch.set_default_device(default)
    policies = Policies(backend)
    for name in NAMES:
        step = getattr(policies, name)
        bundle = trace(name, step)
        for device in ("cpu", HERE):
            run(bundle, step, backend, device)
        for file in open_bundle(bundle).directory.rglob("*"):
            # A bundle travels to machines without the device.
            assert not file.is_file() or file.suffix in (".txt", ".html") or b"robot:" not in file.read_bytes(), file
        print("right", name, flush=True)
    any_batch(backend)
    print("right any_batch")


if __name__ == "__main__":
    main(*sys.argv[1:])
