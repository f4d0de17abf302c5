"""Stable-Baselines3: a PPO `MlpPolicy` with the statistics of its `VecNormalize`.

`model.predict` normalises outside of the model, asks the policy for the mean action and clips it. The exported node does
all three, so that the robot sends raw observations and applies the action as it comes.

    pip install stable-baselines3
    python examples/recipes/sb3_mlp.py [output directory]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

import leapp
from leapp import InferenceManager, annotate

# The distributions check their arguments by value; in a session such a look is reported as an escape.
torch.distributions.Distribution.set_default_validate_args(False)


def train() -> PPO:
    """Stands for `PPO.load(...)` and `VecNormalize.load(...)`."""
    environment = VecNormalize(make_vec_env("Pendulum-v1", seed=0))
    model = PPO("MlpPolicy", environment, n_steps=32, batch_size=32, n_epochs=1, seed=0, device="cpu")
    return model.learn(64)


class Controller:
    """What `model.predict(venv.normalize_obs(x), deterministic=True)` computes, on tensors."""

    def __init__(self, model: PPO) -> None:
        environment = model.get_vec_normalize_env()
        assert environment is not None
        statistics = environment.obs_rms
        self.policy = model.policy.eval()
        self.mean = torch.as_tensor(statistics.mean, dtype=torch.float32)
        self.deviation = torch.as_tensor(statistics.var + environment.epsilon, dtype=torch.float32).sqrt()
        self.clip = environment.clip_obs
        self.low, self.high = (torch.as_tensor(bound) for bound in (model.action_space.low, model.action_space.high))

    @torch.no_grad()
    def step(self, observation: torch.Tensor) -> torch.Tensor:
        observation = annotate.input_tensors("policy", {"observation": observation})
        normal = ((observation - self.mean) / self.deviation).clamp(-self.clip, self.clip)
        action = self.policy._predict(normal, deterministic=True).clamp(self.low, self.high)
        return annotate.output_tensors("policy", {"action": action}, export_with="onnx")


def export(directory: Path, model: PPO) -> Path:
    controller = Controller(model)
    leapp.start("sb3_mlp", save_path=directory)
    for _ in range(2):
        controller.step(torch.randn(1, 3))
    leapp.stop()
    leapp.compile_graph()
    return directory / "sb3_mlp" / "sb3_mlp.yaml"


def main() -> None:
    model = train()
    manager = InferenceManager(export(Path(sys.argv[1] if len(sys.argv) > 1 else "exports"), model))
    observation = torch.tensor([[0.5, -0.8, 2.0]])
    normal = model.get_vec_normalize_env().normalize_obs(observation.numpy())
    print("bundle", manager.run_policy({"policy/observation": observation})["policy/action"].tolist())
    print("eager ", model.predict(normal, deterministic=True)[0].tolist())


if __name__ == "__main__":
    main()
