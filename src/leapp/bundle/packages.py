"""What a TorchScript or ``.pt2`` file would make its engine unpack, told from the file's table of contents alone.

Nothing is inflated and nothing is interpreted. A zip file can announce more than memory holds, and a ``.pt2`` file can
carry shared libraries and pickles that its engine would load on opening.
"""

from __future__ import annotations

import io
import re
import zipfile

from leapp.errors import BundleError

__all__ = ["check_package"]

_FREE = 64 * 1024 * 1024
_RATIO = 10
"""Packages hold weights, which are stored, and a little text, which is deflated."""

_MAX_FILES = 100_000
_PROGRAM = re.compile(
    r"(models/[^/]+\.json|data/weights/[^/]+|data/constants/(tensor_\d+|[^/]+\.json|[^/]+\.pt)|data/sample_inputs/[^/]+\.pt"
    r"|archive_format|archive_version|version|byteorder|\.data/[^/]+|extra/.+|extra_files/.+"
    r"|serialized_(exported_program\.json|(state_dict|constants)\.(json|pt)|example_inputs\.pt))"
)
"""The files an exported program consists of, in this and in earlier versions of PyTorch."""


def check_package(data: bytes, backend: str, what: str, *, allow_native: bool) -> None:
    """Refuse a package that inflates beyond reason, or that holds native code without consent.

    Args:
        data: The bytes of the file.
        backend: ``jit`` or ``pt2``.
        what: What the file is, for messages.
        allow_native: Accept a ``.pt2`` file with more in it than an exported program.

    Raises:
        BundleError: If the file is refused, or is no package at all.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as package:
            entries = package.infolist()
    except (zipfile.BadZipFile, ValueError, OSError, OverflowError, EOFError, NotImplementedError) as error:
        raise BundleError(f"{what} cannot be opened: it is no {backend} file ({error}).") from error
    size = sum(entry.file_size for entry in entries)
    if size > max(_FREE, _RATIO * len(data)) or len(entries) > _MAX_FILES:
        raise BundleError(f"{what}: the file has {len(data)} bytes but unpacks to {size} in {len(entries)} files.")
    if backend == "pt2" and not allow_native:
        # All files stand in one folder, except in the earliest versions.
        names = [entry.filename for entry in entries]
        foreign = [name for name in names if not (_PROGRAM.fullmatch(name) or _PROGRAM.fullmatch(name.partition("/")[2]))]
        if foreign:
            raise BundleError(
                f"{what} holds more than an exported program, such as {foreign[0]!r}: native code or pickled objects "
                "that run on opening. Pass allow_code=True if you trust this bundle."
            )
