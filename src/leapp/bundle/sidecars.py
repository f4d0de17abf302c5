"""Describes models for the YAML, and writes initial values and samples beside it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from leapp.bundle.files import read_hashed
from leapp.bundle.safetensors import INITIAL_VALUES, SAMPLES, RawTensor, Sample, check_initial_values, encode, encode_samples
from leapp.graph.contract import Contract, ModelFile

_MOST_KEPT = 1 << 20
"""The most bytes of a model that is kept in memory after it was read."""


def describe_model(
    path: Path,
    directory: Path,
    backend: str,
    extra: Mapping[str, Any] | None = None,
    contents: dict[str, bytes] | None = None,
) -> ModelFile:
    """The ``parameters`` of a node whose model lies at ``path``, seen from ``directory``.

    Args:
        path: The model file.
        directory: The staging directory for a file that was staged, the bundle's own for a model that stays elsewhere.
        backend: ``jit``, ``onnx`` or ``pt2``, or what kind of file the user brought.
        extra: Backend metadata such as ``opset_version``.
        contents: Gets the bytes of a small model, by its path in the bundle.
    """
    content, md5, sha256 = read_hashed(path, _MOST_KEPT)
    relative = path.name
    if path.parent != directory or path.is_symlink():
        relative = Path(os.path.relpath(os.path.realpath(path), os.path.realpath(directory))).as_posix()
    if contents is not None and content is not None:
        contents[relative] = content
    return ModelFile(model_path=relative, md5sum=md5, sha256sum=sha256, backend=backend, extra=dict(extra or {}))


def write_initial_values(directory: Path, graph: str, values: Mapping[str, RawTensor], contract: Contract) -> str:
    """Write ``<graph>_initial_values.safetensors`` and return its name.

    Raises:
        BundleError: If the values are not exactly those of the fed-back inputs.
    """
    name = f"{graph}{INITIAL_VALUES}"
    check_initial_values(values, contract, name)
    (directory / name).write_bytes(encode(values))
    return name


_MOST_SAMPLES = 64 << 20
"""The most bytes of samples in a bundle."""


def write_samples(directory: Path, graph: str, samples: Mapping[str, Sequence[Sample]]) -> int:
    """Write ``<graph>_samples.safetensors`` with as many whole passes as fit; nothing if not even one does.

    Returns:
        The number of passes written.
    """
    data, passes = encode_samples(samples, _MOST_SAMPLES)
    if passes:
        (directory / f"{graph}{SAMPLES}").write_bytes(data)
    return passes
