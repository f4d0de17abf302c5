"""rsl_rl: a recurrent actor. Its hidden state is a plain attribute; two annotations make it state of the bundle.

`rnn.hidden_state` holds `(h, c)` of the LSTM between calls. Declare both before the actor runs, put the declared values
where rsl_rl looks for them, and hand in what it left there afterwards.

    pip install rsl-rl-lib
    python examples/recipes/rsl_rl_recurrent.py [output directory]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from rsl_rl.models import RNNModel
from tensordict import TensorDict

import leapp
from leapp import GraphConfigs, InferenceManager, annotate

OBSERVED, JOINTS, MEMORY = 36, 12, 32


def make_actor() -> RNNModel:
    """Stands for `runner.alg.actor` after `runner.load(checkpoint)`."""
    torch.manual_seed(0)
    example = TensorDict({"policy": torch.zeros(1, OBSERVED)}, batch_size=[1])
    actor = RNNModel(
        example, {"actor": ["policy"]}, "actor", JOINTS, hidden_dims=[32], obs_normalization=True,
        rnn_type="lstm", rnn_hidden_dim=MEMORY, distribution_cfg={"class_name": "GaussianDistribution"},
    )  # fmt: skip
    for _ in range(50):
        actor.update_normalization(TensorDict({"policy": 2.0 * torch.randn(1, OBSERVED)}, batch_size=[1]))
    actor.reset(hidden_state=(torch.zeros(1, 1, MEMORY), torch.zeros(1, 1, MEMORY)))
    return actor.eval()


@torch.inference_mode()
def step(actor: RNNModel, observation: torch.Tensor) -> torch.Tensor:
    observation = annotate.input_tensors("policy", {"observation": observation})
    h, c = actor.get_hidden_state()  # of an LSTM; a GRU has one tensor: {"h": actor.get_hidden_state()}
    actor.reset(hidden_state=annotate.state_tensors("policy", {"h": h, "c": c}))

    action = actor(TensorDict({"policy": observation}, batch_size=[1]))

    h, c = actor.get_hidden_state()
    annotate.update_state("policy", {"h": h, "c": c})
    return annotate.output_tensors("policy", {"action": action}, export_with="onnx")


def export(directory: Path) -> Path:
    actor = make_actor()
    leapp.start("rsl_rl_recurrent", save_path=directory)
    for _ in range(2):
        step(actor, torch.randn(1, OBSERVED))
    leapp.stop()
    leapp.compile_graph(graph_configs=GraphConfigs(frequency=50))
    return directory / "rsl_rl_recurrent" / "rsl_rl_recurrent.yaml"


def main() -> None:
    path = export(Path(sys.argv[1] if len(sys.argv) > 1 else "exports"))
    manager, actor = InferenceManager(path), make_actor()
    print("state:", manager.feedback_inputs)
    for _ in range(3):
        observation = torch.randn(1, OBSERVED)
        print("bundle", manager.run_policy({"policy/observation": observation})["policy/action"][0, :3].tolist())
        print("eager ", step(actor, observation)[0, :3].tolist())


if __name__ == "__main__":
    main()
