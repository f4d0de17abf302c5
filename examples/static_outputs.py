"""Outputs that do not depend on any input: gains that travel with the policy, and a later node that uses them.

Run it:

    python examples/static_outputs.py [output directory]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

import leapp
from leapp import InferenceManager, OutputKindEnum, TensorSemantics, annotate

JOINTS = ["hip", "knee", "ankle"]
torch.manual_seed(2)
NETWORK = nn.Linear(6, 3).eval()


@torch.no_grad()
def step(position: torch.Tensor, velocity: torch.Tensor) -> torch.Tensor:
    position_in, velocity_in = annotate.input_tensors("policy", {"position": position, "velocity": velocity})
    target = position_in + 0.2 * torch.tanh(NETWORK(torch.cat([position_in, velocity_in])))
    kp = torch.tensor([40.0, 30.0, 10.0])
    kd = torch.tensor([1.0, 0.8, 0.2])
    annotate.output_tensors(
        "policy",
        {"target": target},
        static_outputs=[
            TensorSemantics("kp", kp, OutputKindEnum.KP, JOINTS),
            TensorSemantics("kd", kd, OutputKindEnum.KD, JOINTS),
        ],
        export_with="onnx",
    )

    target, kp, kd, position, velocity = annotate.input_tensors(
        "drive", {"target": target, "kp": kp, "kd": kd, "position": position, "velocity": velocity}
    )
    torque = kp * (target - position) - kd * velocity
    annotate.output_tensors("drive", {"torque": torque}, export_with="onnx")
    return torque


def export(directory: Path) -> Path:
    leapp.start("static_outputs", save_path=directory)
    for _ in range(2):
        step(torch.randn(3), torch.randn(3))
    leapp.stop()
    leapp.compile_graph()
    return directory / "static_outputs" / "static_outputs.yaml"


def main() -> None:
    path = export(Path(sys.argv[1] if len(sys.argv) > 1 else "exports"))
    manager = InferenceManager(str(path))
    print("inputs ", manager.inputs)
    position, velocity = torch.randn(3), torch.randn(3)
    readings = {"position": position, "velocity": velocity}
    inputs = {f"{node}/{name}": value for node in ("policy", "drive") for name, value in readings.items()}
    print("bundle ", manager.run_policy(inputs)["drive/torque"].tolist())
    print("eager  ", step(position, velocity).tolist())


if __name__ == "__main__":
    main()
