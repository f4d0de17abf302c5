"""Observation code in NumPy, exported together with the policy it feeds.

Declared arrays are followed through NumPy as tensors are through torch, across `torch.from_numpy` and `.numpy()` too: the
exported node begins with the robot's raw readings and needs no Python on the robot.

    python examples/recipes/numpy_observations.py [output directory]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

import leapp
from leapp import GraphConfigs, annotate
from leapp.runtime import Pipeline

JOINTS, BEAMS, SECTORS = 4, 32, 8
CURRENT, TORQUE = np.array([-10.0, -2.0, 0.0, 2.0, 10.0], np.float32), np.array([-3.0, -0.4, 0.0, 0.4, 3.0], np.float32)
torch.manual_seed(0)
NETWORK = nn.Sequential(nn.Linear(3 + 2 * JOINTS + SECTORS, 32), nn.Tanh(), nn.Linear(32, JOINTS)).eval()


def gravity_in_body(quaternion: np.ndarray) -> np.ndarray:
    """The direction of gravity as the robot feels it; quaternion as (w, x, y, z)."""
    w, x, y, z = quaternion / np.linalg.norm(quaternion)
    return np.array([2.0 * (w * y - x * z), -2.0 * (w * x + y * z), 2.0 * (x * x + y * y) - 1.0])


def observe(quaternion: np.ndarray, current: np.ndarray, ticks: np.ndarray, scan: np.ndarray) -> np.ndarray:
    observation = np.zeros(3 + 2 * JOINTS + SECTORS, np.float32)
    observation[:3] = gravity_in_body(quaternion)
    observation[3 : 3 + JOINTS] = np.interp(current, CURRENT, TORQUE)
    angle = ticks.astype(np.float32) * (2.0 * np.pi / 4096)
    observation[3 + JOINTS : 3 + 2 * JOINTS] = np.arctan2(np.sin(angle), np.cos(angle))
    nearest = np.where(np.isfinite(scan), scan, 10.0).reshape(SECTORS, -1).min(axis=1)
    observation[-SECTORS:] = np.exp(-np.clip(nearest, 0.1, 10.0))
    return observation


@torch.no_grad()
def step(quaternion: np.ndarray, current: np.ndarray, ticks: np.ndarray, scan: np.ndarray) -> np.ndarray:
    quaternion, current, ticks, scan = annotate.input_tensors(
        "policy", {"quaternion": quaternion, "current": current, "ticks": ticks, "scan": scan}
    )
    observation = torch.from_numpy(observe(quaternion, current, ticks, scan)).unsqueeze(0)
    action = NETWORK(observation).squeeze(0).numpy()
    return annotate.output_tensors("policy", {"action": action}, export_with="onnx")


def sense(random: np.random.Generator) -> dict[str, np.ndarray]:
    scan = random.uniform(0.0, 12.0, BEAMS).astype(np.float32)
    return {
        "quaternion": random.normal(size=4).astype(np.float32),
        "current": random.uniform(-12.0, 12.0, JOINTS).astype(np.float32),
        "ticks": random.integers(-9000, 9000, JOINTS),
        "scan": np.where(scan > 10.0, np.inf, scan).astype(np.float32),
    }


def export(directory: Path) -> Path:
    random = np.random.default_rng(0)
    leapp.start("numpy_observations", save_path=directory)
    for _ in range(2):
        step(**sense(random))
    leapp.stop()
    leapp.compile_graph(graph_configs=GraphConfigs(frequency=50))
    return directory / "numpy_observations" / "numpy_observations.yaml"


def main() -> None:
    pipeline = Pipeline(export(Path(sys.argv[1] if len(sys.argv) > 1 else "exports")))
    random = np.random.default_rng(1)
    for _ in range(3):
        sensed = sense(random)
        print("bundle", pipeline({f"policy/{name}": value for name, value in sensed.items()})["policy/action"].tolist())
        print("eager ", step(**sensed).tolist())


if __name__ == "__main__":
    main()
