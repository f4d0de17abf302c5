"""Recordings as files: ``.npz`` for NumPy alone, ``.mcap`` for the viewers of robot logs. Both hold the same values.

In an ``.npz`` every port is one array of bits. In an ``.mcap`` every port is one channel of JSON messages, stamped with
the start of their step, so that a viewer plots them as they are; the channel ``step`` holds the durations.
"""

from __future__ import annotations

import functools
import math
import os
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from leapp.errors import InputError, MissingDependencyError
from leapp.graph.contract import Port
from leapp.runtime.arrays import Array, form, numpy_dtype


@dataclass(frozen=True, slots=True)
class Column:
    """The values of one port, and the steps they belong to."""

    steps: list[int]
    values: list[Array]


Columns = dict[tuple[str, str], Column]
"""Columns by side (``in``, ``out``, ``state``) and port key."""

Sides = Mapping[str, Mapping[str, Port] | None]
"""The ports that each side may have; None skips the side."""


_FREE, _RATIO = 256 << 20, 20
"""An ``.npz`` file may unpack to this many bytes, or to this many times its size."""
_RATIO_MCAP = 200
"""The ratio for an ``.mcap`` file. It holds compressed text, and the values of a robot at rest compress well."""
_CHUNK = 0x06
"""The record of an ``.mcap`` file that holds packed messages."""
_HEADS = struct.Struct("<QQQI")
_TIMES = ("start_ns", "duration_ns", "placed")


def writer(path: str | os.PathLike[str]) -> Callable[[Columns, Array], None]:
    """The function that writes columns and times to a file.

    Times have one row for each step: start, duration, and whether its state was set from outside.

    Raises:
        InputError: Recordings are not written to files of this name.
        MissingDependencyError: The package for such files is not installed.
    """
    suffix = Path(path).suffix
    if suffix == ".npz":
        return functools.partial(_write_npz, Path(path))
    if suffix == ".mcap":
        _mcap()
        return functools.partial(_write_mcap, Path(path))
    raise InputError(f"Recordings are .npz or .mcap files, got {os.fspath(path)!r}.")


def read(path: str | os.PathLike[str], sides: Sides) -> tuple[Columns, Array]:
    """The columns and times of a file.

    Raises:
        InputError: The file is not a recording of a bundle with these ports.
        MissingDependencyError: The package for such files is not installed.
    """
    try:
        return (_read_mcap if Path(path).suffix == ".mcap" else _read_npz)(Path(path), sides)
    except MissingDependencyError:
        raise
    except Exception as error:  # NumPy and mcap may raise any type for a damaged file
        why = f"it lacks {error}" if isinstance(error, KeyError) else getattr(error, "strerror", None) or error
        raise InputError(f"{os.fspath(path)} is not a recording of this bundle: {why}") from error


def _port(sides: Sides, side: str, key: str) -> Port | None:
    """The port of a column, or None if the column is not wanted."""
    ports = sides.get(side, {})
    if ports is None:
        return None
    if key not in ports:
        raise ValueError(f"it holds {side} {key!r}, which the bundle does not have")
    return ports[key]


def _sizes(port: Port) -> tuple[int, ...]:
    """The shape of a recorded value. In a pipeline that takes any batch, the batch axis may have any size."""
    return tuple(-1 if axis == port.batch_axis else size for axis, size in enumerate(port.shape))


def _require_form(side: str, key: str, port: Port, dtype: str, shape: str) -> None:
    found = msgspec.json.decode(shape, type=list[int])
    fits = len(found) == len(port.shape) and all(b in (a, -1) for a, b in zip(found, _sizes(port), strict=True))
    if dtype != port.dtype or not fits:
        raise ValueError(f"{side} {key!r} is {dtype} {shape}, expected {form(port.dtype, port.shape)}")


def _write_npz(path: Path, columns: Columns, times: Array) -> None:
    arrays: dict[str, Any] = {name: times[:, index] for index, name in enumerate(_TIMES)}
    for (side, key), column in columns.items():
        # Stored as bytes, because the file format has only NumPy's own dtypes.
        arrays[f"{side}:{key}"] = np.stack([np.frombuffer(value.tobytes(), np.uint8) for value in column.values])
        arrays[f"steps:{side}:{key}"] = np.array(column.steps, np.int64)
        first = column.values[0]
        arrays[f"form:{side}:{key}"] = np.array([str(first.dtype), str(list(first.shape))])
    np.savez(path, **arrays)


def load_npz(path: str | os.PathLike[str]) -> dict[str, Array]:
    """The arrays of an ``.npz`` file. A file that unpacks to many times its size is refused, and so are pickled objects.

    Raises:
        ValueError: The file unpacks to many times its size, or holds objects.
    """
    size = os.path.getsize(path)
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(entry.file_size for entry in archive.infolist())
    if unpacked > max(_FREE, _RATIO * size):
        raise ValueError(f"it has {size} bytes but unpacks to {unpacked}; write it with np.savez")
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def _read_npz(path: Path, sides: Sides) -> tuple[Columns, Array]:
    arrays = load_npz(path)
    times = np.stack([arrays.pop(name) for name in _TIMES], axis=1)
    columns: Columns = {}
    for name, rows in arrays.items():
        side, _, key = name.partition(":")
        if side in ("steps", "form"):
            continue
        port = _port(sides, side, key)
        if port is None:
            continue
        if f"form:{name}" in arrays:
            _require_form(side, key, port, *arrays[f"form:{name}"].tolist())
        values = np.frombuffer(rows.tobytes(), numpy_dtype(port.dtype)).reshape(len(rows), *_sizes(port))
        columns[side, key] = Column(arrays[f"steps:{name}"].tolist(), list(values))
    return columns, times


_STEP = "step"
_SCHEMA = {
    "type": "object",
    "properties": {"values": {"type": "array", "items": {"type": ["number", "boolean", "string"]}}},
}
_STEP_SCHEMA = {"type": "object", "properties": {"duration_ns": {"type": "integer"}, "placed": {"type": "boolean"}}}


def _mcap() -> Any:
    try:
        import mcap.reader
        import mcap.writer
    except ImportError as error:
        raise MissingDependencyError(".mcap recordings need the package mcap: pip install 'leapp[mcap]'.") from error
    return mcap


def _write_mcap(path: Path, columns: Columns, times: Array) -> None:
    with path.open("wb") as stream:
        file = _mcap().writer.Writer(stream)
        file.start(profile="", library="leapp")
        values = file.register_schema("leapp.Values", "jsonschema", msgspec.json.encode(_SCHEMA))
        steps = file.register_schema("leapp.Step", "jsonschema", msgspec.json.encode(_STEP_SCHEMA))
        messages = []
        for (side, key), column in columns.items():
            about = {"dtype": str(column.values[0].dtype), "shape": str(list(column.values[0].shape))}
            channel = file.register_channel(f"{side}/{key}", "json", values, about)
            rows = zip(column.steps, column.values, strict=True)
            messages += [(step, channel, {"values": _numbers(value)}) for step, value in rows]
        channel = file.register_channel(_STEP, "json", steps)
        starts = times[:, 0].tolist()
        for step, (duration, placed) in enumerate(times[:, 1:].tolist()):
            messages.append((step, channel, {"duration_ns": duration, "placed": placed != 0}))
        for step, channel, content in sorted(messages, key=lambda message: message[0]):
            file.add_message(channel, starts[step], msgspec.json.encode(content), starts[step], step)
        file.finish()


def _check_mcap(path: Path) -> None:
    """Refuse a file that unpacks to many times its size. Every chunk is unpacked, since its header may be wrong.

    Raises:
        ValueError: The file unpacks to too much, or is damaged.
    """
    size = os.path.getsize(path)
    most, unpacked = max(_FREE, _RATIO_MCAP * size), 0
    with path.open("rb") as file:
        file.seek(8)
        while len(head := file.read(9)) == 9:
            length = int.from_bytes(head[1:], "little")
            if length > size - file.tell():
                raise ValueError("a record is longer than the file")
            if head[0] != _CHUNK:
                file.seek(length, os.SEEK_CUR)
                continue
            content = memoryview(file.read(length))
            _, _, said, _ = _HEADS.unpack_from(content)
            at = _HEADS.size
            name = bytes(content[at + 4 : at + 4 + int.from_bytes(content[at : at + 4], "little")])
            unpacked += max(said, _unpacked(name, content[at + 4 + len(name) + 8 :], most - unpacked))
            if unpacked > most:
                raise ValueError(f"it has {size} bytes but unpacks to more than {most}")


def _unpacked(name: bytes, data: memoryview, most: int) -> int:
    """How many bytes a chunk unpacks to. Stops at the first number above ``most``."""
    pieces: Iterator[bytes]
    if name == b"zstd":
        import zstandard

        pieces = iter(zstandard.ZstdDecompressor().read_to_iter(bytes(data)))
    elif name == b"lz4":
        pieces = _lz4_pieces(bytes(data))
    else:
        return len(data)
    count = 0
    for piece in pieces:
        count += len(piece)
        if count > most:
            break
    return count


def _lz4_pieces(data: bytes) -> Iterator[bytes]:
    import lz4.frame

    unpacker = lz4.frame.LZ4FrameDecompressor()
    piece = unpacker.decompress(data, 1 << 20)
    while piece:
        yield piece
        piece = b"" if unpacker.eof or unpacker.needs_input else unpacker.decompress(b"", 1 << 20)


def _read_mcap(path: Path, sides: Sides) -> tuple[Columns, Array]:
    columns: Columns = {}
    times: list[tuple[int, int, int]] = []
    package = _mcap()
    _check_mcap(path)
    with path.open("rb") as stream:
        # Read record by record, as the check did: an index could point to chunks inside of other records.
        messages = package.reader.NonSeekingReader(stream, validate_crcs=True).iter_messages(log_time_order=False)
        for _, channel, message in messages:
            if channel.topic == _STEP:
                content = msgspec.json.decode(message.data)
                times.append((message.log_time, content["duration_ns"], content["placed"]))
                continue
            side, _, key = channel.topic.partition("/")
            port = _port(sides, side, key)
            if port is None:
                continue
            _require_form(side, key, port, channel.metadata["dtype"], channel.metadata["shape"])
            column = columns.setdefault((side, key), Column([], []))
            column.steps.append(message.sequence)
            column.values.append(_array(msgspec.json.decode(message.data)["values"], port))
    return columns, np.array(times, np.int64).reshape(-1, 3)


def _numbers(array: Array) -> list[Any]:
    """The elements as values that JSON stores without loss. JSON has no infinity and NaN, so these become text."""
    flat = np.ravel(array)
    if flat.dtype.kind == "c":
        flat = flat.view(flat.real.dtype)
    elif flat.dtype.kind not in "fiub":
        flat = flat.astype(np.float64)
    numbers: list[Any] = flat.tolist()
    if flat.dtype.kind == "f" and not np.isfinite(flat).all():
        return [value if math.isfinite(value) else str(value) for value in numbers]
    return numbers


def _array(numbers: list[Any], port: Port) -> Array:
    dtype = numpy_dtype(port.dtype)
    plain = [float(value) if isinstance(value, str) else value for value in numbers]
    if dtype.kind == "c":
        return np.array(plain, dtype.type().real.dtype).view(dtype).reshape(_sizes(port))
    wide = np.array(plain, dtype if dtype.kind in "fiub" else np.float64)
    return wide.astype(dtype).reshape(_sizes(port))
