"""The session's log: everything to ``log.txt``, what matters to the console."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from pathlib import Path

__all__ = ["SECTION", "SYSTEM", "Log", "logger"]

SECTION, SYSTEM, FATAL = 25, 31, 41
logging.addLevelName(SECTION, "SECTION")
logging.addLevelName(SYSTEM, "SYSTEM")
logging.addLevelName(FATAL, "FATAL")

logger = logging.getLogger("leapp")
logger.addHandler(logging.NullHandler())

_COLOURS = {"WARNING": "\033[33m", "ERROR": "\033[31m", "FATAL": "\033[31m", "SECTION": "\033[36m"}


class _Console(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = f"[{record.levelname}]: {record.getMessage()}"
        colour = _COLOURS.get(record.levelname) if sys.stderr.isatty() else None
        return f"{colour}{text}\033[0m" if colour else text


_PLAIN, _COLOURED = logging.Formatter("[%(levelname)s]: %(message)s"), _Console()


class _Stderr(logging.Handler):
    """Writes to what is ``sys.stderr`` at the moment: a progress display takes its place to keep its own lines together."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:  # as every handler of the standard library: a log must not stop the program
            self.handleError(record)


class _File(logging.FileHandler):
    """A log that gives up silently where the disk is full: the export itself will say so."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def close(self) -> None:
        with suppress(OSError):
            super().close()


class Log:
    """The handlers of one session. They replace those of the session before."""

    def __init__(self, path: Path, verbose: bool) -> None:
        close()
        self.path = path
        self._file = _File(path, mode="w", encoding="utf-8")
        self._file.setFormatter(_PLAIN)
        self._console = _Stderr()
        self._console.setFormatter(_COLOURED)
        self.verbose(verbose)
        for handler in (self._file, self._console):
            logger.addHandler(handler)
        if logger.level != logging.DEBUG:  # setting it makes every logger of the process forget what it knows
            logger.setLevel(logging.DEBUG)
        # The root logger would print each line a second time.
        logger.propagate = False

    def verbose(self, on: bool) -> None:
        """Show every line on the console, or only warnings and above."""
        self._console.setLevel(logging.DEBUG if on else logging.WARNING)


def close() -> None:
    """Take off the handlers of the session before."""
    for handler in list(logger.handlers):
        if not isinstance(handler, logging.NullHandler):
            logger.removeHandler(handler)
            handler.close()
