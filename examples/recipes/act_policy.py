"""An ACT policy (action chunking with transformers) and its temporal ensembling, as state.

Each step the transformer predicts the next `CHUNK` actions from a camera image and the joint positions. The action
applied is a weighted mean of what this step and the steps before it planned for now. The plans made so far and how
many there are become state of the bundle; a mask replaces the `if` for the first steps, so nothing depends on Python.

The policy is a small one of the same make as LeRobot's; annotate `policy.model(batch)` of a LeRobot policy in the same
way, and keep its action queue or ensembler outside of the node or rewrite it as below.

    python examples/recipes/act_policy.py [output directory]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

import leapp
from leapp import GraphConfigs, InferenceManager, TemporalAxis, TensorSemantics, annotate

JOINTS = [f"joint_{i}" for i in range(6)]
CHUNK, WIDTH = 8, 32


class ACT(nn.Module):
    """Image patches and joints through an encoder; learned queries through a decoder: one action for each query."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 16, 5, 4, 2), nn.ReLU(), nn.Conv2d(16, WIDTH, 3, 4, 1))
        self.joints = nn.Linear(len(JOINTS), WIDTH)
        self.latent = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.positions = nn.Parameter(0.1 * torch.randn(1, 2 + 16, WIDTH))
        self.queries = nn.Parameter(torch.randn(1, CHUNK, WIDTH))
        layer = {"d_model": WIDTH, "nhead": 4, "dim_feedforward": 64, "batch_first": True}
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(**layer), 2)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**layer), 1)
        self.head = nn.Linear(WIDTH, len(JOINTS))

    def forward(self, image: torch.Tensor, joints: torch.Tensor) -> torch.Tensor:
        patches = self.backbone(image).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.latent, self.joints(joints).unsqueeze(1), patches], dim=1)
        memory = self.encoder(tokens + self.positions)
        return self.head(self.decoder(self.queries, memory))


class Controller:
    """The policy and the plans it made in the last steps."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.policy = ACT().eval()
        self.weights = torch.exp(-0.01 * torch.arange(CHUNK).flip(0))  # the oldest plan weighs most
        self.plans, self.made = torch.zeros(CHUNK, CHUNK, len(JOINTS)), torch.zeros((), dtype=torch.int64)

    @torch.no_grad()
    def step(self, image: torch.Tensor, joints: torch.Tensor) -> torch.Tensor:
        image, joints = annotate.input_tensors(
            "act",
            [
                TensorSemantics("image", image, "state/camera/rgb", units="0..1"),
                TensorSemantics("joints", joints, "state/joint/position", [None, JOINTS], units="rad"),
            ],
        )
        plans, made = annotate.state_tensors("act", {"plans": self.plans, "made": self.made})

        plan = self.policy(image, joints)[0]
        plans = torch.cat([plan.unsqueeze(0), plans[:-1]])  # plans[k] was made k steps ago
        made = (made + 1).clamp(max=CHUNK)
        weights = self.weights * (torch.arange(CHUNK) < made)
        for_now = plans.diagonal(dim1=0, dim2=1).T  # of the plan made k steps ago, its entry k
        action = (weights.unsqueeze(1) * for_now).sum(0) / weights.sum()

        self.plans, self.made = annotate.update_state("act", {"plans": plans, "made": made})
        period = [TemporalAxis(20), JOINTS]
        annotate.output_tensors(
            "act",
            [
                TensorSemantics("action", action, "target/joint/position", JOINTS, units="rad"),
                TensorSemantics("plan", plan, "target/joint/position", period, units="rad"),
            ],
            export_with="onnx",
        )
        return action


def sense() -> dict[str, torch.Tensor]:
    return {"image": torch.rand(1, 3, 64, 64), "joints": torch.randn(1, len(JOINTS))}


def export(directory: Path) -> Path:
    controller = Controller()
    leapp.start("act_policy", save_path=directory)
    for _ in range(3):
        controller.step(**sense())
    leapp.stop()
    leapp.compile_graph(graph_configs=GraphConfigs(frequency=50))
    return directory / "act_policy" / "act_policy.yaml"


def main() -> None:
    path = export(Path(sys.argv[1] if len(sys.argv) > 1 else "exports"))
    manager, controller = InferenceManager(path), Controller()
    for _ in range(3):
        sensed = sense()
        outputs = manager.run_policy({f"act/{name}": value for name, value in sensed.items()})
        print("bundle", outputs["act/action"].tolist())
        print("eager ", controller.step(**sensed).tolist())


if __name__ == "__main__":
    main()
