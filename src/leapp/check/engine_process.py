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
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import TracebackType
from typing import Any

from leapp.bundle import Bundle
from leapp.check.engines import Array
from leapp.errors import ValidationError
from leapp.graph.formats import EXTERNAL_DATA

LARGE = 64 << 20
"""Models up to this many bytes run in this process, because another interpreter needs more memory than their weights."""

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
        self._connection: Connection[Any, Any] | None = None
        self._is_ready = False
        self._opened = 0
        self.dropped: list[int] = []

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        process, connection = self._process, self._connection
        self._process, self._connection, self._is_ready = None, None, False
        if process is not None and connection is not None:
            process.kill()
            process.wait()
            connection.close()

    def begin(self, *modules: str) -> None:
        """Start the process and let it import some modules in the background."""
        with suppress(EngineProcessError):
            self._launch(*modules)

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
        process, connection = self._launch()
        try:
            message = pickle.dumps((self.dropped, *request))
        except Exception as error:  # pickle passes on any error of the objects
            raise EngineProcessError(f"the request cannot be sent to another process: {error}") from error
        try:
            self._is_ready = self._is_ready or connection.recv_bytes() == b"ready"
        except (EOFError, OSError):
            self.__exit__(None, None, None)
            raise EngineProcessError("the other interpreter did not start") from None
        try:
            connection.send_bytes(message)
            if not connection.poll(self._timeout):
                self.__exit__(None, None, None)
                raise ValidationError(f"it was ended after {self._timeout:g} s without an answer")
            passed, value = pickle.loads(connection.recv_bytes())
        except (EOFError, OSError):
            code = process.wait()
            self.__exit__(None, None, None)
            raise ValidationError(_ended(code)) from None
        self.dropped = []
        if not passed:
            raise EngineProcessError(value)
        return value

    def _launch(self, *modules: str) -> tuple[subprocess.Popen[bytes], Connection[Any, Any]]:
        """The process, which is started if there is none, and the connection to it."""
        if self._process is not None and self._connection is not None:
            return self._process, self._connection
        # In an application that embeds Python, sys.executable is the application, which must not be started again.
        if "python" not in Path(sys.executable or "").name.lower():
            raise EngineProcessError(f"{sys.executable!r} is not a Python interpreter")
        connection, other = Pipe()
        with other:
            number = other.fileno()
            command = [sys.executable, "-c", _START, json.dumps(sys.path), str(number), str(self._memory or 0), *modules]
            try:
                # In a session of its own it does not receive Ctrl-C. This process ends it. Its output goes to stderr.
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=[number], start_new_session=True
                )
            except (OSError, ValueError) as error:
                connection.close()
                raise EngineProcessError(str(error)) from error
        self._process, self._connection = process, connection
        return process, connection


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


def serve(number: str, memory: str, *modules: str) -> None:
    """The main function of the other process: answers requests until the connection is closed.

    Args:
        number: The file descriptor of the connection.
        memory: The most bytes of data that it may hold; 0 sets no limit.
        *modules: Modules to import before the first request.
    """
    limit_memory(int(memory))
    connection: Connection[Any, Any] = Connection(int(number))
    for module in modules:
        import_module(module)
    connection.send_bytes(b"ready")
    opened: dict[int, Any] = {}
    with suppress(EOFError):
        while True:
            message = connection.recv_bytes()
            try:
                dropped, *request = pickle.loads(message)
                for dead in dropped:
                    opened.pop(dead, None)
                answer = True, _do(opened, *request)
            except Exception as error:  # an engine may raise any type; the other side gets the message
                answer = False, f"{type(error).__name__}: {error}"
            connection.send_bytes(pickle.dumps(answer))


def _do(opened: dict[int, Any], request: str, number: int, *args: Any) -> Any:
    if request == "open":
        function, given = args
        opened[number] = function(*given)
        return None
    return opened[number](*args) if request == "call" else opened[number].reset()
