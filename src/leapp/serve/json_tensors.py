"""Tensors in JSON: as nested lists, or as base64.

JSON has no NaN and infinity, so these are written as the text ``"NaN"``, ``"Infinity"`` or ``"-Infinity"``. Complex numbers,
bfloat16 and 8-bit floats are sent as base64 only.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from leapp.bundle.safetensors import RawTensor
from leapp.client.wire import checked_array, pack, unpack
from leapp.errors import InputError
from leapp.graph.dtypes import DTYPES
from leapp.runtime.arrays import Array, numpy_dtype
from leapp.runtime.ports import PortInfo

_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def from_json(where: str, value: Any) -> Any:
    """A tensor in JSON as a value for a step: an array for base64, nested lists as they are.

    Raises:
        InputError: The base64 form is damaged. The error names the port.
    """
    if not isinstance(value, dict):
        try:
            return _numbers(value)
        except RecursionError:
            raise InputError(f"Input {where!r}: the lists are nested too deeply.") from None
    dtype, shape, text = value.get("dtype"), value.get("shape"), value.get("base64")
    shape = tuple(shape) if isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape) else None
    if len(value) != 3 or dtype not in DTYPES or shape is None or not isinstance(text, str):
        raise InputError(f"Input {where!r}: a tensor is nested lists, or an object with dtype, shape and base64.")
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        raise InputError(f"Input {where!r}: the base64 is damaged.") from None
    return checked_array(where, RawTensor(dtype, shape, data))


def longest_text(ports: Iterable[PortInfo]) -> int:
    """The most characters of JSON text with one value of each port."""
    return sum(math.prod(port.shape) * _characters(numpy_dtype(port.dtype)) for port in ports)


def _characters(dtype: np.dtype[Any]) -> int:
    """The characters of one element in a list, with the comma and some blanks."""
    return {"b": 8, "i": 3 * dtype.itemsize + 4, "u": 3 * dtype.itemsize + 3}.get(dtype.kind, 28)


def _numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return _WORDS.get(value, value) if isinstance(value, str) else value


def to_json(array: Array, encoding: str) -> Any:
    """An array as nested lists or as base64."""
    if encoding == "list" and array.dtype.kind in "fiub" and array.dtype.isbuiltin == 1:
        if array.dtype.kind != "f" or np.isfinite(array).all():
            return array.tolist()
        words = array.astype(object)
        for word, number in _WORDS.items():
            words[np.isnan(array) if math.isnan(number) else array == number] = word
        return words.tolist()
    raw = RawTensor.of(array)
    return {"dtype": raw.dtype, "shape": list(raw.shape), "base64": base64.b64encode(raw.data).decode()}


def encode_state(state: Mapping[str, Array], digest: str | None, step: int) -> str:
    """A state as the text that a caller gives back with its next step."""
    return base64.b64encode(pack("state", {"digest": digest, "step": step}, state=state)).decode()


def decode_state(text: Any, digest: str | None, ports: Mapping[str, PortInfo]) -> tuple[dict[str, Array], int]:
    """The state and the number of steps behind the text.

    Raises:
        InputError: The text is not a state of this bundle.
    """
    advice = "Give back the 'state' of the last answer unchanged, or leave it out to start from the initial state."
    try:
        message = unpack(base64.b64decode(text, validate=True))
    except (ValueError, TypeError):
        raise InputError(f"The state cannot be read. {advice}") from None
    state, step = message.group("state"), message.head.get("step")
    if message.op != "state" or set(state) != set(ports) or type(step) is not int:
        raise InputError(f"The state cannot be read. {advice}")
    if message.head.get("digest") != digest:
        raise InputError(f"The state belongs to another bundle, with digest {message.head.get('digest')}. Leave it out.")
    return state, step
