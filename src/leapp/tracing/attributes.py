"""What the user's objects and variables hold before and after a pass: a counter, a history, an array that was written to.

What an object keeps from one call to the next is state. Torch sees how tensors change, not that ``self.h`` names another one,
that ``self.count`` is a larger number now, or that NumPy wrote into an array that is older than the node. So everything that
the code which opens a node can reach from its variables is looked at before and after, and so are the modules that it calls.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch

from leapp.capture.aliasing import storage_of
from leapp.capture.numpy.plain import bounds
from leapp.capture.tape import Tape
from leapp.capture.user_line import Where, users_frames, where
from leapp.compat.modes import DisableTorchFunction
from leapp.tracing.contents import (
    ITEMS,
    PLAIN,
    SUSPENDED,
    WHOLE,
    Globals,
    Suspended,
    Variables,
    forget_classes,
    held_again,
    held_by,
    is_lasting,
    is_library_code,
    is_number,
    is_same_number,
    keeps_nothing,
    lasting,
    module_of,
    role,
    shared,
    spelled,
    variables_of,
)

Tensor = torch.Tensor
_MOST = 4096
"""The most values that are looked at from one object, from the variables of one function, or in all modules that code uses."""
_DEEPEST = 32
"""How far down replaced objects are compared at once."""
_LARGEST = 1 << 16
"""Arrays with more bytes are not copied to see whether they change."""
_new = tuple.__new__  # skips NamedTuple's argument checks


SHARED = (Variables, FunctionType, ModuleType, *SUSPENDED)
"""Owners of variables; all others have attributes."""
_WORKING = frozenset({"function", "holder", "module", "class", "object", "closed", "generator"})
"""The roles of values that do something else if another one takes their place."""


class Shown(str):
    """Text that is shown without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


DIFFERENT = Shown("different")


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
        if issubclass(type(self.owner), Variables):
            return self.name
        if issubclass(type(self.owner), (FunctionType, *SUSPENDED)):
            return f"{self.name} of {self.owner.__name__}()"
        if issubclass(type(self.owner), ModuleType):
            return f"{self.owner.__name__}.{self.name}"
        kind = self.owner if issubclass(type(self.owner), type) else type(self.owner)
        return f"{kind.__name__}.{self.name}"

    @property
    def spelled(self) -> str:
        """As the code of the owner would name it."""
        return self.name if issubclass(type(self.owner), SHARED) else f"self.{self.name}"


def once_for_each_line(changes: Sequence[Changed]) -> list[Changed]:
    """The changes without those of further elements of a container, or of an array by another name, on the same line."""
    told: dict[Any, Changed] = {}
    for c in changes:
        which = id(c.after) if isinstance(c.after, np.ndarray) else str(c).partition("[")[0]
        told.setdefault((which, str(c.where)), c)
    return list(told.values())


class _Seen(NamedTuple):
    """An object or a container, and what it held."""

    owner: Any
    """The object itself, or the one that holds the container."""
    inside: tuple[_Seen, Any] | None
    """What holds the container, and its key there; nothing for an object."""
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
        name = "" if self.inside is None else self.inside[0].named(self.inside[1])
        if key is WHOLE or key is ITEMS or self.closed:
            return name
        return f"{name}[{spelled(key)}]" if name else key if type(key) is str else spelled(key)


class Attributes:
    """The first contents of all variables and objects seen since a node was opened."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[Any, _Seen]] = {}
        self._openers: list[CodeType] = []
        self._opened_at: dict[CodeType, int] = {}
        """The instructions at which the running functions opened the first of the nodes."""
        self._named: list[FunctionType] = []
        self._modules: set[str] = set()
        """The names of the modules of Python that were seen."""
        self._coming: deque[str] = deque()
        """The modules to look at, the nearest to the code that opens a node first: a program may have thousands."""
        self._left = _MOST
        """How many of their values are looked at."""

    def look(self, root: Any) -> None:
        """Remember what an object and the objects that it holds are made of, unless it was seen before."""
        if id(root) in self._seen or (role(type(root)) == "module" and keeps_nothing(root)):
            return
        with DisableTorchFunction():  # the modes would take the questions that tensors are asked for calls
            at = where()
            self._look(root, at, _MOST)
            while self._coming and self._left > 0:
                module = sys.modules.get(self._coming.popleft())
                if module is not None and is_lasting(module):
                    self._left = self._look(module, at, self._left)

    def _comes_with(self, value: Any) -> None:
        """Remember the module whose global variables a function, a class or an object uses."""
        name = module_of(value)
        if name not in self._modules:
            self._modules.add(name)
            self._coming.append(name)

    def _come_with(self, names: dict[str, Any]) -> None:
        functions = [value for value in list(names.values()) if type(value) is FunctionType]
        for value in {id(f.__globals__): f for f in functions}.values():
            self._comes_with(value)

    def _look(self, root: Any, at: Where, left: int) -> int:
        """Look at no more than so many values. Returns how many are left of them."""
        todo: deque[tuple[Any, Any, tuple[_Seen, Any] | None, Any, bool]] = deque([(root, root, None, None, False)])
        while todo and left > 0:
            thing, owner, inside, above, closed = todo.popleft()
            if id(thing) in self._seen:
                continue
            held = held_by(thing)
            left -= 1 + len(held)
            if not closed and type(thing) is not dict and type(thing) is not list:
                closed = role(type(thing)) == "closed"
            seen: _Seen = _new(_Seen, (owner, inside, above, held, [], [], at, closed))
            self._seen[id(thing)] = thing, seen
            if type(thing) is ModuleType:
                self._come_with(vars(thing))
            elif thing is owner:
                self._comes_with(thing)
            if PLAIN.issuperset(map(id, map(type, held.values()))):
                continue
            for key, value in held.items():
                kind = type(value)
                if id(kind) in PLAIN:
                    continue
                what = role(kind)
                if what == "tensor":
                    if not value.is_inference():
                        seen.tensors.append((key, value, value._version))
                elif what == "array":
                    if value.dtype.hasobject:
                        todo.append((value, owner, (seen, key), above, closed))
                    elif value.nbytes <= _LARGEST:
                        seen.arrays.append((key, value, value.tobytes()))
                elif what in ("container", "closed") or kind is MethodType or kind is weakref.ref:
                    # Code that uses what a method or a reference holds names whatever holds it.
                    todo.append((value, owner, (seen, key), above, closed))
                elif type(thing) is Variables or type(thing) is ModuleType or is_lasting(value):
                    todo.append((value, value, None, owner, False))
                    if what == "generator":
                        todo.append((Suspended(value), owner, (seen, key), above, closed))
                elif what == "function":
                    self._comes_with(value)
        return left

    def look_around(self) -> None:
        """Look at what the code that opens a node can name: its ``self``, and what its variables hold."""
        frames = list(users_frames())
        self._modules.update(frame.f_globals.get("__name__", "") for frame in frames)
        for number, frame in enumerate(frames):
            names = variables_of(frame)
            self._opened_at.setdefault(frame.f_code, frame.f_lasti)
            if not number:
                self._openers.append(frame.f_code)
                self._named += _functions(frame.f_code, {**_named_in(frame.f_code, frame.f_globals), **names})
            self._come_with(names)
            self.look(Variables(lasting(names)))
            if id(frame.f_globals) not in self._seen:
                self._come_with(frame.f_globals)
                self.look(Globals(frame.f_globals))
                self.look(Variables(lasting(frame.f_globals)))
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
        while found.deep:
            found.compare(*found.deep.pop())
        return found.tensors, found.changed

    def holding(self, changed: Changed) -> Changed | None:
        """The place that holds the owner of what was changed."""
        for _, seen in list(self._seen.values()):
            if seen.owner is not changed.owner:
                for key, value in seen.held.items():
                    if value is changed.owner:
                        return Changed(seen.owner, seen.named(key), DIFFERENT, DIFFERENT, seen.where, seen.above)
        return None

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
        found = {key: code for key, code in calling.items() if not is_library_code(code)}
        found.update((id(code), code) for code in self._openers)
        todo = deque(self._named)
        met: set[int] = set()
        while todo:
            function = todo.popleft()
            if id(function) not in met and not is_library_code(function.__code__):
                met.add(id(function))
                found[id(function.__code__)] = function.__code__
                code = function.__code__
                todo += _functions(code, {**_named_in(code, function.__globals__), **shared(function)})
        return list(found.values())

    def inside(self) -> Callable[[Where], bool]:
        """Whether a place in the code lies after what opened the nodes, and before what is running now and closes one."""
        opened, closing = dict(self._opened_at), {frame.f_code: frame.f_lasti for frame in users_frames()}
        return lambda at: opened.get(at.code, -1) <= at.instruction <= closing.get(at.code, sys.maxsize)

    def forget(self) -> None:
        """No node is open any more."""
        self._seen, self._openers, self._named, self._opened_at = {}, [], [], {}
        self._modules, self._coming, self._left = set(), deque(), _MOST
        forget_classes()


class _Comparison:
    """What differs between what was seen and what is there now."""

    def __init__(
        self, seen: dict[int, tuple[Any, _Seen]], tracked: set[tuple[int, str]], traced: Callable[[Tensor], bool]
    ) -> None:
        self._seen, self._tracked, self._traced = seen, tracked, traced
        self._compared: set[int] = set()
        self._depth = 0
        self.deep: list[tuple[Any, _Seen]] = []
        """What lies too deep to be compared at once: a chain of objects may be longer than Python's stack."""
        self.tensors: list[Tensor] = []
        self.changed: list[Changed] = []

    def compare(self, thing: Any, seen: _Seen) -> None:
        """Compare an object with what was seen of it, or of the one that it replaced."""
        if id(seen) in self._compared:
            return
        self._compared.add(id(seen))
        now = held_again(thing, seen.held)
        for key, array, content in seen.arrays:
            if now.get(key) is array and array.tobytes() != content:
                self._note(seen, key, array, array)
        for key, t, writes in seen.tensors:
            if now.get(key) is t and t._version != writes and not self._traced(t) and not self._is_tracked(seen, key):
                self._note(seen, key, t, t)
        if now is seen.held:
            return
        noted = len(self.changed)
        for key, after in now.items():
            before = seen.held.get(key)
            if after is before:
                continue
            if before is None and issubclass(type(after), Tensor):
                # A dict that a running function fills with its results is not memory.
                kept = type(seen.owner) is not Variables and not self._is_tracked(seen, key)
                if kept and self._traced(after):
                    self._note(seen, key, None, "a tensor")
            elif is_number(before) and is_number(after):
                if is_same_number(before, after):
                    continue
                # The length says nothing beyond the items that changed, or that are known as tensors.
                if key is not WHOLE or (len(self.changed) == noted and not any(type(v) is Tensor for v in now.values())):
                    self._note(seen, key, before, after)
            elif role(type(before)) in _WORKING and role(type(after)) in _WORKING and _works_as(before) != _works_as(after):
                self._note(seen, key, _working_name(before), _working_name(after))
            elif id(before) in self._seen and type(after) is type(before):
                self._compare_below(after, self._seen[id(before)][1])
        if len(self.changed) == noted and issubclass(type(thing), dict) and _moved(seen.held, now):
            self._note(seen, WHOLE, DIFFERENT, DIFFERENT)
        for key, before in seen.held.items():
            if issubclass(type(before), Tensor) and now.get(key) is not before and not self._is_tracked(seen, key):
                self.tensors.append(before)

    def _compare_below(self, thing: Any, seen: _Seen) -> None:
        if self._depth == _DEEPEST:
            self.deep.append((thing, seen))
            return
        self._depth += 1
        self.compare(thing, seen)
        self._depth -= 1

    def _is_tracked(self, seen: _Seen, key: Any) -> bool:
        return (id(seen.owner), seen.named(key)) in self._tracked

    def _note(self, seen: _Seen, key: Any, before: Any, after: Any) -> None:
        if seen.closed:
            before = after = DIFFERENT
        self.changed.append(Changed(seen.owner, seen.named(key), before, after, seen.where, seen.above))


def _works_as(value: Any) -> Any:
    """What tells how a function, a class or an object works. A class may be made anew in every call."""
    return value.__code__ if type(value) is FunctionType else (module_of(value), _working_name(value))


def _working_name(value: Any) -> Shown:
    if type(value) is FunctionType:
        return Shown(value.__qualname__)
    return Shown(type.__dict__["__qualname__"].__get__(value if issubclass(type(value), type) else type(value)))


def _moved(before: dict[Any, Any], after: dict[Any, Any]) -> bool:
    """Whether a dict of the same length has other keys, or has them in another order."""
    return len(before) == len(after) and any(
        a is not b and not (is_number(a) and is_number(b) and is_same_number(a, b))
        for a, b in zip(before, after, strict=True)
    )


def _named_in(code: CodeType, names: dict[str, Any]) -> dict[str, Any]:
    """The global variables that code names."""
    return {name: names[name] for name in code.co_names if name in names}


def _functions(code: CodeType, names: dict[str, Any]) -> list[FunctionType]:
    """The functions among variables, and those that code names in modules among them."""
    modules = (vars(value) for value in names.values() if type(value) is ModuleType and is_lasting(value))
    named = [v for names in (names, *(_named_in(code, module) for module in modules)) for v in names.values()]
    return [value for value in named if type(value) is FunctionType]
