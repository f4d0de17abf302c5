"""A whole-body controller: a policy for the legs, arms that follow a command, torques for every joint.

The policy sees the action it took one step before. The action is both consumed by the torque node and fed back.

    python examples/wbc.py [output directory]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

import leapp
from leapp import InferenceManager, annotate

LEGS, ARMS = 12, 8
JOINTS = LEGS + ARMS


class WholeBodyController:
    """Keeps the previous action as a plain attribute, as most controllers do."""

    def __init__(self) -> None:
        torch.manual_seed(5)
        self.network = nn.Sequential(nn.Linear(6 + 2 * JOINTS + ARMS + LEGS, 64), nn.ELU(), nn.Linear(64, LEGS)).eval()
        self.neutral = torch.linspace(-0.4, 0.4, JOINTS)
        self.stiffness = torch.cat([torch.full((LEGS,), 80.0), torch.full((ARMS,), 30.0)])
        self.damping = 0.05 * self.stiffness
        self.limit = torch.cat([torch.full((LEGS,), 60.0), torch.full((ARMS,), 20.0)])
        self.previous_action = torch.zeros(LEGS)

    @torch.no_grad()
    def step(self, imu: torch.Tensor, position: torch.Tensor, velocity: torch.Tensor, arms: torch.Tensor) -> torch.Tensor:
        action = self.leg_action(imu, position, velocity, arms, self.previous_action)
        self.previous_action = action
        return self.torques(action, position, velocity, arms)

    @annotate.method(node_name="policy", export_with="onnx")
    def leg_action(
        self,
        imu: torch.Tensor,
        position: torch.Tensor,
        velocity: torch.Tensor,
        arms: torch.Tensor,
        previous_action: torch.Tensor,
    ) -> torch.Tensor:
        observation = torch.cat([imu, position - self.neutral, 0.1 * velocity, arms, previous_action])
        action = self.network(observation).clamp(-2.0, 2.0)
        return action

    @annotate.method(node_name="torque", export_with="onnx")
    def torques(self, action: torch.Tensor, position: torch.Tensor, velocity: torch.Tensor, arms: torch.Tensor) -> torch.Tensor:
        wanted = self.neutral.clone()
        wanted[:LEGS] += 0.25 * action
        wanted[LEGS:] = arms
        effort = self.stiffness * (wanted - position) - self.damping * velocity
        torque = torch.minimum(torch.maximum(effort, -self.limit), self.limit)
        return torque


def read_robot() -> dict[str, torch.Tensor]:
    return {
        "imu": torch.randn(6),
        "position": torch.randn(JOINTS),
        "velocity": torch.randn(JOINTS),
        "arms": torch.randn(ARMS),
    }


def as_inputs(robot: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The policy reads everything, the torque node all but the imu."""
    inputs = {f"policy/{name}": value for name, value in robot.items()}
    return inputs | {f"torque/{name}": value for name, value in robot.items() if name != "imu"}


def export(directory: Path) -> Path:
    controller = WholeBodyController()
    leapp.start("whole_body", save_path=directory)
    for _ in range(2):
        controller.step(**read_robot())
    leapp.stop()
    leapp.compile_graph()
    return directory / "whole_body" / "whole_body.yaml"


def main() -> None:
    path = export(Path(sys.argv[1] if len(sys.argv) > 1 else "exports"))
    manager, controller = InferenceManager(str(path)), WholeBodyController()
    for _ in range(5):
        robot = read_robot()
        torque = manager.run_policy(as_inputs(robot))["torque/torque"]
        difference = (torque - controller.step(**robot)).abs().max()
        print(f"largest torque {torque.abs().max():.1f} Nm, differs from eager by {difference:.1e} Nm")


if __name__ == "__main__":
    main()
