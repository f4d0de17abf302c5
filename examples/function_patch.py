"""A function that tracing cannot look into, replaced by one it can, while a session is open.

`to_grey` stands for a compiled image routine: it takes bytes and gives bytes, and nothing in between is visible.
`FunctionPatch` names a stand-in. It is called only with values that are being traced; everyone else still gets the
original, and after `leapp.stop()` the original is all there is.

    python examples/function_patch.py [output directory]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

import leapp
from leapp import FunctionPatch, InferenceManager, annotate


def to_grey(image: torch.Tensor) -> torch.Tensor:
    """Weigh red, green and blue of an image, byte by byte, as a compiled library would."""
    pixels = memoryview(image.numpy().tobytes())
    grey = (0.299 * r + 0.587 * g + 0.114 * b for r, g, b in zip(pixels[0::3], pixels[1::3], pixels[2::3], strict=True))
    return torch.from_numpy(np.fromiter(grey, dtype=np.float32).reshape(tuple(image.shape[:2])))


def to_grey_traceable(image: torch.Tensor) -> torch.Tensor:
    """The same weights in tensor operations."""
    return (image.float() * torch.tensor([0.299, 0.587, 0.114])).sum(dim=2)


def step(image: torch.Tensor) -> torch.Tensor:
    """The brightness of each quarter of the image, between 0 and 1."""
    image = annotate.input_tensors("brightness", {"image": image})
    grey = to_grey(image) / 255.0
    quarters = torch.nn.functional.avg_pool2d(grey[None, None], kernel_size=4).flatten()
    annotate.output_tensors("brightness", {"quarters": quarters}, export_with="onnx")
    return quarters


def make_image() -> torch.Tensor:
    return torch.randint(0, 256, (8, 8, 3), dtype=torch.uint8)


def export(directory: Path) -> Path:
    patch = FunctionPatch(sys.modules[__name__], "to_grey", to_grey_traceable)
    leapp.start("function_patch", save_path=directory, patching=[patch])
    for _ in range(2):
        step(make_image())
    leapp.stop()
    leapp.compile_graph()
    return directory / "function_patch" / "function_patch.yaml"


def main() -> None:
    path = export(Path(sys.argv[1] if len(sys.argv) > 1 else "exports"))
    manager = InferenceManager(str(path))
    image = make_image()
    print("bundle", manager.run_policy({"brightness/image": image})["brightness/quarters"].tolist())
    print("eager ", step(image).tolist())


if __name__ == "__main__":
    main()
