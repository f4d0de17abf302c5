"""Two nodes: readings from two sensors become features, a small network turns features into a command.

Shows inputs declared where they are read, an edge that leapp finds by itself, and the bundle run on new readings.

    python examples/getting_started.py [output directory]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

import leapp
from leapp import InferenceManager, annotate

torch.manual_seed(0)
NETWORK = nn.Sequential(nn.Linear(7, 16), nn.Tanh(), nn.Linear(16, 2)).eval()


def read_gyro(raw: torch.Tensor) -> torch.Tensor:
    raw = annotate.input_tensors("features", {"gyro": raw})
    return raw.clamp(-4.0, 4.0) / 4.0


def read_range(raw: torch.Tensor) -> torch.Tensor:
    raw = annotate.input_tensors("features", {"range": raw})
    near = torch.where(raw < 0.2, torch.zeros_like(raw), raw)
    return near / (near.max() + 1e-6)


@torch.no_grad()
def step(gyro: torch.Tensor, distances: torch.Tensor) -> torch.Tensor:
    """One control step. It runs the same with and without a session."""
    features = torch.cat([read_gyro(gyro), read_range(distances)], dim=-1)
    annotate.output_tensors("features", {"features": features}, export_with="onnx")

    features = annotate.input_tensors("drive", {"features": features})
    command = NETWORK(features)
    annotate.output_tensors("drive", {"command": command}, export_with="onnx")
    return command


def export(directory: Path) -> Path:
    leapp.start("getting_started", save_path=directory)
    for _ in range(2):  # the second pass shows whether anything changes that would be frozen
        step(torch.randn(1, 3), torch.rand(1, 4))
    leapp.stop()
    leapp.compile_graph()
    return directory / "getting_started" / "getting_started.yaml"


def main() -> None:
    path = export(Path(sys.argv[1] if len(sys.argv) > 1 else "exports"))
    manager = InferenceManager(str(path))
    print("inputs ", manager.inputs)
    print("outputs", manager.outputs)

    gyro, distances = torch.randn(1, 3), torch.rand(1, 4)
    command = manager.run_policy({"features/gyro": gyro, "features/range": distances})["drive/command"]
    print("bundle ", command)
    print("eager  ", step(gyro, distances))


if __name__ == "__main__":
    main()
