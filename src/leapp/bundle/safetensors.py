"""Tensors in files: the safetensors format, without a tensor library.

Values are raw bytes with a dtype and a shape, so bfloat16 and the 8-bit floats need no package. Initial values
are keyed ``node/port``; samples ``pass/in/node/port`` and ``pass/out/node/port``.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from leapp.bundle import json_text
from leapp.errors import BundleError
from leapp.graph.contract import Contract, Port, key, split_key
from leapp.graph.dtypes import DTYPES
from leapp.graph.validate import feedback_ports
from leapp.semantics import dtype_name, shape_of

if TYPE_CHECKING:
    import numpy as np

INITIAL_VALUES, SAMPLES = "_initial_values.safetensors", "_samples.safetensors"
"""The suffixes of these files, after the name of the graph."""

_DTYPES = {dtype.safetensors: name for name, dtype in DTYPES.items()}
_MAX_HEADER = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A value as bytes, as in a file: little-endian, in row-major order.

    Example:
        >>> from leapp.bundle import RawTensor
        >>> RawTensor.of(np.float32([1, 2])).shape
        (2,)
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview = field(repr=False)

    @classmethod
    def of(cls, value: Any) -> RawTensor:
        """The raw form of a torch tensor or a NumPy array.

        Example:
            >>> from leapp.bundle import RawTensor
            >>> RawTensor.of(torch.ones(3)).dtype
            'float32'
        """
        dtype, torch = dtype_name(value), sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            shape = tuple(value.shape)
            plain = value.detach().resolve_conj().resolve_neg().cpu()
            if _is_lacking(dtype):
                # view() needs dense memory, and a single element may have any stride.
                plain = plain.clone(memory_format=torch.contiguous_format).view(getattr(torch, f"uint{8 * plain.itemsize}"))
            return cls(dtype, shape, plain.numpy().tobytes())
        return cls(dtype, shape_of(value), value.astype(value.dtype.newbyteorder("<"), copy=False).tobytes())

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the bytes, since a ``memoryview`` cannot be pickled. Bundles are sent to engines in other processes."""
        return RawTensor, (self.dtype, self.shape, bytes(self.data))

    def numpy(self) -> np.ndarray[Any, Any]:
        """The value as a new NumPy array. A dtype that NumPy lacks comes as unsigned integers of the same bits.

        Example:
            >>> from leapp.bundle import RawTensor
            >>> RawTensor.of(np.float32([1, 2])).numpy()
            array([1., 2.], dtype=float32)
        """
        import numpy as np

        dtype = np.dtype(f"u{DTYPES[self.dtype].size}" if _is_lacking(self.dtype) else self.dtype).newbyteorder("<")
        array: np.ndarray[Any, Any] = np.frombuffer(self.data, dtype).reshape(self.shape).copy()
        return array


def _is_lacking(dtype: str) -> bool:
    """Whether NumPy lacks a dtype."""
    return dtype == "bfloat16" or dtype.startswith("float8")


def encode(tensors: Mapping[str, RawTensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """A safetensors file. The same tensors always give the same bytes."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    # Large items first, so that each tensor is aligned to its item size, which readers that map the file into memory need.
    names = sorted(tensors, key=lambda name: (-DTYPES[tensors[name].dtype].size, name))
    position = 0
    for name in names:
        tensor = tensors[name]
        end = position + len(tensor.data)
        header[name] = {"dtype": DTYPES[tensor.dtype].safetensors, "shape": list(tensor.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([struct.pack("<Q", len(text)), text, *(tensors[name].data for name in names)])


_Natural = Annotated[int, msgspec.Meta(ge=0)]


class _Entry(msgspec.Struct):
    dtype: str
    shape: Annotated[tuple[_Natural, ...], msgspec.Meta(max_length=64)]
    data_offsets: tuple[_Natural, _Natural]


def decode(data: bytes, what: str) -> dict[str, RawTensor]:
    """The tensors of a safetensors file.

    Args:
        data: The bytes of the file.
        what: The file, for messages.

    Raises:
        BundleError: If the file is cut off, overlaps itself, has holes or describes impossible tensors.
    """
    size = struct.unpack("<Q", data[:8])[0] if len(data) >= 8 else _MAX_HEADER + 1
    if size > min(_MAX_HEADER, len(data) - 8):
        raise BundleError(f"{what}: not a complete safetensors file.")
    try:
        header = json_text.parse(data[8 : 8 + size])
    except ValueError as error:
        raise BundleError(f"{what}: the header is damaged: {error}.") from error
    if not isinstance(header, dict):
        raise BundleError(f"{what}: the header is damaged.")
    header.pop("__metadata__", None)
    body = memoryview(data)[8 + size :]
    tensors: dict[str, RawTensor] = {}
    spans: list[tuple[int, int]] = []
    for name, entry in header.items():
        try:
            described = msgspec.convert(entry, _Entry)
        except msgspec.ValidationError:
            raise BundleError(f"{what}: '{name}' is not described as a tensor.") from None
        (start, end), shape, dtype = described.data_offsets, described.shape, _DTYPES.get(described.dtype)
        if dtype is None or start > end:
            raise BundleError(f"{what}: '{name}' is not described as a tensor.")
        if end > len(body) or end - start != math.prod(shape) * DTYPES[dtype].size:
            raise BundleError(f"{what}: '{name}' does not have the bytes its shape needs.")
        spans.append((start, end))
        tensors[name] = RawTensor(dtype, shape, body[start:end])
    position = 0
    for start, end in sorted(spans):
        if start != position:
            raise BundleError(f"{what}: the tensors overlap or leave holes.")
        position = end
    if position != len(body):
        raise BundleError(f"{what}: the file is longer than its tensors.")
    return tensors


def check_initial_values(values: Mapping[str, RawTensor], contract: Contract, what: str) -> None:
    """Refuse initial values that do not belong to the fed-back inputs of a contract, one by one.

    Raises:
        BundleError: If a value is missing, belongs to no fed-back input, or has another shape or dtype.
    """
    wanted = feedback_ports(contract)
    for name in values:
        if name not in wanted:
            raise BundleError(f"{what}: '{name}' is not a fed-back input of this pipeline.")
    for name, port in wanted.items():
        if name not in values:
            raise BundleError(f"{what}: the initial value of '{name}' is missing.")
        value = values[name]
        if (value.dtype, value.shape) != (port.dtype, port.shape):
            raise BundleError(
                f"{what}: '{name}' is {value.dtype} {list(value.shape)}, but the port is {port.dtype} {list(port.shape)}."
            )


@dataclass(frozen=True, slots=True)
class Sample:
    """The values of one node in one pass, by port name.

    Example:
        >>> from leapp.bundle import read_samples
        >>> list(read_samples(open_bundle("exports/my_policy"))["policy"][0].inputs)
        ['h_in', 'obs']
    """

    inputs: Mapping[str, RawTensor]
    outputs: Mapping[str, RawTensor]

    @property
    def size(self) -> int:
        """How many bytes the values take."""
        return sum(len(value.data) for side in (self.inputs, self.outputs) for value in side.values())


def encode_samples(samples: Mapping[str, Sequence[Sample]], max_bytes: int | None = None) -> tuple[bytes, int]:
    """The samples file and the number of passes in it.

    Args:
        samples: For each node its passes, oldest first.
        max_bytes: Whole passes are kept, oldest first, as long as they fit.
    """
    tensors: dict[str, RawTensor] = {}
    room = max_bytes
    kept = 0
    for index in range(max((len(passes) for passes in samples.values()), default=0)):
        present = {node: passes[index] for node, passes in samples.items() if index < len(passes)}
        if room is not None:
            room -= sum(sample.size for sample in present.values())
            if room < 0:
                break
        for node, sample in present.items():
            for side, values in (("in", sample.inputs), ("out", sample.outputs)):
                tensors |= {f"{index}/{side}/{key(node, port)}": value for port, value in values.items()}
        kept += 1
    return encode(tensors, {"leapp samples": "1", "passes": str(kept)}), kept


def decode_samples(data: bytes, contract: Contract, what: str) -> dict[str, list[Sample]]:
    """The passes of every node, checked against the ports of a contract.

    Raises:
        BundleError: If a value belongs to no port, or a port has no value or one of another shape or dtype.
    """
    passes: dict[str, dict[int, tuple[dict[str, RawTensor], dict[str, RawTensor]]]] = {}
    for name, value in decode(data, what).items():
        index, _, rest = name.partition("/")
        side, _, public = rest.partition("/")
        node, port = split_key(public)
        if not (index.isascii() and index.isdigit() and len(index) < 7) or side not in ("in", "out"):
            raise BundleError(f"{what}: '{name}' is not a sample.")
        if node not in contract.nodes:
            raise BundleError(f"{what}: '{name}' belongs to no node of this pipeline.")
        sides = passes.setdefault(node, {}).setdefault(int(index), ({}, {}))
        sides[side == "out"][port] = value
    result: dict[str, list[Sample]] = {}
    for node, by_index in passes.items():
        if sorted(by_index) != list(range(len(by_index))):
            raise BundleError(f"{what}: a pass of node '{node}' is missing.")
        described = contract.nodes[node]
        for number, (inputs, outputs) in by_index.items():
            where = f"{what}: pass {number} of node '{node}'"
            _check_ports(inputs, described.inputs, where)
            _check_ports(outputs, described.outputs, where)
        result[node] = [Sample(*by_index[number]) for number in range(len(by_index))]
    return result


def _check_ports(values: Mapping[str, RawTensor], ports: Iterable[Port], where: str) -> None:
    described = {port.name: (port.dtype, port.shape) for port in ports}
    found = {name: (value.dtype, value.shape) for name, value in values.items()}
    for name in described.keys() | found.keys():
        if described.get(name) != found.get(name):
            raise BundleError(f"{where}: port '{name}' is {found.get(name)}, expected {described.get(name)}.")
