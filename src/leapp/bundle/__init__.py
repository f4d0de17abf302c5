"""The bundle on disk. It is written whole or not at all, and read with every file checked.

Only this package knows the YAML and the files beside it. It imports no tensor library and no engine.
"""

from __future__ import annotations

from leapp.bundle.reading import Bundle, check_files, load_contract, open_bundle, read_initial_values, read_samples
from leapp.bundle.safetensors import RawTensor, Sample

__all__ = [
    "Bundle", "RawTensor", "Sample", "check_files", "load_contract", "open_bundle", "read_initial_values", "read_samples",
]  # fmt: skip
