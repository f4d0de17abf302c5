"""Reads the files that a bundle names: checks where they are, and that their bytes are those that were written.

Nothing here interprets a model. A file is checked to be a regular file, and its bytes are those that are returned: they are
hashed, or compared with bytes that this process has hashed before. A file whose sha256 is known may lie anywhere, such as a
link into a cache. Any other file must lie inside the bundle.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import shlex
import stat
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from leapp.bundle.recent import Recent
from leapp.errors import BundleError, BundleFileError

YAML = (".yaml", ".yml")
"""The suffixes of a bundle's description."""
SHA256 = "[0-9a-f]{64}"
"""A regular expression for a sha256 in hexadecimal."""
_SHA256 = re.compile(SHA256)

_CHUNK = 1 << 20
"""Larger files are read in pieces of this size where their bytes are not needed."""
_PIECE = 1 << 16
"""The size of the pieces in which a file is compared. Python uses memory of this size again; more takes longer to get."""
_SMALL = 1 << 20
"""The most bytes of a file that is remembered."""
RECENT_FILES: Recent[bytes] = Recent(4 * _SMALL)
"""Small files by their sha256, and models that were merged from them. To compare bytes is much faster than to hash them."""
_PSEUDO = ("/proc/", "/sys/", "/dev/")
_MAX_LINKS = 40
_LARGE = 1 << 30
"""A file of more bytes must not be sparse, because a sparse file of any size is quickly made."""
# Without O_NONBLOCK, opening a pipe without a writer would block for ever.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_UNPORTABLE = re.compile(r"[\x00-\x1f\x7f\\]|^[A-Za-z]:")


def as_argument(path: str | os.PathLike[str]) -> str:
    """A path for a command line: quoted, and not mistaken for an option."""
    text = os.fspath(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def descriptions_in(directory: Path) -> list[Path]:
    """The files in a directory that may describe a bundle."""
    return sorted(path for path in directory.iterdir() if path.suffix in YAML)


def is_sha256(value: object) -> bool:
    """Whether a value is a sha256 as text."""
    return isinstance(value, str) and _SHA256.fullmatch(value) is not None


def hash_file(path: Path) -> tuple[str, str]:
    """The md5 and the sha256 of a file, as hexadecimal text. The md5 is only there for readers that ask for the key."""
    return read_hashed(path, 0)[1:]


def read_hashed(path: Path, most: int) -> tuple[bytes | None, str, str]:
    """The bytes of a file (None if it has more than ``most``), its md5 and its sha256."""
    md5, sha256 = hashlib.md5(usedforsecurity=False), hashlib.sha256()
    kept, size = b"", 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            md5.update(chunk)
            sha256.update(chunk)
            kept, size = chunk, size + len(chunk)
    return kept if len(kept) == size <= most else None, md5.hexdigest(), sha256.hexdigest()


def locate(root: str, name: str, what: str, *, anywhere: bool = False) -> str:
    """The file with the path ``name`` in the bundle's directory, without links.

    Args:
        root: The bundle's directory, as ``os.path.realpath`` gives it.
        name: The path as the bundle spells it.
        what: What the file is, for messages: ``"model of node 'policy'"``.
        anywhere: Whether the file may lie outside the directory. This is safe if its sha256 is known: the author of the bundle
            knew its content, so the bundle cannot make a private file of this machine public.

    Raises:
        BundleError: If the path leaves the directory or could mean another file on another system.
        BundleFileError: If there is no such file.
    """
    if not name or _UNPORTABLE.search(name):
        raise BundleError(f"{what}: {name!r} is not a usable path.")
    if not anywhere and (os.path.isabs(name) or ".." in name.split("/")):
        raise BundleError(
            f"{what}: the path '{name}' leads out of the bundle directory. "
            "Copy the file into the bundle, or pass allow_outside=True if you trust this bundle."
        )
    spelled = os.path.join(root, name)
    plain = _is_plain(spelled, name)
    path = spelled if plain else os.path.realpath(spelled)
    if not anywhere and not path.startswith(os.path.join(root, "")):
        raise BundleError(
            f"{what}: '{name}' is a link to a place outside the bundle directory. "
            "Copy the file into the bundle, or pass allow_outside=True if you trust this bundle."
        )
    if _is_pseudo(spelled, path):
        raise BundleError(f"{what}: '{name}' is not a regular file.")
    # Unlike Path.exists, this returns False for a name that is too long.
    if not plain and not os.path.exists(path):
        raise BundleFileError(f"{what}: the file '{name[:200]}' is missing in {root}. Copy the whole bundle directory.")
    return path


def without_links(root: str, name: str) -> str:
    """The path of the file ``name`` in a directory, without links. ``root`` is the directory, without links."""
    spelled = os.path.join(root, name)
    return spelled if _is_plain(spelled, name) else os.path.realpath(spelled)


def _is_plain(path: str, name: str) -> bool:
    """Whether a path exists, ends with a bare file name, and is not a link."""
    try:
        return "/" not in name and name not in (".", "..") and not stat.S_ISLNK(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def _open_regular(path: str | Path, what: str) -> tuple[int, int]:
    """A regular file, open for reading: its descriptor, and its size. Pipes, devices and files of the kernel are refused.

    Raises:
        BundleError: If the file cannot be read or is not a regular file.
        BundleFileError: If there is no such file.
    """
    try:
        descriptor = os.open(path, _FLAGS)
    except FileNotFoundError:
        raise BundleFileError(f"{what}: there is no file {path}.") from None
    except (OSError, ValueError) as error:
        raise BundleError(f"{what}: {path} cannot be read: {error}.") from error
    try:
        # Read from the open descriptor: another file may be at the path by now.
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_dev in _pseudo_devices():
            raise BundleError(f"{what}: {path} is not a regular file.")
        if status.st_size > _LARGE and getattr(status, "st_blocks", status.st_size) * 512 < status.st_size // 8:
            raise BundleError(f"{what}: {path} says that it has {status.st_size} bytes, most of which were never written.")
        return descriptor, status.st_size
    except BaseException:  # whatever it is, also Ctrl-C, the descriptor must not stay open
        os.close(descriptor)
        raise


def read_regular(path: str | Path, what: str, *, limit: int | None = None, real: str | None = None) -> bytes:
    """The bytes of a regular file. ``real`` is its path without links, if that is known."""
    _refuse_pseudo(path, what, real)
    descriptor, size = _open_regular(path, what)
    try:
        most = memory_of_machine() if limit is None else limit
        if size > most:
            raise BundleError(f"{what}: {path} is larger than {most} bytes.")
        if size <= _CHUNK and len(data := os.read(descriptor, size)) == size:
            return data
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            file.seek(0)
            return file.read(size)
    finally:
        os.close(descriptor)


def sha256_of(path: str | Path, what: str, *, real: str | None = None) -> str:
    """The sha256 of a regular file of any size. ``real`` is its path without links, if that is known."""
    _refuse_pseudo(path, what, real)
    sha256 = hashlib.sha256()
    descriptor, size = _open_regular(path, what)
    try:
        while chunk := os.read(descriptor, min(size, _CHUNK) or 1):
            sha256.update(chunk)
    finally:
        os.close(descriptor)
    return sha256.hexdigest()


def _refuse_pseudo(path: str | Path, what: str, real: str | None) -> None:
    if _is_pseudo(os.fspath(path), real or os.path.realpath(path)):
        raise BundleError(f"{what}: {path} is not a regular file.")


def _is_pseudo(spelled: str, real: str) -> bool:
    """Whether a path, ``real`` without links, leads through a pseudo file system. Files in ``/dev/shm`` are real."""
    if spelled == real:
        return real.startswith(_PSEUDO) and not real.startswith("/dev/shm/")
    paths = [real, os.path.abspath(spelled)]
    while os.path.islink(paths[-1]) and len(paths) < _MAX_LINKS:
        paths.append(os.path.normpath(os.path.join(os.path.dirname(paths[-1]), os.readlink(paths[-1]))))
    return any(path.startswith(_PSEUDO) and not path.startswith("/dev/shm/") for path in paths)


@functools.cache
def memory_of_machine() -> int:
    """The memory of this machine, in bytes. A larger file is refused before it is read."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 1 << 62


@functools.cache
def _pseudo_devices() -> frozenset[int]:
    found = set()
    for folder in ("/proc", "/sys"):
        with contextlib.suppress(OSError):
            if os.path.ismount(folder):
                found.add(os.stat(folder).st_dev)
    return frozenset(found)


def read_verified(path: str, sha256: str, what: str) -> bytes:
    """The bytes of a file that ``locate`` found, which have the given sha256. Other callers may get the same object.

    Raises:
        BundleError: If the bytes differ from those that were exported.
    """
    known = RECENT_FILES.get(sha256)
    if known is not None and _holds(path, known, what):
        return known
    data = read_regular(path, what, real=path)
    _compare(hashlib.sha256(data).hexdigest(), sha256, path, what)
    RECENT_FILES.put(sha256, data, len(data))
    return data


def read_own(path: str, sha256: str, what: str) -> bytes:
    """As ``read_verified``, in memory of the caller's own: tensors over these bytes may be written to.

    Raises:
        BundleError: If the bytes differ from those that were exported.
    """
    data = read_verified(path, sha256, what)
    return bytes(memoryview(data)) if len(data) <= _SMALL else data


def verify(path: str, sha256: str, what: str) -> None:
    """Check that a file that ``locate`` found has the given sha256. A large file is read in pieces.

    Raises:
        BundleError: If the bytes differ from those that were exported.
    """
    known = RECENT_FILES.get(sha256)
    if known is not None and _holds(path, known, what):
        return
    try:
        is_small = os.stat(path).st_size <= _SMALL
    except (OSError, ValueError):
        is_small = False  # sha256_of() says why the file cannot be read
    if is_small:
        read_verified(path, sha256, what)
    else:
        _compare(sha256_of(path, what, real=path), sha256, path, what)


def _holds(path: str, data: bytes, what: str) -> bool:
    """Whether a file has exactly these bytes. It is read in pieces, since new memory for a whole file takes longer."""
    descriptor, size = _open_regular(path, what)  # ``locate`` has refused pseudo files
    try:
        if size != len(data):
            return False
        at = 0
        while at < size and (piece := os.read(descriptor, min(size, _PIECE))) and data.startswith(piece, at):
            at += len(piece)
        return at == size
    finally:
        os.close(descriptor)


def _compare(found: str, sha256: str, path: str, what: str) -> None:
    if found != sha256:
        raise BundleError(
            f"{what}: checksum mismatch, the file {os.path.basename(path)} was changed or damaged after the export "
            f"(expected sha256 {sha256}, got {found}). Export again or restore the file."
        )


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file, whole or not at all, and keep its mode. A link is replaced by a file."""
    staged = path.with_name(f".{path.name}.leapp-{os.urandom(6).hex()}")
    try:
        with staged.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            os.chmod(staged, path.stat().st_mode & 0o777)
        os.replace(staged, path)
    finally:
        staged.unlink(missing_ok=True)


def check_collisions(names: Iterable[str]) -> None:
    """Refuse two different paths that are one file on systems that ignore case or the encoding of accents."""
    seen: dict[str, str] = {}
    for name in map(os.path.normpath, dict.fromkeys(names)):
        other = seen.setdefault((name if name.isascii() else unicodedata.normalize("NFC", name)).casefold(), name)
        if other != name:
            raise BundleError(
                f"The paths '{other}' and '{name}' are the same file on systems that ignore case. Rename one node."
            )
