"""Sorts types by what their values can hold: numbers, tensors, containers, functions, objects.

The functions here run no code of the user's. They do not call ``isinstance()``, which reads ``__class__`` of some objects, and
do not read attributes of a class through its metaclass.
"""

from __future__ import annotations

import enum
import functools
import sys
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from types import (
    AsyncGeneratorType,
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MappingProxyType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, Literal

import numpy as np
import torch

from leapp.capture.user_line import is_installed

Tensor = torch.Tensor
NUMBERS = (int, float, complex, str, bytes, range, enum.Enum, np.generic)
"""Types whose values are compared with ``==``."""
CONTAINERS = (list, tuple, deque, OrderedDict, dict, set, frozenset)
SUSPENDED = (GeneratorType, CoroutineType, AsyncGeneratorType)
"""Types of functions that wait to be resumed."""
_PREFIXES = dict(zip(map(id, SUSPENDED), ("gi", "cr", "ag"), strict=True))
"""How the attribute names of these types begin, by the identity of the type: ``gi_frame``, ``cr_frame``, ``ag_frame``."""
_OPAQUE = frozenset(map(id, (bytearray, memoryview, np.flatiter, np.nditer, np.ndenumerate)))
_HEAP_TYPE = 1 << 9
"""The flag in ``type.__flags__`` of classes that are made at run time, as a ``class`` statement does."""
Role = Literal[
    "plain", "tensor", "array", "container", "opaque", "function", "generator", "holder", "module", "class", "object",
    "namespace",
]  # fmt: skip
"""What a value can hold.

A "plain" value holds nothing. An "opaque" one has state that the user's code cannot name, such as the position of an iterator.
A "holder" refers to one other value, as a bound method does. A "module" is a ``torch.nn.Module``, a "namespace" a module of
Python, an "object" an instance of a class of the user's program.
"""


class Length(int):
    """How many items a container has.

    It is a type of its own because a length matters less than other numbers: a log grows too, without any code reading it.
    """

    __slots__ = ()


_PLAIN = (int, float, complex, bool, str, bytes, range, type(None), torch.nn.Parameter, Length)
PLAIN = frozenset(map(id, _PLAIN))
"""Types whose values hold nothing, by identity. Most values are of one of them."""


class SuspendedAt:
    """The position at which a generator or coroutine waits. Its variables are those of the generator itself."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator


def suspended_code(generator: Any) -> CodeType:
    """The code of a generator or coroutine."""
    return getattr(generator, f"{_PREFIXES[id(type(generator))]}_code")  # type: ignore[no-any-return]


def suspended_frame(generator: Any) -> FrameType | None:
    """The frame of a generator or coroutine; ``None`` once it has ended."""
    return getattr(generator, f"{_PREFIXES[id(type(generator))]}_frame")  # type: ignore[no-any-return]


class _Facts:
    """What is known about a type, found once. It keeps the type alive: Python gives the identity of a freed one to another."""

    __slots__ = ("is_number", "kind", "lasts", "layout", "role")

    def __init__(self, kind: type) -> None:
        self.kind, self.role, self.is_number = kind, _find_role(kind), issubclass(kind, NUMBERS)
        self.lasts = not _is_made_in_python(kind) or _is_named_by_a_library(kind)
        self.layout: Any = None  # for contents.py, which reads objects of the type


class _Types(dict[int, _Facts]):
    """Facts by the identity of the type: a metaclass of the user's may make its classes unhashable."""

    def of(self, kind: type) -> _Facts:
        """The facts about a type."""
        found = self.get(id(kind))
        if found is None:
            found = self[id(kind)] = _Facts(kind)
        return found


TYPES = _Types()


def role(kind: type) -> Role:
    """What the values of a type can hold."""
    return (TYPES.get(id(kind)) or TYPES.of(kind)).role


def _find_role(kind: type) -> Role:
    if kind is Tensor:
        return "tensor"
    if kind is np.ndarray:
        return "array"
    if id(kind) in PLAIN or issubclass(kind, enum.Enum):
        return "plain"
    if issubclass(kind, CONTAINERS):
        return "container"
    if _is_opaque(kind):
        return "opaque"
    if kind is FunctionType:
        return "function"
    if id(kind) in _PREFIXES:
        return "generator"
    if kind is ModuleType:
        return "namespace"
    if kind is MethodType or kind is weakref.ref or kind is functools.partial or kind is SimpleNamespace:
        return "holder"
    if issubclass(kind, torch.nn.Module):
        return "module"
    if issubclass(kind, type):
        return "class"
    return "object" if is_made_by_the_user(kind) else "plain"


def _is_opaque(kind: type) -> bool:
    """Whether user code cannot name the state of objects of this type: iterators, random generators, queues."""
    if kind is SuspendedAt or id(kind) in _OPAQUE:
        return True
    module = module_name(kind)
    if module == "builtins":
        return is_iterator(kind)
    if any(module_name(base) == "_ctypes" for base in bases(kind)):
        return True
    if module.partition(".")[0] not in sys.stdlib_module_names and not module.startswith("numpy.random"):
        return False
    named = (SimpleNamespace, functools.partial, weakref.ref, type, ModuleType, *NUMBERS, *CONTAINERS)
    return not issubclass(kind, named)


def is_iterator(kind: type) -> bool:
    """Whether a type is an iterator of Python itself. Generators do not count."""
    return module_name(kind) in ("builtins", "itertools") and hasattr(kind, "__next__") and id(kind) not in _PREFIXES


def forget_roles() -> None:
    """Drop the references to the user's classes. The class of a mock, which the library makes, refers to the mock itself."""
    for i in [i for i, facts in list(TYPES.items()) if not facts.lasts]:
        TYPES.pop(i, None)


def is_number(value: Any) -> bool:
    """Whether a value is a number or text. A traced number is neither, though ``isinstance()`` takes it for a float."""
    return (TYPES.get(id(type(value))) or TYPES.of(type(value))).is_number


def is_same_number(a: Any, b: Any) -> bool:
    """Whether two numbers or texts are equal, or both are NaN."""
    if issubclass(type(a), enum.Enum) and issubclass(type(b), enum.Enum):
        return a is b
    try:
        return bool(a == b or (a != a and b != b))
    except Exception:  # __eq__ of a number class of the user's may raise anything
        return False


# These read the attributes of a class past its metaclass, which may be the user's.
bases: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
"""A class and all its base classes, in the order of method resolution."""
members: Callable[[type], MappingProxyType[str, Any]] = type.__dict__["__dict__"].__get__
"""The attributes that a class itself defines."""
_flags: Callable[[type], int] = type.__dict__["__flags__"].__get__
_module_attribute: Callable[[type], Any] = type.__dict__["__module__"].__get__
_name_attribute: Callable[[type], str] = type.__dict__["__name__"].__get__


def module_name(kind: type) -> str:
    """The name of the module of a class; empty if ``__module__`` of the class is not text."""
    name = _module_attribute(kind)
    return name if type(name) is str else ""


def module_of(value: Any) -> str:
    """The name of the module whose global variables a function, a class or the methods of an object use."""
    if type(value) is FunctionType:
        name = value.__globals__.get("__name__")
        return name if type(name) is str else ""
    return module_name(value if issubclass(type(value), type) else type(value))


def _is_made_in_python(kind: type) -> bool:
    return bool(_flags(kind) & _HEAP_TYPE)


def _is_named_by_a_library(kind: type) -> bool:
    """Whether a module that is not the user's refers to a class: then the class lives as long as the module."""
    module = sys.modules.get(module_name(kind))
    known = type(module) is ModuleType and not is_the_users(module_name(kind))
    return known and vars(module).get(_name_attribute(kind)) is kind


def is_made_by_the_user(kind: type) -> bool:
    """Whether a class is defined in the user's program."""
    return _is_made_in_python(kind) and is_the_users(module_name(kind))


@functools.lru_cache(maxsize=1024)
def is_the_users(module: str) -> bool:
    """Whether a module belongs to the user's program, not to Python, torch or an installed package."""
    top = module.partition(".")[0]
    if top in ("leapp", "torch") or top in sys.stdlib_module_names:
        return False
    return not is_installed(str(getattr(sys.modules.get(module), "__file__", None) or ""))


def is_library_code(code: CodeType) -> bool:
    """Whether code belongs to an installed package, not to the user's program."""
    return is_installed(code.co_filename)


def is_layer_of_torch(value: Any) -> bool:
    """Whether a value is one of torch's own layers."""
    return module_name(type(value)).startswith("torch.nn.")
