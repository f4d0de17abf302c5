"""Bring your own model: a file that exists already takes the place of a node.

The detector was delivered as an ONNX file. The node around it is traced for its ports and its place in the graph; the
file itself is copied into the bundle. Its inputs and outputs carry the names of the ports.

    python examples/byom.py [output directory]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

import leapp
from leapp import InferenceManager, annotate


def make_detector() -> nn.Module:
    torch.manual_seed(9)
    convolution, head = nn.Conv2d(1, 4, 3), nn.Linear(4 * 6 * 6, 3)
    nn.init.normal_(head.weight)  # strong weights, so that the choice depends on the image
    return nn.Sequential(convolution, nn.ReLU(), nn.Flatten(), head).eval()


def deliver(detector: nn.Module, file: Path) -> None:
    """What a vendor does long before: write the model with names of its own choice."""
    file.parent.mkdir(parents=True, exist_ok=True)
    example = torch.zeros(1, 1, 8, 8)
    torch.onnx.export(
        detector, (example,), file, input_names=["image"], output_names=["scores"], external_data=False, verbose=False
    )


@torch.no_grad()
def step(detector: nn.Module, depth: torch.Tensor, file: Path | None = None) -> tuple[torch.Tensor, ...]:
    depth = annotate.input_tensors("prepare", {"depth": depth})
    image = (depth.clamp(0.3, 3.0) - 0.3) / 2.7
    annotate.output_tensors("prepare", {"image": image}, export_with="onnx")

    image = annotate.input_tensors("detect", {"image": image})
    scores = detector(image)
    own = {"model_path": str(file), "copy_original_model": True}
    annotate.output_tensors("detect", {"scores": scores}, export_with=None, backend_params=own)

    scores = annotate.input_tensors("decide", {"scores": scores})
    confidence, chosen = torch.softmax(scores, dim=1).max(dim=1)
    annotate.output_tensors("decide", {"chosen": chosen, "confidence": confidence}, export_with="onnx")
    return chosen, confidence


def export(directory: Path) -> Path:
    detector, file = make_detector(), directory / "vendor" / "detector.onnx"
    deliver(detector, file)
    leapp.start("byom", save_path=directory)
    for _ in range(2):
        step(detector, 3.0 * torch.rand(1, 1, 8, 8), file)
    leapp.stop()
    leapp.compile_graph()
    return directory / "byom" / "byom.yaml"


def main() -> None:
    path = export(Path(sys.argv[1] if len(sys.argv) > 1 else "exports"))
    manager, detector = InferenceManager(str(path)), make_detector()
    for _ in range(3):
        depth = 3.0 * torch.rand(1, 1, 8, 8)
        outputs = manager.run_policy({"prepare/depth": depth})
        print("bundle", outputs["decide/chosen"], outputs["decide/confidence"], "eager", *step(detector, depth))


if __name__ == "__main__":
    main()
