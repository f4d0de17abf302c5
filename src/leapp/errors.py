"""Every exception the library raises on purpose.

One base class, a handful of kinds. Each kind also derives from the built-in class a caller would expect, so
``except ValueError`` and ``except LeappError`` both work. A message says what happened, where, and what to do next.
"""

from __future__ import annotations

import unicodedata

__all__ = [
    "AnnotationError",
    "AnnotationTypeError",
    "BundleError",
    "BundleFileError",
    "ExportError",
    "InputError",
    "InputTypeError",
    "LeappError",
    "MissingDependencyError",
    "ServerError",
    "ServerTimeoutError",
    "SessionError",
    "SessionLostError",
    "StorageError",
    "TraceError",
    "UnknownPortError",
    "ValidationError",
    "visible",
]


def visible(text: str, keep: str = "\n\t") -> str:
    """A text whose control characters are escaped as in Python, all but those in ``keep``.

    Names in a bundle may contain escape sequences for a terminal, or characters that reverse the direction of text.
    """
    if text.isprintable():
        return text
    return "".join(
        char.encode("unicode_escape").decode() if unicodedata.category(char) in _CONTROLS and char not in keep else char
        for char in text
    )


_CONTROLS = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})


class LeappError(Exception):
    """Base class of all errors raised by leapp. Control characters in a message are escaped."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.args = tuple(visible(arg) if isinstance(arg, str) else arg for arg in args)


class SessionError(LeappError, RuntimeError):
    """A call that does not fit the state of the session, such as ``stop()`` without ``start()``."""


class AnnotationError(LeappError, ValueError):
    """An annotation names or describes something that cannot be: a duplicate port, a changed shape, a bad name."""


class AnnotationTypeError(LeappError, TypeError):
    """An annotation was given a value of the wrong type or form."""


class TraceError(LeappError, RuntimeError):
    """The recorded computation cannot be exported as it ran."""


class ExportError(LeappError, RuntimeError):
    """A backend could not write a node."""


class ValidationError(LeappError, RuntimeError):
    """A written model does not reproduce the values that were traced."""


class BundleError(LeappError, ValueError):
    """A bundle is malformed, inconsistent, tampered with or not allowed."""


class BundleFileError(BundleError, FileNotFoundError):
    """A file that a bundle names does not exist."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class StorageError(LeappError, OSError):
    """There is no room for the bundle. What was on disk before is unchanged."""


class InputError(LeappError, ValueError):
    """A value given to a running pipeline does not fit its port."""


class InputTypeError(LeappError, TypeError):
    """A value given to a running pipeline is of a type that cannot be an input."""


class UnknownPortError(LeappError, KeyError):
    """A key names no port of the pipeline."""

    def __str__(self) -> str:
        # KeyError would show the repr of its argument, which is a sentence here.
        return str(self.args[0]) if self.args else ""


class MissingDependencyError(LeappError, ImportError):
    """An optional package is needed for what was asked."""


class ServerError(LeappError, ConnectionError):
    """A server could not be reached, refused a request or failed. The state is what it was before the request."""


class ServerTimeoutError(ServerError, TimeoutError):
    """A server did not answer in time. Whether it ran the step does not matter: its result is never used."""


class SessionLostError(ServerError):
    """The state of a session is gone with the server that held it. ``reset()`` or ``load_state()`` starts a new one."""
