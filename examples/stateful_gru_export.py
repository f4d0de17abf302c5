"""A recurrent policy whose memory lives in the module: `annotate.module` makes it state of the bundle.

The module is ordinary PyTorch. It assigns a registered buffer in `forward`; that is all the export needs to see.

    python examples/stateful_gru_export.py [output directory]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

import leapp
from leapp import InferenceManager, annotate


class RecurrentPolicy(nn.Module):
    """Observation in, action out, memory kept between calls."""

    scale: torch.Tensor
    memory: torch.Tensor

    def __init__(self, observed: int = 12, remembered: int = 24, actions: int = 4) -> None:
        super().__init__()
        self.gru = nn.GRU(observed, remembered)
        self.head = nn.Linear(remembered, actions)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, actions))  # only read: becomes a constant
        self.register_buffer("memory", torch.zeros(1, 1, remembered))  # assigned: becomes state

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        features, self.memory = self.gru(observation.unsqueeze(0), self.memory)
        return torch.tanh(self.head(features.squeeze(0))) * self.scale


def make_policy() -> RecurrentPolicy:
    torch.manual_seed(3)
    return RecurrentPolicy().eval()


@torch.no_grad()
def step(policy: RecurrentPolicy, observation: torch.Tensor) -> torch.Tensor:
    observation = annotate.input_tensors("policy", {"observation": observation})
    annotate.module("policy", policy)
    action = policy(observation)
    return annotate.output_tensors("policy", {"action": action}, export_with="onnx")


def export(directory: Path) -> Path:
    policy = make_policy()
    leapp.start("stateful_gru", save_path=directory)
    for _ in range(2):
        step(policy, torch.randn(1, 12))
    leapp.stop()
    leapp.compile_graph()
    return directory / "stateful_gru" / "stateful_gru.yaml"


def main() -> None:
    path = export(Path(sys.argv[1] if len(sys.argv) > 1 else "exports"))
    manager, policy = InferenceManager(str(path)), make_policy()
    print("state:", manager.feedback_inputs)
    for _ in range(3):
        observation = torch.randn(1, 12)
        print("bundle", manager.run_policy({"policy/observation": observation})["policy/action"].tolist())
        print("eager ", step(policy, observation).tolist())
    manager.reset()  # back to the memory the policy had when it was traced


if __name__ == "__main__":
    main()
