"""Files that a bundle names: where they may be, and whether their bytes are the ones that were written.

Nothing here interprets a model. A file is opened once, checked to be a regular file inside the bundle, read, hashed,
and only then handed on.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from leapp.errors import BundleError, BundleFileError

__all__ = ["check_collisions", "hash_file", "locate", "read_regular", "read_verified"]

_CHUNK = 1 << 20
_UNPORTABLE = re.compile(r"[\x00-\x1f\x7f\\]|^[A-Za-z]:")


def hash_file(path: Path) -> tuple[str, str]:
    """The md5 and the sha256 of a file, as hexadecimal text. The md5 is only there for readers that ask for the key."""
    md5, sha256 = hashlib.md5(usedforsecurity=False), hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            md5.update(chunk)
            sha256.update(chunk)
    return md5.hexdigest(), sha256.hexdigest()


def locate(directory: Path, name: str, what: str, *, allow_outside: bool = False) -> Path:
    """The file that ``name`` means, seen from the bundle's directory.

    Args:
        directory: The bundle's directory.
        name: The path as the bundle spells it.
        what: What the file is, for messages: ``"model of node 'policy'"``.
        allow_outside: Whether the file may lie outside the directory, as a bring-your-own model does.

    Raises:
        BundleError: If the path leaves the directory or could mean another file on another system.
        BundleFileError: If there is no such file.
    """
    if not name or _UNPORTABLE.search(name):
        raise BundleError(f"{what}: {name!r} is not a usable path.")
    root = Path(os.path.realpath(directory))
    if not allow_outside and (os.path.isabs(name) or ".." in name.split("/")):
        raise BundleError(
            f"{what}: the path '{name}' leads out of the bundle directory. "
            "Copy the file into the bundle, or pass allow_outside=True if you trust this bundle."
        )
    path = Path(os.path.realpath(root / name))
    if not allow_outside and root not in path.parents:
        raise BundleError(
            f"{what}: '{name}' is a link to a place outside the bundle directory. "
            "Copy the file into the bundle, or pass allow_outside=True if you trust this bundle."
        )
    # Unlike Path.exists, this takes a name that is too long for one that does not exist.
    if not os.path.exists(path):
        raise BundleFileError(f"{what}: the file '{name[:200]}' is missing in {directory}. Copy the whole bundle directory.")
    return path


def read_regular(path: Path, what: str, *, limit: int | None = None) -> bytes:
    """The bytes of a regular file. Pipes, devices and directories are refused before anything is read."""
    # Without O_NONBLOCK, opening a pipe that nobody writes to would wait for ever.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        raise BundleFileError(f"{what}: there is no file {path}.") from None
    except (OSError, ValueError) as error:
        raise BundleError(f"{what}: {path} cannot be read: {error}.") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise BundleError(f"{what}: {path} is not a regular file.")
        if limit is not None and status.st_size > limit:
            raise BundleError(f"{what}: {path} is larger than {limit} bytes.")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def read_verified(path: Path, sha256: str, what: str) -> bytes:
    """The bytes of a file, after they were found to have the given sha256.

    Raises:
        BundleError: If the bytes are others than the ones that were exported.
    """
    data = read_regular(path, what)
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise BundleError(
            f"{what}: checksum mismatch, the file {path.name} was changed or damaged after the export "
            f"(expected sha256 {sha256}, got {found}). Export again or restore the file."
        )
    return data


def check_collisions(names: Iterable[str]) -> None:
    """Refuse two different paths that are one file where upper and lower case, or accents, are not told apart."""
    seen: dict[str, str] = {}
    for name in names:
        folded = unicodedata.normalize("NFC", os.path.normpath(name)).casefold()
        other = seen.setdefault(folded, name)
        if os.path.normpath(other) != os.path.normpath(name):
            raise BundleError(
                f"The paths '{other}' and '{name}' are the same file on systems that ignore case. Rename one node."
            )
