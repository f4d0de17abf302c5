"""What an object, a container or a running function holds, read so that two readings can be compared.

Reading runs no code of the user's: no property, no ``__getattr__`` or ``__len__``, no ``__repr__``. Such code may count its
calls, load files or raise.
"""

from __future__ import annotations

import enum
import functools
import itertools
import operator
import sys
import weakref
from collections.abc import Callable, Collection, Sequence
from inspect import CO_OPTIMIZED
from types import (
    CellType,
    CodeType,
    FrameType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from leapp.compat.core import script_numbers
from leapp.tracing.opaque_state import WHOLE, state_of
from leapp.tracing.value_roles import (
    CONTAINERS,
    NUMBERS,
    PLAIN,
    TYPES,
    Length,
    Role,
    bases,
    forget_roles,
    is_layer_of_torch,
    is_library_code,
    is_made_by_the_user,
    is_number,
    is_the_users,
    members,
    module_name,
    role,
    suspended_code,
    suspended_frame,
)

Tensor = torch.Tensor
T = TypeVar("T")
_TRIES = 1000
"""How often a container is looked at that other threads keep changing."""
ITEMS = object()
"""The key of the items of a set, which have no keys of their own."""
_MOST_ITEMS = 64
"""The most items of a container that are read."""
_LAST_ITEMS, _FROM_THE_END = slice(-_MOST_ITEMS, None), range(-1, -_MOST_ITEMS - 1, -1)
_EXACT_CONTAINERS = frozenset(map(id, CONTAINERS))
_DESCRIPTORS = (GetSetDescriptorType, MemberDescriptorType)
_CLASS_CELL = ("__class__",)
"""The only closure variable of a method that calls ``super()`` and has no other."""
_MODULE_PARTS = ("_buffers", "_forward_pre_hooks", "_forward_hooks")
_EVERY_MODULE = frozenset({"training", "dump_patches", "call_super_init", *vars(torch.nn.Module())})
"""Attributes that every ``torch.nn.Module`` has."""
_HOLDS_NOTHING = frozenset({"plain"})
_HOLDS_STATE = frozenset({"array", "container", "opaque", "holder", "object"})
"""The roles of values that can hold state, whichever value it is."""
_CLASS_STATE = frozenset({"container", "object", "opaque", "generator"})
"""The roles of attributes of a class that can hold state, beside functions, tensors and arrays."""


@functools.lru_cache(maxsize=1024)
def _length(items: int) -> Length:
    """The same object for the same length, so that lengths can be compared with ``is``."""
    return Length(items)


class Variables:
    """Variables of a running function or of a module, with the values they had when a node was opened."""

    def __init__(self, names: dict[str, Any], code: CodeType | None = None) -> None:
        self.names, self.code = names, code


class Globals(Variables):
    """The numbers among the global variables of a module. ``names`` is the dict of the module itself."""


class _Layout(NamedTuple):
    """Where the objects of a type keep their attributes. Found once for each type."""

    attributes: Callable[[Any], dict[str, Any]]
    """Gives the ``__dict__`` of an object."""
    slots: Sequence[tuple[str, Callable[[Any], Any]]]
    """The names in ``__slots__``, each with the function that gives its value."""


def _layout(kind: type) -> _Layout:
    facts = TYPES.get(id(kind)) or TYPES.of(kind)
    found: _Layout | None = facts.layout
    if found is None:
        found = facts.layout = _find_layout(kind)
    return found


def _find_layout(kind: type) -> _Layout:
    above = bases(kind)
    own: Any = next((found for base in above if type(found := members(base).get("__dict__")) in _DESCRIPTORS), None)
    slots = [
        (name, slot.__get__)
        for base in reversed(above)
        for name, slot in (list(members(base).items()) if "__slots__" in members(base) else ())
        if type(slot) is MemberDescriptorType
    ]
    return _Layout(_no_attributes if own is None else own.__get__, slots)


def _no_attributes(thing: Any) -> dict[str, Any]:
    return {}


class _ClassState:
    """The attributes of a class of the user's program that can hold state, those of its base classes included."""

    __slots__ = ("above", "defined", "held", "values")

    def __init__(self, kind: type) -> None:
        self.above = bases(kind)
        self.defined = [members(base) for base in reversed(self.above) if is_the_users(module_name(base))]
        self.values: list[Any] = []
        """The values of all its attributes when ``held`` was found."""
        self.held: dict[str, Any] = {}

    def now(self) -> dict[str, Any]:
        """The attributes and their values now. The same dict as before, if nothing changed."""
        values: list[Any] = []
        for names in self.defined:
            values += names.values()
        if len(self.values) != len(values) or not all(map(operator.is_, self.values, values)):
            found = {name: value for names in self.defined for name, value in list(names.items())}
            self.held = {n: v for n, v in found.items() if _is_class_state(n, v)}
            self.values = values
        return self.held


_classes: dict[int, _ClassState] = {}
"""By the identity of a class."""


def forget_types() -> None:
    """Drop all references to the user's classes."""
    forget_roles()
    forget_classes()


def forget_classes() -> None:
    """Drop the references to the values of the attributes of the user's classes."""
    _classes.clear()


def can_hold_state(value: Any) -> bool:
    """Whether a value can keep something of the user's program from one call to the next."""
    if type(value) is FunctionType:  # asked first because most are functions
        closes_over = value.__closure__ and value.__code__.co_freevars != _CLASS_CELL
        return bool(closes_over or value.__dict__ or _can_default(value)) and not is_library_code(value.__code__)
    kind = (TYPES.get(id(type(value))) or TYPES.of(type(value))).role
    if kind == "namespace":
        return type(name := vars(value).get("__name__")) is str and name in sys.modules and is_the_users(name)
    if kind == "class":
        return is_made_by_the_user(value)
    if kind == "module":
        return not keeps_nothing(value)
    if kind == "generator":
        return not is_library_code(suspended_code(value))
    return kind in _HOLDS_STATE


class Names(NamedTuple):
    """The variables of a function or of a module, as far as the walk needs them."""

    numbers: dict[str, Any]
    holding: dict[str, Any]
    """Those whose values can hold state."""
    functions: Collection[FunctionType]
    """The functions among the values, one for each module that they are defined in."""


def sorted_out(names: dict[str, Any]) -> Names:
    """Variables by what their values are."""
    numbers: dict[str, Any] = {}
    holding: dict[str, Any] = {}
    functions: dict[int, FunctionType] = {}
    names = dict(names)  # a copy: another thread may add variables meanwhile
    for (name, value), facts in zip(names.items(), map(TYPES.get, map(id, map(type, names.values()))), strict=True):
        if facts is None:
            facts = TYPES.of(type(value))
        what = facts.role
        if what == "function":
            functions[id(value.__globals__)] = value
            if not (value.__closure__ or value.__defaults__ or value.__kwdefaults__ or value.__dict__):
                continue  # most are like this: do not call can_hold_state()
        if name[:2] == "__":
            continue
        if facts.is_number:
            numbers[name] = value
        if what != "plain" and (what in _HOLDS_STATE or can_hold_state(value)):
            holding[name] = value
    return Names(numbers, holding, functions.values())


def held_by(thing: Any) -> dict[Any, Any]:
    """The values that an object or a container holds directly, by attribute name, variable name or key.

    The items of a sequence have the keys -1, -2 and so on, the last item first: a history grows at its end.
    """
    kind = type(thing)  # not isinstance(), which asks some objects for their class
    return _READERS[(TYPES.get(id(kind)) or TYPES.of(kind)).role](thing)


def held_again(thing: Any, held: dict[Any, Any]) -> dict[Any, Any]:
    """What :func:`held_by` gives now. Returns ``held``, its earlier answer, if all values are the same objects."""
    kind = type(thing)
    if kind is Globals or kind is ModuleType:  # new variables are left out: they had no value to compare with
        names = thing.names if kind is Globals else vars(thing)
        return held if all(map(operator.is_, map(names.get, held), held.values())) else held_by(thing)
    if (kind is dict or kind is list or kind is tuple) and _undisturbed(_holds_the_same, thing, held):
        return held  # most did not change: a quick look
    now = held_by(thing)
    if now is held:
        return held
    same = len(now) == len(held) and all(map(operator.is_, now, held))
    return held if same and all(map(operator.is_, now.values(), held.values())) else now


def _undisturbed(look: Callable[..., T], *args: Any) -> T:
    """The result of a look at a container. If another thread changes the container meanwhile, it is looked at again."""
    for _ in range(_TRIES):
        try:
            return look(*args)
        except RuntimeError:
            continue
    return look(*args)


def _holds_the_same(thing: Any, held: dict[Any, Any]) -> bool:
    """Whether a dict, list or tuple holds the same objects as before."""
    of_dict = type(thing) is dict
    items = itertools.islice(thing.values() if of_dict else reversed(thing), _MOST_ITEMS)
    same = len(thing) == held.get(WHOLE) and all(map(operator.is_, items, held.values()))
    return same and (not of_dict or all(map(operator.is_, thing, held)))


def _of_variables(thing: Any) -> dict[Any, Any]:
    if type(thing) is Variables:
        return thing.names
    return sorted_out(thing.names).numbers if type(thing) is Globals else _of_object(thing)


def _of_container(thing: Any) -> dict[Any, Any]:
    return _undisturbed(_items, thing)


def _of_function(thing: Any) -> dict[Any, Any]:
    return {**vars(thing), **closure_of(thing), **(_defaults(thing) if _can_default(thing) else {})}


def _of_generator(thing: Any) -> dict[Any, Any]:
    frame = suspended_frame(thing)
    return {} if frame is None else variables_of(frame)


def _of_namespace(thing: Any) -> dict[Any, Any]:
    names = sorted_out(vars(thing))
    return {**names.numbers, **names.holding}


def _of_array(thing: Any) -> dict[Any, Any]:
    """The items of an array of dtype object: others are compared by their bytes."""
    return dict(enumerate(thing.ravel()[:_MOST_ITEMS].tolist()))


def _of_holder(thing: Any) -> dict[Any, Any]:
    kind = type(thing)
    if kind is MethodType:
        return {"__self__": thing.__self__, WHOLE: thing.__func__}
    if kind is weakref.ref:  # a referenced tensor is left out, so as not to keep it alive
        return {WHOLE: thing()} if role(type(thing())) == "object" else {}
    if kind is functools.partial:
        parameters = thing.func.__code__.co_varnames if type(thing.func) is FunctionType else itertools.count()
        return {"func": thing.func, **dict(zip(parameters, thing.args, strict=False)), **thing.keywords}
    return _of_object(thing)


def _of_object(thing: Any) -> dict[Any, Any]:
    kind = type(thing)
    layout = _layout(kind)
    held = {**_of_class(kind), **layout.attributes(thing)}
    for name, slot in layout.slots:
        try:
            held[name] = slot(thing)
        except AttributeError:  # the slot has no value yet
            continue
    return held


def _items(thing: Any) -> dict[Any, Any]:
    kind: Any = type(thing)
    if id(kind) not in _EXACT_CONTAINERS:  # call the methods of the base class: those of a subclass are the user's
        kind = next(base for base in CONTAINERS if issubclass(kind, base))
    size = _length(kind.__len__(thing))
    held: dict[Any, Any]
    if issubclass(kind, dict):
        held = dict(itertools.islice(kind.items(thing), _MOST_ITEMS))
    elif kind is set or kind is frozenset:
        items = list(kind.__iter__(thing)) if size <= _MOST_ITEMS else [None]
        held = {ITEMS: str(sorted(map(spelled, items))) if all(map(is_number, items)) else ""}
    else:
        last = reversed(tuple.__getitem__(thing, _LAST_ITEMS)) if kind is tuple else kind.__reversed__(thing)
        held = dict(zip(_FROM_THE_END, last, strict=False))
    held[WHOLE] = size
    return held


def spelled(key: Any) -> str:
    """A key as the user's code would write it. No ``__repr__`` of the user's runs."""
    kind = type(key)
    if id(kind) in PLAIN:
        return repr(key)
    if issubclass(kind, enum.Enum):
        return f"{kind.__name__}.{_layout(kind).attributes(key).get('_name_')}"
    if issubclass(kind, tuple):
        return f"({', '.join(map(spelled, tuple.__iter__(key)))})"
    return next((base for base in NUMBERS if issubclass(kind, base)), object).__repr__(key)


def _of_class(kind: type) -> dict[str, Any]:
    """The attributes of a class of the user's program that can hold state, those of its base classes included."""
    found = _classes.get(id(kind))
    if found is None or found.above is not bases(kind):
        found = _classes[id(kind)] = _ClassState(kind)
    return found.now()


def _is_class_state(name: str, value: Any) -> bool:
    """Whether an attribute of a class can hold state, or is a number that may be replaced."""
    kind = type(value)
    if kind is FunctionType:  # most are methods that close over nothing: do not call can_hold_state()
        return bool(value.__closure__ or value.__defaults__ or value.__kwdefaults__ or value.__dict__) and can_hold_state(value)
    if name[:2] == "__":
        return False
    facts = TYPES.get(id(kind)) or TYPES.of(kind)
    if facts.role == "class":  # class Config: class env: ...
        return is_made_by_the_user(value)
    return facts.is_number or facts.role in _CLASS_STATE or issubclass(kind, (Tensor, np.ndarray))


def closure_of(function: FunctionType) -> dict[str, Any]:
    """The variables of a function's closure. They live as long as the function."""
    cells = function.__closure__
    if not cells:
        return {}
    pairs = zip(function.__code__.co_freevars, cells, strict=True)
    return {name: cell.cell_contents for name, cell in pairs if not _is_empty(cell)}


def _can_default(function: FunctionType) -> bool:
    """Whether the default value of a parameter can hold something."""
    given, keywords = function.__defaults__, function.__kwdefaults__
    return bool(given and not _all_plain(given)) or bool(keywords and not _all_plain(keywords.values()))


def _all_plain(values: Collection[Any]) -> bool:
    kinds = list(map(type, values))
    return PLAIN.issuperset(map(id, kinds)) or _HOLDS_NOTHING.issuperset(map(role, kinds))


def _defaults(function: FunctionType) -> dict[str, Any]:
    """The default values of a function's parameters. They live as long as the function."""
    given, code = function.__defaults__ or (), function.__code__
    names = code.co_varnames[code.co_argcount - len(given) : code.co_argcount]
    return {**dict(zip(names, given, strict=True)), **(function.__kwdefaults__ or {})}


def _is_empty(cell: CellType) -> bool:
    try:
        return cell.cell_contents is cell
    except ValueError:  # raised for a variable without a value
        return True


def variables_of(frame: FrameType) -> dict[str, Any]:
    """The variables of a running function.

    Before Python 3.13 a frame keeps the dict that ``f_locals`` returns. The dict is emptied here, so that it keeps no value
    alive, unless the program itself holds it, from ``locals()``: the reference count shows that.
    """
    if not frame.f_code.co_flags & CO_OPTIMIZED:
        return {}  # the frame of a module or of a class body
    names: Any = frame.f_locals
    found = dict(names)
    if type(names) is dict and sys.getrefcount(names) <= 3:
        names.clear()
    return found


def keeps_nothing(module: torch.nn.Module) -> bool:
    """Whether a module is one of torch's own layers, without buffers and hooks."""
    if not is_layer_of_torch(module):
        return False
    own = _layout(type(module)).attributes(module)
    return not (own.get("_buffers") or own.get("_forward_pre_hooks") or own.get("_forward_hooks"))


def _of_module(module: torch.nn.Module) -> dict[Any, Any]:
    """The attributes and buffers of a module, and its hooks."""
    own = _layout(type(module)).attributes(module)
    private = not is_layer_of_torch(module)
    held: dict[Any, Any] = {n: v for n, v in list(own.items()) if n not in _EVERY_MODULE and (private or n[:1] != "_")}
    if "_concrete_type" in own:  # a scripted module
        parts = module.named_modules()
        held.update((f"{path}.{name}".strip("."), v) for path, part in parts for name, v in script_numbers(part).items())
    if "_buffers" not in own and issubclass(type(module), torch.jit.ScriptModule):
        own = {part: getattr(module, part, None) for part in _MODULE_PARTS}
    buffers, before, after = map(own.get, _MODULE_PARTS)  # None before Module.__init__() was called
    if buffers:
        held.update(buffers.items())
    if before or after:
        held.update(enumerate((*(before or {}).values(), *(after or {}).values())))
    return held


_READERS: dict[Role, Callable[[Any], dict[Any, Any]]] = {
    "plain": _of_variables, "tensor": _of_object, "array": _of_array, "container": _of_container, "opaque": state_of,
    "function": _of_function, "generator": _of_generator, "holder": _of_holder, "module": _of_module, "class": _of_class,
    "object": _of_object, "namespace": _of_namespace,
}  # fmt: skip
"""Reads what a value holds, by its role."""
