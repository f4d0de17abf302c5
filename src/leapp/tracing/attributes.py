"""What the user's objects and variables hold before and after a pass: a counter, a history, an array that was written to.

What an object keeps from one call to the next is state. Torch sees how tensors change, not that ``self.h`` names another one,
that ``self.count`` is a larger number now, or that NumPy wrote into an array that is older than the node. So everything that
the code which opens a node can reach from its variables is looked at before and after, and so are the modules that it calls.
"""

from __future__ import annotations

import dis
import functools
import gc
import itertools
import operator
import re
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from inspect import CO_OPTIMIZED
from types import CellType, CodeType, FrameType, FunctionType, GeneratorType, MethodType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

from leapp.capture.aliasing import storage_of
from leapp.capture.numpy.plain import bounds
from leapp.capture.tape import Tape
from leapp.capture.user_line import Where, is_installed, users_frames, where

Tensor = torch.Tensor
_NUMBERS = (int, float, str, np.generic)
_LEAVES = frozenset({int, float, bool, str, bytes, type(None), Tensor, torch.nn.Parameter})
"""The most frequent types that hold nothing else."""
_CONTAINERS = (list, tuple, deque, dict, set)
_CONTAINED = 64
"""The most items of a container that are looked at."""
_MOST = 4096
"""The most values that are looked at from one object, or from the variables of one function."""
_LARGEST = 1 << 16
"""Arrays with more bytes are not copied to see whether they change."""
_OWN = frozenset({"training", "dump_patches", "call_super_init"})
_HEAP = 1 << 9
"""The flag of classes that Python code makes. Most values in variables are of types in C."""
_WHOLE = object()
"""The key of what is known of a container or an iterator as a whole: its length, or its position."""
_ITEMS = object()
"""The key of the items of a set, which have no names."""
_ADDS = frozenset({"append", "appendleft", "extend", "extendleft", "insert", "update", "add", "clear", "discard"})
"""Methods that change a container without reading it, such as appending to a log."""


class Shown(str):
    """Text that is shown without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


_DIFFERENT = Shown("different")


class Length(int):
    """How many items a container has. A log grows too, so it says little unless some code reads it."""

    __slots__ = ()


@functools.lru_cache(maxsize=1024)
def _length(items: int) -> Length:
    """One object for each length: what is the same object did not change."""
    return Length(items)


class Changed(NamedTuple):
    """A number that a pass changed, an array that it wrote to, or a place that it filled."""

    owner: Any
    name: str
    before: Any
    after: Any
    where: Where
    above: Any
    """What holds the owner."""

    def __str__(self) -> str:
        if isinstance(self.owner, _Variables):
            return self.name
        if isinstance(self.owner, (FunctionType, GeneratorType)):
            return f"{self.name} of {self.owner.__name__}()"
        kind = self.owner if isinstance(self.owner, type) else type(self.owner)
        return f"{kind.__name__}.{self.name}"

    @property
    def spelled(self) -> str:
        """As the code of the owner would name it."""
        return self.name if isinstance(self.owner, (_Variables, FunctionType, GeneratorType)) else f"self.{self.name}"


class _Variables:
    """Variables of a running function or of a module, with what they held when a node was opened."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names


class _Suspended:
    """Where a generator waits, apart from its variables."""

    def __init__(self, generator: GeneratorType[Any, Any, Any]) -> None:
        self.generator = generator


class _Globals(_Variables):
    """The numbers among the global variables of a module, as they are now."""


class _Seen(NamedTuple):
    """An object or a container, and what it held."""

    owner: Any
    """The object itself, or the one that holds the container."""
    name: str
    """How the owner names the container; empty for an object."""
    above: Any
    """What holds the owner."""
    held: dict[Any, Any]
    arrays: list[tuple[Any, np.ndarray[Any, Any], bytes]]
    """The arrays in it, by their keys, with copies of their contents."""
    tensors: list[tuple[Any, Tensor, int]]
    """The tensors among it, by their keys, with the number of writes to them so far."""
    where: Where
    closed: bool
    """Whether the user's code cannot name what is held here, as in an iterator."""

    def named(self, key: Any) -> str:
        """How the owner names something that is held here."""
        if key is _WHOLE or key is _ITEMS or self.closed:
            return self.name
        return f"{self.name}[{key!r}]" if self.name else str(key)


class Attributes:
    """The first contents of all variables and objects seen since a node was opened."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[Any, _Seen]] = {}
        self._openers: list[CodeType] = []
        self._opened_at: dict[CodeType, int] = {}
        """The instructions at which the running functions opened the first of the nodes."""
        self._named: list[FunctionType] = []

    def look(self, root: Any) -> None:
        """Remember what an object and the objects that it holds are made of, unless it was seen before."""
        if id(root) in self._seen or (issubclass(type(root), torch.nn.Module) and _keeps_nothing(root)):
            return
        at = where()
        todo: deque[tuple[Any, Any, str, Any, bool]] = deque([(root, root, "", None, False)])
        left = _MOST
        while todo and left > 0:
            thing, owner, name, above, closed = todo.popleft()
            if id(thing) in self._seen:
                continue
            held = _held(thing)
            left -= 1 + len(held)
            closed = closed or _is_closed(type(thing))
            seen = _Seen(owner, name, above, held, [], [], at, closed)
            self._seen[id(thing)] = thing, seen
            for key, value in held.items():
                kind = type(value)
                if kind is Tensor and not value.is_inference():
                    seen.tensors.append((key, value, value._version))
                if kind in _LEAVES:
                    continue
                if kind is np.ndarray:
                    if value.nbytes <= _LARGEST and not value.dtype.hasobject:
                        seen.arrays.append((key, value, value.tobytes()))
                elif issubclass(kind, _CONTAINERS) or _is_closed(kind):
                    todo.append((value, owner, seen.named(key), above, closed))
                elif _is_looked_into(value):
                    todo.append((value, value, "", owner, False))
                    if kind is GeneratorType:
                        todo.append((_Suspended(value), owner, seen.named(key), above, closed))

    def look_around(self) -> None:
        """Look at what the code that opens a node can name: its ``self``, and what its variables hold."""
        for number, frame in enumerate(users_frames()):
            names = _variables(frame)
            self._opened_at.setdefault(frame.f_code, frame.f_lasti)
            if not number:
                self._openers.append(frame.f_code)
                self._named += _functions({**_named_in(frame.f_code, frame.f_globals), **names})
            self.look(_Variables(_lasting(names)))
            if id(frame.f_globals) not in self._seen:
                self.look(_Globals(frame.f_globals))
                self.look(_Variables(_lasting(frame.f_globals)))
                self._seen[id(frame.f_globals)] = self._seen[next(reversed(self._seen))]

    def changes(
        self, tracked: set[tuple[int, str]], traced: Callable[[Tensor], bool]
    ) -> tuple[list[Tensor], list[Changed]]:
        """The tensors that were replaced, and the numbers and arrays whose values changed.

        With the numbers come the places that held nothing and hold a value of the node now: its next call may begin with it.

        Args:
            tracked: Owners and names of tensors that need no watching.
            traced: Whether a tensor holds a value of the node.
        """
        found = _Comparison(self._seen, tracked, traced)
        for thing, seen in list(self._seen.values()):
            found.compare(thing, seen)
        return found.tensors, found.changed

    def arrays(self) -> Iterator[Changed]:
        """All arrays that were seen, as if they had been changed."""
        for _, seen in list(self._seen.values()):
            for key, array, _ in seen.arrays:
                yield Changed(seen.owner, seen.named(key), array, array, seen.where, seen.above)

    def tensors_over(self, array: np.ndarray[Any, Any]) -> Iterator[Changed]:
        """The tensors that were seen and lie over the memory of an array, as if they had been changed."""
        low, high = bounds(array)
        for _, seen in list(self._seen.values()):
            for key, t in seen.held.items():
                storage = storage_of(t) if issubclass(type(t), Tensor) else None
                if storage is not None and storage.data_ptr() < high and low < storage.data_ptr() + storage.nbytes():
                    yield Changed(seen.owner, seen.named(key), t, t, seen.where, seen.above)

    def codes(self, tape: Tape) -> list[CodeType]:
        """The user's code that ran in a node as far as it is known: what made calls, and what the code that opened it names.

        A function that only counts makes no call.
        """
        calling = {id(call.where.code): call.where.code for call in tape.calls}
        found = {key: code for key, code in calling.items() if not _is_installed(code)}
        found.update((id(code), code) for code in self._openers)
        todo = deque(self._named)
        met: set[int] = set()
        while todo:
            function = todo.popleft()
            if id(function) not in met and not _is_installed(function.__code__):
                met.add(id(function))
                found[id(function.__code__)] = function.__code__
                todo += _functions({**_named_in(function.__code__, function.__globals__), **_shared(function)})
        return list(found.values())

    def inside(self) -> Callable[[Where], bool]:
        """Whether a place in the code lies after what opened the nodes, and before what is running now and closes one."""
        opened, closing = dict(self._opened_at), {frame.f_code: frame.f_lasti for frame in users_frames()}
        return lambda at: opened.get(at.code, -1) <= at.instruction <= closing.get(at.code, sys.maxsize)

    def forget(self) -> None:
        """No node is open any more."""
        self._seen, self._openers, self._named, self._opened_at = {}, [], [], {}


class _Comparison:
    """What differs between what was seen and what is there now."""

    def __init__(
        self, seen: dict[int, tuple[Any, _Seen]], tracked: set[tuple[int, str]], traced: Callable[[Tensor], bool]
    ) -> None:
        self._seen, self._tracked, self._traced = seen, tracked, traced
        self._compared: set[int] = set()
        self.tensors: list[Tensor] = []
        self.changed: list[Changed] = []

    def compare(self, thing: Any, seen: _Seen) -> None:
        """Compare an object with what was seen of it, or of the one that it replaced."""
        if id(seen) in self._compared:
            return
        self._compared.add(id(seen))
        now = seen.held if _holds_still(thing, seen.held) else _held(thing)
        for key, array, content in seen.arrays:
            if now.get(key) is array and array.tobytes() != content:
                self._note(seen, key, array, array)
        for key, t, writes in seen.tensors:
            if now.get(key) is t and t._version != writes and not self._traced(t) and not self._is_tracked(seen, key):
                self._note(seen, key, t, t)
        if now is seen.held or (len(now) == len(seen.held) and all(map(operator.is_, now.values(), seen.held.values()))):
            return
        noted = len(self.changed)
        for key, after in now.items():
            before = seen.held.get(key)
            if after is before:
                continue
            if before is None and issubclass(type(after), Tensor):
                # A dict that a running function fills with its results is not memory.
                kept = type(seen.owner) is not _Variables and not self._is_tracked(seen, key)
                if kept and self._traced(after):
                    self._note(seen, key, None, "a tensor")
            elif _is_number(before) and _is_number(after):
                if before == after or (before != before and after != after):
                    continue
                # The length says nothing beyond the items that changed, or that are known as tensors.
                if key is not _WHOLE or (len(self.changed) == noted and not any(type(v) is Tensor for v in now.values())):
                    self._note(seen, key, before, after)
            elif id(before) in self._seen and type(after) is type(before):
                self.compare(after, self._seen[id(before)][1])
        for key, before in seen.held.items():
            if issubclass(type(before), Tensor) and now.get(key) is not before and not self._is_tracked(seen, key):
                self.tensors.append(before)

    def _is_tracked(self, seen: _Seen, key: Any) -> bool:
        return (id(seen.owner), seen.named(key)) in self._tracked

    def _note(self, seen: _Seen, key: Any, before: Any, after: Any) -> None:
        if seen.closed:
            before = after = _DIFFERENT
        self.changed.append(Changed(seen.owner, seen.named(key), before, after, seen.where, seen.above))


def is_memory(changed: Changed, codes: Iterable[CodeType]) -> bool:
    """Whether a change is one that the code of the node made. A global variable may be the program's own loop counter."""
    if not isinstance(changed.owner, _Globals):
        return True
    named = [code for code in codes if changed.name in code.co_names]
    steps = (step for code in named for step in _instructions(code))
    return any(step.opname == "STORE_GLOBAL" and step.argval == changed.name for step in steps)


def _anywhere(at: Where) -> bool:
    return True


def line_that_reads(
    changed: Changed, codes: Iterable[CodeType], inside: Callable[[Where], bool] = _anywhere
) -> Where | None:
    """Where the code of the node, or of the owner, reads a place for more than to write to it on the same line."""
    return next((at for code in _concerned(changed, codes) for at in _uses(code, changed).reads() if inside(at)), None)


def line_that_writes(changed: Changed, codes: Iterable[CodeType]) -> Where | None:
    """Where it sets the place, or an element of what is there."""
    uses = (_uses(code, changed) for code in _concerned(changed, codes))
    return next((at for u in uses for at in (*u.stores, *u.into)), None)


def line_that_writes_into(changed: Changed, codes: Iterable[CodeType], inside: Callable[[Where], bool]) -> Where | None:
    """Where the code of the node itself sets an element of what is there."""
    return next((at for code in codes for at in _uses(code, changed).into if inside(at)), None)


def is_read_inside(changed: Changed, codes: Iterable[CodeType], inside: Callable[[Where], bool]) -> bool:
    """Whether the code of the node itself reads a place."""
    return any(inside(at) for code in codes for at in _uses(code, changed).reads())


def _concerned(changed: Changed, codes: Iterable[CodeType]) -> Iterator[CodeType]:
    """The code of the owner and of what holds it, then that of the node."""
    for owner in (changed.owner, changed.above):
        if isinstance(owner, FunctionType):
            yield owner.__code__
        elif isinstance(owner, GeneratorType):
            yield owner.gi_code
        elif isinstance(owner, functools.partial) and isinstance(owner.func, FunctionType):
            yield owner.func.__code__
        elif owner is not None and not isinstance(owner, _Variables):
            kind = owner if isinstance(owner, type) else type(owner)
            yield from (f.__code__ for base in kind.__mro__ for member in vars(base).values() for f in _methods(member))
    yield from codes


def _methods(member: Any) -> Iterator[FunctionType]:
    """The function of the user's program behind a member of a class, if there is one."""
    function = getattr(member, "fget", None) or getattr(member, "__func__", member)
    if isinstance(function, FunctionType) and function.__name__ != "__init__":
        made = function.__code__.co_filename == "<string>"  # by dataclass
        if not made and not _is_installed(function.__code__):
            yield function


class _Uses(NamedTuple):
    """Where code uses a variable or an attribute."""

    loads: list[Where]
    stores: list[Where]
    """Where it sets the place, or only adds to what is there."""
    into: list[Where]
    """Where it sets an element of what is there."""

    def reads(self) -> Iterator[Where]:
        """Where it reads for more than to write on the same line."""
        written = Counter(at.line for at in (*self.stores, *self.into))
        read = Counter(at.line for at in self.loads)
        return (at for at in self.loads if read[at.line] > written[at.line])


def _uses(code: CodeType, changed: Changed) -> _Uses:
    """Where code uses what was changed."""
    uses = _Uses([], [], [])
    name, bracket, _ = changed.name.partition("[")
    if not any(name in names for names in (code.co_names, code.co_varnames, code.co_cellvars, code.co_freevars)):
        return uses
    has_elements = bracket or changed.after is _DIFFERENT or isinstance(changed.after, (np.ndarray, Length))
    # What an object holds is an attribute. A variable of the same name is something else.
    is_attribute = not isinstance(changed.owner, (_Variables, FunctionType, GeneratorType, functools.partial))
    steps = _instructions(code)
    for i, (step, following) in enumerate(zip(steps, [*steps[1:], steps[-1]], strict=True)):
        if step.opname in _KEYS and has_elements and name in _set_in(steps, i, is_attribute):
            uses.into.append(Where(code, step.offset))
        words = _words(step)
        if name not in words or (is_attribute and not step.opname.endswith(("_ATTR", "_METHOD"))):
            continue
        for word, verb in zip(words, re.findall("LOAD|STORE", step.opname), strict=False):
            if word == name:
                stores = verb == "STORE" or _only_writes(following)
                (uses.stores if stores else uses.loads).append(Where(code, step.offset))
    return uses


def _only_writes(step: dis.Instruction) -> bool:
    """Whether an instruction asks for a method that changes its object and is not called for a result: ``append``, ``add_``."""
    name = step.argval if step.opname in ("LOAD_ATTR", "LOAD_METHOD") else ""
    return name in _ADDS or (name.endswith("_") and not name.endswith("__"))


@functools.lru_cache(maxsize=256)
def _instructions(code: CodeType) -> list[dis.Instruction]:
    return list(dis.get_instructions(code))


_KEYS = {"STORE_SUBSCR": 1, "STORE_SLICE": 2}
"""The instructions that set an element, and how many values say which one."""
_CHOOSES = {"BINARY_SUBSCR": 1, "BINARY_SLICE": 2}
_REPEATS = ("COPY", "DUP_TOP_TWO")


def _words(step: dis.Instruction) -> tuple[Any, ...]:
    """What an instruction names. One instruction of newer Pythons may load or store two variables."""
    return step.argval if isinstance(step.argval, tuple) else (step.argval,) if step.opname != "LOAD_CONST" else ()


def _set_in(steps: list[dis.Instruction], i: int, attributes_only: bool) -> Iterator[Any]:
    """The names by which code reaches what it sets an element of: ``rows`` and ``x`` for ``x.rows[0][1] = y``."""
    keys = _KEYS[steps[i].opname]
    i -= 1
    if steps[i].opname in ("SWAP", "ROT_THREE", "ROT_FOUR"):  # += loads container and keys before it computes
        while i > 0 and steps[i].opname not in _REPEATS:
            i -= 1
        while i > 0 and steps[i].opname in _REPEATS:
            i -= 1
    while i >= 0:
        depth = 0
        while depth < keys and i >= 0:
            depth += dis.stack_effect(steps[i].opcode, steps[i].arg, jump=False)
            i -= 1
        if depth > keys:  # one instruction loads the container and a key
            yield from () if attributes_only else _words(steps[i + 1])[:1]
            return
        while i >= 0 and steps[i].opname in ("LOAD_ATTR", "LOAD_METHOD"):
            yield steps[i].argval
            i -= 1
        if i < 0:
            return
        chosen = steps[i].opname == "BINARY_OP" and steps[i].argrepr == "[]"  # how Python 3.14 spells it
        keys = 1 if chosen else _CHOOSES.get(steps[i].opname, 0)
        if not keys:
            yield from () if attributes_only else _words(steps[i])[-1:]
            return
        i -= 1


# -- what an object holds ----------------------------------------------------------------------------------------------


def _held(thing: Any) -> dict[Any, Any]:
    """What an object or a container holds itself. The items of a sequence are counted from the end: a history grows there."""
    kind = type(thing)  # not isinstance(), which asks some objects for their class
    if kind is _Variables:
        return thing.names  # type: ignore[no-any-return]
    if kind is _Globals:
        return {n: v for n, v in list(thing.names.items()) if issubclass(type(v), _NUMBERS) and n[:2] != "__"}
    if _is_closed(kind):
        return _of_closed(thing)
    if issubclass(kind, dict):
        return {**dict(itertools.islice(thing.items(), _CONTAINED)), _WHOLE: _length(len(thing))}
    if issubclass(kind, set):
        named = len(thing) <= _CONTAINED and all(map(_is_number, thing))
        return {_WHOLE: _length(len(thing)), _ITEMS: str(sorted(map(repr, thing))) if named else ""}
    if issubclass(kind, (list, tuple, deque)):
        return {**dict(zip(range(-1, -_CONTAINED - 1, -1), reversed(thing), strict=False)), _WHOLE: _length(len(thing))}
    if issubclass(kind, torch.nn.Module):
        own = {n: v for n, v in list(vars(thing).items()) if n[:1] != "_" and n not in _OWN}
        return {**own, **dict(thing._buffers.items()), **dict(enumerate(_hooks(thing)))}
    if kind is FunctionType:
        return {**vars(thing), **_shared(thing), **_defaults(thing)}
    if kind is GeneratorType:
        return {} if thing.gi_frame is None else _variables(thing.gi_frame)
    if kind is MethodType:
        return {"__self__": thing.__self__, "__func__": thing.__func__}
    if kind is functools.partial:
        names = thing.func.__code__.co_varnames if type(thing.func) is FunctionType else itertools.count()
        return {"func": thing.func, **dict(zip(names, thing.args, strict=False)), **thing.keywords}
    if issubclass(kind, type):
        return _of_class(thing)
    slots = (n for base in kind.__mro__[:-1] for n in vars(base).get("__slots__", ()))
    return {**_of_class(kind), **getattr(thing, "__dict__", {}), **{n: getattr(thing, n) for n in slots if hasattr(thing, n)}}


def _holds_still(thing: Any, held: dict[Any, Any]) -> bool:
    """Whether a container holds what it held. Most do, and are not taken apart again."""
    kind = type(thing)
    if kind is not dict and kind is not list and kind is not tuple:
        return False
    items = itertools.islice(thing.values() if kind is dict else reversed(thing), _CONTAINED)
    return len(thing) == held.get(_WHOLE) and all(map(operator.is_, items, held.values()))


def _of_class(kind: type) -> dict[str, Any]:
    """The numbers, tensors and containers that a class of the user's program holds."""
    members = ((n, v) for base in reversed(kind.__mro__) if _is_the_users(base.__module__) for n, v in list(vars(base).items()))
    kinds = (Tensor, np.ndarray, *_NUMBERS, *_CONTAINERS)
    found = dict(members)
    named = {n: v for n, v in found.items() if n[:2] != "__" and issubclass(type(v), kinds)}
    return {**named, **{n: v for n, v in found.items() if type(v) is FunctionType and _is_looked_into(v)}}


def _cannot_be_named(kind: type) -> bool:
    """Whether this is a type of Python or NumPy whose state user code cannot name: an iterator, a random generator, bytes."""
    module = kind.__module__
    if module == "builtins":
        return kind is bytearray or (hasattr(kind, "__next__") and kind is not GeneratorType)
    if kind is _Suspended:
        return True
    if module.partition(".")[0] not in sys.stdlib_module_names and not module.startswith("numpy.random"):
        return False
    named = (SimpleNamespace, functools.partial, type, ModuleType, *_NUMBERS, *_CONTAINERS)
    return not issubclass(kind, named)


_is_closed: Callable[[Any], bool] = functools.lru_cache(maxsize=1024)(_cannot_be_named)


def _is_iterator(kind: type) -> bool:
    return kind.__module__ in ("builtins", "itertools") and hasattr(kind, "__next__") and kind is not GeneratorType


def _of_closed(thing: Any) -> dict[Any, Any]:
    """What tells the state of such an object."""
    kind = type(thing)
    if kind is _Suspended:
        frame = thing.generator.gi_frame
        if frame is None:
            return {_WHOLE: -1}
        # The iterators of its loops. Python 3.10 keeps them in the frame.
        drawn = [v for v in (*gc.get_referents(thing.generator), *gc.get_referents(frame)) if _is_iterator(type(v))]
        return {_WHOLE: frame.f_lasti, **dict(enumerate(drawn))}
    if _is_iterator(kind):
        position = repr(thing) if kind is itertools.count else operator.length_hint(thing, -1)
        return {_WHOLE: position, **dict(enumerate(gc.get_referents(thing)))}
    if kind is ContextVar:
        return {_WHOLE: thing.get(None)}
    try:
        told = thing.__reduce_ex__(2)  # what pickle asks for first
    except Exception:  # whatever it says: it cannot be pickled
        return dict(getattr(thing, "__dict__", {}))
    parts = dict(enumerate(told[1:])) if isinstance(told, tuple) else {}
    values = [v for part in parts.values() if part for v in (part.values() if isinstance(part, dict) else part)]
    return parts if all(map(_is_data, values)) else {}


def _is_data(value: Any) -> bool:
    """Whether a value is not a part of something that works by itself, as the locks and threads of a pool are."""
    kinds = (type, np.ndarray, *_NUMBERS, *_CONTAINERS)
    return value is None or issubclass(type(value), kinds) or type(value).__module__.startswith("numpy.")


def _lasting(names: dict[str, Any]) -> dict[str, Any]:
    """The variables whose values may be changed and not only exchanged."""
    kinds = (np.ndarray, *_CONTAINERS)
    found = {n: v for n, v in names.items() if type(v) not in _LEAVES and n[:2] != "__"}
    return {n: v for n, v in found.items() if issubclass(type(v), kinds) or _is_closed(type(v)) or _is_looked_into(v)}


def _is_looked_into(value: Any) -> bool:
    """Whether a value can hold something of the user's program from one call to the next."""
    kind = type(value)
    if kind is FunctionType:
        keeps = value.__closure__ or value.__dict__ or value.__defaults__ or value.__kwdefaults__
        return bool(keeps) and not _is_installed(value.__code__)
    if kind is GeneratorType:
        return not _is_installed(value.gi_code)
    if kind in (MethodType, functools.partial, SimpleNamespace):
        return True
    if issubclass(kind, torch.nn.Module):
        return not _keeps_nothing(value)
    owner = value if issubclass(kind, type) else kind
    return bool(owner.__flags__ & _HEAP) and _is_the_users(owner.__module__)


@functools.lru_cache(maxsize=1024)
def _is_the_users(module: str) -> bool:
    """Whether a module is a part of the user's program."""
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return module.partition(".")[0] not in ("leapp", "torch", "builtins") and not is_installed(file)


def _is_installed(code: CodeType) -> bool:
    """Whether code is of a library or another installed package, not of the user's program."""
    return is_installed(code.co_filename)


def _named_in(code: CodeType, names: dict[str, Any]) -> dict[str, Any]:
    """The global variables that code names."""
    return {name: names[name] for name in code.co_names if name in names}


def _functions(names: dict[str, Any]) -> list[FunctionType]:
    return [value for value in names.values() if type(value) is FunctionType]


def _shared(function: FunctionType) -> dict[str, Any]:
    """The variables that a function shares with the one around it: they live as long as the function."""
    pairs = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in pairs if not _is_empty(cell)}


def _defaults(function: FunctionType) -> dict[str, Any]:
    """The default values of the arguments of a function: they live as long as the function."""
    if not (function.__defaults__ or function.__kwdefaults__):
        return {}
    code, given = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(given) : code.co_argcount]
    return {**dict(zip(names, given, strict=True)), **(function.__kwdefaults__ or {})}


def _is_empty(cell: CellType) -> bool:
    try:
        return cell.cell_contents is cell
    except ValueError:  # the variable has no value yet
        return True


def _variables(frame: FrameType) -> dict[str, Any]:
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


def _is_number(value: Any) -> bool:
    """Whether a value is a number or text, by its own type: a traced number passes for one."""
    return issubclass(type(value), _NUMBERS)


def _keeps_nothing(module: torch.nn.Module) -> bool:
    """Whether a module is one of torch's own layers, without buffers."""
    return type(module).__module__.startswith("torch.nn.") and not module._buffers and not _hooks(module)


def _hooks(module: torch.nn.Module) -> list[Any]:
    """The functions that are called with a module."""
    return [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
