"""Exported policies for the command line to work on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import leapp
from leapp import GraphConfigs, InputKindEnum, OutputKindEnum, TensorSemantics, annotate

JOINTS = ["hip", "knee", "ankle"]


@dataclass
class Policy:
    """Two nodes with a state: what was exported, and how it runs in eager PyTorch."""

    path: Path
    weight: torch.Tensor
    described: bool = True

    def step(self, q: torch.Tensor, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        memory = 0.5 * memory + q
        return torch.tanh(memory @ self.weight) * 0.5, memory

    def trace(self, q: torch.Tensor, memory: torch.Tensor, backend: str) -> torch.Tensor:
        """One annotated pass. Returns the next memory."""
        position = TensorSemantics("q", q, InputKindEnum.JOINT_POSITION, JOINTS, units="rad", limits=[-3.0, 3.0])
        q = annotate.input_tensors("filter", position if self.described else {"q": q})
        memory = annotate.state_tensors("filter", {"memory": memory})
        new = 0.5 * memory + q
        annotate.update_state("filter", {"memory": new})
        annotate.output_tensors("filter", {"smooth": new}, export_with=backend)
        smooth = annotate.input_tensors("policy", {"smooth": new})
        target = torch.tanh(smooth @ self.weight) * 0.5
        made = TensorSemantics("target", target, OutputKindEnum.JOINT_POSITION, JOINTS, units="rad")
        annotate.output_tensors("policy", made if self.described else {"target": target}, export_with=backend)
        return new.detach()


def export(directory: Path, name: str, backend: str = "onnx", seed: int = 0, described: bool = True) -> Policy:
    generator = torch.Generator().manual_seed(seed)
    policy = Policy(directory / name, torch.randn(3, 3, generator=generator), described)
    inputs = torch.Generator().manual_seed(7)
    leapp.start(name, save_path=str(directory))
    try:
        memory = torch.zeros(1, 3)
        for _ in range(4):
            memory = policy.trace(torch.randn(1, 3, generator=inputs), memory, backend)
    finally:
        leapp.stop()
    assert leapp.compile_graph(graph_configs=GraphConfigs(frequency=50) if described else None)
    return policy


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    return export(tmp_path_factory.mktemp("described"), "leg")


@pytest.fixture(scope="session")
def retrained(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    """The same policy with other weights."""
    return export(tmp_path_factory.mktemp("retrained"), "leg", seed=1)


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    """Without kinds, units, names and rate, in TorchScript."""
    return export(tmp_path_factory.mktemp("scripted"), "leg", "jit", described=False)
