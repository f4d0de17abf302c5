"""What the numbers mean: kinds, element names, units, a time axis and the rate, written beside shape and dtype.

Whoever receives the bundle finds the joint order and the units in the YAML file, not in a chat.

    python examples/tensor_semantics.py [output directory]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import yaml
from torch import nn

import leapp
from leapp import (
    GraphConfigs,
    InferenceManager,
    InputKindEnum,
    OutputKindEnum,
    TemporalAxis,
    TensorSemantics,
    annotate,
)

JOINTS = ["shoulder", "elbow", "wrist"]
HORIZON = 4
torch.manual_seed(1)
PLANNER = nn.Sequential(nn.Linear(9, 32), nn.ELU(), nn.Linear(32, HORIZON * len(JOINTS))).eval()


@torch.no_grad()
def step(position: torch.Tensor, velocity: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Plan the next joint positions, one row each 20 ms."""
    radians = {"units": "rad"}
    position, velocity, target = annotate.input_tensors(
        "arm",
        [
            TensorSemantics("position", position, InputKindEnum.JOINT_POSITION, JOINTS, radians),
            TensorSemantics("velocity", velocity, InputKindEnum.JOINT_VELOCITY, JOINTS, {"units": "rad/s"}),
            TensorSemantics("target", target, "command/arm/waypoint", JOINTS, radians),
        ],
    )
    moves = PLANNER(torch.cat([position, velocity, target])).view(HORIZON, len(JOINTS))
    plan = position + 0.1 * torch.tanh(moves).cumsum(dim=0)
    annotate.output_tensors(
        "arm",
        TensorSemantics("plan", plan, OutputKindEnum.JOINT_POSITION, [TemporalAxis(period_ms=20), JOINTS], radians),
        export_with="onnx",
    )
    return plan


def export(directory: Path) -> Path:
    leapp.start("arm_plan", save_path=directory)
    for _ in range(2):
        step(torch.randn(3), torch.randn(3), torch.randn(3))
    leapp.stop()
    leapp.compile_graph(graph_configs=GraphConfigs(frequency=50, extra={"robot": "three-joint arm"}))
    return directory / "arm_plan" / "arm_plan.yaml"


def main() -> None:
    path = export(Path(sys.argv[1] if len(sys.argv) > 1 else "exports"))
    description = yaml.safe_load(path.read_text())
    print("configs", description["pipeline"]["configs"])
    for port in description["models"]["arm"]["inputs"] + description["models"]["arm"]["outputs"]:
        print(port["name"], port["shape"], port["kind"], port["element_names"], port["units"])

    manager = InferenceManager(str(path))
    position, velocity, target = torch.randn(3), torch.randn(3), torch.randn(3)
    inputs = {"arm/position": position, "arm/velocity": velocity, "arm/target": target}
    print("bundle", manager.run_policy(inputs)["arm/plan"][-1].tolist())
    print("eager ", step(position, velocity, target)[-1].tolist())


if __name__ == "__main__":
    main()
