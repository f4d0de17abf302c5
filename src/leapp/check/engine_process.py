"""Engines in a process of their own, for large models and for models from an unknown source.

An engine holds a copy of the weights, and needs a second one while it reads the file. The exporting process already has the
weights in the user's module, and may not have memory for more. So another process opens the file and runs it, while inputs and
comparisons stay here. A model from an unknown source may take all memory or never end. Engines have no limit for that, but the
other process has. It is a new interpreter with the same import paths, and does not run the user's ``__main__`` again.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from select import select
from types import TracebackType
from typing import IO, Any

from leapp.bundle import Bundle
from leapp.check.engines import Array
from leapp.errors import ValidationError
from leapp.graph.formats import EXTERNAL_DATA

LARGE = 64 << 20
"""Models up to this many bytes run in this process, because another interpreter needs more memory than their weights."""

_HEAD = 8
"""How many bytes in front of a message hold its length."""

_READY = b"leapp: ready\n"
_START = """
import sys
sys.path = sys.path[sys.path[0] == "":]
import json
sys.path[:] = json.loads(sys.argv[1])
from leapp.check.engine_process import serve
serve(*sys.argv[2:])
"""
# The first lines keep a json.py in the working directory from being imported.


class EngineProcessError(Exception):
    """The other process failed. The caller must run the model in this process to see whether the model is the cause."""


def is_large(bundle: Bundle, nodes: Iterable[str]) -> bool:
    """Whether the models of some nodes should run in another process."""
    size = 0
    for node in map(bundle.contract.nodes.__getitem__, nodes):
        path = os.path.join(bundle.directory, node.model.model_path or "")
        for file in (path, f"{path}{EXTERNAL_DATA}") if node.model.backend == "onnx" else (path,):
            with suppress(OSError):
                size += os.path.getsize(file)
    return size > LARGE


class EngineProcess:
    """A process that opens engines. It starts when it is needed, and ends with the block or with this process.

    Args:
        timeout: The most seconds to wait for an answer; then the process is killed. None waits without limit.
        memory: The most bytes of data that the process may hold. None, or a system without such limits, sets none.
    """

    def __init__(self, timeout: float | None = None, memory: int | None = None) -> None:
        self._timeout, self._memory = timeout, memory
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False
        self._opened = 0
        self.dropped: list[int] = []

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        process, self._process, self._is_ready = self._process, None, False
        if process is not None:
            process.kill()
            process.communicate()

    def begin(self, *modules: str) -> None:
        """Start the process and let it import some modules in the background."""
        with suppress(EngineProcessError):
            self._process = self._process or _launch(self._memory, *modules)

    def open(self, function: Callable[..., Any], *args: Any) -> EngineProxy:
        """Call a public function of a module in the other process. Its result stays there; returns a proxy of it.

        Raises:
            EngineProcessError: The other process cannot be started, or the function raised an error.
            ValidationError: The other process ended.
        """
        self._opened += 1
        self.ask("open", self._opened, function, args)
        return EngineProxy(self, self._opened)

    def ask(self, *request: Any) -> Any:
        """Send a request and return the answer."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            message = pickle.dumps((self.dropped, *request))
        except Exception as error:  # pickle passes on any error of the objects
            raise EngineProcessError(f"the request cannot be sent to another process: {error}") from error
        try:
            _send(process.stdin, message)
            if self._timeout is not None and os.name == "posix" and not select([process.stdout], [], [], self._timeout)[0]:
                self.__exit__(None, None, None)
                raise ValidationError(f"it was ended after {self._timeout:g} s without an answer")
            answer = _receive(process.stdout)
        except OSError:
            answer = None
        if answer is None:
            code = process.wait()
            self.__exit__(None, None, None)
            raise ValidationError(_ended(code))
        self.dropped = []
        passed, value = pickle.loads(answer)
        if not passed:
            raise EngineProcessError(value)
        return value

    def _started(self) -> subprocess.Popen[bytes]:
        process = self._process = self._process or _launch(self._memory)
        assert process.stdout is not None
        if not self._is_ready and process.stdout.readline() != _READY:
            self.__exit__(None, None, None)
            raise EngineProcessError("the other interpreter did not start")
        self._is_ready = True
        return process


def _launch(memory: int | None, *modules: str) -> subprocess.Popen[bytes]:
    # In an application that embeds Python, sys.executable is the application, which must not be started again.
    if "python" not in Path(sys.executable or "").name.lower():
        raise EngineProcessError(f"{sys.executable!r} is not a Python interpreter")
    command = [sys.executable, "-c", _START, json.dumps(sys.path), str(memory or 0), *modules]
    try:
        # In a session of its own it does not receive Ctrl-C. This process ends it.
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    except OSError as error:
        raise EngineProcessError(str(error)) from error


class EngineProxy:
    """A proxy of an object in the other process: an engine, or a pipeline."""

    def __init__(self, process: EngineProcess, number: int) -> None:
        self._process = process
        self._number = number

    def __call__(self, inputs: Mapping[str, Array], /) -> Mapping[str, Array]:
        """Run one step."""
        answer: Mapping[str, Array] = self._process.ask("call", self._number, dict(inputs))
        return answer

    def reset(self) -> None:
        """Put a pipeline back to its start."""
        self._process.ask("reset", self._number)

    def __del__(self) -> None:
        # The other process learns of it with the next request.
        self._process.dropped.append(self._number)


def _ended(code: int) -> str:
    if code >= 0:
        return f"the process that ran it ended with code {code}"
    name = signal.Signals(-code).name
    why = ", most likely for want of memory" if name == "SIGKILL" else ""
    return f"the process that ran it was ended by {name}{why}"


def limit_memory(size: int) -> None:
    """Limit the data of this process to ``size`` bytes. A larger allocation fails, instead of using up the machine's memory."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        if size:
            resource.setrlimit(resource.RLIMIT_DATA, (size, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def serve(memory: str, *modules: str) -> None:
    """The main function of the other process: answers requests until the input is closed.

    Args:
        memory: The most bytes of data that it may hold; 0 sets no limit.
        *modules: Modules to import before the first request.
    """
    limit_memory(int(memory))
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    # Output of libraries goes to stderr, since stdout carries the answers.
    os.dup2(2, 1)
    for module in modules:
        import_module(module)
    answers.write(_READY)
    answers.flush()
    opened: dict[int, Any] = {}
    while (message := _receive(requests)) is not None:
        try:
            dropped, *request = pickle.loads(message)
            for number in dropped:
                opened.pop(number, None)
            answer = True, _do(opened, *request)
        except Exception as error:  # an engine may raise any type; the other side gets the message
            answer = False, f"{type(error).__name__}: {error}"
        _send(answers, pickle.dumps(answer))


def _do(opened: dict[int, Any], request: str, number: int, *args: Any) -> Any:
    if request == "open":
        function, given = args
        opened[number] = function(*given)
        return None
    return opened[number](*args) if request == "call" else opened[number].reset()


def _send(stream: IO[bytes], message: bytes) -> None:
    stream.write(len(message).to_bytes(_HEAD, "little"))
    stream.write(message)
    stream.flush()


def _receive(stream: IO[bytes]) -> bytes | None:
    """The next message; None if the other end is closed."""
    size = int.from_bytes(stream.read(_HEAD), "little")
    message = stream.read(size)
    return message if size and len(message) == size else None
