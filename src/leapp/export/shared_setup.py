"""Nodes that are exported one after another share their setup.

To tell torch to keep some hundred operators whole takes longer than to trace a small node.
"""

from __future__ import annotations

from _thread import start_new_thread
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

_T = TypeVar("_T")


class _BareThread:
    """A thread that runs functions one after another, below one Python frame. It starts with the first function.

    Threads of ``threading`` have three frames more, those of a pool five.
    """

    def __init__(self) -> None:
        self._tasks: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._ended: Future[None] | None = None

    def run(self, function: Callable[[], _T]) -> _T:
        """The result of the function, or its error."""
        if self._ended is None:
            ended: Future[None] = Future()
            start_new_thread(self._work, (ended,))
            self._ended = ended  # only now: close() would wait for a thread that could not be started
        done: Future[_T] = Future()
        self._tasks.put((function, done))
        try:
            return done.result()
        finally:
            del done  # it holds the error, whose traceback refers to this frame, and to all tensors of the trace

    def close(self) -> None:
        """Wait until the thread has ended."""
        if self._ended is not None:
            self._tasks.put(None)
            self._ended.result()

    def _work(self, ended: Future[None]) -> None:
        while (task := self._tasks.get()) is not None:
            function, done = task
            try:
                done.set_result(function())
            except BaseException as error:  # raised again by the caller
                done.set_exception(error)
            del task, function, done  # the next task may be long in coming
        ended.set_result(None)


_contexts: list[ExitStack] = []
_entered: list[Hashable] = []
_threads: list[_BareThread] = []
_made: list[dict[Callable[[], object], object]] = []


@contextmanager
def sharing_setup() -> Iterator[None]:
    """Share the setup between the nodes that are exported in this context."""
    with ExitStack() as stack, closing(_BareThread()) as thread:
        _contexts.append(stack)
        _threads.append(thread)
        _made.append({})
        try:
            yield
        finally:
            end_sharing()
            _contexts.remove(stack)
            _threads.remove(thread)
            _made.pop()


def made_once(make: Callable[[], _T]) -> _T:
    """What ``make`` returns. In ``sharing_setup()`` it is called once."""
    if not _made:
        return make()
    if make not in _made[-1]:
        _made[-1][make] = make()
    return _made[-1][make]  # type: ignore[return-value]


def run_apart(function: Callable[[], _T]) -> _T:
    """Run a function in another thread, whose Python stack is short. In ``sharing_setup()`` all nodes use one such thread."""
    if _threads:
        return _threads[-1].run(partial(copy_context().run, function))
    with sharing_setup():
        return run_apart(function)


def shared(key: Hashable, make: Callable[[], AbstractContextManager[None]]) -> AbstractContextManager[None]:
    """The context that ``make`` gives. In ``sharing_setup()`` it stays open as long as the nodes ask for the same ``key``."""
    if not _contexts:
        return make()
    if _entered != [key]:
        end_sharing()
        _contexts[-1].enter_context(make())
        _entered.append(key)
    return nullcontext()


def end_sharing() -> None:
    """Leave the context that is shared. Backends that do not want its patches call this first."""
    if _entered:
        _entered.clear()
        _contexts[-1].close()
