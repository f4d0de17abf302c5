"""The dtypes a port may have: one record each."""

from __future__ import annotations

from typing import NamedTuple


class Dtype(NamedTuple):
    """How files write values of a dtype.

    Attributes:
        size: Bytes of one element.
        onnx: Its number in ``TensorProto.DataType``.
        safetensors: Its name in a safetensors file.
    """

    size: int
    onnx: int
    safetensors: str


DTYPES = {
    "float64": Dtype(8, 11, "F64"),
    "float32": Dtype(4, 1, "F32"),
    "float16": Dtype(2, 10, "F16"),
    "bfloat16": Dtype(2, 16, "BF16"),
    "int64": Dtype(8, 7, "I64"),
    "int32": Dtype(4, 6, "I32"),
    "int16": Dtype(2, 5, "I16"),
    "int8": Dtype(1, 3, "I8"),
    "uint64": Dtype(8, 13, "U64"),
    "uint32": Dtype(4, 12, "U32"),
    "uint16": Dtype(2, 4, "U16"),
    "uint8": Dtype(1, 2, "U8"),
    "bool": Dtype(1, 9, "BOOL"),
    "complex64": Dtype(8, 14, "C64"),
    "complex128": Dtype(16, 15, "C128"),
    "float8_e4m3fn": Dtype(1, 17, "F8_E4M3"),
    "float8_e5m2": Dtype(1, 19, "F8_E5M2"),
    "float8_e4m3fnuz": Dtype(1, 18, "F8_E4M3FNUZ"),
    "float8_e5m2fnuz": Dtype(1, 20, "F8_E5M2FNUZ"),
    "float8_e8m0fnu": Dtype(1, 24, "F8_E8M0"),
}
"""By the name in a bundle's YAML, which is the one in torch."""
