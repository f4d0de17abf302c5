"""Nodes that are exported one after another share what is slow to set up.

Telling torch to keep some hundred operators whole takes longer than tracing a small node.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

__all__ = ["end_sharing", "series", "shared"]

_series: list[ExitStack] = []
_entered: list[Hashable] = []


@contextmanager
def series() -> Iterator[None]:
    """Export several nodes."""
    with ExitStack() as stack:
        _series.append(stack)
        try:
            yield
        finally:
            end_sharing()
            _series.remove(stack)


def shared(key: Hashable, make: Callable[[], AbstractContextManager[None]]) -> AbstractContextManager[None]:
    """The context that ``make`` gives; in a series the one that is entered for ``key`` already."""
    if not _series:
        return make()
    if _entered != [key]:
        end_sharing()
        _series[-1].enter_context(make())
        _entered.append(key)
    return nullcontext()


def end_sharing() -> None:
    """Leave what the series has entered: somebody follows who must not find it."""
    if _entered:
        _entered.clear()
        _series[-1].close()
