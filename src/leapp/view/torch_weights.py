"""Reads the weights of TorchScript and ``.pt2`` files as data: torch is not loaded and nothing of the file is run.

Both are zip files with the bytes of each tensor in an entry of its own. A ``.pt2`` file describes them in JSON, a TorchScript
file in a pickle. Only pickle calls that describe a tensor are accepted; any other name in the pickle is refused. The work is
limited by the size of the file.
"""

from __future__ import annotations

import io
import json
import math
import pickle
import pickletools
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from leapp.graph.dtypes import DTYPES
from leapp.view.onnx_model import Weight

_MAX_TEXT, _MAX_PICKLE, _MAX_AXES = 64 << 20, 4 << 20, 64
_COPIED = 64
"""The most items of a list or tuple that a pickle call may copy: many copies of a long list would fill the memory."""
_STORAGES = {
    "FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8", "ByteStorage": "uint8",
    "BoolStorage": "bool", "ComplexFloatStorage": "complex64",
}  # fmt: skip
_DTYPES = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64", 10: "complex64",
    12: "bool", 13: "bfloat16",
}  # fmt: skip


def read_torch_weights(path: Path) -> tuple[Weight, ...]:
    """The named weights of a model. A weight whose values cannot be read has none.

    Raises:
        ValueError: The file is damaged, or has another structure.
    """
    try:
        with zipfile.ZipFile(path) as package:
            names = {info.filename.partition("/")[2]: info for info in package.infolist()}
            entries = _Entries(package, path.stat().st_size)
            if "byteorder" in names and entries.read(names["byteorder"]) != b"little":
                raise ValueError("its numbers are not little-endian")
            return tuple(_exported(entries, names) if path.suffix == ".pt2" else _scripted(entries, names))
    except Exception as error:  # zipfile, pickle and json raise many types for a damaged file
        raise ValueError(f"{path.name} cannot be read as data: {error}") from error


Names = dict[str, zipfile.ZipInfo]


class _Entries:
    """The entries of a zip file, each read once. No more bytes are read in all than the file has, even if entries overlap."""

    def __init__(self, package: zipfile.ZipFile, size: int) -> None:
        self._package, self._left = package, size
        self._known: dict[str, bytes] = {}

    def read(self, entry: zipfile.ZipInfo, most: int = _MAX_TEXT) -> bytes:
        """An entry that is not compressed. A compressed one could have any size."""
        if entry.filename not in self._known:
            if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > min(most, self._left):
                raise ValueError(f"{entry.filename} is compressed or too large")
            self._left -= entry.file_size
            self._known[entry.filename] = self._package.read(entry)
        return self._known[entry.filename]


def _weight(
    entries: _Entries, entry: zipfile.ZipInfo | None, name: str, dtype: str, shape: Any, strides: Any, offset: int
) -> Weight:
    shape = tuple(int(size) for size in shape)
    if len(shape) > _MAX_AXES or any(size >= 1 << 63 for size in shape):
        raise ValueError(f"{name} has an impossible shape")
    dense = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    whole = all(s == d for s, d, n in zip(strides, dense, shape, strict=True) if n > 1)
    size = math.prod(shape) * DTYPES[dtype].size
    if entry is None or not whole or offset or entry.file_size != size:
        return Weight(name, shape, dtype, None)
    return Weight(name, shape, dtype, memoryview(entries.read(entry, size)))


def _exported(entries: _Entries, names: Names) -> Iterator[Weight]:
    for folder in ("weights", "constants"):
        listed = names.get(f"data/{folder}/model_{folder}_config.json")
        config = json.loads(entries.read(listed))["config"] if listed is not None else {}
        for name, entry in config.items():
            meta = entry["tensor_meta"]
            if meta is None or meta["dtype"] not in _DTYPES:
                continue
            file = None if entry["use_pickle"] else names.get(f"data/{folder}/{entry['path_name']}")
            shape, strides = ([size["as_int"] for size in meta[key]] for key in ("sizes", "strides"))
            yield _weight(entries, file, name, _DTYPES[meta["dtype"]], shape, strides, meta["storage_offset"]["as_int"])


class _Descriptions(pickle.Unpickler):
    """Reads the descriptions of tensors in a pickle. Only functions of this module can be called."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        known = {("torch._utils", "_rebuild_tensor_v2"): _described, ("collections", "OrderedDict"): _copied}
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return known[module, name]

    def persistent_load(self, pid: Any) -> Any:
        _, dtype, entry, *_ = _copied(pid)
        if dtype not in _STORAGES.values():
            raise pickle.UnpicklingError("a storage is not one of torch's")
        return dtype, entry


def _described(
    storage: Any, offset: int, shape: Any, strides: Any, requires_grad: Any = None, hooks: Any = None, metadata: Any = None
) -> tuple[Any, ...]:
    return (*_copied(storage), shape, strides, offset)


def _copied(items: Any = ()) -> tuple[Any, ...]:
    if len(items) > _COPIED:
        raise pickle.UnpicklingError("it copies a long list")
    return tuple(items)


def _unpickled(data: bytes) -> Any:
    """The object in a pickle. Its memo indices are checked first, because a large index makes the reader allocate memory."""
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name == "BUILD" or ("PUT" in opcode.name and not 0 <= int(argument or 0) <= len(data)):
            raise pickle.UnpicklingError(f"it has an unusual {opcode.name}")
    return _Descriptions(io.BytesIO(data)).load()


def _scripted(entries: _Entries, names: Names) -> Iterator[Weight]:
    listed = names.get("extra/parameters.json")
    spoken = json.loads(entries.read(listed)) if listed is not None else {}
    constants = _unpickled(entries.read(names["constants.pkl"], _MAX_PICKLE))
    for number, (dtype, entry, shape, strides, offset) in enumerate(constants):
        name = str(spoken.get(f"c{number}", f"constant {number}"))
        yield _weight(entries, names.get(f"constants/{entry}"), name, dtype, shape, strides, offset)
