"""Read the operators of an ONNX file with their shapes, and its weights. Nothing is run.

Reads the protobuf wire format itself, so neither the ``onnx`` package nor an engine sees the file. The work is bounded,
because the file may be damaged or built to keep its reader busy.
"""

from __future__ import annotations

import math
import mmap
import stat
import struct
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from leapp.bundle.protobuf import SIZED, Value, WireError, fields
from leapp.graph.dtypes import DTYPES

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.generic]

__all__ = ["Model", "Operator", "Weight", "read_onnx"]

_MAX_FIELDS, _MAX_SHAPES, _MAX_PORTS, _MAX_TEXT = 200_000, 50_000, 24, 160

_DTYPES = {dtype.onnx: name for name, dtype in DTYPES.items()}


class Operator(msgspec.Struct, frozen=True):
    """One node of the graph: values by name, with their form as far as the file tells."""

    op: str
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    attributes: dict[str, Any]


class Weight(msgspec.Struct, frozen=True):
    """One initializer. ``data`` are its bytes, None if the file holds them in another way."""

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
    """The operators in order of execution and the weights."""

    operators: tuple[Operator, ...]
    weights: tuple[Weight, ...]
    complete: bool


def read_onnx(path: Path) -> Model:
    """Read an ONNX file.

    Raises:
        ValueError: If the file is not a complete ONNX model.
        OSError: If it cannot be read.
    """
    body = _mapped(path)
    try:
        found = _fields(memoryview(body), _MAX_FIELDS)
        graph = next((value for tag, value in found if tag == _sized(7) and not isinstance(value, int)), None)
        if graph is None:
            raise WireError("there is no graph in it")
        return _graph(graph, path.parent)
    except (WireError, UnicodeDecodeError, struct.error) as error:
        raise ValueError(f"{path.name} is not a complete ONNX model: {error}") from error


def _mapped(path: Path) -> mmap.mmap | bytes:
    with path.open("rb") as file:
        if not stat.S_ISREG(path.stat().st_mode):
            raise OSError(f"{path.name} is not a regular file")
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""


def _sized(number: int) -> int:
    return number << 3 | SIZED


def _fields(body: memoryview, most: int) -> Iterator[tuple[int, Value]]:
    return islice(fields(body), most)


def _text(value: Value) -> str:
    if isinstance(value, int):
        raise WireError("a number where a text should be")
    text = bytes(value[:_MAX_TEXT]).decode("utf-8", "replace")
    return text if len(value) <= _MAX_TEXT else text + "…"


def _signed(value: Value) -> int:
    if not isinstance(value, int):
        raise WireError("a text where a number should be")
    return value - (1 << 64) if value >= 1 << 63 else value


def _graph(body: memoryview, directory: Path) -> Model:
    nodes: list[memoryview] = []
    weights: list[Weight] = []
    shapes: dict[str, str] = {}
    files: dict[str, mmap.mmap | bytes | None] = {}
    count = 0
    for tag, value in _fields(body, _MAX_FIELDS):
        count += 1
        if isinstance(value, int):
            continue
        if tag == _sized(1):
            nodes.append(value)
        elif tag == _sized(5):
            weight = _weight(value, directory, files)
            weights.append(weight)
            shapes[weight.name] = _form(weight.shape, weight.dtype)
        elif tag in (_sized(11), _sized(12), _sized(13)) and len(shapes) < _MAX_SHAPES:
            name, form = _value_info(value)
            shapes[name] = form
    return Model(tuple(_operator(node, shapes) for node in nodes), tuple(weights), count < _MAX_FIELDS)


def _form(shape: tuple[object, ...], dtype: str) -> str:
    return f"[{', '.join(map(str, shape))}] {dtype}"


def _operator(body: memoryview, shapes: Mapping[str, str]) -> Operator:
    op = domain = ""
    inputs: list[str] = []
    outputs: list[str] = []
    attributes: dict[str, Any] = {}
    for tag, value in _fields(body, 1000):
        if tag == _sized(1):
            inputs.append(_text(value))
        elif tag == _sized(2):
            outputs.append(_text(value))
        elif tag == _sized(4):
            op = _text(value)
        elif tag == _sized(7):
            domain = _text(value)
        elif tag == _sized(5) and not isinstance(value, int) and len(attributes) < _MAX_PORTS:
            name, found = _attribute(value)
            attributes[name] = found
    named = [tuple((name, shapes.get(name, "")) for name in names[:_MAX_PORTS] if name) for names in (inputs, outputs)]
    return Operator(op if domain in ("", "ai.onnx") else f"{domain}.{op}", named[0], named[1], attributes)


def _attribute(body: memoryview) -> tuple[str, Any]:
    """The name of an attribute and a short form of its value."""
    name = ""
    value: Any = None
    many: list[Any] = []
    for tag, found in _fields(body, 200):
        number = tag >> 3
        if number == 1:
            name = _text(found)
        elif number == 2 and not isinstance(found, int):
            value = float(f"{struct.unpack('<f', found)[0]:.6g}")
        elif number == 3:
            value = _signed(found)
        elif number == 4:
            value = _text(found)
        elif number == 5 and not isinstance(found, int):
            tensor = _weight(found, None, {})
            value = _small(tensor)
        elif number in (6, 11):
            value = "a graph of its own"
        elif number == 7 and not isinstance(found, int):
            many += [float(f"{v[0]:.6g}") for v in struct.iter_unpack("<f", found[: len(found) // 4 * 4][:256])]
        elif number == 8:
            many += [_signed(found)] if isinstance(found, int) else _packed(found, 64)
        elif number == 9:
            many.append(_text(found))
    return name, many[:_MAX_PORTS] if many else value


def _small(tensor: Weight) -> str:
    array = tensor.array()
    form = _form(tensor.shape, tensor.dtype)
    return f"{array.reshape(-1)[0]} {tensor.dtype}" if array is not None and array.size == 1 else form


def _packed(body: memoryview, most: int) -> list[int]:
    """Numbers one after the other, as far as they are wanted."""
    values, value, shift = [], 0, 0
    for byte in body[: most * 10]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            values.append(_signed(value))
            value = shift = 0
            if len(values) == most:
                break
    return values


def _weight(body: memoryview, directory: Path | None, files: dict[str, mmap.mmap | bytes | None]) -> Weight:
    name, dtype = "", ""
    shape: list[int] = []
    data: memoryview | None = None
    outside: dict[str, str] = {}
    # Values that are not one block of bytes come as a field each; those are not needed.
    for tag, value in _fields(body, 64):
        number = tag >> 3
        if number == 1:
            shape += [_signed(value)] if isinstance(value, int) else _packed(value, 16)
        elif number == 2:
            dtype = _DTYPES.get(_signed(value), f"type {value!r}")
        elif number == 8:
            name = _text(value)
        elif number in (4, 9) and not isinstance(value, int) and tag & 7 == SIZED:
            data = value
        elif number == 13 and not isinstance(value, int):
            entry = {tag >> 3: _text(part) for tag, part in _fields(value, 4)}
            outside[entry.get(1, "")] = entry.get(2, "")
    if "location" in outside and directory is not None:
        data = _outside(outside, directory, files)
    known = dtype in _DTYPES.values()
    return Weight(name, tuple(shape), dtype, data if known else None)


def _outside(entry: Mapping[str, str], directory: Path, files: dict[str, mmap.mmap | bytes | None]) -> memoryview | None:
    """The bytes of a weight in a file beside the model, and nowhere else."""
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


def _value_info(body: memoryview) -> tuple[str, str]:
    name, form = "", ""
    for tag, value in _fields(body, 16):
        if tag == _sized(1):
            name = _text(value)
        elif tag == _sized(2) and not isinstance(value, int):
            for kind, tensor in _fields(value, 4):
                if kind == _sized(1) and not isinstance(tensor, int):
                    form = _tensor_type(tensor)
    return name, form


def _tensor_type(body: memoryview) -> str:
    dtype, dims = "", []
    for tag, value in _fields(body, 16):
        if tag >> 3 == 1:
            dtype = _DTYPES.get(_signed(value), "")
        elif tag == _sized(2) and not isinstance(value, int):
            for _, dim in _fields(value, 32):
                if not isinstance(dim, int):
                    dims.append(next((_text(v) if t == _sized(2) else str(_signed(v)) for t, v in _fields(dim, 4)), "?"))
    return _form(tuple(dims), dtype)
