"""Protocol buffer text, as ``config.pbtxt`` wants it. Knows the notation, not the fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["Word", "entries", "pbtxt"]


class Word(str):
    """A text that is written bare: the name of an enum value."""

    __slots__ = ()


def pbtxt(message: Mapping[str, Any]) -> str:
    """The text of a message.

    A mapping is a message, a list of mappings a repeated message, any other list a repeated value.

    Example:
        >>> print(pbtxt({"name": "leg", "input": [{"dims": [1, 3]}]}), end="")
        name: "leg"
        input {
          dims: [1, 3]
        }
    """
    return "".join(f"{line}\n" for line in _lines(message, ""))


def entries(mapping: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A map field, which is a list of keys with values."""
    return [{"key": key, "value": value} for key, value in mapping.items()]


def _lines(message: Mapping[str, Any], indent: str) -> Iterator[str]:
    for name, value in message.items():
        repeated = isinstance(value, list) and all(isinstance(item, Mapping) for item in value)
        if isinstance(value, Mapping) or repeated:
            for item in value if repeated else [value]:
                yield f"{indent}{name} {{"
                yield from _lines(item, indent + "  ")
                yield f"{indent}}}"
        elif isinstance(value, list):
            yield f"{indent}{name}: [{', '.join(map(_scalar, value))}]"
        else:
            yield f"{indent}{name}: {_scalar(value)}"


def _scalar(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (Word, int)):
        return str(value)
    if not isinstance(value, str):
        raise TypeError(f"{value!r} has no place in a configuration.")
    # Octal escapes are read the same everywhere; hexadecimal ones swallow the digits after them.
    return '"' + "".join(_ESCAPES.get(c) or (f"\\{ord(c):03o}" if ord(c) < 32 or ord(c) == 127 else c) for c in value) + '"'


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
