"""File system calls on directories: write them to disk, exchange two of them, lock one. Knows nothing of bundles."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

_SYNCS = 4
"""How many files are synced at the same time. Concurrent syncs share one write of the file system's journal."""
PATIENCE = 10.0
"""How many seconds to wait for the lock of a directory."""


def sync(path: str | Path) -> None:
    """Write a file, or the entries of a directory, to disk."""
    if sys.platform == "win32" and os.path.isdir(path):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a directory.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def sync_all(paths: list[str]) -> None:
    """Write files to disk."""
    waiting, errors = list(paths), list[OSError]()

    def work() -> None:
        try:
            while True:
                sync(waiting.pop())
        except IndexError:  # all files are taken
            pass
        except OSError as error:
            errors.append(error)

    # Starting a pool of threads takes longer than to sync a small file.
    threads: list[threading.Thread] = []
    try:
        for _ in range(min(_SYNCS, len(paths)) - 1):
            thread = threading.Thread(target=work)
            thread.start()
            threads.append(thread)
        work()
    finally:
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]


def swap(one: Path, other: Path) -> bool:
    """Exchange two directories in one step. Returns whether the system can do that."""
    if os.name != "posix":
        return False
    # Imported here because it is slow, and a robot that only reads bundles does not need it.
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    here, there = os.fsencode(one), os.fsencode(other)
    if hasattr(library, "renameat2"):
        at_cwd, exchange = -100, 2
        return bool(library.renameat2(at_cwd, here, at_cwd, there, exchange) == 0)
    if hasattr(library, "renamex_np"):
        rename_swap = 2
        return bool(library.renamex_np(here, there, rename_swap) == 0)
    return False


def try_lock(path: Path) -> int | None:
    """Lock a directory. Returns a descriptor, which holds the lock until it is closed or the process ends.

    Returns ``None`` if another process has the lock, or if the system has no such locks.
    """
    try:
        return _lock(path)
    except BlockingIOError:
        return None


def _lock(path: Path) -> int | None:
    """Like ``try_lock``, but ``None`` only means that the system has no such locks.

    Raises:
        BlockingIOError: Another process has the lock.
    """
    try:
        import fcntl
    except ImportError:
        return None
    descriptor: int | None = None
    try:
        descriptor = os.open(path, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if descriptor is not None:
            os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise
        return None
    return descriptor


@contextlib.contextmanager
def locked(parent: Path) -> Iterator[bool]:
    """Hold the lock of a directory during the block. Gives whether the lock was obtained.

    Any process that may read the directory can hold its lock for ever, so waiting ends after ``PATIENCE`` seconds, with a
    warning. The block then runs without the lock.
    """
    until = time.monotonic() + PATIENCE
    descriptor = None
    while True:
        try:
            descriptor = _lock(parent)
            break
        except BlockingIOError:
            if time.monotonic() > until:
                warnings.warn(f"{parent} is locked by another process; the export goes on without the lock.", stacklevel=2)
                break
            time.sleep(0.02)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)
