"""Nodes that are exported one after another share their setup, what is looked up once, and the thread that traces them.

To tell torch to keep some hundred operators whole takes longer than to trace a small node. torch's tracer copies the Python
stack at each operator, so it runs in a thread with a short stack.
"""

from __future__ import annotations

from _thread import start_new_thread
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

_T = TypeVar("_T")
_Tasks = SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]
"""Functions with the futures of their results; ``None`` ends the thread."""


class _BareThread:
    """A thread that runs functions one after another, below one Python frame. It starts with the first function.

    Threads of ``threading`` have three frames more, those of a pool five.
    """

    def __init__(self) -> None:
        self._tasks: _Tasks = SimpleQueue()
        self._ended: Future[None] | None = None

    def run(self, function: Callable[[], _T]) -> _T:
        """The result of the function, or its error."""
        if self._ended is None:
            ended: Future[None] = Future()
            start_new_thread(_work, (self._tasks, ended))
            self._ended = ended  # only now: close() would wait for a thread that could not be started
        done: Future[_T] = Future()
        self._tasks.put((function, done))
        try:
            return done.result()
        finally:
            del done  # it holds the error, whose traceback refers to this frame, and to all tensors of the trace

    def close(self) -> None:
        """Wait until the thread has ended. Another one starts with the next function."""
        self._tasks.put(None)  # also for a thread that an interrupt kept from being noted
        if self._ended is not None:
            self._ended.result()
        self._tasks, self._ended = SimpleQueue(), None


def _work(tasks: _Tasks, ended: Future[None]) -> None:
    from leapp.compat.python import forget_thread  # late: the package loads torch

    try:
        while (task := tasks.get()) is not None:
            function, done = task
            try:
                done.set_result(function())
            except BaseException as error:  # raised again by the caller
                done.set_exception(error)
            del task, function, done  # the next task may be long in coming
    finally:
        forget_thread()
        ended.set_result(None)


class _Sharing:
    """What the nodes of one ``sharing_setup()`` share."""

    def __init__(self) -> None:
        self.stack = ExitStack()
        """Holds the context that is entered."""
        self.entered: Hashable = None
        """The key of that context; ``None`` if there is none."""
        self.thread = _BareThread()
        self.made: dict[Callable[[], object], object] = {}
        """What was made, by the function that makes it."""


_open: list[_Sharing] = []


@contextmanager
def sharing_setup() -> Iterator[None]:
    """Share the setup between the nodes that are exported in this context."""
    sharing = _Sharing()
    _open.append(sharing)
    try:
        with sharing.stack:
            yield
    finally:
        _open.remove(sharing)
        sharing.thread.close()


def made_once(make: Callable[[], _T]) -> _T:
    """What ``make`` returns. In ``sharing_setup()`` it is called once."""
    if not _open:
        return make()
    made = _open[-1].made
    if make not in made:
        made[make] = make()
    return made[make]  # type: ignore[return-value]


def run_apart(function: Callable[[], _T]) -> _T:
    """Run a function in another thread, whose Python stack is short. In ``sharing_setup()`` all nodes use one such thread."""
    if _open:
        return _open[-1].thread.run(partial(copy_context().run, function))
    with sharing_setup():
        return run_apart(function)


def shared(key: Hashable, make: Callable[[], AbstractContextManager[None]]) -> AbstractContextManager[None]:
    """The context that ``make`` gives. In ``sharing_setup()`` it stays open as long as the nodes ask for the same ``key``."""
    if not _open:
        return make()
    sharing = _open[-1]
    if sharing.entered != key:
        end_sharing()
        sharing.stack.enter_context(make())
        sharing.entered = key
    return nullcontext()


def end_sharing() -> None:
    """Leave the context that is shared. Backends that do not want its patches call this first."""
    if _open:
        _open[-1].entered = None
        _open[-1].stack.close()
