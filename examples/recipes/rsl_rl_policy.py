"""rsl_rl: a feed-forward actor with its observation normaliser.

The actor is used as rsl_rl builds and calls it, with a TensorDict of observation groups. Each group is a port of its own;
joining and normalising them is part of the exported model, so the robot sends raw readings.

    pip install rsl-rl-lib
    python examples/recipes/rsl_rl_policy.py [output directory]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from rsl_rl.models import MLPModel
from tensordict import TensorDict

import leapp
from leapp import GraphConfigs, InferenceManager, annotate

JOINTS = 12
GROUPS = {"proprioception": 33, "command": 3}


def sense() -> dict[str, torch.Tensor]:
    return {name: 3.0 * torch.randn(1, size) + 1.0 for name, size in GROUPS.items()}


def make_actor() -> MLPModel:
    """Stands for `runner.alg.actor` after `runner.load(checkpoint)`."""
    torch.manual_seed(0)
    actor = MLPModel(
        TensorDict(sense(), batch_size=[1]), {"actor": list(GROUPS)}, "actor", JOINTS, hidden_dims=[64, 32],
        obs_normalization=True, distribution_cfg={"class_name": "GaussianDistribution"},
    )  # fmt: skip
    for _ in range(50):  # what training does: the normaliser learns the statistics
        actor.update_normalization(TensorDict(sense(), batch_size=[1]))
    return actor.eval()


@torch.inference_mode()
def step(actor: MLPModel, sensed: dict[str, torch.Tensor]) -> torch.Tensor:
    groups = annotate.input_tensors("policy", sensed)
    observations = TensorDict(dict(zip(sensed, groups, strict=True)), batch_size=[1])
    return annotate.output_tensors("policy", {"action": actor(observations)}, export_with="onnx")


def export(directory: Path) -> Path:
    actor = make_actor()
    leapp.start("rsl_rl_policy", save_path=directory)
    for _ in range(2):  # one pass would do; the second is a second sample that the written model is checked with
        step(actor, sense())
    leapp.stop()
    leapp.compile_graph(graph_configs=GraphConfigs(frequency=50))
    return directory / "rsl_rl_policy" / "rsl_rl_policy.yaml"


def main() -> None:
    path = export(Path(sys.argv[1] if len(sys.argv) > 1 else "exports"))
    manager, actor, sensed = InferenceManager(path), make_actor(), sense()
    outputs = manager.run_policy({f"policy/{name}": value for name, value in sensed.items()})
    print("bundle", outputs["policy/action"][0, :3].tolist())
    print("eager ", step(actor, sensed)[0, :3].tolist())


if __name__ == "__main__":
    main()
