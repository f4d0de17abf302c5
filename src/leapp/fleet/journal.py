"""The file of finished recordings, from which a stopped run resumes.

Results are appended as they come, each with its length and a checksum, so that an incomplete entry at the end of the file is
found and cut off. Results are found by their keys, which the caller makes.
"""

from __future__ import annotations

import os
import struct
import tempfile
import zlib
from collections.abc import KeysView
from typing import BinaryIO

import msgspec

from leapp.errors import InputError
from leapp.fleet.statistics import Result

_MAGIC = b"leapp journal 2\n"
_HEAD = struct.Struct("<II")


class Journal:
    """Results of recordings by key, kept in a file.

    Args:
        path: The file, which may exist. None keeps the results until the journal is closed.

    Raises:
        InputError: The file is something else, or another run is writing to it.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self._places: dict[bytes, tuple[int, int]] = {}
        self._file: BinaryIO
        if path is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the journal
            self._file.write(_MAGIC)
            return
        # Not mode "a", which would write after an incomplete entry, nor "w", which would empty a file that is not a journal.
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
        try:
            self._open(os.fspath(path))
        except BaseException:  # also on Ctrl-C the file and its lock must be released
            self._file.close()
            raise

    def _open(self, name: str) -> None:
        if not _lock(self._file):
            raise InputError(f"Another run is writing to the journal {name}. Wait for it, or name another with --journal.")
        found = self._file.read(len(_MAGIC))
        # A run that was killed early leaves only a part of the first line, or an empty file.
        if not _MAGIC.startswith(found):
            raise InputError(f"{name} is not a journal of leapp replay. Name another file with --journal.")
        if found != _MAGIC:
            self._file.seek(0)
            self._file.write(_MAGIC)
        self._file.truncate(self._scan())
        self._file.seek(0, os.SEEK_END)

    def _scan(self) -> int:
        """Note where every whole entry is. Returns where the last one ends."""
        end = self._file.tell()
        while len(head := self._file.read(_HEAD.size)) == _HEAD.size:
            size, checksum = _HEAD.unpack(head)
            data = self._file.read(size)
            if len(data) != size or zlib.crc32(data) != checksum:
                break
            key, _ = msgspec.msgpack.decode(data, type=tuple[bytes, msgspec.Raw])
            self._places[key] = (end + _HEAD.size, size)
            end = self._file.tell()
        return end

    def keys(self) -> KeysView[bytes]:
        """The keys of all finished recordings."""
        return self._places.keys()

    def add(self, key: bytes, result: Result) -> None:
        """Add a result to the file. When this returns, the operating system has it."""
        data = msgspec.msgpack.encode((key, result))
        place = self._file.seek(0, os.SEEK_END)
        self._file.write(_HEAD.pack(len(data), zlib.crc32(data)) + data)
        self._file.flush()
        self._places[key] = (place + _HEAD.size, len(data))

    def read(self, key: bytes) -> Result:
        """The result of a finished recording."""
        place, size = self._places[key]
        self._file.seek(place)
        return msgspec.msgpack.decode(self._file.read(size), type=tuple[bytes, Result])[1]

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()


def _lock(file: BinaryIO) -> bool:
    """Lock the file, until the process ends. Returns whether no other process has the lock."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
