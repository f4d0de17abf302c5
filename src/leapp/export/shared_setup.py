"""Nodes that are exported one after another share their setup.

To tell torch to keep some hundred operators whole takes longer than to trace a small node.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import copy_context
from typing import TypeVar

_T = TypeVar("_T")

_contexts: list[ExitStack] = []
_entered: list[Hashable] = []
_threads: list[ThreadPoolExecutor] = []
_made: list[dict[Callable[[], object], object]] = []


@contextmanager
def sharing_setup() -> Iterator[None]:
    """Share the setup between the nodes that are exported in this context."""
    with ExitStack() as stack, ThreadPoolExecutor(1) as thread:
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
        return _threads[-1].submit(copy_context().run, function).result()
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
