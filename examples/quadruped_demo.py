"""A quadruped controller, from sensor readings to joint targets: exported, checked, drawn, then run beside itself.

Three nodes. ``observe`` turns readings into a normalised history, ``policy`` is a GRU that keeps its own memory,
``act`` scales actions into joint targets. The last action is an input of the next observation.

    python examples/quadruped_demo.py [output directory]
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

import torch
from torch import nn

import leapp
from leapp import GraphConfigs, InputKindEnum, OutputKindEnum, TensorSemantics, annotate
from leapp.runtime import Pipeline

STEPS = 500
RATE_HZ = 50
HISTORY = 5
JOINTS = [f"{leg}_{joint}" for leg in ("FL", "FR", "RL", "RR") for joint in ("hip", "thigh", "calf")]
STANDING = torch.tensor([[0.1, 0.8, -1.5, -0.1, 0.8, -1.5, 0.1, 1.0, -1.5, -0.1, 1.0, -1.5]])
OBSERVED = 3 + 3 + 3 + 3 * len(JOINTS)  # turn rate, gravity, command; positions, velocities, previous action


@torch.jit.script
def project_gravity(quaternion: torch.Tensor) -> torch.Tensor:
    """World gravity seen from a body whose orientation is ``quaternion`` (w, x, y, z)."""
    w, axis = quaternion[:, :1], quaternion[:, 1:]
    down = torch.zeros_like(axis)
    down[:, 2] = -1.0
    along = axis * (axis * down).sum(dim=1, keepdim=True) * 2.0
    across = torch.cross(axis, down, dim=1) * w * 2.0
    return down * (2.0 * w * w - 1.0) - across + along


class Normaliser(nn.Module):
    """Centres and scales observations with statistics that training left behind."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", 0.1 * torch.randn(1, size))
        self.register_buffer("std", 0.5 + torch.rand(1, size))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return ((observation - self.mean) / self.std).clamp(-5.0, 5.0)


class Policy(nn.Module):
    """An encoder, a GRU whose memory is a registered buffer, and a head."""

    memory: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(HISTORY * OBSERVED, 128), nn.ELU())
        self.gru = nn.GRU(128, 64)
        self.head = nn.Linear(64, len(JOINTS))
        self.register_buffer("memory", torch.zeros(1, 1, 64))

    def forward(self, history: torch.Tensor) -> torch.Tensor:
        features = self.encoder(history).unsqueeze(0)
        features, self.memory = self.gru(features, self.memory)
        return self.head(features.squeeze(0))


class Controller:
    """The code that runs on the robot. Without a session the annotations in it do nothing."""

    def __init__(self) -> None:
        torch.manual_seed(7)
        self.normaliser = Normaliser(OBSERVED).eval()
        self.policy = Policy().eval()
        self.reset()

    def reset(self) -> None:
        self.policy.memory = torch.zeros(1, 1, 64)
        self.history = torch.zeros(1, HISTORY, OBSERVED)
        self.action = torch.zeros(1, len(JOINTS))

    @torch.no_grad()
    def step(self, sensors: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.act(self.decide(self.observe(sensors)))

    def observe(self, sensors: dict[str, torch.Tensor]) -> torch.Tensor:
        kinds = InputKindEnum
        rotation, turn_rate, command, position, velocity = annotate.input_tensors(
            "observe",
            [
                TensorSemantics("rotation", sensors["rotation"], kinds.BODY_ROTATION, ["w", "x", "y", "z"]),
                TensorSemantics("turn_rate", sensors["turn_rate"], kinds.BODY_ANGULAR_VELOCITY, ["x", "y", "z"]),
                TensorSemantics("command", sensors["command"], kinds.COMMAND_BODY_VELOCITY, ["x", "y", "yaw"]),
                TensorSemantics("position", sensors["position"], kinds.JOINT_POSITION, JOINTS),
                TensorSemantics("velocity", sensors["velocity"], kinds.JOINT_VELOCITY, JOINTS),
            ],
        )
        previous_action = annotate.input_tensors("observe", {"previous_action": self.action})
        history = annotate.state_tensors("observe", {"history": self.history})

        gravity = project_gravity(rotation)
        parts = [turn_rate, gravity, command, position - STANDING, 0.05 * velocity, previous_action]
        newest = self.normaliser(torch.cat(parts, dim=1))
        history = torch.cat([history[:, 1:], newest.unsqueeze(1)], dim=1)

        self.history = annotate.update_state("observe", {"history": history})
        return annotate.output_tensors("observe", {"observations": history}, export_with="onnx")

    def decide(self, observations: torch.Tensor) -> torch.Tensor:
        observations = annotate.input_tensors("policy", {"observations": observations})
        annotate.module("policy", self.policy)
        self.action = self.policy(observations)
        return annotate.output_tensors("policy", {"action": self.action}, export_with="onnx")

    def act(self, action: torch.Tensor) -> torch.Tensor:
        action = annotate.input_tensors("act", {"action": action})
        targets = STANDING + 0.25 * action.clamp(-4.0, 4.0)
        stiffness = torch.full((1, len(JOINTS)), 25.0)
        return annotate.output_tensors(
            "act",
            TensorSemantics("targets", targets, OutputKindEnum.JOINT_POSITION, JOINTS, extra={"units": "rad"}),
            static_outputs=TensorSemantics("stiffness", stiffness, OutputKindEnum.KP, JOINTS),
            export_with="onnx",
        )


def read_sensors() -> dict[str, torch.Tensor]:
    """Readings of a robot that is being shaken."""
    return {
        "rotation": nn.functional.normalize(torch.randn(1, 4)),
        "turn_rate": torch.randn(1, 3),
        "command": torch.rand(1, 3) * 2.0 - 1.0,
        "position": STANDING + 0.3 * torch.randn(1, len(JOINTS)),
        "velocity": 3.0 * torch.randn(1, len(JOINTS)),
    }


def export(controller: Controller, directory: Path) -> Path:
    """Trace three steps of the controller and write the bundle; returns its YAML file."""
    leapp.start("quadruped", save_path=directory)
    for _ in range(3):  # two passes show the loops; a third is one more sample to validate with
        controller.step(read_sensors())
    leapp.stop()
    leapp.compile_graph(graph_configs=GraphConfigs(frequency=RATE_HZ))
    return directory / "quadruped" / "quadruped.yaml"


def run_beside(controller: Controller, pipeline: Pipeline) -> tuple[float, float]:
    """Step both from their initial state; returns the largest difference and the median time of a bundle step."""
    controller.reset()
    largest, seconds = 0.0, []
    for _ in range(STEPS):
        sensors = read_sensors()
        expected = controller.step(sensors)
        inputs = {f"observe/{name}": value.numpy() for name, value in sensors.items()}
        began = time.perf_counter()
        outputs = pipeline(inputs)  # NumPy in, NumPy out: this part runs on the robot, without torch
        seconds.append(time.perf_counter() - began)
        largest = max(largest, float(abs(outputs["act/targets"] - expected.numpy()).max()))
    return largest, statistics.median(seconds)


def main() -> None:
    controller = Controller()
    path = export(controller, Path(sys.argv[1] if len(sys.argv) > 1 else "exports"))
    largest, median = run_beside(controller, Pipeline(path))
    print(f"{STEPS} closed-loop steps beside the eager code")
    print(f"largest difference of a joint target: {largest:.2e} rad")
    print(f"median time of a step: {median * 1e6:.0f} µs (a step at {RATE_HZ} Hz has {1e6 / RATE_HZ:.0f} µs)")
    print("wrote:")
    for file in sorted(path.parent.iterdir()):
        print(f"  {file} ({file.stat().st_size:,} bytes)")
    if largest > 1e-4:
        sys.exit("the bundle and the eager code disagree")


if __name__ == "__main__":
    main()
