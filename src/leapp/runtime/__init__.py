"""Run a bundle in a control loop: ``Pipeline`` with NumPy arrays, ``InferenceManager`` with torch tensors.

Both are APIs over one runtime. This package imports neither torch nor onnx; a bundle with TorchScript or ``.pt2`` nodes
imports torch when it is opened, and so does ``leapp.runtime.inference_manager``.
"""

from __future__ import annotations

from leapp.runtime.pipeline import Pipeline
from leapp.runtime.ports import PortInfo

__all__ = ["Pipeline", "PortInfo"]
