"""A diffusion policy: the whole denoising loop of diffusers' DDIM scheduler in one model.

The loop over time steps has a fixed length, so it is recorded unrolled, scheduler arithmetic included. The noise it starts
from is an input: the robot draws it (or sends zeros), and the model itself is a plain function that can be checked.
The last two observations are state.

    pip install diffusers
    python examples/recipes/diffusion_policy.py [output directory]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from diffusers.models.embeddings import TimestepEmbedding, Timesteps
from diffusers.schedulers import DDIMScheduler
from torch import nn

import leapp
from leapp import GraphConfigs, InferenceManager, TemporalAxis, TensorSemantics, annotate

OBSERVED, ACTIONS, HORIZON, WIDTH = 9, 2, 16, 32


class Denoiser(nn.Module):
    """Predicts the noise in a plan of `HORIZON` actions, given the time step and the last observations."""

    def __init__(self) -> None:
        super().__init__()
        self.time = Timesteps(WIDTH, flip_sin_to_cos=True, downscale_freq_shift=0)
        self.embed = TimestepEmbedding(WIDTH, WIDTH)
        self.modulate = nn.Sequential(nn.Mish(), nn.Linear(WIDTH + 2 * OBSERVED, 2 * WIDTH))
        self.enter = nn.Sequential(nn.Conv1d(ACTIONS, WIDTH, 5, padding=2), nn.GroupNorm(8, WIDTH), nn.Mish())
        self.leave = nn.Sequential(nn.Conv1d(WIDTH, WIDTH, 5, padding=2), nn.Mish(), nn.Conv1d(WIDTH, ACTIONS, 1))

    def forward(self, plan: torch.Tensor, time: torch.Tensor, observed: torch.Tensor) -> torch.Tensor:
        condition = torch.cat([self.embed(self.time(time.view(1))), observed.flatten(1)], dim=-1)
        scale, shift = self.modulate(condition).unsqueeze(-1).chunk(2, dim=1)
        return self.leave(self.enter(plan.transpose(1, 2)) * (1.0 + scale) + shift).transpose(1, 2)


class Controller:
    """The denoiser, its scheduler and the observations of this step and the one before."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.denoiser = Denoiser().eval()
        self.scheduler = DDIMScheduler(num_train_timesteps=100, beta_schedule="squaredcos_cap_v2", prediction_type="epsilon")
        self.scheduler.set_timesteps(10)
        self.observed = torch.zeros(1, 2, OBSERVED)

    @torch.no_grad()
    def step(self, observation: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        observation, noise = annotate.input_tensors("diffusion", {"observation": observation, "noise": noise})
        before = annotate.state_tensors("diffusion", {"observed": self.observed})
        observed = torch.cat([before[:, 1:], observation.unsqueeze(1)], dim=1)
        self.observed = annotate.update_state("diffusion", {"observed": observed})

        plan = noise
        for time in self.scheduler.timesteps:
            predicted = self.denoiser(plan, time, observed)
            plan = self.scheduler.step(predicted, time, plan).prev_sample

        entries = [None, TemporalAxis(period_ms=100), ["x", "y"]]
        meaning = TensorSemantics("plan", plan, "target/body/position", entries, units="m")
        return annotate.output_tensors("diffusion", meaning, export_with="onnx")


def sense() -> dict[str, torch.Tensor]:
    return {"observation": torch.randn(1, OBSERVED), "noise": torch.randn(1, HORIZON, ACTIONS)}


def export(directory: Path) -> Path:
    controller = Controller()
    leapp.start("diffusion_policy", save_path=directory)
    for _ in range(2):
        controller.step(**sense())
    leapp.stop()
    leapp.compile_graph(graph_configs=GraphConfigs(frequency=10))
    return directory / "diffusion_policy" / "diffusion_policy.yaml"


def main() -> None:
    path = export(Path(sys.argv[1] if len(sys.argv) > 1 else "exports"))
    manager, controller = InferenceManager(path), Controller()
    for _ in range(3):
        sensed = sense()
        outputs = manager.run_policy({f"diffusion/{name}": value for name, value in sensed.items()})
        print("bundle", outputs["diffusion/plan"][0, 0].tolist())
        print("eager ", controller.step(**sensed)[0, 0].tolist())


if __name__ == "__main__":
    main()
