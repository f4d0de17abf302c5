"""Keeps what a failed export wrote: ``<name>.failed`` beside the bundle, a directory with the page, the log and staged files.

It holds no YAML, so no loader takes it for a bundle. The next attempt removes it. Files that leapp did not put there are never
touched. If a file cannot be kept, the error of the export is still the one that is raised.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from leapp.errors import LeappError
from leapp.tracing.log import SYSTEM, logger

_LIST = ".leapp-failed"
"""A file with the names of all files that leapp put into the directory, one on each line."""


def failed_directory(bundle: Path) -> Path:
    """Where a failed export of a bundle is kept."""
    bundle = Path(os.path.realpath(bundle))
    return bundle.with_name(f"{bundle.name}.failed")


def clear(bundle: Path) -> None:
    """Remove what the last failed attempt left."""
    directory = failed_directory(bundle)
    with suppress(OSError, ValueError):
        names = (directory / _LIST).read_text(encoding="utf-8").splitlines()
        for name in [*names, _LIST]:
            if name and not os.path.isabs(name) and ".." not in Path(name).parts:
                (directory / name).unlink(missing_ok=True)
        for folder in sorted({directory / Path(name).parent for name in names} | {directory}, reverse=True):
            with suppress(OSError):
                folder.rmdir()  # only if it is empty


@contextmanager
def kept_beside(
    bundle: Path,
    staged: Path | None,
    draw: Callable[[Path], None],
    is_full: Callable[[BaseException], bool] = lambda error: False,
) -> Iterator[None]:
    """If the block fails, keep the files that it staged, and what ``draw`` writes into the directory it is given.

    ``is_full`` says whether an error means that the disk is full; then nothing is kept.
    """
    try:
        yield
    except LeappError as error:
        # A full disk has no room for more, and there is nothing in the policy to look for.
        if not is_full(error):
            with suppress(OSError):
                _keep(failed_directory(bundle), staged, draw)
        raise


def _keep(directory: Path, staged: Path | None, draw: Callable[[Path], None]) -> None:
    directory.mkdir(exist_ok=True)
    (directory / _LIST).touch()
    for path in sorted(staged.rglob("*")) if staged is not None else ():
        name = path.relative_to(staged or path)
        if path.is_file() and not name.name.startswith(".leapp"):
            _put(directory, name, partial(shutil.move, path))
    drawn = directory / ".leapp-drawn"
    drawn.mkdir(exist_ok=True)
    try:
        draw(drawn)
        for path in sorted(drawn.iterdir()):
            _put(directory, Path(path.name), partial(shutil.move, path))
    finally:
        shutil.rmtree(drawn, ignore_errors=True)


def _put(directory: Path, name: Path, write: Callable[[Path], object]) -> None:
    target = directory / name
    if os.path.lexists(target) and str(name) not in _listed(directory):
        return  # leapp did not put it there
    target.parent.mkdir(parents=True, exist_ok=True)
    with (directory / _LIST).open("a", encoding="utf-8") as names:
        names.write(f"{name.as_posix()}\n")
    write(target)


def _listed(directory: Path) -> set[str]:
    with suppress(OSError, ValueError):
        return set((directory / _LIST).read_text(encoding="utf-8").splitlines())
    return set()


def keep_log(bundle: Path, log: Path) -> None:
    """Copy the log of a failed attempt into its ``.failed`` directory."""
    directory = failed_directory(bundle)
    with suppress(OSError):
        directory.mkdir(exist_ok=True)
        logger.log(SYSTEM, "What failed is kept in %s: %s.", directory, ", ".join(sorted({*_listed(directory), "log.txt"})))
        _put(directory, Path("log.txt"), partial(shutil.copyfile, log))
