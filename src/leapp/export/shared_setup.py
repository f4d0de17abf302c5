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

_series: list[ExitStack] = []
_entered: list[Hashable] = []
_threads: list[ThreadPoolExecutor] = []


@contextmanager
def series() -> Iterator[None]:
    """Share the setup between the nodes that are exported in this context."""
    with ExitStack() as stack, ThreadPoolExecutor(1) as thread:
        _series.append(stack)
        _threads.append(thread)
        try:
            yield
        finally:
            end_sharing()
            _series.remove(stack)
            _threads.remove(thread)


def run_apart(function: Callable[[], _T]) -> _T:
    """Run a function in another thread, whose Python stack is short. A series has one such thread for all its nodes."""
    if _threads:
        return _threads[-1].submit(copy_context().run, function).result()
    with series():
        return run_apart(function)


def shared(key: Hashable, make: Callable[[], AbstractContextManager[None]]) -> AbstractContextManager[None]:
    """The context that ``make`` gives. In a series it stays open as long as the nodes ask for the same ``key``."""
    if not _series:
        return make()
    if _entered != [key]:
        end_sharing()
        _series[-1].enter_context(make())
        _entered.append(key)
    return nullcontext()


def end_sharing() -> None:
    """Leave the context that the series holds open. Backends that do not want its patches call this first."""
    if _entered:
        _entered.clear()
        _series[-1].close()
