"""Programs that run in a loop, traced for a few passes and then compared with their bundle step by step.

A pattern builds a fresh program; ``step`` takes the graph inputs of one step and returns what the graph should output. The
same code runs traced and untraced, because annotations outside a session hand values back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import leapp

Tensor = torch.Tensor
Values = dict[str, Tensor]
Step = Callable[[Values], Values]
Draw = tuple[int, ...] | Callable[[], Tensor]

STEPS = 20
PATTERNS: dict[str, Pattern] = {}


@dataclass(frozen=True)
class Pattern:
    """A program in a loop. ``inputs`` says how each graph input (``node/port``) is drawn."""

    name: str
    make: Callable[[str], Step]
    inputs: dict[str, Draw]
    passes: int
    mode: str

    def draw(self) -> Values:
        """New values for all graph inputs."""
        return {k: torch.randn(d) if isinstance(d, tuple) else d() for k, d in self.inputs.items()}


def pattern(inputs: dict[str, Draw], passes: int = 2, mode: str = "no_grad") -> Callable[..., Callable[[str], Step]]:
    """Put a function that builds a program into the table."""

    def register(make: Callable[[str], Step]) -> Callable[[str], Step]:
        PATTERNS[make.__name__] = Pattern(make.__name__, make, inputs, passes, mode)
        return make

    return register


def fresh(chosen: Pattern, backend: str) -> Step:
    """The program as it is before its first step."""
    torch.manual_seed(7)
    return chosen.make(backend)


def run(chosen: Pattern, step: Step, values: Values) -> Values:
    """One step, under the mode the pattern asks for."""
    with getattr(torch, chosen.mode)():
        return step({k: v.clone() for k, v in values.items()})


def export(patterns: Sequence[Pattern], backend: str, where: Path, **start: object) -> Path:
    """Trace programs in one session and write their bundle."""
    leapp.start("loops", save_path=where, **start)  # type: ignore[arg-type]
    try:
        steps = [fresh(p, backend) for p in patterns]
        torch.manual_seed(11)
        for number in range(max(p.passes for p in patterns)):
            for p, step in zip(patterns, steps, strict=True):
                if number < p.passes:
                    run(p, step, p.draw())
    finally:
        leapp.stop()
    results = leapp.compile_graph(visualize=False)
    assert isinstance(results, dict) and all(v is True for v in results.values()), results
    return where / "loops" / "loops.yaml"


def play(patterns: Sequence[Pattern], backend: str, yaml: Path) -> None:
    """Run the bundle in closed loop beside untraced code, on new inputs."""
    manager = leapp.InferenceManager(str(yaml))
    assert sorted(manager.inputs) == sorted(k for p in patterns for k in p.inputs), manager.inputs
    steps = [fresh(p, backend) for p in patterns]
    torch.manual_seed(13)
    for number in range(STEPS):
        drawn = [p.draw() for p in patterns]
        got = manager({k: v for values in drawn for k, v in values.items()})
        wanted = [run(p, step, values) for p, step, values in zip(patterns, steps, drawn, strict=True)]
        assert sorted(got) == sorted(k for want in wanted for k in want), list(got)
        for want in wanted:
            for key, value in want.items():
                assert got[key].dtype == value.dtype and got[key].shape == value.shape, key
                message = f"{key}, step {number}: {got[key]} instead of {value}"
                torch.testing.assert_close(got[key], value, rtol=1e-4, atol=1e-5, equal_nan=True, msg=message)
