"""An ONNX graph while it is written: values with their types and shapes, and the operators in order.

The functions in :mod:`leapp.export.operators` write with a :class:`Writer`. There are two: :class:`GraphWriter` here makes a
graph, and the one in :mod:`leapp.export.torchlib` adds to a graph that torch's exporter makes. Knows nothing of ATen.
"""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

ONNX_TYPES = {
    torch.float32: 1, torch.uint8: 2, torch.int8: 3, torch.int16: 5, torch.int32: 6, torch.int64: 7, torch.bool: 9,
    torch.float16: 10, torch.float64: 11, torch.bfloat16: 16,
}  # fmt: skip
"""The types of tensors that we write, and their numbers in ONNX."""


class UnknownSizeError(Exception):
    """A translation needs a size or a type that is not known while the graph is written."""


@dataclass(slots=True, eq=False)
class Value:
    """A tensor of the graph.

    Attributes:
        dtype: Its type.
        shape: Its sizes, each ``None`` if it is not known; ``None`` if no translation needs them.
        ref: What the writer knows it by: in a ``GraphWriter`` the name of a constant.
    """

    dtype: torch.dtype
    shape: tuple[int | None, ...] | None = None
    ref: Any = None

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        if self.shape is None:
            raise UnknownSizeError
        return len(self.shape)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of a value that has them."""
        if self.shape is None or None in self.shape:
            raise UnknownSizeError
        return self.shape  # type: ignore[return-value]


class Writer(abc.ABC):
    """Adds ONNX operators to a graph."""

    def __call__(
        self,
        kind: str,
        *inputs: Value | None,
        dtype: torch.dtype | None = None,
        shape: Sequence[int | None] | None = None,
        **attributes: Any,
    ) -> Value:
        """Add an operator and return its result.

        Args:
            kind: Its name, such as ``"MatMul"``. It must mean the same in the opsets 18 to 20.
            inputs: Its operands; ``None`` for one that is left out.
            dtype: The type of the result, if it is not that of the first operand.
            shape: The sizes of the result, if a later translation needs them.
            attributes: Its attributes. Floats are kept in float32.
        """
        return self.many(kind, *inputs, dtypes=[dtype], shapes=[shape], **attributes)[0]

    def many(
        self,
        kind: str,
        *inputs: Value | None,
        shapes: Sequence[Sequence[int | None] | None],
        dtypes: Sequence[torch.dtype | None] | None = None,
        **attributes: Any,
    ) -> list[Value]:
        """Add an operator and return its results, one for each of ``shapes``."""
        outputs = []
        for shape, dtype in zip(shapes, dtypes or [None] * len(shapes), strict=True):
            if dtype is None:
                assert inputs[0] is not None
                dtype = inputs[0].dtype
            outputs.append(Value(dtype, None if shape is None else tuple(shape)))
        return self.put(kind, inputs, outputs, attributes)

    @abc.abstractmethod
    def put(
        self, kind: str, inputs: Sequence[Value | None], outputs: list[Value], attributes: dict[str, Any]
    ) -> list[Value]:
        """Add an operator and return its results."""

    @abc.abstractmethod
    def constant(self, tensor: torch.Tensor) -> Value:
        """A tensor that is part of the model."""

    def number(self, value: Any, dtype: torch.dtype, shape: Sequence[int] = ()) -> Value:
        """A Python number as a tensor."""
        return self.constant(torch.full(tuple(shape), value, dtype=dtype, device="cpu"))

    def ints(self, values: Iterable[int]) -> Value:
        """A list of integers, such as axes or sizes, as a tensor."""
        return self.constant(torch.tensor(list(values), dtype=torch.int64, device="cpu"))

    def cast(self, x: Value, dtype: torch.dtype) -> Value:
        """``x`` in another type."""
        if dtype not in ONNX_TYPES:
            raise UnknownSizeError(f"values of {dtype}")
        return x if x.dtype == dtype else self("Cast", x, dtype=dtype, shape=x.shape, to=ONNX_TYPES[dtype])

    def reshaped(self, x: Value, shape: Sequence[int]) -> Value:
        """``x`` in another shape."""
        if x.shape == tuple(shape):
            return x
        empty: dict[str, Any] = {"allowzero": 1} if 0 in shape else {}
        return self("Reshape", x, self.ints(shape), shape=shape, **empty)

    def promoted(self, a: Any, b: Any) -> tuple[Value, Value]:
        """Two tensors, or a tensor and a Python number, as tensors of the type in which eager arithmetic computes them."""
        dtype = result_type(a, b)
        return tuple(self.cast(v, dtype) if isinstance(v, Value) else self.number(v, dtype) for v in (a, b))  # type: ignore[return-value]


def result_type(a: Any, b: Any) -> torch.dtype:
    """The type in which eager arithmetic computes with two tensors, or with a tensor and a Python number."""
    kinds = ((v.dtype, v.shape == ()) if isinstance(v, Value) else (type(v), True) for v in (a, b))
    return _result_type(*kinds, torch.get_default_dtype())


@functools.cache
def _result_type(a: tuple[Any, bool], b: tuple[Any, bool], _: torch.dtype) -> torch.dtype:
    def sample(kind: Any, single: bool) -> Any:
        return torch.empty(() if single else (1,), dtype=kind, device="meta") if isinstance(kind, torch.dtype) else kind()

    return torch.result_type(sample(*a), sample(*b))


@dataclass(slots=True)
class Node:
    """One operator of a graph."""

    kind: str
    inputs: list[Value | None]
    outputs: list[Value]
    attributes: dict[str, Any]


@dataclass(slots=True)
class GraphWriter(Writer):
    """Makes a graph. Equal operators on equal operands are written once.

    Attributes:
        nodes: The operators in order.
        constants: The tensors that are part of the model, with their values.
    """

    nodes: list[Node] = field(default_factory=list)
    constants: dict[int, tuple[Value, torch.Tensor]] = field(default_factory=dict)
    _made: dict[Any, list[Value]] = field(default_factory=dict)
    _numbers: dict[Any, Value] = field(default_factory=dict)

    def put(
        self, kind: str, inputs: Sequence[Value | None], outputs: list[Value], attributes: dict[str, Any]
    ) -> list[Value]:
        """Add an operator and return its results."""
        given = tuple((name, tuple(v) if isinstance(v, list) else v) for name, v in attributes.items())
        key = kind, tuple(map(id, inputs)), given, len(outputs)
        found = self._made.get(key)
        if found is None:
            self.nodes.append(Node(kind, list(inputs), outputs, attributes))
            found = self._made[key] = outputs
        return found

    def weight(self, tensor: torch.Tensor, name: str) -> Value:
        """A parameter or buffer of the user's model."""
        value = Value(tensor.dtype, tuple(tensor.shape), name)
        self.constants[id(value)] = value, tensor
        return value

    def constant(self, tensor: torch.Tensor) -> Value:
        """A tensor that is part of the model."""
        key = tensor.dtype, tuple(tensor.shape), tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = self.weight(tensor, "number")
        return found

    def number(self, value: Any, dtype: torch.dtype, shape: Sequence[int] = ()) -> Value:
        """A Python number as a tensor. Equal numbers are one tensor."""
        key = type(value), value, math.copysign(1, value) if isinstance(value, float) else 1, dtype, tuple(shape)
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = Writer.number(self, value, dtype, shape)
        return found

    def ints(self, values: Iterable[int]) -> Value:
        """A list of integers, such as axes or sizes, as a tensor."""
        key = tuple(values)
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = Writer.ints(self, key)
        return found

    def copied(self, value: Value) -> Value:
        """A second value for the same tensor."""
        copy = Value(value.dtype, value.shape)
        self.nodes.append(Node("Identity", [value], [copy], {}))
        return copy

    def used(self, outputs: Iterable[Value]) -> list[Node]:
        """The operators that ``outputs`` need."""
        needed = set(map(id, outputs))
        kept = []
        for node in reversed(self.nodes):
            if not needed.isdisjoint(map(id, node.outputs)):
                needed.update(map(id, node.inputs))
                kept.append(node)
        return kept[::-1]
