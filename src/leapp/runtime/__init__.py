"""Run a bundle in a control loop: ``Pipeline`` with NumPy arrays, ``InferenceManager`` with torch tensors.

Both are APIs over one runtime. This package imports neither torch nor onnx; a bundle with TorchScript or ``.pt2`` nodes
imports torch when it is opened, and so does ``leapp.runtime.inference_manager``.
"""

from __future__ import annotations

from leapp.runtime.bench import Latency
from leapp.runtime.binding import Bound
from leapp.runtime.pipeline import Pipeline
from leapp.runtime.ports import PortInfo
from leapp.runtime.recording import Difference, Recorder, Recording, Replay, RunStep

__all__ = ["Bound", "Difference", "Latency", "Pipeline", "PortInfo", "Recorder", "Recording", "Replay", "RunStep"]
