"""Any policy of Stable-Baselines3: `model.predict` is the node, with the normalisation before it and the scaling behind it.

`predict` takes and gives NumPy arrays, which leapp follows, and it does more than the network: SAC and TD3 scale the action
to the limits of the robot, PPO and A2C clip it. Declared around the whole of it, nothing of that is left for the robot.

    python examples/recipes/sb3_predict.py [output directory]
"""

from __future__ import annotations

import sys
from pathlib import Path

import gymnasium
import numpy as np
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import leapp
from leapp import annotate
from leapp.runtime import Pipeline


def train() -> SAC:
    """Stands for `SAC.load(...)` and `VecNormalize.load(...)`."""
    environment = VecNormalize(DummyVecEnv([lambda: gymnasium.make("Pendulum-v1")]))
    return SAC("MlpPolicy", environment, learning_starts=32, batch_size=32, seed=0, device="cpu").learn(64)


def step(model: BaseAlgorithm, observation: np.ndarray) -> np.ndarray:
    """What the robot needs: from what it measures to what its motors get."""
    observation = annotate.input_tensors("policy", {"observation": observation})
    normalize = model.get_vec_normalize_env()
    action, _ = model.predict(normalize.normalize_obs(observation) if normalize else observation, deterministic=True)
    return annotate.output_tensors("policy", {"action": action}, export_with="onnx")


def export(directory: Path, model: BaseAlgorithm) -> Path:
    torch.distributions.Distribution.set_default_validate_args(False)  # its checks read values, which the export would freeze
    random, shape = np.random.default_rng(0), model.observation_space.shape or ()
    leapp.start("sb3_predict", save_path=directory)
    for _ in range(2):
        step(model, random.normal(size=(1, *shape)).astype(np.float32))
    leapp.stop()
    leapp.compile_graph()
    return directory / "sb3_predict" / "sb3_predict.yaml"


def main() -> None:
    model = train()
    pipeline = Pipeline(export(Path(sys.argv[1] if len(sys.argv) > 1 else "exports"), model))
    observation = np.float32([[0.5, -0.8, 2.0]])
    print("bundle", pipeline({"policy/observation": observation})["policy/action"].tolist())
    print("eager ", step(model, observation).tolist())


if __name__ == "__main__":
    main()
