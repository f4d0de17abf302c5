"""A navigation stack of five nodes: camera, odometry, route, a learned planner and a safety limiter.

Each node is exported by the backend that suits it, and each keeps only the state it owns: the odometry its pose, the
limiter its last command. Images, geometry and a network meet in one graph.

    python examples/compass_navigation.py [output directory]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

import leapp
from leapp import GraphConfigs, InferenceManager, annotate

PERIOD = 0.1
LOOK_AHEAD = 1.0


class Planner(nn.Module):
    """Image features and the direction of the goal become a forward speed and a turn rate."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32 + 3, 48), nn.ELU(), nn.Linear(48, 2))

    def forward(self, features: torch.Tensor, heading: torch.Tensor) -> torch.Tensor:
        speed, turn = self.body(torch.cat([features, heading])).unbind()
        return torch.stack([torch.sigmoid(speed), torch.tanh(turn)])


class NavigationStack:
    def __init__(self) -> None:
        torch.manual_seed(11)
        self.camera = nn.Sequential(
            nn.Conv2d(1, 6, 5, stride=2), nn.ReLU(), nn.Conv2d(6, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(2)
        ).eval()
        self.planner = Planner().eval()
        self.pose = torch.zeros(3)
        self.command = torch.zeros(2)

    @torch.no_grad()
    def step(self, depth: torch.Tensor, wheels: torch.Tensor, route: torch.Tensor) -> torch.Tensor:
        features = self.see(depth)
        pose = self.locate(wheels)
        heading = self.follow(pose, route)
        wish = self.plan(features, heading)
        return self.limit(wish, features)

    def see(self, depth: torch.Tensor) -> torch.Tensor:
        """Depth image to features; invalid pixels count as far away."""
        depth = annotate.input_tensors("camera", {"depth": depth})
        depth = torch.where(torch.isfinite(depth) & (depth > 0.0), depth, torch.full_like(depth, 5.0))
        features = self.camera(depth.clamp(max=5.0) / 5.0).flatten()
        return annotate.output_tensors("camera", {"features": features}, export_with="onnx")

    def locate(self, wheels: torch.Tensor) -> torch.Tensor:
        """Integrate wheel speed and turn rate into x, y and heading."""
        wheels = annotate.input_tensors("odometry", {"wheels": wheels})
        pose = annotate.state_tensors("odometry", {"pose": self.pose})
        heading = pose[2] + PERIOD * wheels[1]
        moved = PERIOD * wheels[0] * torch.stack([torch.cos(heading), torch.sin(heading)])
        wrapped = torch.atan2(torch.sin(heading), torch.cos(heading))
        pose = torch.cat([pose[:2] + moved, wrapped.unsqueeze(0)])
        self.pose = annotate.update_state("odometry", {"pose": pose})
        return annotate.output_tensors("odometry", {"here": pose}, export_with="onnx")

    def follow(self, here: torch.Tensor, route: torch.Tensor) -> torch.Tensor:
        """Choose the first waypoint past the look-ahead distance, seen from the robot."""
        here, route = annotate.input_tensors("route", {"here": here, "waypoints": route})
        offsets = route - here[:2]
        distances = offsets.norm(dim=1)
        far_enough = (distances > LOOK_AHEAD).long()
        offset = offsets[far_enough.argmax()]
        angle = torch.atan2(offset[1], offset[0]) - here[2]
        heading = torch.stack([torch.cos(angle), torch.sin(angle), offset.norm()])
        return annotate.output_tensors("route", {"heading": heading}, export_with="onnx")

    def plan(self, features: torch.Tensor, heading: torch.Tensor) -> torch.Tensor:
        features, heading = annotate.input_tensors("planner", {"features": features, "heading": heading})
        wish = self.planner(features, heading)
        return annotate.output_tensors("planner", {"wish": wish}, export_with="pt2")

    def limit(self, wish: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """Slow down near obstacles and never change the command by more than the motors can follow."""
        wish, features = annotate.input_tensors("limiter", {"wish": wish, "features": features})
        last = annotate.state_tensors("limiter", {"last": self.command})
        clutter = torch.sigmoid(features.mean())
        allowed = wish * torch.stack([1.0 - 0.5 * clutter, torch.ones(())])
        command = last + (allowed - last).clamp(-0.2, 0.2)
        self.command = annotate.update_state("limiter", {"last": command})
        return annotate.output_tensors("limiter", {"command": command}, export_with="jit")


def sense() -> dict[str, torch.Tensor]:
    depth = 5.0 * torch.rand(1, 1, 24, 32)
    depth[torch.rand_like(depth) < 0.05] = 0.0
    return {"depth": depth, "wheels": torch.rand(2), "route": torch.linspace(0.2, 4.0, 6)[:, None] * torch.rand(1, 2)}


def as_inputs(sensed: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    keys = {"depth": "camera/depth", "wheels": "odometry/wheels", "route": "route/waypoints"}
    return {keys[name]: value for name, value in sensed.items()}


def export(directory: Path) -> Path:
    stack = NavigationStack()
    leapp.start("navigation", save_path=directory)
    for _ in range(3):
        stack.step(**sense())
    leapp.stop()
    leapp.compile_graph(graph_configs=GraphConfigs(frequency=1.0 / PERIOD))
    return directory / "navigation" / "navigation.yaml"


def main() -> None:
    path = export(Path(sys.argv[1] if len(sys.argv) > 1 else "exports"))
    manager, stack = InferenceManager(str(path)), NavigationStack()
    for _ in range(5):
        sensed = sense()
        command = manager.run_policy(as_inputs(sensed))["limiter/command"]
        print("bundle", command.tolist(), "eager", stack.step(**sensed).tolist())


if __name__ == "__main__":
    main()
