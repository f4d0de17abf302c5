"""Large models on their way into an engine.

A model is verified in memory, so that the file cannot be exchanged in between. Engines that read from memory copy what
they read, some of them three times. A file without a name, which only this process can reach, is read once.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["Unnamed"]

_LARGE = 64 << 20


class Unnamed:
    """Files without names. They are gone when the block ends."""

    def __init__(self) -> None:
        self._open: list[int] = []

    def __enter__(self) -> Unnamed:
        return self

    def __exit__(self, *error: object) -> None:
        for descriptor in self._open:
            os.close(descriptor)

    def hold(self, data: bytes) -> bytes | Path:
        """The path of a file with these bytes; the bytes themselves if they are few or the system has no such files."""
        if len(data) <= _LARGE or not hasattr(os, "memfd_create"):
            return data
        descriptor = os.memfd_create("leapp")
        self._open.append(descriptor)
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        return Path(f"/proc/self/fd/{descriptor}")
