"""The messages between a client and a server: a small JSON head and named tensors, in binary form.

A message is the length of the head (four bytes, little-endian), the head, and a safetensors file that may be absent. On a
websocket it is cut into frames that proxies accept; the first begins with the length of the message and a ticket, eight bytes
each. The server puts a new ticket on every answer, and a request carries the ticket of the answer before it, so a client must
read an answer before its next request. The bytes are not trusted: lengths are checked before memory is allocated, and nothing
is unpickled.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from leapp.bundle.safetensors import RawTensor, decode, encode
from leapp.errors import BundleError, InputError
from leapp.runtime.arrays import Array
from leapp.runtime.values import from_raw

PROTOCOL = 1
"""The version of the protocol, equal on both sides."""

FRAME = 4 * 1024 * 1024
"""The largest websocket message. Common servers refuse more than 16 MiB."""

TICKET = 8
"""The bytes of a ticket."""

_MAX_HEAD = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Message:
    """A message: ``op`` says what it is, ``head`` holds its other plain values, and each group of tensors has a name."""

    op: str
    head: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, dict[str, Array]] = field(default_factory=dict)

    def group(self, name: str) -> dict[str, Array]:
        """The tensors of a group, by port; none if the message has no such group."""
        return self.tensors.get(name, {})


def pack(op: str, head: Mapping[str, Any] | None = None, **groups: Mapping[str, Array]) -> bytes:
    """The bytes of a message."""
    text = json.dumps({**(head or {}), "op": op}, ensure_ascii=False, separators=(",", ":")).encode()
    named = {f"{group}/{where}": RawTensor.of(value) for group, values in groups.items() for where, value in values.items()}
    return b"".join([struct.pack("<I", len(text)), text, encode(named) if named else b""])


def unpack(data: bytes) -> Message:
    """The message that some bytes hold.

    Raises:
        InputError: The bytes are not a message. The error names the tensor that is damaged.
    """
    size = struct.unpack("<I", data[:4])[0] if len(data) >= 4 else _MAX_HEAD + 1
    if size > min(_MAX_HEAD, len(data) - 4):
        raise InputError("The message is incomplete or does not follow this protocol.")
    try:
        head = json.loads(data[4 : 4 + size].decode())
    except (ValueError, RecursionError):
        raise InputError("The head of the message is damaged.") from None
    op = head.pop("op", None) if isinstance(head, dict) else None
    if not isinstance(op, str):
        raise InputError("The head of the message does not say what it is.")
    try:
        raw = decode(data[4 + size :], "The message") if len(data) > 4 + size else {}
    except BundleError as error:
        raise InputError(str(error)) from None
    tensors: dict[str, dict[str, Array]] = {}
    for name, value in raw.items():
        group, _, where = name.partition("/")
        tensors.setdefault(group, {})[where] = checked_array(where, value)
    return Message(op, head, tensors)


def checked_array(where: str, raw: RawTensor) -> Array:
    """The array of a raw tensor from an untrusted sender.

    Raises:
        InputError: The bytes do not fit the dtype and shape. The error names the port.
    """
    try:
        array = from_raw(raw)
    except (ValueError, OverflowError):
        raise InputError(f"{where!r}: {len(raw.data)} bytes do not make a {raw.dtype} {list(raw.shape)}.") from None
    if raw.dtype == "bool" and array.size and array.view("uint8").max() > 1:
        # Engines would compute with other bytes as with numbers.
        raise InputError(f"{where!r} is bool and holds bytes other than 0 and 1.")
    return array


def frames(message: bytes, ticket: bytes) -> Iterator[bytes]:
    """A message as the websocket messages that carry it."""
    whole = b"".join([struct.pack("<Q", len(message)), ticket, message])
    for start in range(0, len(whole), FRAME):
        yield whole[start : start + FRAME]


class Assembly:
    """Puts a message together from its frames. Uses no more memory than the bytes that arrived, and at most the limit.

    Args:
        limit: The most bytes a message may have.
        hint: Says where the limit comes from, for the error message.

    Attributes:
        ticket: The ticket of the latest message; empty before the first.
    """

    def __init__(self, limit: int, hint: str = "") -> None:
        self._limit, self._hint = limit, hint
        self._parts: list[bytes] = []
        self._size: int | None = None
        self._held = 0
        self.ticket = b""

    def add(self, frame: bytes) -> bytes | None:
        """Take a frame. Returns the message if this was its last one.

        Raises:
            InputError: The frame does not continue the message, or the message is longer than the limit.
        """
        if self._size is None:
            if len(frame) < 8 + TICKET:
                raise InputError("A message starts with its length and a ticket, of eight bytes each.")
            self._size = struct.unpack("<Q", frame[:8])[0]
            self.ticket, frame = frame[8 : 8 + TICKET], frame[8 + TICKET :]
        if max(self._size, self._held + len(frame)) > self._limit:
            raise InputError(f"The message has {self._size} bytes, more than the {self._limit} that are accepted.{self._hint}")
        if not frame and self._size:
            raise InputError("A frame of the message is empty.")
        self._held += len(frame)
        if self._held > self._size:
            raise InputError("The message is longer than it says.")
        self._parts.append(frame)
        if self._held < self._size:
            return None
        message = b"".join(self._parts)
        self._parts, self._size, self._held = [], None, 0
        return message
