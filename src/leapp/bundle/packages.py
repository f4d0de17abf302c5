"""Refuse TorchScript and ``.pt2`` files that unpack to far more than their size, by their table of contents.

Nothing is unpacked and nothing is interpreted. A small zip file can unpack to more than the memory holds. What the programs in
it do cannot be checked; ``trust`` decides whether they may run.

The table must end where the end record begins, as in every file that torch writes. Elsewhere, torch would read the table at the
offset that the file gives, and Python the one before the end record.
"""

from __future__ import annotations

from struct import Struct, error

from leapp.errors import BundleError

_FREE = 64 * 1024 * 1024
_RATIO = 10
"""The most that a package may grow when unpacked: its weights are not compressed, only a little text is."""

_MAX_FILES = 100_000

# The records of a zip file. Each begins with a signature; bytes that do not matter here are skipped.
_END = Struct("<4s6xH2LH")  # entries, size and offset of the table, size of the comment
_LOCATOR = Struct("<4s4xQ4x")  # offset of the large end record
_LARGE_END = Struct("<4s28x3Q")  # entries, size and offset of the table
_ENTRY = Struct("<4s20xL3H12x")  # unpacked size, sizes of the name, of further fields and of the comment
_FIELD = Struct("<2H")  # kind and size of a further field
_SIZE = Struct("<Q")
_IN_FIELD = 0xFFFFFFFF
"""The size of an entry whose size is in a further field of the kind 1."""


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
        files, size = _table(data)
    except (error, ValueError) as problem:
        raise BundleError(f"{what} cannot be opened: it is not a {backend} file ({problem}).") from problem
    if size > max(_FREE, _RATIO * len(data)) or files > _MAX_FILES:
        raise BundleError(f"{what}: the file has {len(data)} bytes but unpacks to {size} in {files} files.")


def _table(data: bytes) -> tuple[int, int]:
    """The number of files in a package, and the bytes that they unpack to together."""
    end = len(data) - _END.size
    signature, count, length, at, comment = _END.unpack_from(data, max(end, 0))
    if signature != b"PK\5\6" or comment:
        raise ValueError("the end of a zip file is missing")
    locator = end - _LOCATOR.size
    if data[max(locator, 0) : end].startswith(b"PK\6\7"):
        end = locator - _LARGE_END.size
        signature, count, length, at = _LARGE_END.unpack_from(data, max(end, 0))
        if signature != b"PK\6\6" or _LOCATOR.unpack_from(data, locator)[1] != end:
            raise ValueError("the large end record is not where it should be")
    if at + length != end:
        raise ValueError("the table of contents is not before the end record")
    size = 0
    for _ in range(min(count, _MAX_FILES)):
        signature, unpacked, *parts = _ENTRY.unpack_from(data, at)
        if signature != b"PK\1\2":
            raise ValueError("the table of contents is damaged")
        fields = at + _ENTRY.size + parts[0]
        size += _large_size(data, fields, fields + parts[1]) if unpacked == _IN_FIELD else unpacked
        at = fields + parts[1] + parts[2]
    if at != end and count <= _MAX_FILES:
        raise ValueError("the table of contents is damaged")
    return count, size


def _large_size(data: bytes, at: int, end: int) -> int:
    """The unpacked size of an entry in the field for large sizes, where it comes first."""
    while at < end:
        kind, length = _FIELD.unpack_from(data, at)
        if kind == 1:
            size: int = _SIZE.unpack_from(data, at + _FIELD.size)[0]
            return size
        at += _FIELD.size + length
    return _IN_FIELD
