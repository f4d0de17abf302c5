"""The session's log: every line goes to ``log.txt``, warnings and errors also to the console."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from pathlib import Path

from leapp.terminal import is_terminal

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
        colour = _COLOURS.get(record.levelname) if is_terminal(sys.stderr) else None
        return f"{colour}{text}\033[0m" if colour else text


class _Plain(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        if record.exc_info or record.exc_text or record.stack_info:
            return super().format(record)
        return f"[{record.levelname}]: {record.getMessage()}"  # in half the time


_PLAIN, _COLOURED = _Plain("[%(levelname)s]: %(message)s"), _Console()


RAISED = {"raised": True}
"""Pass it as ``extra=`` for a message that an exception will show to the caller: it then goes to the file only."""


class _Stderr(logging.Handler):
    """Writes to the present ``sys.stderr``. A progress display replaces that while it runs, to print above its own lines."""

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "raised", False):
            return
        try:
            if sys.stderr is not None:  # print() would take standard output instead
                print(self.format(record), file=sys.stderr, flush=True)
        except Exception:  # as handlers of the standard library do: a log must not stop the program
            self.handleError(record)


class _File(logging.Handler):
    """Writes to a file. A full disk raises nothing here: the export itself reports it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self._file is not None:
                os.write(self._file, f"{self.format(record)}\n".encode(errors="backslashreplace"))
        except OSError:
            pass
        except Exception:  # as handlers of the standard library do: a log must not stop the program
            self.handleError(record)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                os.close(file)
        super().close()


class Log:
    """The handlers of one session. They replace those of the session before."""

    def __init__(self, path: Path, verbose: bool) -> None:
        close()
        self.path = path
        self._file = _File(path)
        self._file.setFormatter(_PLAIN)
        self._console = _Stderr()
        self._console.setFormatter(_COLOURED)
        self.verbose(verbose)
        for handler in (self._file, self._console):
            logger.addHandler(handler)
        if logger.level != logging.DEBUG:  # setting a level clears the caches of all loggers
            logger.setLevel(logging.DEBUG)
        # The root logger would print each line a second time.
        logger.propagate = False

    def verbose(self, on: bool) -> None:
        """Show every line on the console, or only warnings and above."""
        self._console.setLevel(logging.DEBUG if on else logging.WARNING)


def close() -> None:
    """Remove the handlers of the session before."""
    for handler in list(logger.handlers):
        if not isinstance(handler, logging.NullHandler):
            logger.removeHandler(handler)
            handler.close()
