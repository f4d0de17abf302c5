"""Mistakes with devices. `python -m tests.devices.mixes LIBRARY` prints what each of them raises."""

from __future__ import annotations

import sys

import torch

import leapp
from leapp import annotate
from tests.devices import robot
from tests.devices.policies import HERE, draw


def product(obs: torch.Tensor) -> None:
    obs = annotate.input_tensors("policy", {"obs": obs.to(HERE)})
    annotate.output_tensors("policy", {"action": obs * torch.ones(4)}, export_with="onnx")


def module_elsewhere(obs: torch.Tensor) -> None:
    obs = annotate.input_tensors("policy", {"obs": obs})
    annotate.output_tensors("policy", {"action": torch.nn.Linear(4, 2).to(HERE)(obs)}, export_with="onnx")


def state_that_moves(obs: torch.Tensor) -> None:
    obs = annotate.input_tensors("policy", {"obs": obs.to(HERE)})
    h = annotate.state_tensors("policy", {"h": torch.zeros(4, device=HERE)})
    annotate.update_state("policy", {"h": (h + obs).cpu()})
    annotate.output_tensors("policy", {"action": obs + h}, export_with="onnx")


MIXES = (product, module_elsewhere, state_that_moves)

if __name__ == "__main__":
    robot.add(sys.argv[1])
    for mix in MIXES:
        leapp.start(mix.__name__)
        try:
            mix(draw(0))
        except RuntimeError as error:
            print(f"{type(error).__name__}: {error}")
        finally:
            leapp.stop()
