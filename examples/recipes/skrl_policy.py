"""skrl: a Gaussian model with its `RunningStandardScaler`.

`act` draws a sample; a robot wants the mean. Only what reaches a declared output is exported, so declaring
`mean_actions` leaves the sampling out of the model.

    pip install skrl
    python examples/recipes/skrl_policy.py [output directory]
"""

from __future__ import annotations

import sys
from pathlib import Path

import gymnasium
import torch
from skrl.models.torch import GaussianMixin, Model
from skrl.resources.preprocessors.torch import RunningStandardScaler
from torch import nn

import leapp
from leapp import InferenceManager, annotate

OBSERVED, ACTIONS = 17, 6


class Policy(GaussianMixin, Model):
    """A policy as skrl's examples write it."""

    def __init__(self, observed: gymnasium.Space, actions: gymnasium.Space) -> None:
        Model.__init__(self, observation_space=observed, action_space=actions, device="cpu")
        GaussianMixin.__init__(self, clip_mean_actions=True)
        self.net = nn.Sequential(nn.Linear(self.num_observations, 64), nn.ELU(), nn.Linear(64, self.num_actions))
        self.log_std_parameter = nn.Parameter(torch.zeros(self.num_actions))

    def compute(self, inputs: dict, role: str = "") -> tuple[torch.Tensor, dict]:
        return self.net(inputs["observations"]), {"log_std": self.log_std_parameter}


def make_agent() -> tuple[Policy, RunningStandardScaler]:
    """Stands for `agent.load(...)`: the policy and the scaler of its checkpoint."""
    torch.manual_seed(0)
    observed = gymnasium.spaces.Box(-10.0, 10.0, (OBSERVED,))
    policy = Policy(observed, gymnasium.spaces.Box(-0.4, 0.4, (ACTIONS,)))
    scaler = RunningStandardScaler(size=observed, device="cpu")
    for _ in range(20):
        scaler(2.0 + 3.0 * torch.randn(32, OBSERVED), train=True)
    return policy.eval(), scaler.eval()


@torch.no_grad()
def step(policy: Policy, scaler: RunningStandardScaler, observation: torch.Tensor) -> torch.Tensor:
    observation = annotate.input_tensors("policy", {"observation": observation})
    _, outputs = policy.act({"observations": scaler(observation)}, role="policy")
    return annotate.output_tensors("policy", {"action": outputs["mean_actions"]}, export_with="onnx")


def export(directory: Path) -> Path:
    policy, scaler = make_agent()
    leapp.start("skrl_policy", save_path=directory)
    for _ in range(2):
        step(policy, scaler, torch.randn(1, OBSERVED))
    leapp.stop()
    leapp.compile_graph()
    return directory / "skrl_policy" / "skrl_policy.yaml"


def main() -> None:
    manager = InferenceManager(export(Path(sys.argv[1] if len(sys.argv) > 1 else "exports")))
    observation = 2.0 + 3.0 * torch.randn(1, OBSERVED)
    print("bundle", manager.run_policy({"policy/observation": observation})["policy/action"].tolist())
    print("eager ", step(*make_agent(), observation).tolist())


if __name__ == "__main__":
    main()
