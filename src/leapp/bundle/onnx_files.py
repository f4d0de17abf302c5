"""Which other files an ONNX model would make its engine open.

Walks the protobuf wire format just far enough to find external tensor data, so that a robot needs no ``onnx`` package
and nothing of the model is interpreted.
"""

from __future__ import annotations

from leapp.errors import BundleError

__all__ = ["external_files"]

# Message → field number → message held by that field. Field numbers are those of onnx.proto, which never change.
_HOLDS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
_MAX_DEPTH = 64


def external_files(model: bytes, what: str) -> list[str]:
    """The locations of external data that a model names, without repeats.

    Args:
        model: The bytes of the ``.onnx`` file.
        what: What the file is, for messages.

    Raises:
        BundleError: If the bytes are not a protobuf message.
    """
    found: dict[str, None] = {}
    view = memoryview(model)
    stack: list[tuple[str, memoryview, int]] = [("model", view, 0)]
    try:
        while stack:
            kind, message, depth = stack.pop()
            if depth > _MAX_DEPTH:
                raise BundleError(f"{what}: graphs are nested deeper than {_MAX_DEPTH} levels.")
            if kind == "entry":
                location = _location(message)
                if location is not None:
                    found[location] = None
                continue
            holds = _HOLDS[kind]
            stack += [(holds[number], body, depth + 1) for number, body in _fields(message) if number in holds]
    except (IndexError, UnicodeDecodeError) as error:
        raise BundleError(f"{what}: the file is not a complete ONNX model.") from error
    return list(found)


def _location(entry: memoryview) -> str | None:
    fields = {number: bytes(body).decode() for number, body in _fields(entry)}
    return fields.get(2, "") if fields.get(1) == "location" else None


def _fields(message: memoryview) -> list[tuple[int, memoryview]]:
    """The length-delimited fields of a message; numbers are skipped."""
    fields = []
    position, end = 0, len(message)
    while position < end:
        tag, position = _varint(message, position)
        wire = tag & 7
        if wire == 0:
            _, position = _varint(message, position)
        elif wire == 1:
            position += 8
        elif wire == 5:
            position += 4
        elif wire == 2:
            size, position = _varint(message, position)
            fields.append((tag >> 3, message[position : position + size]))
            position += size
        else:
            raise IndexError("unknown wire type")
        if position > end:
            raise IndexError("field runs past its message")
    return fields


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise IndexError("number too long")
