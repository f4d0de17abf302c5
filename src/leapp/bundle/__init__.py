"""The bundle: what is on disk. Written whole or not at all, read with every file checked.

This station alone knows the YAML and the sidecar files. It imports no tensor library and no engine.
"""

from __future__ import annotations

from leapp.bundle.reading import Bundle, check_files, load_contract, open_bundle, read_initial_values, read_samples
from leapp.bundle.safetensors import RawTensor, Sample

__all__ = [
    "Bundle", "RawTensor", "Sample", "check_files", "load_contract", "open_bundle", "read_initial_values", "read_samples",
]  # fmt: skip
