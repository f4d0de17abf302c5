"""Feedback between nodes, found by watching two passes.

A tracker corrects its estimate with a measurement; a planner pushes a setpoint towards a goal. The estimate of one step
is an input of the next one, in both nodes. Nothing says so but the code itself.

    python examples/feedback_example.py [output directory]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import leapp
from leapp import InferenceManager, annotate


def step(
    measured: torch.Tensor, goal: torch.Tensor, estimate: torch.Tensor, setpoint: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the effort to apply, and the estimate and the setpoint to pass to the next step."""
    measured, estimate, setpoint = annotate.input_tensors(
        "tracker", {"measured": measured, "estimate_before": estimate, "setpoint_before": setpoint}
    )
    estimate = estimate + 0.3 * (measured - estimate)
    effort = torch.clamp(4.0 * (setpoint - estimate), -1.0, 1.0)
    annotate.output_tensors("tracker", {"estimate": estimate, "effort": effort}, export_with="onnx")

    goal, current = annotate.input_tensors("planner", {"goal": goal, "estimate": estimate})
    setpoint = current + torch.clamp(goal - current, -0.1, 0.1)
    annotate.output_tensors("planner", {"setpoint": setpoint}, export_with="onnx")
    return effort, estimate, setpoint


def export(directory: Path) -> Path:
    leapp.start("feedback", save_path=directory)
    estimate, setpoint = torch.zeros(2), torch.zeros(2)
    for _ in range(2):  # the second pass shows what comes back
        _, estimate, setpoint = step(torch.randn(2), torch.randn(2), estimate, setpoint)
    leapp.stop()
    leapp.compile_graph()
    return directory / "feedback" / "feedback.yaml"


def main() -> None:
    path = export(Path(sys.argv[1] if len(sys.argv) > 1 else "exports"))
    manager = InferenceManager(str(path))
    print("fed back:", manager.feedback_inputs)

    estimate, setpoint = torch.zeros(2), torch.zeros(2)
    for _ in range(5):
        measured, goal = torch.randn(2), torch.ones(2)
        effort, estimate, setpoint = step(measured, goal, estimate, setpoint)
        outputs = manager.run_policy({"tracker/measured": measured, "planner/goal": goal})
        print("bundle", outputs["tracker/effort"].tolist(), "eager", effort.tolist())


if __name__ == "__main__":
    main()
