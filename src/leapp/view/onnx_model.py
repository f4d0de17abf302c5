"""Reads the operators of an ONNX file with their shapes, and its weights. Nothing is run.

It parses the protobuf wire format itself, so neither the ``onnx`` package nor an engine opens the file. The work is limited,
because the file may be damaged or made to keep its reader busy.
"""

from __future__ import annotations

import math
import mmap
import stat
import struct
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from leapp.bundle.protobuf import FIXED32, NUMBER, SIZED, WireError, fields
from leapp.graph.dtypes import DTYPES

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.generic]

_MAX_FIELDS, _MAX_SHAPES, _MAX_PORTS, _MAX_TEXT, _MAX_NUMBERS = 200_000, 50_000, 24, 160, 64

_DTYPES = {dtype.onnx: name for name, dtype in DTYPES.items()}


class Weight(msgspec.Struct, frozen=True):
    """One initializer. ``data`` are its bytes; None if the file stores them as separate numbers."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    data: memoryview | None

    def array(self) -> Array | None:
        """The values, without a copy; None if they cannot be read."""
        import numpy as np

        if self.data is None or self.dtype == "complex128" or self.dtype.startswith("float8"):
            return None
        if min(self.shape, default=0) < 0 or math.prod(self.shape) * DTYPES[self.dtype].size != len(self.data):
            return None
        values = np.frombuffer(self.data, "uint16" if self.dtype == "bfloat16" else self.dtype).reshape(self.shape)
        if self.dtype == "bfloat16":
            # A bfloat16 is the upper half of a float32.
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values


class Model(msgspec.Struct, frozen=True):
    """The weights, and the operators in order of execution, as plain data for the page.

    An operator has its type as ``op``, the values it takes as ``in`` and gives as ``out``, each a name and a form, and its
    ``attributes``.
    """

    operators: tuple[dict[str, Any], ...]
    weights: tuple[Weight, ...]


def read_onnx(path: Path) -> Model:
    """Read an ONNX file.

    Raises:
        ValueError: If the file is not a complete ONNX model.
        OSError: If it cannot be read.
    """
    try:
        graphs = _Message(memoryview(_mapped(path))).parts(7)
        if not graphs:
            raise WireError("there is no graph in it")
        return _graph(_Message(graphs[0]), path.parent)
    except (WireError, UnicodeDecodeError, struct.error) as error:
        raise ValueError(f"{path.name} is not a complete ONNX model: {error}") from error


def _mapped(path: Path) -> mmap.mmap | bytes:
    with path.open("rb") as file:
        if not stat.S_ISREG(path.stat().st_mode):
            raise OSError(f"{path.name} is not a regular file")
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""


class _Message:
    """The first ``most`` fields of a protobuf message, by their numbers in ``onnx.proto``."""

    def __init__(self, body: memoryview, most: int = _MAX_FIELDS) -> None:
        self._found: dict[int, list[Any]] = {}
        for tag, value in islice(fields(body), most):
            self._found.setdefault(tag, []).append(value)

    def parts(self, number: int) -> list[memoryview]:
        return self._found.get(number << 3 | SIZED, [])

    def texts(self, number: int) -> list[str]:
        return [
            bytes(part[:_MAX_TEXT]).decode("utf-8", "replace") + "…" * (len(part) > _MAX_TEXT) for part in self.parts(number)
        ]

    def text(self, number: int) -> str:
        return next(reversed(self.texts(number)), "")

    def numbers(self, number: int) -> list[int]:
        """The numbers of a field, stored one by one or packed."""
        values = self._found.get(number << 3 | NUMBER, [])[:_MAX_NUMBERS]
        for part in self.parts(number):
            value = shift = 0
            for byte in part[: _MAX_NUMBERS * 10]:
                value |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    values.append(value)
                    value = shift = 0
        return [value - (1 << 64) if value >= 1 << 63 else value for value in values[:_MAX_NUMBERS]]

    def floats(self, number: int) -> list[float]:
        alone = self._found.get(number << 3 | FIXED32, [])[:_MAX_NUMBERS]
        body = b"".join([part[: 4 * _MAX_NUMBERS] for part in (*alone, *self.parts(number))])
        return [float(f"{value:.6g}") for (value,) in struct.iter_unpack("<f", body[: len(body) // 4 * 4])]


def _graph(graph: _Message, directory: Path) -> Model:
    files: dict[str, mmap.mmap | bytes | None] = {}
    weights = [_weight(_Message(part, 64), directory, files) for part in graph.parts(5)]
    shapes = {weight.name: _form(weight.shape, weight.dtype) for weight in weights}
    for part in islice((part for number in (11, 12, 13) for part in graph.parts(number)), _MAX_SHAPES):
        info = _Message(part, 16)
        shapes[info.text(1)] = _value_form(info)
    return Model(tuple(_operator(_Message(part, 1000), shapes) for part in graph.parts(1)), tuple(weights))


def _form(shape: Iterable[object], dtype: str) -> str:
    return f"[{', '.join(map(str, shape))}] {dtype}"


def _operator(node: _Message, shapes: Mapping[str, str]) -> dict[str, Any]:
    op, domain = node.text(4), node.text(7)
    inputs, outputs = (
        tuple((name, shapes.get(name, "")) for name in node.texts(number)[:_MAX_PORTS] if name) for number in (1, 2)
    )
    found = [_Message(part, 200) for part in node.parts(5)[:_MAX_PORTS]]
    attributes = {attribute.text(1): _attribute(attribute) for attribute in found}
    operator = {"op": op if domain in ("", "ai.onnx") else f"{domain}.{op}", "in": inputs, "out": outputs}
    return operator | ({"attributes": attributes} if attributes else {})


def _attribute(attribute: _Message) -> Any:
    """A short form of the value of an attribute."""
    many = [*attribute.floats(7), *attribute.numbers(8), *attribute.texts(9)]
    if many:
        return many[:_MAX_PORTS]
    if attribute.parts(6) or attribute.parts(11):
        return "a graph of its own"
    for part in attribute.parts(5):
        tensor = _weight(_Message(part, 64), None, {})
        array = tensor.array()
        if array is not None and array.size == 1:
            return f"{array.reshape(-1)[0]} {tensor.dtype}"
        return _form(tensor.shape, tensor.dtype)
    return next(iter([*attribute.floats(2), *attribute.numbers(3), *attribute.texts(4)]), None)


def _weight(tensor: _Message, directory: Path | None, files: dict[str, mmap.mmap | bytes | None]) -> Weight:
    # Only values stored as one block of bytes are read, not those stored as separate fields.
    data = next(reversed([*tensor.parts(4), *tensor.parts(9)]), None)
    entries = [_Message(part, 4) for part in tensor.parts(13)]
    outside = {entry.text(1): entry.text(2) for entry in entries}
    if "location" in outside and directory is not None:
        data = _outside(outside, directory, files)
    kind = next(iter(tensor.numbers(2)), 0)
    known = kind in _DTYPES
    dtype = _DTYPES[kind] if known else f"type {kind}"
    return Weight(tensor.text(8), tuple(tensor.numbers(1)), dtype, data if known else None)


def _outside(entry: Mapping[str, str], directory: Path, files: dict[str, mmap.mmap | bytes | None]) -> memoryview | None:
    """The bytes of a weight in another file of the model's directory. Other directories are not read."""
    location = entry["location"]
    if Path(location).name != location or (directory / location).is_symlink():
        return None
    if location not in files:
        try:
            files[location] = _mapped(directory / location)
        except (OSError, ValueError):
            files[location] = None
    body = files[location]
    offset, length = entry.get("offset", "0"), entry.get("length", "")
    if body is None or not offset.isdigit() or not length.isdigit():
        return None
    return memoryview(body)[int(offset) : int(offset) + int(length)]


def _value_form(info: _Message) -> str:
    """The shape and dtype of a value, as far as the file has them."""
    tensors = [_Message(tensor, 16) for kind in info.parts(2) for tensor in _Message(kind, 4).parts(1)]
    if not tensors:
        return ""
    shapes = [_Message(shape, 32) for shape in tensors[0].parts(2)]
    dims = [_Message(dim, 4) for shape in shapes for dim in shape.parts(1)]
    sizes = [next(iter([*dim.texts(2), *dim.numbers(1)]), "?") for dim in dims]
    return _form(sizes, _DTYPES.get(next(iter(tensors[0].numbers(1)), 0), ""))
