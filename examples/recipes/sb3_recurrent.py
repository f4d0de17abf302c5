"""sb3-contrib: a `RecurrentPPO` policy. The LSTM's memory goes in and out of the policy, so it is declared as state.

`predict` masks the memory at the start of an episode. A deployed policy starts from zeros, and
`manager.reset()` goes back there; within the node the mask is a constant zero.

    pip install sb3-contrib
    python examples/recipes/sb3_recurrent.py [output directory]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from sb3_contrib import RecurrentPPO

import leapp
from leapp import InferenceManager, annotate

# The distributions check their arguments by value; in a session such a look is reported as an escape.
torch.distributions.Distribution.set_default_validate_args(False)


def make_model() -> RecurrentPPO:
    """Stands for `RecurrentPPO.load(...)`."""
    options = {"lstm_hidden_size": 32}
    return RecurrentPPO("MlpLstmPolicy", "Pendulum-v1", policy_kwargs=options, n_steps=32, seed=0, device="cpu")


class Controller:
    """What `model.predict(x, state, deterministic=True)` computes, on tensors and with the memory kept here."""

    def __init__(self, model: RecurrentPPO) -> None:
        self.policy = model.policy.eval()
        self.low, self.high = (torch.as_tensor(bound) for bound in (model.action_space.low, model.action_space.high))
        size = self.policy.lstm_actor.hidden_size
        self.memory = (torch.zeros(1, 1, size), torch.zeros(1, 1, size))

    @torch.no_grad()
    def step(self, observation: torch.Tensor) -> torch.Tensor:
        observation = annotate.input_tensors("policy", {"observation": observation})
        memory = annotate.state_tensors("policy", {"h": self.memory[0], "c": self.memory[1]})
        going_on = torch.zeros(1)
        action, memory = self.policy._predict(observation, memory, going_on, deterministic=True)
        self.memory = annotate.update_state("policy", {"h": memory[0], "c": memory[1]})
        action = action.clamp(self.low, self.high)
        return annotate.output_tensors("policy", {"action": action}, export_with="onnx")


def export(directory: Path, model: RecurrentPPO) -> Path:
    controller = Controller(model)
    leapp.start("sb3_recurrent", save_path=directory)
    for _ in range(2):
        controller.step(torch.randn(1, 3))
    leapp.stop()
    leapp.compile_graph()
    return directory / "sb3_recurrent" / "sb3_recurrent.yaml"


def main() -> None:
    model = make_model()
    manager = InferenceManager(export(Path(sys.argv[1] if len(sys.argv) > 1 else "exports"), model))
    print("state:", manager.feedback_inputs)
    memory = None
    for _ in range(3):
        observation = torch.randn(1, 3)
        action, memory = model.predict(observation.numpy(), state=memory, deterministic=True)
        print("bundle", manager.run_policy({"policy/observation": observation})["policy/action"].tolist())
        print("eager ", action.tolist())


if __name__ == "__main__":
    main()
