"""Traced NumPy numbers.

A traced number is an object with a traced 0-d array. It has the methods and attributes of NumPy's number type and passes
``isinstance`` for it. Code that reads its value must call one of its methods, where the read is seen. It is not a subclass of
the number type, because C code would read the value of a subclass without calling a method.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy import ndarray

from leapp.capture.batch.symbolic_size import reading
from leapp.capture.numpy.traced import ArrayMethods, TracedNpArray, leaving, listening
from leapp.compat.modes import function_modes


class _NumberType(type):
    """The metaclass of traced numbers. Calls of such a class, its dtype and its name are those of the number type.

    It equals the number type of NumPy: ``type(x[0]) == np.float64`` holds. It does not equal a type of Python, because leapp's
    own code takes values of those for plain numbers.
    """

    kind: Any = None

    @property
    def __name__(cls) -> str:  # type: ignore[override]
        # Messages of C code use the name in C instead, which tells the user to convert the number, see _class_for().
        return str(cls.kind.__name__)

    @property
    def dtype(cls) -> Any:
        """The dtype for ``np.dtype(cls)``."""
        return np.dtype(cls.kind)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls.kind(*args, **kwargs)

    def __eq__(cls, other: object) -> bool:
        kind: Any = cls.kind
        return other is cls or (issubclass(kind, np.generic) and other is kind)

    def __hash__(cls) -> int:
        return hash(cls.kind)


class TracedScalar(metaclass=_NumberType):
    """A NumPy number whose calls a session sees."""

    __slots__ = ("__weakref__", "array")

    __iter__ = None
    """Without this, Python would iterate over the number by calling ``__getitem__``."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __getattribute__(self, name: str) -> Any:
        if name == "__iter__":  # NumPy's numbers do not have it
            raise AttributeError(f"'numpy.{number_type(self).__name__}' object has no attribute '__iter__'")
        return object.__getattribute__(self, name)

    def __bytes__(self) -> bytes:
        return bytes(self.__array__())

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        kind = number_type(self)
        return _taken_by_torch(kind) if function_modes() and listening() is not None else kind

    @property
    def node(self) -> Any:
        """The attribute that torch reads of its own symbolic numbers, in places where it does not call the modes."""
        if not function_modes():
            raise AttributeError(f"'numpy.{number_type(self).__name__}' object has no attribute 'node'")
        return reading(self, not issubclass(number_type(self), np.floating))

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        """The plain value. Reported as an escape, because the caller reads the memory of the array."""
        arrays = listening()
        plain = np.asarray(number_of(self), dtype)
        if arrays is not None:
            arrays.memory.escape(arrays.memory.traced(self.array), "__array__", [self.array], plain)
        return plain

    __array_ufunc__ = ArrayMethods.__array_ufunc__
    __array_function__ = ArrayMethods.__array_function__
    __array_priority__ = np.float64.__array_priority__


_PYTHON: dict[type, type] = {}
"""The classes of traced numbers that pass for Python numbers, as results of ``math`` do. They do not widen a dtype."""


def number_type(number: TracedScalar) -> Any:
    """The type that a traced number passes for."""
    return _PYTHON.get(type(number)) or number.array.dtype.type


def number_of(number: TracedScalar) -> Any:
    """The plain number of NumPy or Python with the same value."""
    value = ndarray.__getitem__(ndarray.view(number.array, np.ndarray), ())
    return value.item() if type(number) in _PYTHON else value


def scalar(array: Any, python: type | None = None) -> Any:
    """A traced number over a traced 0-d array. It passes for NumPy's number, or for the given type of Python."""
    made = _class_for(python or array.dtype.type)
    if python is not None:
        _PYTHON[made] = python
    return type.__call__(made, array)


def _as_number(result: Any) -> Any:
    return scalar(result) if type(result) is TracedNpArray and not result.ndim else result


_SYMBOLS = {"f": torch.SymFloat, "i": torch.SymInt, "u": torch.SymInt}


@functools.cache
def _taken_by_torch(kind: Any) -> type:
    """A subclass of a NumPy number type that torch accepts as a symbolic number.

    torch parses its arguments before it calls the modes. It checks plain numbers by exact type, but its own symbolic numbers by
    ``isinstance``.
    """
    symbol = _SYMBOLS.get(np.dtype(kind).kind)
    return type(kind.__name__, (kind, symbol), {"__module__": kind.__module__}) if symbol else kind


# -- methods and attributes of a number ----------------------------------------------------------------------------------

_UFUNCS: dict[str, np.ufunc] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.true_divide, "floordiv": np.floor_divide,
    "mod": np.remainder, "divmod": np.divmod, "pow": np.power, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "lshift": np.left_shift, "rshift": np.right_shift, "neg": np.negative, "pos": np.positive,
    "abs": np.absolute, "invert": np.invert, "lt": np.less, "le": np.less_equal, "eq": np.equal, "ne": np.not_equal,
    "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
_OPERATORS = {f"__{p}{n}__": ufunc for n, ufunc in _UFUNCS.items() for p in ("", "r")}
_LIKE_ARRAYS = frozenset({"__getitem__", "__copy__", "__deepcopy__"})
_METADATA = frozenset("shape ndim size itemsize nbytes strides dtype flags base device".split())
# Left out: NumPy would read the memory through __array_interface__ before it calls __array__.
_OF_OBJECTS = frozenset(
    {*dir(object), *dir(TracedScalar), "__class_getitem__", "__array_wrap__", "__array_struct__", "__array_interface__"}
)
_TEXTS = ("__repr__", "__str__", "__format__", "__hash__", "__reduce__", "__reduce_ex__")


@functools.cache
def _class_for(kind: Any) -> type:
    """The class of traced numbers that pass for ``kind``."""
    names = {*dir(kind), *_TEXTS} - (_OF_OBJECTS - _OPERATORS.keys() - {*_TEXTS})
    plain = "float" if issubclass(kind, (float, np.inexact)) else "int"
    called = f"{kind.__name__} (a number that leapp follows: convert it with {plain}() first)"
    members = {n: _member(kind, n) for n in names}
    return _NumberType(called, (TracedScalar,), {"__slots__": (), "__module__": kind.__module__, "kind": kind, **members})


def _member(kind: Any, name: str) -> Any:
    found = getattr(kind, name)
    if name in _OPERATORS:
        return _operator(name, _OPERATORS[name])
    if name in _LIKE_ARRAYS:
        return _method(name)
    if name in _METADATA:
        return property(lambda self: getattr(number_of(self), name))
    if not callable(found):
        if not hasattr(ndarray, name):
            return property(leaving(name, found.__get__))
        return property(lambda self: _as_number(getattr(self.array, name)))
    if name.startswith("__") or not hasattr(ndarray, name) or (name in vars(ArrayMethods) and _gives_number(name)):
        return leaving(name, found)
    return _method(name)


def _gives_number(name: str) -> bool:
    """Whether a method of arrays returns plain values."""
    return name in ("item", "tolist", "tobytes", "tofile", "dump", "dumps", "byteswap")


def _method(name: str) -> Callable[..., Any]:
    """A method that runs as the method of the same name of the 0-d array."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if listening() is None:
            return getattr(number_of(self), name)(*args, **kwargs)
        return _as_number(getattr(self.array, name)(*args, **kwargs))

    method.__name__ = name
    return method


def _operator(name: str, ufunc: np.ufunc) -> Callable[..., Any]:
    """An operator method. Beside a tensor, torch's operator runs, which treats NumPy's numbers as Python numbers."""
    reflected = name.startswith("__r")
    plain = name.strip("_").removeprefix("r" if reflected else "")
    forward = getattr(operator, {"and": "and_", "or": "or_"}.get(plain, plain), None)

    def method(self: Any, *args: Any) -> Any:
        if args and isinstance(args[0], torch.Tensor) and forward is not None:
            arrays = listening()
            number = arrays.number(self.array, args[0]) if arrays is not None else number_of(self)
            return forward(args[0], number) if reflected else forward(number, args[0])
        arrays = listening()
        if arrays is None:
            return getattr(number_of(self), name)(*(number_of(a) if isinstance(a, TracedScalar) else a for a in args))
        return arrays.ufuncs.operation(ufunc, self, name, args)

    method.__name__ = name
    return method
