"""Refuses unknown names and suggests the nearest known one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from leapp.errors import AnnotationTypeError

F = TypeVar("F", bound=Callable[..., Any])


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint such as `` Did you mean 'export_with'?``, or the list of known names."""
    known = list(known)
    return close(name, known, 0.5) or f" Known: {', '.join(known) or 'none'}."


def close(name: str, known: Iterable[str], cutoff: float = 0.7) -> str:
    """A hint such as `` Did you mean 'onnx'?`` if a known name is almost the given one, else nothing."""
    import difflib  # needed for errors only

    lowered = {candidate.lower(): candidate for candidate in known}
    match = difflib.get_close_matches(str(name).lower(), lowered, n=1, cutoff=cutoff)
    return f" Did you mean '{lowered[match[0]]}'?" if match else ""


def refuse_unknown(given: Iterable[str], known: Iterable[str], where: str) -> None:
    """Raise if ``given`` has a keyword that is not ``known``."""
    known = list(known)
    for name in given:
        if name not in known:
            raise AnnotationTypeError(f"{where} got an unknown keyword '{name}'.{nearest(name, known)}")


def knows_its_keywords(function: F) -> F:
    """A decorator: an unknown keyword is refused, and the nearest known one suggested. The signature stays."""
    known = tuple(inspect.signature(function).parameters)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        refuse_unknown(kwargs, known, f"leapp.{function.__name__}()")
        return function(*args, **kwargs)

    return cast(F, call)
