"""Write a bundle directory so that a crash at any moment leaves the old bundle or the new one, whole.

Files are written into a staging directory beside the final one. ``commit`` seals them, links what is not leapp's from
the old directory into the new one, and exchanges the two directories in one step of the file system. The old
directory is then emptied: a file is removed only if leapp wrote it or the new directory has the same file.

Where directories cannot be exchanged (a mount point, a parent that is not writable, a file system or an operating
system without the call) the files are moved one by one with the YAML removed first and written last, so that a crash
leaves no readable bundle rather than a mixed one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from leapp.bundle import yaml_text
from leapp.bundle.contract_yaml import MODELS, PIPELINE, dump_contract
from leapp.bundle.files import YAML, descriptions_in, hash_file, read_regular, sha256_of
from leapp.bundle.integrity import INTEGRITY, seal
from leapp.bundle.onnx_files import beside, external_files
from leapp.bundle.safetensors import INITIAL_VALUES
from leapp.errors import BundleError, SessionError, StorageError
from leapp.graph.contract import Contract
from leapp.graph.formats import EXTERNAL_DATA, FORMATS, RUNNABLE

_MARK = ".leapp-staging"
MODEL_SUFFIXES = (*(FORMATS[name].suffixes[0] for name in RUNNABLE), FORMATS["onnx"].suffixes[0] + EXTERNAL_DATA)
"""What follows the name of a node in the names of its files."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SYNCS = 8
"""Files that are synced at a time. Concurrent syncs share one write of the file system's journal."""
_PATIENCE = 10.0
"""Seconds to wait for other exporters."""
_PROBE = 1 << 16
"""Bytes whose writing tells whether a disk is full."""


class Staging:
    """A directory that becomes the bundle when it is complete.

    Use it as a context manager. Write every file into ``path``, then call ``commit`` once; leaving without it, by an
    error or not, removes what was staged and leaves the old bundle as it was.

    Attributes:
        final: The directory of the bundle.
        path: Where to write the files until then.
        digest: The digest of the sealed bundle, after ``commit``.
        kept: Files that leapp did not write and renamed to make room for its own, by old and new name, after ``commit``.
    """

    def __init__(self, final: str | os.PathLike[str]) -> None:
        # A link to the bundle directory stays a link: what it points to is exchanged.
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
        # Made and locked at once, because other exporters remove a staging directory without a lock.
        with _locked(self.final.parent) as alone:
            for stale in _abandoned(self.final) if alone else ():
                _sweep(stale, self.final)
            self.path = self._make()
            self._lock = _try_lock(self.path)
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
                f"the disk is full: the export to {self.final} needs more than the {_size_text(room)} there are for it. Free "
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
        # Models were hashed when they were described, and that is what readers compare them with.
        known = {os.path.normpath(n.model.model_path or ""): n.model.sha256sum for n in contract.nodes.values()}
        files = {name: known.get(name) or hash_file(self.path / name)[1] for name in staged}
        files |= self._external_elsewhere(contract)
        text, self.digest = seal(dump_contract(contract), files)
        yaml_name = f"{graph}.yaml"
        (self.path / yaml_name).write_text(text, encoding="utf-8", newline="\n")
        _sync_all([self.path / name for name in (*staged, yaml_name)])
        for folder in {self.path, *((self.path / name).parent for name in staged)}:
            _sync(folder)
        with _locked(self.final.parent):
            self._put({*staged, yaml_name}, yaml_name)
        self._done = True
        return self.final / yaml_name

    def _make(self) -> Path:
        """A fresh directory beside the final one, or inside it where the final one cannot be exchanged."""
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
            os.rename(self.path, self.final)
            _sync(self.final.parent)
            return
        # A mark left by a crash right after an exchange would make the old directory look like an unfinished one.
        (self.final / _MARK).unlink(missing_ok=True)
        owned = _owned(self.final)
        self.kept = self._rename_foreign(staged, owned)
        if inside or _holds_working_directory(self.final) or not self._exchange(owned):
            self._replace(staged, yaml_name, owned)
        _sync(self.final.parent)

    def _rename_foreign(self, staged: set[str], owned: set[str]) -> dict[str, str]:
        """Give files that leapp did not write another name if a staged file needs theirs."""
        kept = {}
        for name in sorted(staged - owned):
            if (link := _link_above(self.final, name)) is not None:
                old = self.final / link  # what is behind it is not part of the bundle and must not be touched
            else:
                old = self.final / name
                if not os.path.lexists(old) or _same_content(old, self.path / name):
                    continue
            new = _free_name(old)
            os.rename(old, new)
            kept[str(old.relative_to(self.final))] = str(new.relative_to(self.final))
        return kept

    def _exchange(self, owned: set[str]) -> bool:
        """Swap the two directories. ``False`` if that cannot be done here; nothing has changed then."""
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
                    # A second name for a file that is not leapp's. Open handles stay valid.
                    os.link(self.final / name, self.path / name, follow_symlinks=False)
                    carried.append(self.path / name)
            shutil.copymode(self.final, self.path)
            _sync(self.path)
            swapped = _swap(self.path, self.final)
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
        """Move the files one by one. The YAML goes first and comes last: without it nothing can be loaded."""
        emptied = _emptied(self.final, owned)
        for name in sorted(owned, key=lambda name: not name.endswith(YAML)):
            if name.endswith(YAML) or name not in staged:
                (self.final / name).unlink(missing_ok=True)
        for folder in sorted(emptied, reverse=True):
            with contextlib.suppress(OSError):
                (self.final / folder).rmdir()
        _sync(self.final)
        for name in sorted(staged, key=lambda name: name == yaml_name):
            (self.final / name).parent.mkdir(parents=True, exist_ok=True)
            if name == yaml_name:
                _sync(self.final)
            os.replace(self.path / name, self.final / name)
        _sync(self.final)
        _discard(self.path)


def _room(path: Path, error: BaseException) -> int | None:
    """The bytes that an export could use, if it failed because the disk is full; else None.

    Libraries hide that reason, so a small write is tried.
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
    """The directories below a directory, outer ones first, and the files, as relative paths.

    Links count as files, whatever they lead to. Staging directories are left out.
    """
    found: list[str] = []
    names: list[str] = []
    for folder, folders, files in os.walk(root):
        here = Path(folder).relative_to(root)
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        folders[:] = [name for name in folders if name not in links and not name.startswith(_prefix(root))]
        found += [(here / name).as_posix() for name in folders]
        names += [(here / name).as_posix() for name in (*files, *links) if name != _MARK]
    return found, sorted(names)


def _tree(root: Path) -> list[str]:
    return _walk(root)[1]


def _emptied(root: Path, owned: set[str]) -> set[str]:
    """The directories below a directory that hold leapp's own files and nothing else."""

    def above(name: str) -> set[str]:
        return {folder.as_posix() for folder in Path(name).parents} - {"."}

    kept = {folder for name in _tree(root) if name not in owned for folder in above(name)}
    return {folder for name in owned for folder in above(name)} - kept


def _owned(directory: Path) -> set[str]:
    """The files in a directory that an earlier export wrote, as far as its YAML tells.

    A seal lists them. An unsealed bundle owns only what has the name its writer gives: a model the user brought along
    and that merely lies here is not leapp's.
    """
    owned: set[str] = set()
    for path in descriptions_in(directory):
        try:
            document = yaml_text.parse(path.read_text(encoding="utf-8"), path.name)
            if isinstance(document, dict) and isinstance(document.get(MODELS), dict) and PIPELINE in document:
                owned |= {path.name, f"{path.stem}.sig", *_owned_by(document, path.stem)}
        except (BundleError, OSError, UnicodeDecodeError):
            continue
    return {name for name in owned if _link_above(directory, name) is None and os.path.lexists(directory / name)}


def _link_above(directory: Path, name: str) -> str | None:
    """The outermost folder of ``name`` that is a link or a file. What lies behind it is not in the directory."""
    parts = Path(name).parts
    for count in range(1, len(parts)):
        folder = os.path.join(*parts[:count])
        if os.path.lexists(directory / folder) and (os.path.islink(directory / folder) or not (directory / folder).is_dir()):
            return folder
    return None


def _owned_by(document: dict[str, object], graph: str) -> set[str]:
    entry = document.get(INTEGRITY)
    files = entry.get("files") if isinstance(entry, dict) else None
    if isinstance(files, dict):
        return {name for name in files if isinstance(name, str) and _is_below(name)}
    models = document[MODELS]
    assert isinstance(models, dict)
    names = {f"{node}{suffix}" for node in models for suffix in MODEL_SUFFIXES}
    return {name for name in names if _is_below(name)} | {f"{graph}.png", f"{graph}{INITIAL_VALUES}"}


def _is_below(name: str) -> bool:
    return not os.path.isabs(name) and ".." not in Path(name).parts


def _abandoned(final: Path) -> Iterator[Path]:
    """Staging directories whose exporter is gone."""
    for folder in (final.parent, final):
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if not path.name.startswith(_prefix(final)) or path.is_symlink() or not path.is_dir():
                continue
            lock = _try_lock(path)
            if lock is not None:
                os.close(lock)
                yield path


def _sweep(stale: Path, final: Path, owned: set[str] | None = None) -> None:
    """Remove a directory that is no longer needed, saving whatever is neither leapp's nor in the final directory."""
    if (stale / _MARK).exists():
        _discard(stale)
        return
    owned = _owned(stale) if owned is None else owned
    # The YAML says which files are leapp's, so it goes last: a crash here must leave a directory that can be swept.
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

    Everything in it was staged by leapp or is a second name of a file in the final directory. The mark that says so
    goes last.
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
    """Whether the directory holds the working directory of this process, which would be the old one after an exchange."""
    with contextlib.suppress(OSError):
        here = Path(os.path.realpath(os.getcwd()))
        return directory == here or directory in here.parents
    return False


def _sync(path: Path) -> None:
    if sys.platform == "win32" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems refuse to sync a directory; they have no stronger promise to give.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def _sync_all(paths: list[Path]) -> None:
    # Slow to import, and a robot that only reads bundles never gets here.
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_SYNCS) as pool:
        list(pool.map(_sync, paths))


def _swap(one: Path, other: Path) -> bool:
    """Exchange two directories in one step, if the system can."""
    if os.name != "posix":
        return False
    # Slow to import, and a robot that only reads bundles never gets here.
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


def _try_lock(path: Path) -> int | None:
    """A descriptor that holds a lock on a directory until it is closed or the process ends; ``None`` if there is none."""
    try:
        return _lock(path)
    except BlockingIOError:
        return None


def _lock(path: Path) -> int | None:
    """As ``_try_lock``, where ``None`` says that the system has no such locks.

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
def _locked(parent: Path) -> Iterator[bool]:
    """Hold the lock of a directory, which admits one exporter at a time. Gives whether the lock was obtained.

    Exporters hold it briefly, but every process that may read the directory can hold it for ever, so waiting ends after
    ``_PATIENCE`` seconds. The exchange is atomic without the lock. Removing old staging directories is not, and is left out.
    """
    until = time.monotonic() + _PATIENCE
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
