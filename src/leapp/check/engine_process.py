"""Engines in a process of their own, for models that are large or of strangers.

An engine holds a copy of the weights, and reading the file takes a second one for a while. A process that exports has them
already, as the user's module, and may have room for no more. So another process opens the file and runs it; what is given
and compared stays here. A stranger's model may take all memory or never end, which no engine can be told not to: the other
process has limits. It is a new interpreter with the same paths: nothing of this process, the user's ``__main__``
included, is run there again.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from select import select
from types import TracebackType
from typing import IO, Any

from leapp.bundle import Bundle
from leapp.check.engines import Array
from leapp.errors import ValidationError

__all__ = ["LARGE", "Apart", "ApartError", "Remote", "is_large", "limit_memory", "serve"]

LARGE = 64 << 20
"""Files up to this size are run here: starting another interpreter would cost more than their weights."""

_HEAD = 8
"""Bytes that say how long a message is."""

_READY = b"leapp: ready\n"
_START = """
import sys
sys.path = sys.path[sys.path[0] == "":]
import json
sys.path[:] = json.loads(sys.argv[1])
from leapp.check.engine_process import serve
serve(*sys.argv[2:])
"""
# The first step keeps a json.py in the working directory out of it, which this process would not import either.


class ApartError(Exception):
    """The other process cannot do it. Whether that is its own fault shows when this process tries."""


def is_large(bundle: Bundle) -> bool:
    """Whether the models of a bundle are better run elsewhere."""
    size = 0
    for node in bundle.contract.nodes.values():
        path = bundle.directory / (node.model.model_path or "")
        size += sum(file.stat().st_size for file in (path, Path(f"{path}.data")) if file.is_file())
    return size > LARGE


class Apart:
    """A process that opens engines. It starts when it is needed, and ends with the block or with this process.

    Args:
        timeout: The most seconds until an answer; the process is ended then. None waits.
        memory: The most bytes of data that the process may hold. None sets no limit, nor do systems without such limits.
    """

    def __init__(self, timeout: float | None = None, memory: int | None = None) -> None:
        self._timeout, self._memory = timeout, memory
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False
        self._opened = 0
        self.dropped: list[int] = []

    def __enter__(self) -> Apart:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        process, self._process, self._is_ready = self._process, None, False
        if process is not None:
            process.kill()
            process.communicate()

    def begin(self, *modules: str) -> None:
        """Start the process and let it import some modules, while this one does something else."""
        with suppress(ApartError):
            self._process = self._process or _launch(self._memory, *modules)

    def open(self, function: Callable[..., Any], *args: Any) -> Remote:
        """Call ``function``, a public one of a module, in the other process and keep what it returns there.

        Raises:
            ApartError: There can be no other process, or it raised.
            ValidationError: It ended.
        """
        self._opened += 1
        self.ask("open", self._opened, function, args)
        return Remote(self, self._opened)

    def ask(self, *request: Any) -> Any:
        """What the other process answers."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            message = pickle.dumps((self.dropped, *request))
        except Exception as error:  # pickle raises whatever an object raises
            raise ApartError(f"another process cannot be told: {error}") from error
        try:
            _tell(process.stdin, message)
            if self._timeout is not None and os.name == "posix" and not select([process.stdout], [], [], self._timeout)[0]:
                self.__exit__(None, None, None)
                raise ValidationError(f"it was ended after {self._timeout:g} s without an answer")
            answer = _hear(process.stdout)
        except OSError:
            answer = None
        if answer is None:
            code = process.wait()
            self.__exit__(None, None, None)
            raise ValidationError(_ended(code))
        self.dropped = []
        passed, value = pickle.loads(answer)
        if not passed:
            raise ApartError(value)
        return value

    def _started(self) -> subprocess.Popen[bytes]:
        process = self._process = self._process or _launch(self._memory)
        assert process.stdout is not None
        if not self._is_ready and process.stdout.readline() != _READY:
            self.__exit__(None, None, None)
            raise ApartError("the other interpreter did not start")
        self._is_ready = True
        return process


def _launch(memory: int | None, *modules: str) -> subprocess.Popen[bytes]:
    # An application that embeds Python names itself here; started again, it would be the application.
    if "python" not in Path(sys.executable or "").name.lower():
        raise ApartError(f"{sys.executable!r} is no Python interpreter")
    command = [sys.executable, "-c", _START, json.dumps(sys.path), str(memory or 0), *modules]
    try:
        # In a session of its own it is not interrupted with this process, which ends it in its own time.
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    except OSError as error:
        raise ApartError(str(error)) from error


class Remote:
    """Something that was opened in the other process: an engine, or a pipeline that is stepped."""

    def __init__(self, process: Apart, number: int) -> None:
        self._process = process
        self._number = number

    def __call__(self, inputs: Mapping[str, Array], /) -> Mapping[str, Array]:
        """Run it."""
        answer: Mapping[str, Array] = self._process.ask("call", self._number, dict(inputs))
        return answer

    def reset(self) -> None:
        """Put a pipeline back to its start."""
        self._process.ask("reset", self._number)

    def __del__(self) -> None:
        # Told with the next request; there may be none.
        self._process.dropped.append(self._number)


def _ended(code: int) -> str:
    if code >= 0:
        return f"the process that ran it ended with code {code}"
    name = signal.Signals(-code).name
    why = ", most likely for want of memory" if name == "SIGKILL" else ""
    return f"the process that ran it was ended by {name}{why}"


def limit_memory(size: int) -> None:
    """Let this process hold at most so many bytes of data; what asks for more fails instead of taking the machine along."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        if size:
            resource.setrlimit(resource.RLIMIT_DATA, (size, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def serve(memory: str, *modules: str) -> None:
    """The other process: open, run and close what is asked for, until nobody asks.

    Args:
        memory: The most bytes of data that it may hold; 0 sets no limit.
        *modules: What to import beforehand.
    """
    limit_memory(int(memory))
    given = os.fdopen(os.dup(0), "rb")
    told = os.fdopen(os.dup(1), "wb")
    # What libraries print belongs to the user, not into the answers.
    os.dup2(2, 1)
    for module in modules:
        import_module(module)
    told.write(_READY)
    told.flush()
    opened: dict[int, Any] = {}
    while (message := _hear(given)) is not None:
        try:
            dropped, *request = pickle.loads(message)
            for number in dropped:
                opened.pop(number, None)
            answer = True, _do(opened, *request)
        except Exception as error:  # any engine may raise anything
            answer = False, f"{type(error).__name__}: {error}"
        _tell(told, pickle.dumps(answer))


def _do(opened: dict[int, Any], wish: str, number: int, *args: Any) -> Any:
    if wish == "open":
        function, given = args
        opened[number] = function(*given)
        return None
    return opened[number](*args) if wish == "call" else opened[number].reset()


def _tell(stream: IO[bytes], message: bytes) -> None:
    stream.write(len(message).to_bytes(_HEAD, "little"))
    stream.write(message)
    stream.flush()


def _hear(stream: IO[bytes]) -> bytes | None:
    """The next message, None if there is no other end any more."""
    size = int.from_bytes(stream.read(_HEAD), "little")
    message = stream.read(size)
    return message if size and len(message) == size else None
