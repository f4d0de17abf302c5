"""What an object, a container or a running function holds, to see later whether it holds something else.

Looking runs no code of the user's: no property, no ``__getattr__`` or ``__len__``, no ``__repr__``. Such code may count, load
or raise.
"""

from __future__ import annotations

import enum
import functools
import gc
import itertools
import operator
import sys
from collections import OrderedDict, deque
from collections.abc import Callable
from contextvars import ContextVar
from inspect import CO_OPTIMIZED, isroutine
from types import (
    CellType,
    CodeType,
    FrameType,
    FunctionType,
    GeneratorType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, Literal

import numpy as np
import torch

from leapp.capture.user_line import is_installed

Tensor = torch.Tensor
NUMBERS = (int, float, str, np.generic)
_PLAIN = frozenset({int, float, bool, str, bytes, type(None), torch.nn.Parameter})
_CONTAINERS = (list, tuple, deque, OrderedDict, dict, set)
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


_roles = functools.lru_cache(maxsize=1024)(_role)
role: Callable[[type], Role] = _roles


def forget_types() -> None:
    """Let go of the user's classes. That of a mock has the mock itself."""
    _roles.cache_clear()


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
        own = {n: v for n, v in list(_attributes(thing).items()) if n[:1] != "_" and n not in _OWN}
        return {**own, **dict(_of_module(thing, "_buffers").items()), **dict(enumerate(_hooks(thing)))}
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
    return {**_of_class(kind), **_attributes(thing), **_of_slots(thing)}


def _attributes(thing: Any) -> dict[str, Any]:
    """The attributes of an object, without those in slots."""
    for base in bases(type(thing)):
        own: Any = members(base).get("__dict__")
        if type(own) in (GetSetDescriptorType, MemberDescriptorType):
            return own.__get__(thing)  # type: ignore[no-any-return]
    return {}


def _of_slots(thing: Any) -> dict[str, Any]:
    found = {}
    for base in reversed(bases(type(thing))):
        for name, slot in list(members(base).items()) if _is_made_in_python(base) else ():
            if type(slot) is MemberDescriptorType:
                try:
                    found[name] = slot.__get__(thing)
                except AttributeError:  # it has no value yet
                    continue
    return found


def _of_container(thing: Any) -> dict[Any, Any]:
    kind: Any = type(thing)
    if kind not in _CONTAINERS:  # the methods of a subclass are the user's
        kind = next(base for base in _CONTAINERS if issubclass(kind, base))
    size = _length(kind.__len__(thing))
    if issubclass(kind, dict):
        return {**dict(itertools.islice(kind.items(thing), _CONTAINED)), WHOLE: size}
    if kind is set:
        items = list(set.__iter__(thing)) if size <= _CONTAINED else [None]
        return {WHOLE: size, ITEMS: str(sorted(map(spelled, items))) if all(map(is_number, items)) else ""}
    last = reversed(tuple.__getitem__(thing, slice(-_CONTAINED, None))) if kind is tuple else kind.__reversed__(thing)
    return {**dict(zip(range(-1, -_CONTAINED - 1, -1), last, strict=False)), WHOLE: size}


def spelled(key: Any) -> str:
    """How code spells a key, as far as that can be told without asking it."""
    kind = type(key)
    if kind in _PLAIN:
        return repr(key)
    if issubclass(kind, enum.Enum):
        return f"{kind.__name__}.{_attributes(key).get('_name_')}"
    if issubclass(kind, tuple):
        return f"({', '.join(map(spelled, tuple.__iter__(key)))})"
    return next((base for base in NUMBERS if issubclass(kind, base)), object).__repr__(key)


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
    for base in reversed(bases(kind)):
        if _is_the_users(_module(base)):
            found.update(members(base))
    return {n: v for n, v in found.items() if _stays_in_class(n, v)}


def bases(kind: type) -> tuple[type, ...]:
    """A class and all above it."""
    return type.__dict__["__mro__"].__get__(kind)  # type: ignore[no-any-return]


def members(kind: type) -> MappingProxyType[str, Any]:
    """What a class itself defines."""
    return type.__dict__["__dict__"].__get__(kind)  # type: ignore[no-any-return]


def _is_made_in_python(kind: type) -> bool:
    return bool(type.__dict__["__flags__"].__get__(kind) & _HEAP)


def _module(kind: type) -> str:
    """The name of the module of a class; empty if the class says something else."""
    name = type.__dict__["__module__"].__get__(kind)
    return name if type(name) is str else ""


def _stays_in_class(name: str, value: Any) -> bool:
    kind = type(value)
    if kind is FunctionType:
        return is_lasting(value)
    return name[:2] != "__" and issubclass(kind, (Tensor, np.ndarray, *NUMBERS, *_CONTAINERS))


def _cannot_be_named(kind: type) -> bool:
    """Whether this is a type of Python or NumPy whose state user code cannot name: an iterator, a random generator, bytes."""
    module = _module(kind)
    if module == "builtins":
        return kind is bytearray or (hasattr(kind, "__next__") and kind is not GeneratorType)
    if kind is Suspended:
        return True
    if module.partition(".")[0] not in sys.stdlib_module_names and not module.startswith("numpy.random"):
        return False
    named = (SimpleNamespace, functools.partial, type, ModuleType, *NUMBERS, *_CONTAINERS)
    return not issubclass(kind, named)


def _is_iterator(kind: type) -> bool:
    return _module(kind) in ("builtins", "itertools") and hasattr(kind, "__next__") and kind is not GeneratorType


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
        return {
            WHOLE: repr(thing) if kind is itertools.count else _remaining(thing),
            **dict(enumerate(gc.get_referents(thing))),
        }
    if kind is ContextVar:
        return {WHOLE: thing.get(None)}
    try:
        told = thing.__reduce_ex__(2)  # what pickle asks for first
    except Exception:  # whatever it says: it cannot be pickled
        return dict(getattr(thing, "__dict__", {}))
    parts = dict(enumerate(told[1:])) if isinstance(told, tuple) else {}
    values = [v for part in parts.values() if part for v in (part.values() if isinstance(part, dict) else part)]
    return parts if all(map(_is_data, values)) else {}


def _remaining(iterator: Any) -> int:
    try:
        return operator.length_hint(iterator, -1)
    except Exception:  # whatever the sequence says when it is asked for its length
        return -1


def _is_data(value: Any) -> bool:
    """Whether a value is not a part of something that works by itself, as the locks and threads of a pool are."""
    kinds = (type, np.ndarray, *NUMBERS, *_CONTAINERS)
    known = value is None or issubclass(type(value), kinds) or isroutine(value)
    return known or _module(type(value)).startswith("numpy.")


def _is_made_by_the_user(kind: type) -> bool:
    """Whether a class is of the user's program. Most values in variables are of types in C."""
    return _is_made_in_python(kind) and _is_the_users(_module(kind))


@functools.lru_cache(maxsize=1024)
def _is_the_users(module: str) -> bool:
    """Whether a module is a part of the user's program."""
    file = str(getattr(sys.modules.get(module), "__file__", None) or "")
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


def is_same_number(a: Any, b: Any) -> bool:
    """Whether two numbers or texts are equal, or both are NaN."""
    try:
        return bool(a == b or (a != a and b != b))
    except Exception:  # what a number class of the user's raises
        return False


def is_number(value: Any) -> bool:
    """Whether a value is a number or text, by its own type: a traced number passes for one."""
    return issubclass(type(value), NUMBERS)


def keeps_nothing(module: torch.nn.Module) -> bool:
    """Whether a module is one of torch's own layers, without buffers."""
    return _module(type(module)).startswith("torch.nn.") and not _of_module(module, "_buffers") and not _hooks(module)


def _hooks(module: torch.nn.Module) -> list[Any]:
    """The functions that are called with a module."""
    return [*_of_module(module, "_forward_pre_hooks").values(), *_of_module(module, "_forward_hooks").values()]


def _of_module(module: torch.nn.Module, name: str) -> Any:
    """A part that torch gives each module. A class may not have called ``__init__`` of torch yet."""
    found = _attributes(module).get(name)
    if found is None and issubclass(type(module), torch.jit.ScriptModule):
        found = getattr(module, name, None)
    return {} if found is None else found
