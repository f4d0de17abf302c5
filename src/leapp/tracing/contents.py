"""What an object, a container or a running function holds, to see later whether it holds something else."""

from __future__ import annotations

import functools
import gc
import itertools
import operator
import sys
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from inspect import CO_OPTIMIZED, isroutine
from types import CellType, CodeType, FrameType, FunctionType, GeneratorType, MethodType, ModuleType, SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch

from leapp.capture.user_line import is_installed

Tensor = torch.Tensor
NUMBERS = (int, float, str, np.generic)
_PLAIN = frozenset({int, float, bool, str, bytes, type(None), torch.nn.Parameter})
_CONTAINERS = (list, tuple, deque, dict, set)
_CONTAINED = 64
"""The most items of a container that are looked at."""
_OWN = frozenset({"training", "dump_patches", "call_super_init"})
_HEAP = 1 << 9
"""The flag of classes that Python code makes. Most values in variables are of types in C."""
WHOLE = object()
"""The key of what is known of a container or an iterator as a whole: its length, or its position."""
ITEMS = object()
"""The key of the items of a set, which have no names."""
Role = Literal[
    "plain", "tensor", "array", "container", "closed", "function", "generator", "holder", "module", "class", "object"
]  # fmt: skip
_ALWAYS = frozenset({"array", "container", "closed", "holder", "object"})
"""The roles of values that may hold something else later, whatever they are."""


class Length(int):
    """How many items a container has. A log grows too, so it says little unless some code reads it."""

    __slots__ = ()


@functools.lru_cache(maxsize=1024)
def _length(items: int) -> Length:
    """One object for each length: what is the same object did not change."""
    return Length(items)


class Variables:
    """Variables of a running function or of a module, with what they held when a node was opened."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names


class Globals(Variables):
    """The numbers among the global variables of a module, as they are now."""


class Suspended:
    """Where a generator waits, apart from its variables."""

    def __init__(self, generator: GeneratorType[Any, Any, Any]) -> None:
        self.generator = generator


def _role(kind: type) -> Role:
    """What a value of a type can hold. The state of a "closed" one cannot be named by the user's code."""
    if kind is Tensor:
        return "tensor"
    if kind is np.ndarray:
        return "array"
    if kind in _PLAIN:
        return "plain"
    if issubclass(kind, _CONTAINERS):
        return "container"
    if _cannot_be_named(kind):
        return "closed"
    if kind is FunctionType:
        return "function"
    if kind is GeneratorType:
        return "generator"
    if kind in (MethodType, functools.partial, SimpleNamespace):
        return "holder"
    if issubclass(kind, torch.nn.Module):
        return "module"
    if issubclass(kind, type):
        return "class"
    return "object" if _is_made_by_the_user(kind) else "plain"


role: Callable[[type], Role] = functools.lru_cache(maxsize=1024)(_role)


def is_lasting(value: Any) -> bool:
    """Whether a value can hold something of the user's program from one call to the next."""
    kind = role(type(value))
    if kind in _ALWAYS:
        return True
    if kind == "function":
        return bool(value.__closure__ or value.__dict__ or _defaults(value)) and not is_library_code(value.__code__)
    if kind == "generator":
        return not is_library_code(value.gi_code)
    if kind == "module":
        return not keeps_nothing(value)
    return kind == "class" and _is_made_by_the_user(value)


def lasting(names: dict[str, Any]) -> dict[str, Any]:
    """The variables whose values may be changed and not only exchanged."""
    now = list(names.items())  # another thread may add to them meanwhile
    return {n: v for n, v in now if role(type(v)) != "plain" and n[:2] != "__" and is_lasting(v)}


def held_by(thing: Any) -> dict[Any, Any]:
    """What an object or a container holds itself. The items of a sequence are counted from the end: a history grows there."""
    kind = type(thing)  # not isinstance(), which asks some objects for their class
    if kind is Variables:
        return thing.names  # type: ignore[no-any-return]
    if kind is Globals:
        return {n: v for n, v in list(thing.names.items()) if issubclass(type(v), NUMBERS) and n[:2] != "__"}
    what = role(kind)
    if what == "closed":
        return _of_closed(thing)
    if what == "container":
        return _of_container(thing)
    if what == "module":
        own = {n: v for n, v in list(vars(thing).items()) if n[:1] != "_" and n not in _OWN}
        return {**own, **dict(thing._buffers.items()), **dict(enumerate(_hooks(thing)))}
    if what == "function":
        return {**vars(thing), **shared(thing), **_defaults(thing)}
    if what == "generator":
        return {} if thing.gi_frame is None else variables_of(thing.gi_frame)
    if what == "class":
        return _of_class(thing)
    if kind is MethodType:
        return {"__self__": thing.__self__, "__func__": thing.__func__}
    if kind is functools.partial:
        names = thing.func.__code__.co_varnames if type(thing.func) is FunctionType else itertools.count()
        return {"func": thing.func, **dict(zip(names, thing.args, strict=False)), **thing.keywords}
    slots = (n for base in kind.__mro__[:-1] for n in vars(base).get("__slots__", ()))
    return {**_of_class(kind), **getattr(thing, "__dict__", {}), **{n: getattr(thing, n) for n in slots if hasattr(thing, n)}}


def _of_container(thing: Any) -> dict[Any, Any]:
    size = _length(len(thing))
    if issubclass(type(thing), dict):
        return {**dict(itertools.islice(thing.items(), _CONTAINED)), WHOLE: size}
    if issubclass(type(thing), set):
        items = list(thing)
        named = size <= _CONTAINED and all(map(is_number, items))
        return {WHOLE: size, ITEMS: str(sorted(map(repr, items))) if named else ""}
    return {**dict(zip(range(-1, -_CONTAINED - 1, -1), reversed(thing), strict=False)), WHOLE: size}


def holds_still(thing: Any, held: dict[Any, Any]) -> bool:
    """Whether a container holds what it held. Most do, and are not taken apart again."""
    kind = type(thing)
    if kind is not dict and kind is not list and kind is not tuple:
        return False
    items = itertools.islice(thing.values() if kind is dict else reversed(thing), _CONTAINED)
    return len(thing) == held.get(WHOLE) and all(map(operator.is_, items, held.values()))


def _of_class(kind: type) -> dict[str, Any]:
    """The numbers, tensors, containers and functions with memory that a class of the user's program holds."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if _is_the_users(base.__module__):
            found.update(vars(base))
    return {n: v for n, v in found.items() if _stays_in_class(n, v)}


def _stays_in_class(name: str, value: Any) -> bool:
    kind = type(value)
    if kind is FunctionType:
        return is_lasting(value)
    return name[:2] != "__" and issubclass(kind, (Tensor, np.ndarray, *NUMBERS, *_CONTAINERS))


def _cannot_be_named(kind: type) -> bool:
    """Whether this is a type of Python or NumPy whose state user code cannot name: an iterator, a random generator, bytes."""
    module = kind.__module__
    if module == "builtins":
        return kind is bytearray or (hasattr(kind, "__next__") and kind is not GeneratorType)
    if kind is Suspended:
        return True
    if module.partition(".")[0] not in sys.stdlib_module_names and not module.startswith("numpy.random"):
        return False
    named = (SimpleNamespace, functools.partial, type, ModuleType, *NUMBERS, *_CONTAINERS)
    return not issubclass(kind, named)


def _is_iterator(kind: type) -> bool:
    return kind.__module__ in ("builtins", "itertools") and hasattr(kind, "__next__") and kind is not GeneratorType


def _of_closed(thing: Any) -> dict[Any, Any]:
    """What tells the state of such an object."""
    kind = type(thing)
    if kind is Suspended:
        frame = thing.generator.gi_frame
        if frame is None:
            return {WHOLE: -1}
        # The iterators of its loops. Python 3.10 keeps them in the frame.
        drawn = [v for v in (*gc.get_referents(thing.generator), *gc.get_referents(frame)) if _is_iterator(type(v))]
        return {WHOLE: frame.f_lasti, **dict(enumerate(drawn))}
    if _is_iterator(kind):
        position = repr(thing) if kind is itertools.count else operator.length_hint(thing, -1)
        return {WHOLE: position, **dict(enumerate(gc.get_referents(thing)))}
    if kind is ContextVar:
        return {WHOLE: thing.get(None)}
    try:
        told = thing.__reduce_ex__(2)  # what pickle asks for first
    except Exception:  # whatever it says: it cannot be pickled
        return dict(getattr(thing, "__dict__", {}))
    parts = dict(enumerate(told[1:])) if isinstance(told, tuple) else {}
    values = [v for part in parts.values() if part for v in (part.values() if isinstance(part, dict) else part)]
    return parts if all(map(_is_data, values)) else {}


def _is_data(value: Any) -> bool:
    """Whether a value is not a part of something that works by itself, as the locks and threads of a pool are."""
    kinds = (type, np.ndarray, *NUMBERS, *_CONTAINERS)
    return value is None or issubclass(type(value), kinds) or type(value).__module__.startswith("numpy.") or isroutine(value)


def _is_made_by_the_user(kind: type) -> bool:
    """Whether a class is of the user's program. Most values in variables are of types in C."""
    return bool(kind.__flags__ & _HEAP) and _is_the_users(kind.__module__)


@functools.lru_cache(maxsize=1024)
def _is_the_users(module: str) -> bool:
    """Whether a module is a part of the user's program."""
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return module.partition(".")[0] not in ("leapp", "torch", "builtins") and not is_installed(file)


def is_library_code(code: CodeType) -> bool:
    """Whether code is of a library or another installed package, not of the user's program."""
    return is_installed(code.co_filename)


def shared(function: FunctionType) -> dict[str, Any]:
    """The variables that a function shares with the one around it: they live as long as the function."""
    pairs = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in pairs if not _is_empty(cell)}


def _defaults(function: FunctionType) -> dict[str, Any]:
    """The default values of arguments that can hold something: they live as long as the function."""
    if not (function.__defaults__ or function.__kwdefaults__):
        return {}
    given, keywords = function.__defaults__ or (), function.__kwdefaults__ or {}
    if {role(type(v)) for v in (*given, *keywords.values())} <= {"plain"}:
        return {}
    code = function.__code__
    names = code.co_varnames[code.co_argcount - len(given) : code.co_argcount]
    return {**dict(zip(names, given, strict=True)), **keywords}


def _is_empty(cell: CellType) -> bool:
    try:
        return cell.cell_contents is cell
    except ValueError:  # the variable has no value yet
        return True


def variables_of(frame: FrameType) -> dict[str, Any]:
    """The variables of a running function.

    Before Python 3.13 a frame keeps what ``f_locals`` gives. That is emptied, so that nothing lives longer than the function
    wants, unless the program itself has it from ``locals()``.
    """
    if not frame.f_code.co_flags & CO_OPTIMIZED:
        return {}  # of a module or a class
    names: Any = frame.f_locals
    found = dict(names)
    if type(names) is dict and sys.getrefcount(names) <= 3:
        names.clear()
    return found


def is_number(value: Any) -> bool:
    """Whether a value is a number or text, by its own type: a traced number passes for one."""
    return issubclass(type(value), NUMBERS)


def keeps_nothing(module: torch.nn.Module) -> bool:
    """Whether a module is one of torch's own layers, without buffers."""
    return type(module).__module__.startswith("torch.nn.") and not module._buffers and not _hooks(module)


def _hooks(module: torch.nn.Module) -> list[Any]:
    """The functions that are called with a module."""
    return [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
