"""Writes torch's archives so that a full disk raises an error. torch's own writer ends the process."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

_SMALL = 64 << 20
"""Archives up to this size are made in memory. For larger ones a second copy of the weights costs too much."""


def save_archive(
    path: Path, weights: Iterable[torch.Tensor], as_bytes: Callable[[], bytes], to_file: Callable[[str], object]
) -> None:
    """Write an archive.

    Args:
        path: The file.
        weights: The tensors in it, which are nearly all of its size.
        as_bytes: Makes it in memory.
        to_file: Writes it to a path, with torch's writer.

    Raises:
        OSError: The disk is full.
    """
    size = sum(tensor.numel() * tensor.element_size() for tensor in weights)
    if size <= _SMALL:
        path.write_bytes(as_bytes())
        return
    if shutil.disk_usage(path.parent).free < size + _SMALL:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    to_file(str(path))
