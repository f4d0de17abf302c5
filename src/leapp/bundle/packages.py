"""Refuse TorchScript and ``.pt2`` files that unpack to far more than their size, by their table of contents.

Nothing is unpacked and nothing is interpreted. A small zip file can unpack to more than the memory holds. What the programs in
it do cannot be checked; ``trust`` decides whether they may run.
"""

from __future__ import annotations

import io
import zipfile

from leapp.errors import BundleError

_FREE = 64 * 1024 * 1024
_RATIO = 10
"""The most that a package may grow when unpacked: its weights are not compressed, only a little text is."""

_MAX_FILES = 100_000


def check_package(data: bytes, backend: str, what: str) -> None:
    """Refuse a package that inflates beyond reason.

    Args:
        data: The bytes of the file.
        backend: ``jit`` or ``pt2``.
        what: What the file is, for messages.

    Raises:
        BundleError: If the file is refused, or is not a package.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as package:
            entries = package.infolist()
    except (zipfile.BadZipFile, ValueError, OSError, OverflowError, EOFError, NotImplementedError) as error:
        raise BundleError(f"{what} cannot be opened: it is not a {backend} file ({error}).") from error
    size = sum(entry.file_size for entry in entries)
    if size > max(_FREE, _RATIO * len(data)) or len(entries) > _MAX_FILES:
        raise BundleError(f"{what}: the file has {len(data)} bytes but unpacks to {size} in {len(entries)} files.")
