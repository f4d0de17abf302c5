"""The protobuf wire format, read and written field by field, without the package that knows the messages.

Knows nothing of ONNX. Every length is checked against the message around it, so damaged or hostile bytes end in
``WireError`` and never in a long loop.
"""

from __future__ import annotations

from collections.abc import Iterator

NUMBER, FIXED64, SIZED, FIXED32 = 0, 1, 2, 5
"""Wire types. A tag is a field number with its wire type in the lowest three bits."""

Value = int | memoryview
Chunks = list[bytes | memoryview]

_SIZES = {FIXED64: 8, FIXED32: 4}
_LONGEST = 10
"""Bytes of the longest number: 64 bits, seven in a byte."""


class WireError(ValueError):
    """The bytes are not a complete protobuf message."""


def spans(body: bytes | memoryview, at: int = 0, end: int | None = None) -> Iterator[tuple[int, int, int, int]]:
    """The fields of a message in ``body[at:end]``: the tag of each, where it begins, where its value begins, and where it ends.

    Raises:
        WireError: If the message is cut off or damaged.
    """
    end = len(body) if end is None else end
    while at < end:
        start = at
        tag, at = (body[at], at + 1) if body[at] < 0x80 else read_number(body, at, end)
        wire = tag & 7
        if wire == SIZED:
            size, at = (body[at], at + 1) if at < end and body[at] < 0x80 else read_number(body, at, end)
        elif wire == NUMBER:
            size = 1 if at < end and body[at] < 0x80 else read_number(body, at, end)[1] - at
        elif wire in _SIZES:
            size = _SIZES[wire]
        else:
            raise WireError("unknown wire type")
        if size > end - at:
            raise WireError("a field runs past its message")
        yield tag, start, at, at + size
        at += size


def fields(body: memoryview) -> Iterator[tuple[int, Value]]:
    """The fields of a message, each with its tag: numbers as int, everything else as a slice.

    Raises:
        WireError: If the message is cut off or damaged.
    """
    for tag, _, at, end in spans(body):
        yield tag, read_number(body, at, end)[0] if tag & 7 == NUMBER else body[at:end]


def number(tag: int, value: int) -> Chunks:
    """A field that holds a number."""
    return [_number(tag) + _number(value)]


def sized(value: bytes) -> bytes:
    """The value of a field that holds the given bytes, without the tag."""
    return _number(len(value)) + value


def message(tag: int, chunks: Chunks) -> Chunks:
    """A field that holds the given bytes."""
    return [_number(tag) + _number(sum(map(len, chunks))), *chunks]


def read_number(body: bytes | memoryview, at: int, end: int) -> tuple[int, int]:
    """A number that begins at a place of ``body[:end]``, and where it ends.

    Raises:
        WireError: It does not end there, or has too many bytes.
    """
    value = 0
    for place in range(at, min(at + _LONGEST, end)):
        byte = body[place]
        value |= (byte & 0x7F) << 7 * (place - at)
        if byte < 0x80:
            return value, place + 1
    raise WireError("a number is cut off or too long")


_SHORT = [bytes([value]) for value in range(0x80)]


def _number(value: int) -> bytes:
    if value < 0x80:
        return _SHORT[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
