"""Writes a bundle directory so that a crash at any moment leaves either the whole old bundle or the whole new one.

Files are written into a staging directory beside the final one. ``commit`` seals them, links files that leapp did not write
from the old directory into the new one, and exchanges the two directories in one file system call. The old directory is then
emptied: a file is removed only if leapp wrote it or if the new directory has the same file.

Some directories cannot be exchanged: a mount point, a parent that is not writable, a file system or an operating system without
the call. There the files are moved one by one. The YAML is removed first and written last, so that a crash leaves no readable
bundle instead of a mixed one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import TracebackType

from leapp.bundle.contract_yaml import dump_contract
from leapp.bundle.directories import locked, swap, sync, sync_all, try_lock
from leapp.bundle.files import YAML, hash_file, read_regular, sha256_of
from leapp.bundle.integrity import seal
from leapp.bundle.onnx_files import beside, external_files
from leapp.bundle.owned_files import link_above, owned_files
from leapp.errors import BundleError, SessionError, StorageError
from leapp.graph.contract import Contract

_MARK = ".leapp-staging"
"""The name of a file that marks a staging directory which was not exchanged yet."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The error numbers of a full disk."""
_PROBE = 1 << 16
"""How many bytes are written to find out whether a disk is full."""


class Staging:
    """A directory that becomes the bundle when it is complete.

    Use it as a context manager. Write every file into ``path``, then call ``commit`` once. Leaving the block without ``commit``
    removes the staged files and leaves the old bundle as it was.

    Attributes:
        final: The directory of the bundle.
        path: The staging directory.
        digest: The digest of the sealed bundle, after ``commit``.
        kept: After ``commit``: files that leapp did not write and renamed, because a file of the bundle needed their name. Old
            name to new name.
    """

    def __init__(self, final: str | os.PathLike[str]) -> None:
        # If the bundle directory is a link, the link stays and its target is exchanged.
        self.final = Path(os.path.realpath(final))
        self.path = self.final
        self.digest: str | None = None
        self.kept: dict[str, str] = {}
        self._lock: int | None = None
        self._done = False

    def __enter__(self) -> Staging:
        try:
            return self._enter()
        except OSError as error:
            self.__exit__(type(error), error, None)
            raise

    def _enter(self) -> Staging:
        self.final.parent.mkdir(parents=True, exist_ok=True)
        # The parent stays locked until the new directory is locked, because other exporters remove staging directories without
        # a lock. If the parent could not be locked, old staging directories are not removed either.
        with locked(self.final.parent) as alone:
            for stale in _abandoned(self.final) if alone else ():
                _sweep(stale, self.final)
            self.path = self._make()
            self._lock = try_lock(self.path)
            (self.path / _MARK).touch()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        room = _room(self.path, error) if error is not None and not self._done else None
        if not self._done and self.path != self.final:
            _discard(self.path)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if room is not None:
            raise StorageError(
                f"the disk is full: the export to {self.final} needs more than the {_size_text(room)} that are left. Free "
                "some space, or choose another place with save_path=. What was on disk before is unchanged."
            ) from error

    def is_full(self, error: BaseException) -> bool:
        """Whether an export failed with ``error`` because there was no room for it."""
        return _room(self.path, error) is not None

    def commit(self, graph: str, contract: Contract) -> Path:
        """Write ``<graph>.yaml`` with a seal over every staged file and make the staged files the bundle.

        Args:
            graph: The name of the graph.
            contract: What the YAML says. Model paths are those the files have in the bundle directory.

        Returns:
            The path of the YAML in its final place.

        Raises:
            BundleError: If a file the contract names was not staged.
        """
        if self._done:
            raise SessionError("This bundle is already committed. Open a new Staging for another export.")
        staged = _tree(self.path)
        self._check_complete(contract, set(staged))
        # The contract has the sha256 of the models, with which readers compare them.
        known = {os.path.normpath(n.model.model_path or ""): n.model.sha256sum for n in contract.nodes.values()}
        files = {name: known.get(name) or hash_file(self.path / name)[1] for name in staged}
        files |= self._external_elsewhere(contract)
        text, self.digest = seal(dump_contract(contract), files)
        yaml_name = f"{graph}.yaml"
        (self.path / yaml_name).write_text(text, encoding="utf-8", newline="\n")
        # The staging directory itself is synced right before it is put in place.
        folders = {os.path.dirname(name) for name in staged} - {""}
        sync_all([f"{self.path}/{name}" for name in (*staged, yaml_name, *folders)])
        with locked(self.final.parent):
            self._put({*staged, yaml_name}, yaml_name)
        self._done = True
        return self.final / yaml_name

    def _make(self) -> Path:
        """Make the staging directory beside the final one, or inside it if the final one cannot be exchanged."""
        name = f"{_prefix(self.final)}{os.urandom(6).hex()}"
        if not os.path.ismount(self.final):
            with contextlib.suppress(PermissionError):
                (self.final.parent / name).mkdir()
                return self.final.parent / name
        (self.final / name).mkdir(parents=True)
        return self.final / name

    def _check_complete(self, contract: Contract, staged: set[str]) -> None:
        for name, node in contract.nodes.items():
            path = node.model.model_path
            if path is None or os.path.normpath(path) in staged or path.startswith("..") or os.path.isabs(path):
                continue
            if not (self.final / path).exists():
                raise BundleError(f"Node '{name}': the model file '{path}' was not written.")
        values = contract.pipeline.initial_values
        if values is not None and values not in staged:
            raise BundleError(f"The file of initial values '{values}' was not written.")

    def _external_elsewhere(self, contract: Contract) -> dict[str, str]:
        """The sha256 of external data beside models that stay outside the bundle."""
        found = {}
        for name, node in contract.nodes.items():
            path = node.model.model_path
            if path is not None and node.model.backend == "onnx" and (path.startswith("..") or os.path.isabs(path)):
                what = f"model of node '{name}'"
                for location in external_files(read_regular(self._beside(path), what), what):
                    data = beside(path, location)
                    found[data] = sha256_of(self._beside(data), f"external data of node '{name}'")
        return found

    def _beside(self, path: str) -> Path:
        return Path(os.path.normpath(self.final / path))  # the final directory may not exist yet

    def _put(self, staged: set[str], yaml_name: str) -> None:
        inside = self.path.parent == self.final
        if not self.final.exists():
            (self.path / _MARK).unlink()
            sync(self.path)
            os.rename(self.path, self.final)
            sync(self.final.parent)
            return
        # A crash right after an exchange may have left the mark; with it, the directory would count as unfinished.
        (self.final / _MARK).unlink(missing_ok=True)
        owned = owned_files(self.final)
        self.kept = self._rename_foreign(staged, owned)
        if inside or _holds_working_directory(self.final) or not self._exchange(owned):
            self._replace(staged, yaml_name, owned)
        sync(self.final.parent)

    def _rename_foreign(self, staged: set[str], owned: set[str]) -> dict[str, str]:
        """Rename files that leapp did not write and whose name a staged file needs."""
        kept = {}
        for name in sorted(staged - owned):
            if (link := link_above(self.final, name)) is not None:
                old = self.final / link  # the file behind it lies outside of the bundle and must not be changed
            elif not os.path.lexists(f"{self.final}/{name}") or _same_content(self.final / name, self.path / name):
                continue
            else:
                old = self.final / name
            new = _free_name(old)
            os.rename(old, new)
            kept[str(old.relative_to(self.final))] = str(new.relative_to(self.final))
        return kept

    def _exchange(self, owned: set[str]) -> bool:
        """Exchange the two directories. Returns ``False``, without any change, if the system cannot do that."""
        carried: list[Path] = []
        try:
            emptied = _emptied(self.final, owned)
            folders, names = _walk(self.final)
            for folder in folders:
                if folder in emptied and not (self.path / folder).is_dir():
                    continue
                (self.path / folder).mkdir(exist_ok=True)
                shutil.copymode(self.final / folder, self.path / folder)
            for name in names:
                if name not in owned and not os.path.lexists(self.path / name):
                    # A hard link, so that open handles of the file stay valid.
                    os.link(self.final / name, self.path / name, follow_symlinks=False)
                    carried.append(self.path / name)
            shutil.copymode(self.final, self.path)
            sync(self.path)
            swapped = swap(self.path, self.final)
        except OSError as error:
            swapped = False
            if error.errno in _FULL:
                raise
        if not swapped:
            for path in carried:
                path.unlink(missing_ok=True)
            return False
        (self.final / _MARK).unlink(missing_ok=True)
        _sweep(self.path, self.final, owned)
        return True

    def _replace(self, staged: set[str], yaml_name: str, owned: set[str]) -> None:
        """Move the files one by one. The old YAML is removed first and the new one moved last: no bundle loads without it."""
        emptied = _emptied(self.final, owned)
        for name in sorted(owned, key=lambda name: not name.endswith(YAML)):
            if name.endswith(YAML) or name not in staged:
                (self.final / name).unlink(missing_ok=True)
        for folder in sorted(emptied, reverse=True):
            with contextlib.suppress(OSError):
                (self.final / folder).rmdir()
        sync(self.final)
        for name in sorted(staged, key=lambda name: name == yaml_name):
            (self.final / name).parent.mkdir(parents=True, exist_ok=True)
            if name == yaml_name:
                sync(self.final)
            os.replace(self.path / name, self.final / name)
        sync(self.final)
        _discard(self.path)


def _room(path: Path, error: BaseException) -> int | None:
    """How many bytes were free for an export that failed because the disk is full; None if it failed for another reason.

    Libraries may hide the reason, so a small write is tried.
    """
    full = False
    cause: BaseException | None = error
    while cause is not None and not full:
        full, cause = isinstance(cause, OSError) and cause.errno in _FULL, cause.__cause__
    staged = sum((path / name).lstat().st_size for name in _tree(path)) if (path / _MARK).exists() else 0
    try:
        if not full and staged:
            probe = path / f"{_MARK}-probe"
            probe.write_bytes(b"\0" * _PROBE)
            probe.unlink()
    except OSError as other:
        full = other.errno in _FULL
    if not full:
        return None
    free = shutil.disk_usage(path if path.exists() else path.parent).free
    return free + staged


def _size_text(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"


def _prefix(final: Path) -> str:
    return f".{final.name}.leapp-"


def _walk(root: Path) -> tuple[list[str], list[str]]:
    """All directories and all files below a directory, as relative paths, outer directories first.

    Links count as files, also links to directories. Staging directories are left out.
    """
    found: list[str] = []
    names: list[str] = []
    staging = _prefix(root)
    for folder in chain([""], found):  # the list grows while it is read
        with contextlib.suppress(OSError), os.scandir(f"{root}/{folder}") as entries:
            for entry in entries:
                name = f"{folder}/{entry.name}" if folder else entry.name
                if not entry.is_dir(follow_symlinks=False):
                    if entry.name != _MARK:
                        names.append(name)
                elif not entry.name.startswith(staging):
                    found.append(name)
    return found, sorted(names)


def _tree(root: Path) -> list[str]:
    return _walk(root)[1]


def _emptied(root: Path, owned: set[str]) -> set[str]:
    """The directories below ``root`` that contain only files that leapp wrote."""

    def above(name: str) -> set[str]:
        return {folder.as_posix() for folder in Path(name).parents} - {"."}

    kept = {folder for name in _tree(root) if name not in owned for folder in above(name)}
    return {folder for name in owned for folder in above(name)} - kept


def _abandoned(final: Path) -> Iterator[Path]:
    """Staging directories that no process has locked: their exporter has ended."""
    prefix = _prefix(final)
    for folder in (final.parent, final):
        for name in sorted(os.listdir(folder)) if folder.is_dir() else ():
            if not name.startswith(prefix):
                continue
            path = folder / name
            if path.is_symlink() or not path.is_dir():
                continue
            lock = try_lock(path)
            if lock is not None:
                os.close(lock)
                yield path


def _sweep(stale: Path, final: Path, owned: set[str] | None = None) -> None:
    """Remove an old directory. Files that leapp did not write and that the final directory lacks are moved there."""
    if (stale / _MARK).exists():
        _discard(stale)
        return
    owned = owned_files(stale) if owned is None else owned
    # The YAML is removed last, because it lists the files that leapp wrote: after a crash, the next export can continue.
    for name in sorted(_tree(stale), key=lambda name: name.endswith(YAML)):
        path, twin = stale / name, final / name
        with contextlib.suppress(OSError):
            if name in owned or (os.path.lexists(twin) and os.path.samestat(path.lstat(), twin.lstat())):
                path.unlink()
            else:
                twin.parent.mkdir(parents=True, exist_ok=True)
                os.rename(path, twin if not os.path.lexists(twin) else _free_name(twin))
    _remove_folders(stale)


def _discard(path: Path) -> None:
    """Remove a staging directory that was never exchanged.

    Every file in it was staged by leapp or is a hard link to a file in the final directory. The mark, which says so, is removed
    last.
    """
    for name in _tree(path):
        with contextlib.suppress(OSError):
            (path / name).unlink()
    with contextlib.suppress(OSError):
        (path / _MARK).unlink()
    _remove_folders(path)


def _remove_folders(root: Path) -> None:
    for folder in (*reversed(_walk(root)[0]), "."):
        with contextlib.suppress(OSError):
            (root / folder).rmdir()


def _free_name(path: Path) -> Path:
    number = 1
    while os.path.lexists(path.with_name(f"{path.name}.kept{number}")):
        number += 1
    return path.with_name(f"{path.name}.kept{number}")


def _same_content(one: Path, other: Path) -> bool:
    regular = stat.S_ISREG(one.lstat().st_mode)
    return regular and one.stat().st_size == other.stat().st_size and hash_file(one) == hash_file(other)


def _holds_working_directory(directory: Path) -> bool:
    """Whether the working directory of this process lies in the directory: after an exchange it would be in the old one."""
    with contextlib.suppress(OSError):
        here = Path(os.path.realpath(os.getcwd()))
        return directory == here or directory in here.parents
    return False
