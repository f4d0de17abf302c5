"""What an object, a container or a running function holds, to see later whether it holds something else.

Looking runs no code of the user's: no property, no ``__getattr__`` or ``__len__``, no ``__repr__``. Such code may count, load
or raise.
"""

from __future__ import annotations

import enum
import functools
import gc
import io
import itertools
import operator
import queue
import sys
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from inspect import CO_OPTIMIZED, isroutine
from types import (
    AsyncGeneratorType,
    CellType,
    CodeType,
    CoroutineType,
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
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from leapp.capture.user_line import is_installed

Tensor = torch.Tensor
NUMBERS = (int, float, complex, str, bytes, range, enum.Enum, np.generic)
"""Types of values that are compared as they are."""
_CONTAINERS = (list, tuple, deque, OrderedDict, dict, set, frozenset)
SUSPENDED = (GeneratorType, CoroutineType, AsyncGeneratorType)
_SUSPENDED = dict(zip(map(id, SUSPENDED), ("gi", "cr", "ag"), strict=True))
"""Functions that wait, and how the names of their attributes begin."""
_EXACTLY = frozenset(map(id, _CONTAINERS))
_CONTAINED = 64
"""The most items of a container that are looked at."""
_LAST, _FROM_THE_END = slice(-_CONTAINED, None), range(-1, -_CONTAINED - 1, -1)
_DESCRIPTORS = (GetSetDescriptorType, MemberDescriptorType)
_PARTS = ("_buffers", "_forward_pre_hooks", "_forward_hooks")
_CLASS = ("__class__",)
"""The variable that a method shares with its class if it calls ``super()``."""
_OWN = frozenset({"training", "dump_patches", "call_super_init", *vars(torch.nn.Module())})
_UNTOLD = itertools.count()
"""Gives a new number for what moves whenever it is used and cannot be asked where it is."""
_HEAP = 1 << 9
"""The flag of classes that Python code makes. Most values in variables are of types in C."""
WHOLE = object()
"""The key of what is known of a container or an iterator as a whole: its length, or its position."""
ITEMS = object()
"""The key of the items of a set, which have no names."""
Role = Literal[
    "plain", "tensor", "array", "container", "closed", "function", "generator", "holder", "module", "class", "object",
    "namespace",
]  # fmt: skip
_ALWAYS = frozenset({"array", "container", "closed", "holder", "object"})
"""The roles of values that may hold something else later, whatever they are."""


class Length(int):
    """How many items a container has. A log grows too, so it says little unless some code reads it."""

    __slots__ = ()


_PLAIN = (int, float, complex, bool, str, bytes, range, type(None), torch.nn.Parameter, Length)
PLAIN = frozenset(map(id, _PLAIN))
"""Types whose values hold nothing, by identity. Most values are of one of them."""


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
    """Where a generator or coroutine waits, apart from its variables."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator


def suspended_code(thing: Any) -> CodeType:
    """The code of a generator or coroutine."""
    return getattr(thing, f"{_SUSPENDED[id(type(thing))]}_code")  # type: ignore[no-any-return]


def _suspended_frame(thing: Any) -> FrameType | None:
    """Where it waits; nothing once it is over."""
    return getattr(thing, f"{_SUSPENDED[id(type(thing))]}_frame")  # type: ignore[no-any-return]


def _role(kind: type) -> Role:
    """The same, found out. The state of a "closed" one cannot be named by the user's code."""
    if kind is Tensor:
        return "tensor"
    if kind is np.ndarray:
        return "array"
    if id(kind) in PLAIN or issubclass(kind, enum.Enum):
        return "plain"
    if issubclass(kind, _CONTAINERS):
        return "container"
    if _cannot_be_named(kind):
        return "closed"
    if kind is FunctionType:
        return "function"
    if id(kind) in _SUSPENDED:
        return "generator"
    if kind is ModuleType:
        return "namespace"
    if kind is MethodType or kind is weakref.ref or kind is functools.partial or kind is SimpleNamespace:
        return "holder"
    if issubclass(kind, torch.nn.Module):
        return "module"
    if issubclass(kind, type):
        return "class"
    return "object" if _is_made_by_the_user(kind) else "plain"


_roles: dict[int, Role] = {}
"""The roles of the types that were met, by identity: a metaclass of the user's may say that its classes cannot be hashed."""
_kinds: dict[int, type] = {}
"""These types, so that no other one takes the place of one that is gone."""


def role(kind: type) -> Role:
    """What a value of a type can hold."""
    found = _roles.get(id(kind))
    if found is None:
        _kinds[id(kind)] = kind
        found = _roles[id(kind)] = _role(kind)
    return found


class _Layout(NamedTuple):
    """Where a type keeps what its objects hold. Decided once for each type."""

    kind: type
    attributes: Callable[[Any], dict[str, Any]]
    slots: Sequence[tuple[str, Callable[[Any], Any]]]


_layouts: dict[int, _Layout] = {}


def _layout(kind: type) -> _Layout:
    found = _layouts.get(id(kind))
    if found is not None:
        return found
    above = bases(kind)
    own: Any = next((found for base in above if type(found := members(base).get("__dict__")) in _DESCRIPTORS), None)
    slots = [
        (name, slot.__get__)
        for base in reversed(above)
        for name, slot in (list(members(base).items()) if "__slots__" in members(base) else ())
        if type(slot) is MemberDescriptorType
    ]
    _layouts[id(kind)] = found = _Layout(kind, _no_attributes if own is None else own.__get__, slots)
    return found


def _no_attributes(thing: Any) -> dict[str, Any]:
    return {}


def forget_types() -> None:
    """Let go of the user's classes. That of a mock has the mock itself."""
    for i in [i for i, kind in list(_kinds.items()) if _is_made_in_python(kind)]:
        _roles.pop(i, None)
        del _kinds[i]
    forget_classes()
    _layouts.clear()


_classes: dict[int, tuple[list[Any], dict[str, Any]]] = {}
"""What the classes define, and those parts of it that may hold something."""


def forget_classes() -> None:
    """Let go of what the user's classes held."""
    _classes.clear()


def is_lasting(value: Any) -> bool:
    """Whether a value can hold something of the user's program from one call to the next."""
    if type(value) is FunctionType:  # as most are
        if not (value.__closure__ or value.__defaults__ or value.__kwdefaults__ or value.__dict__):
            return False
        code = value.__code__
        if is_library_code(code):
            return False
        shares = value.__closure__ and code.co_freevars != _CLASS
        return bool(shares or _defaults(value) or value.__dict__)
    kind = role(type(value))
    if kind in _ALWAYS:
        return True
    if kind == "generator":
        return not is_library_code(suspended_code(value))
    if kind == "namespace":
        return type(name := vars(value).get("__name__")) is str and name in sys.modules and is_the_users(name)
    if kind == "module":
        return not keeps_nothing(value)
    return kind == "class" and _is_made_by_the_user(value)


def lasting(names: dict[str, Any]) -> dict[str, Any]:
    """The variables whose values may be changed and not only exchanged."""
    now = list(names.items())  # another thread may add to them meanwhile
    return {n: v for n, v in now if id(type(v)) not in PLAIN and n[:2] != "__" and is_lasting(v)}


def held_by(thing: Any) -> dict[Any, Any]:
    """What an object or a container holds itself. The items of a sequence are counted from the end: a history grows there."""
    kind = type(thing)  # not isinstance(), which asks some objects for their class
    what = role(kind)
    if what == "container":
        return _of_container(thing)
    if kind is Variables:
        return thing.names  # type: ignore[no-any-return]
    if kind is Globals:
        return _numbers(thing.names)
    if what == "closed":
        return _of_closed(thing)
    if what == "module":
        return _of_module(thing)
    if what == "function":
        return {**vars(thing), **shared(thing), **_defaults(thing)}
    if what == "generator":
        frame = _suspended_frame(thing)
        return {} if frame is None else variables_of(frame)
    if what == "namespace":
        return {**_numbers(vars(thing)), **lasting(vars(thing))}
    if what == "array":  # of objects
        return dict(enumerate(thing.ravel()[:_CONTAINED].tolist()))
    if what == "class":
        return _of_class(thing)
    if kind is MethodType:
        return {"__self__": thing.__self__, WHOLE: thing.__func__}
    if kind is weakref.ref:  # to a tensor: it is not kept alive
        return {WHOLE: thing()} if role(type(thing())) == "object" else {}
    if kind is functools.partial:
        names = thing.func.__code__.co_varnames if type(thing.func) is FunctionType else itertools.count()
        return {"func": thing.func, **dict(zip(names, thing.args, strict=False)), **thing.keywords}
    layout = _layout(kind)
    held = {**_of_class(kind), **layout.attributes(thing)}
    for name, slot in layout.slots:
        try:
            held[name] = slot(thing)
        except AttributeError:  # it has no value yet
            continue
    return held


def _numbers(names: dict[str, Any]) -> dict[str, Any]:
    return {n: v for n, v in list(names.items()) if is_number(v) and n[:2] != "__"}


def held_again(thing: Any, held: dict[Any, Any]) -> dict[Any, Any]:
    """What something holds that held this before: the same dict, if it holds the same objects."""
    kind = type(thing)
    if kind is Globals or kind is ModuleType:  # what a new variable has is not compared with anything
        names = thing.names if kind is Globals else vars(thing)
        return held if all(map(operator.is_, map(names.get, held), held.values())) else held_by(thing)
    if kind is dict or kind is list or kind is tuple:  # most hold what they held, and are not taken apart again
        items = itertools.islice(thing.values() if kind is dict else reversed(thing), _CONTAINED)
        same = len(thing) == held.get(WHOLE) and all(map(operator.is_, items, held.values()))
        if same and (kind is not dict or all(map(operator.is_, thing, held))):
            return held
    now = held_by(thing)
    if now is held:
        return held
    same = len(now) == len(held) and all(map(operator.is_, now, held))
    return held if same and all(map(operator.is_, now.values(), held.values())) else now


def _of_container(thing: Any) -> dict[Any, Any]:
    kind: Any = type(thing)
    if id(kind) not in _EXACTLY:  # the methods of a subclass are the user's
        kind = next(base for base in _CONTAINERS if issubclass(kind, base))
    size = _length(kind.__len__(thing))
    held: dict[Any, Any]
    if issubclass(kind, dict):
        held = dict(itertools.islice(kind.items(thing), _CONTAINED))
    elif kind is set or kind is frozenset:
        items = list(kind.__iter__(thing)) if size <= _CONTAINED else [None]
        held = {ITEMS: str(sorted(map(spelled, items))) if all(map(is_number, items)) else ""}
    else:
        last = reversed(tuple.__getitem__(thing, _LAST)) if kind is tuple else kind.__reversed__(thing)
        held = dict(zip(_FROM_THE_END, last, strict=False))
    held[WHOLE] = size
    return held


def spelled(key: Any) -> str:
    """How code spells a key, as far as that can be told without asking it."""
    kind = type(key)
    if id(kind) in PLAIN:
        return repr(key)
    if issubclass(kind, enum.Enum):
        return f"{kind.__name__}.{_layout(kind).attributes(key).get('_name_')}"
    if issubclass(kind, tuple):
        return f"({', '.join(map(spelled, tuple.__iter__(key)))})"
    return next((base for base in NUMBERS if issubclass(kind, base)), object).__repr__(key)


def _of_class(kind: type) -> dict[str, Any]:
    """The numbers, tensors, containers and functions with memory that a class of the user's program holds."""
    defined = [members(base) for base in reversed(bases(kind)) if is_the_users(_module(base))]
    values = [value for names in defined for value in list(names.values())]
    before, held = _classes.get(id(kind), ((), {}))
    if len(before) != len(values) or not all(map(operator.is_, before, values)):
        found = {name: value for names in defined for name, value in list(names.items())}
        held = {n: v for n, v in found.items() if _stays_in_class(n, v)}
        _classes[id(kind)] = values, held
    return held


bases: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
"""A class and all above it. A metaclass of the user's is not asked, here and below."""
members: Callable[[type], MappingProxyType[str, Any]] = type.__dict__["__dict__"].__get__
"""What a class itself defines."""
_flags: Callable[[type], int] = type.__dict__["__flags__"].__get__
_module_name: Callable[[type], Any] = type.__dict__["__module__"].__get__


def _is_made_in_python(kind: type) -> bool:
    return bool(_flags(kind) & _HEAP)


def _module(kind: type) -> str:
    """The name of the module of a class; empty if the class says something else."""
    name = _module_name(kind)
    return name if type(name) is str else ""


def _stays_in_class(name: str, value: Any) -> bool:
    kind = type(value)
    if kind is FunctionType:
        return is_lasting(value)
    if name[:2] == "__":
        return False
    return issubclass(kind, (Tensor, np.ndarray, *NUMBERS, *_CONTAINERS)) or role(kind) in ("object", "closed", "generator")


def _cannot_be_named(kind: type) -> bool:
    """Whether this is a type of Python or NumPy whose state user code cannot name: an iterator, a random generator, bytes."""
    module = _module(kind)
    if module == "builtins":
        return id(kind) in _ASKED or kind is bytearray or (hasattr(kind, "__next__") and id(kind) not in _SUSPENDED)
    if kind is Suspended or id(kind) in _ASKED or any(_module(base) == "_ctypes" for base in bases(kind)):
        return True
    if module.partition(".")[0] not in sys.stdlib_module_names and not module.startswith("numpy.random"):
        return False
    named = (SimpleNamespace, functools.partial, weakref.ref, type, ModuleType, *NUMBERS, *_CONTAINERS)
    return not issubclass(kind, named)


def _is_iterator(kind: type) -> bool:
    return _module(kind) in ("builtins", "itertools") and hasattr(kind, "__next__") and id(kind) not in _SUSPENDED


def _of_closed(thing: Any) -> dict[Any, Any]:
    """What tells the state of such an object."""
    kind = type(thing)
    if kind is Suspended:
        frame = _suspended_frame(thing.generator)
        if frame is None:
            return {WHOLE: -1}
        # The iterators of its loops. Python 3.10 keeps them in the frame.
        drawn = [v for v in (*gc.get_referents(thing.generator), *gc.get_referents(frame)) if _is_iterator(type(v))]
        return {WHOLE: frame.f_lasti, **dict(enumerate(drawn))}
    if _is_iterator(kind):
        below = gc.get_referents(thing)
        if kind is itertools.cycle and not any(_is_iterator(type(v)) for v in below):
            return {WHOLE: next(_UNTOLD)}  # it began its second round, and keeps its place to itself
        return {WHOLE: repr(thing) if kind is itertools.count else _remaining(thing), **dict(enumerate(below))}
    if id(kind) in _ASKED:
        return {WHOLE: _asked(thing)}
    try:
        told = thing.__reduce_ex__(2)  # what pickle asks for first
    except Exception:  # whatever it says: it cannot be pickled
        if issubclass(kind, io.IOBase):
            return {WHOLE: _asked(thing)}
        return dict(getattr(thing, "__dict__", None) or enumerate(filter(_is_data, gc.get_referents(thing))))
    found: dict[Any, Any] = {}
    for number, part in enumerate(told[1:3] if isinstance(told, tuple) else ()):
        values = part if type(part) is dict else {number: part}
        found.update((name, value) for name, value in values.items() if _is_data(value))
    return found


_ASKED: dict[int, Callable[[Any], Any]] = {
    id(ContextVar): lambda variable: variable.get(None),
    id(memoryview): lambda view: view.tobytes() if view.nbytes < _SMALL else None,
    id(np.flatiter): operator.attrgetter("index"),
    id(np.nditer): operator.attrgetter("iterindex"),
    id(np.ndenumerate): operator.attrgetter("iter.index"),
    **{id(kind): operator.attrgetter("queue") for kind in (queue.Queue, queue.LifoQueue, queue.PriorityQueue)},
}
"""What tells the state of objects of some types of Python and NumPy, by the identity of the type."""
_SMALL = 1 << 16


def _asked(thing: Any) -> Any:
    """Such as where in a file or an array a reader is. A file that is written to is not asked: it would be flushed."""
    ask = _ASKED.get(id(type(thing)))
    try:
        if ask is not None:
            return ask(thing)
        return thing.tell() if thing.readable() and not thing.writable() and thing.seekable() else None
    except Exception:  # whatever it says: it is closed, or at its end
        return None


def _remaining(iterator: Any) -> int:
    try:
        return operator.length_hint(iterator, -1)
    except Exception:  # whatever the sequence says when it is asked for its length
        return -1


def _is_data(value: Any) -> bool:
    """Whether a value is not a part of something that works by itself, as the locks and threads of a pool are."""
    kinds = (type, np.ndarray, *NUMBERS, *_CONTAINERS)
    if type(value) is set or type(value) is tuple:
        return all(map(_is_data, value))
    known = value is None or issubclass(type(value), kinds) or isroutine(value)
    return known or _module(type(value)).startswith("numpy.")


def _is_made_by_the_user(kind: type) -> bool:
    """Whether a class is of the user's program. Most values in variables are of types in C."""
    return _is_made_in_python(kind) and is_the_users(_module(kind))


@functools.lru_cache(maxsize=1024)
def is_the_users(module: str) -> bool:
    """Whether a module is a part of the user's program."""
    top = module.partition(".")[0]
    if top in ("leapp", "torch") or top in sys.stdlib_module_names:
        return False
    return not is_installed(str(getattr(sys.modules.get(module), "__file__", None) or ""))


def module_of(value: Any) -> str:
    """The module with the global variables that a function, a class or the methods of an object use."""
    if type(value) is FunctionType:
        name = value.__globals__.get("__name__")
        return name if type(name) is str else ""
    return _module(value if issubclass(type(value), type) else type(value))


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
    if issubclass(type(a), enum.Enum) and issubclass(type(b), enum.Enum):
        return a is b
    try:
        return bool(a == b or (a != a and b != b))
    except Exception:  # what a number class of the user's raises
        return False


def is_number(value: Any) -> bool:
    """Whether a value is a number or text, by its own type: a traced number passes for one."""
    return issubclass(type(value), NUMBERS)


def keeps_nothing(module: torch.nn.Module) -> bool:
    """Whether a module is one of torch's own layers, without buffers."""
    if not is_layer_of_torch(module):
        return False
    own = _layout(type(module)).attributes(module)
    return not (own.get("_buffers") or own.get("_forward_pre_hooks") or own.get("_forward_hooks"))


def is_layer_of_torch(value: Any) -> bool:
    """Whether a value is one of torch's own layers."""
    return _module(type(value)).startswith("torch.nn.")


def _of_module(module: torch.nn.Module) -> dict[Any, Any]:
    """The attributes and buffers of a module, and the functions that are called with it."""
    own = _layout(type(module)).attributes(module)
    private = not is_layer_of_torch(module)
    held: dict[Any, Any] = {n: v for n, v in list(own.items()) if n not in _OWN and (private or n[:1] != "_")}
    if "_buffers" not in own and issubclass(type(module), torch.jit.ScriptModule):
        own = {part: getattr(module, part, None) for part in _PARTS}
    buffers, before, after = map(own.get, _PARTS)  # none, if the class has not called __init__() of torch yet
    if buffers:
        held.update(buffers.items())
    if before or after:
        held.update(enumerate((*(before or {}).values(), *(after or {}).values())))
    return held
