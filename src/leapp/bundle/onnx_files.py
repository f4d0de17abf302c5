"""Finds the other files that an engine would open for an ONNX model: its external tensor data.

It reads the protobuf wire format only as far as needed for that, so that a robot needs no ``onnx`` package and nothing of the
model is interpreted.
"""

from __future__ import annotations

import os

from leapp.bundle.protobuf import SIZED, WireError, fields, spans
from leapp.errors import BundleError

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
_GRAPH, _INITIALIZER, _RAW_DATA = (number << 3 | SIZED for number in (7, 5, 9))
_MAX_DEPTH = 64
_LARGE, _LARGE_TENSOR = 1 << 17, 1 << 12
"""From this many bytes on, the values of tensors are left out of the search of a model."""


def external_files(model: bytes, what: str) -> list[str]:
    """The locations of external data that a model names, without repeats.

    Args:
        model: The bytes of the ``.onnx`` file.
        what: What the file is, for messages.

    Raises:
        BundleError: If the model is not a complete protobuf message, or nests graphs too deeply.
    """
    if b"location" not in _without_values(model):
        return []  # no tensor has external data
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
            stack += [(holds[number], body, depth + 1) for number, body in _held(message) if number in holds]
    except (WireError, UnicodeDecodeError) as error:
        raise BundleError(f"{what}: the file is not a complete ONNX model.") from error
    return list(found)


def _without_values(model: bytes) -> bytes:
    """A large model without the values of its initializers, which name no file and would slow the search down."""
    if len(model) < _LARGE:
        return model
    whole, kept, copied = memoryview(model), [], 0
    try:
        for tag, _, begin, end in spans(whole):
            for inner, _, first, last in spans(whole[begin:end]) if tag == _GRAPH else ():
                if inner == _INITIALIZER and last - first > _LARGE_TENSOR:
                    for place, start, _, stop in spans(whole[begin + first : begin + last]):
                        if place == _RAW_DATA:
                            kept.append(whole[copied : begin + first + start])
                            copied = begin + first + stop
    except WireError:
        return model
    return b"".join([*kept, whole[copied:]])


def beside(model: str, location: str) -> str:
    """The path of external data at ``location``, which is relative to the directory of ``model``."""
    return os.path.normpath(os.path.join(os.path.dirname(model), location))


def _location(entry: memoryview) -> str | None:
    texts = {number: bytes(body).decode() for number, body in _held(entry)}
    return texts.get(2, "") if texts.get(1) == "location" else None


def _held(message: memoryview) -> list[tuple[int, memoryview]]:
    """The fields that hold bytes, each with its number."""
    return [(tag >> 3, body) for tag, body in fields(message) if tag & 7 == SIZED and not isinstance(body, int)]
