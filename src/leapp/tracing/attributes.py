"""Compares what the user's objects and variables hold before and after a pass, to find state that was not declared.

The modes of torch see calls on tensors. They do not see that ``self.h`` names another tensor now, that ``self.count`` has
grown, or that NumPy wrote into an array that is older than the node. So everything that can be reached from the variables of
the code that opens a node is looked at before and after the pass, and so are the modules that the node calls.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from threading import get_ident
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
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
    Globals,
    Names,
    Variables,
    can_hold_state,
    closure_of,
    forget_classes,
    held_again,
    held_by,
    keeps_nothing,
    sorted_out,
    spelled,
    variables_of,
)
from leapp.tracing.opaque_state import WHOLE
from leapp.tracing.value_roles import (
    PLAIN,
    SUSPENDED,
    TYPES,
    SuspendedAt,
    is_library_code,
    is_number,
    is_same_number,
    module_of,
    role,
)

Tensor = torch.Tensor
_MOST = 4096
"""The most values that are read from one object, from the variables of one function, or from all modules of Python together."""
_DEEPEST = 32
"""How many levels of replaced objects are compared by recursion."""
_LARGEST = 1 << 16
"""Arrays with more bytes are not copied to see whether they change."""
_new = tuple.__new__  # skips NamedTuple's argument checks
_LITERALS = PLAIN - {id(torch.nn.Parameter)}
"""The types of numbers and texts that most values have, and that of ``None``, by identity."""


VARIABLE_OWNERS = (Variables, FunctionType, ModuleType, *SUSPENDED)
"""Types of owners that hold variables; owners of all other types hold attributes."""
_WORKING = frozenset({"function", "holder", "module", "class", "object", "opaque", "generator"})
"""The roles of values that can be called or have methods: to replace one may change what the code does."""


Opening = dict[Any, dict[Any, Any]]
"""What objects and variables held when a node was opened: numbers, hashes of arrays, identities of other values, by key."""


class Shown(str):
    """Text that reports show without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


DIFFERENT = Shown("different")


class _Contents(int):
    """The hash of the contents of an array."""

    __slots__ = ()


class Changed(NamedTuple):
    """A place that a pass changed: a number has another value, an array was written to, an empty place was filled."""

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
        """The place as the code of the owner writes it."""
        return self.name if issubclass(type(self.owner), VARIABLE_OWNERS) else f"self.{self.name}"


def once_for_each_line(changes: Sequence[Changed]) -> list[Changed]:
    """One change for each container and each array on a line.

    A line may change several elements of one container, and several names may lead to one array.
    """
    told: dict[Any, Changed] = {}
    for c in changes:
        which = id(c.after) if isinstance(c.after, np.ndarray) else str(c).partition("[")[0]
        told.setdefault((which, str(c.where)), c)
    return list(told.values())


class _Seen(NamedTuple):
    """An object or a container, and what it held when a node was opened."""

    owner: Any
    """The object itself, or the object that holds the container."""
    inside: tuple[_Seen, Any] | None
    """For a container: the container or object that holds it, and the key there. ``None`` for an object."""
    above: Any
    """The object that holds the owner."""
    held: dict[Any, Any]
    """All its values by key, as :func:`~leapp.tracing.contents.held_by` read them."""
    arrays: list[tuple[Any, np.ndarray[Any, Any], bytes]]
    """Its arrays: key, array, and a copy of the contents."""
    tensors: list[tuple[Any, Tensor, int]]
    """Its tensors: key, tensor, and torch's count of the writes to it so far."""
    others: dict[Any, tuple[int]]
    """The identities of its values that are neither numbers nor ``None``, by key."""
    where: Where
    """The line of the user's that was running."""
    opaque: bool
    """Whether the user's code cannot name the values, as those of an iterator."""

    def named(self, key: Any) -> str:
        """The name of one of the values, as the owner's code writes it."""
        name = "" if self.inside is None else self.inside[0].named(self.inside[1])
        if key is WHOLE or key is ITEMS or self.opaque:
            return name
        return f"{name}[{spelled(key)}]" if name else key if type(key) is str else spelled(key)


class Attributes:
    """What all variables and objects held when they were first seen, since a node was opened."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[Any, _Seen]] = {}
        """Every object and container that was seen, by identity; modules of Python by that of the dict with their variables.

        The tuple keeps it alive: identities are used again.
        """
        self._openers: list[CodeType] = []
        """The code that opened nodes."""
        self._named: list[FunctionType] = []
        """The functions that the openers name."""
        self._opened_at: dict[CodeType, int] = {}
        """For each running function the instruction that led to the opening of the first node."""
        self._roots: dict[Any, Variables] = {}
        """The variables at which the walk begins: by the code and thread of a function, or the dict of a module."""
        self._modules: set[str] = set()
        """The names of the modules of Python that were met."""
        self._coming: deque[str] = deque()
        """Those that are still to be read, nearest to the code that opens a node first: a program may have thousands."""
        self._left = _MOST
        """How many further values of modules are read."""

    def look(self, root: Any) -> None:
        """Remember what an object and all objects reached from it hold, unless it was seen before."""
        if id(root) in self._seen or (role(type(root)) == "module" and keeps_nothing(root)):
            return
        with DisableTorchFunction():  # the modes would record the attribute reads below as calls on tensors
            self._look(root, where())

    def _look(self, root: Any, at: Where) -> None:
        self._walk(root, at, _MOST)
        while self._coming and self._left > 0:
            module = sys.modules.get(self._coming.popleft())
            if module is not None and can_hold_state(module):
                self._left = self._walk(module, at, self._left)

    def _meet_module_of(self, value: Any) -> None:
        """Put the module whose global variables a function, a class or an object uses on the list."""
        name = module_of(value)
        if name not in self._modules:
            self._modules.add(name)
            self._coming.append(name)

    def _walk(self, root: Any, at: Where, left: int) -> int:
        """Read what can be reached from ``root``, breadth first, at most ``left`` values. Returns how many of them remain."""
        todo: deque[tuple[Any, Any, tuple[_Seen, Any] | None, Any, bool]] = deque([(root, root, None, None, False)])
        while todo and left > 0:
            thing, owner, inside, above, opaque = todo.popleft()
            kind = type(thing)
            known = id(vars(thing) if kind is ModuleType else thing)
            if known in self._seen:
                continue
            if kind is ModuleType:
                names = sorted_out(vars(thing))
                held: dict[Any, Any] = {**names.numbers, **names.holding}
                for function in names.functions:
                    self._meet_module_of(function)
            else:
                held = held_by(thing)
                if thing is owner and kind is not Variables:
                    self._meet_module_of(thing)
                opaque = opaque or role(kind) == "opaque"
            left -= 1 + len(held)
            seen: _Seen = _new(_Seen, (owner, inside, above, held, [], [], {}, at, opaque))
            self._seen[known] = thing, seen
            if _LITERALS.issuperset(map(id, map(type, held.values()))):
                continue
            for key, value in held.items():
                kind = type(value)
                if id(kind) in _LITERALS:
                    continue
                facts = TYPES.get(id(kind)) or TYPES.of(kind)
                what = facts.role
                if not facts.is_number:
                    seen.others[key] = (id(value),)
                if what == "plain":
                    continue
                if what == "tensor":
                    if not value.is_inference():
                        seen.tensors.append((key, value, value._version))
                elif what == "array":
                    if value.dtype.hasobject:
                        todo.append((value, owner, (seen, key), above, opaque))
                    elif value.nbytes <= _LARGEST:
                        seen.arrays.append((key, value, value.tobytes()))
                elif what in ("container", "opaque") or kind is MethodType or kind is weakref.ref:
                    # Like a container, a bound method or a weak reference has no code of its own: the owner's code uses it.
                    todo.append((value, owner, (seen, key), above, opaque))
                elif type(thing) is Variables or type(thing) is ModuleType or can_hold_state(value):
                    todo.append((value, value, None, owner, False))
                    if what == "generator":
                        todo.append((SuspendedAt(value), owner, (seen, key), above, opaque))
                elif what == "function":
                    self._meet_module_of(value)
        return left

    def look_around(self) -> None:
        """Look at everything that the code which opens a node can reach from its variables, ``self`` included."""
        frames = list(users_frames())
        self._modules.update(frame.f_globals.get("__name__", "") for frame in frames)
        with DisableTorchFunction():  # as in look()
            at = where()
            shared = {id(frame.f_globals): frame.f_globals for frame in frames if id(frame.f_globals) not in self._seen}
            sorted_names = {i: self._note_globals(names, at) for i, names in shared.items()}
            for number, frame in enumerate(frames):
                local = variables_of(frame)
                self._opened_at.setdefault(frame.f_code, frame.f_lasti)
                if not number:
                    self._openers.append(frame.f_code)
                    self._named += _named_functions(frame, local)
                self._look_at_variables(frame.f_code, local, at)
                names = sorted_names.pop(id(frame.f_globals), None)
                if names is not None:
                    self._begin((id(frame.f_globals), Variables), Variables(names.holding), names, at)

    def _note_globals(self, names: dict[str, Any], at: Where) -> Names:
        """Remember the numbers among the global variables of a running function. Returns all of these variables."""
        found, whole = sorted_out(names), Globals(names)
        seen: _Seen = _new(_Seen, (whole, None, None, found.numbers, [], [], {}, at, False))
        self._seen[id(whole)] = self._seen[id(names)] = whole, seen
        self._roots[id(names), Globals] = whole
        return found

    def look_at_variables(self, code: CodeType, names: dict[str, Any]) -> None:
        """Look at the variables of a function that runs, or is about to run, in a node."""
        with DisableTorchFunction():  # as in look()
            self._look_at_variables(code, names, where())

    def _look_at_variables(self, code: CodeType, variables: dict[str, Any], at: Where) -> None:
        names = sorted_out(variables)
        self._begin((code, get_ident()), Variables({**names.numbers, **names.holding}, code), names, at)

    def _begin(self, key: Any, root: Variables, names: Names, at: Where) -> None:
        """Begin a walk at some variables."""
        for function in names.functions:
            self._meet_module_of(function)
        self._roots[key] = root
        self._look(root, at)

    def opening(self) -> Opening:
        """The numbers that were seen, with the hashes or identities of everything else, so that no object is kept alive."""
        roots = {id(root): key for key, root in self._roots.items()}
        found: Opening = {}
        for i, (_, seen) in self._seen.items():
            if seen.held and not seen.opaque:
                then = found[roots.get(i, i)] = {**seen.held, **seen.others} if seen.others else seen.held
                for key, _, content in seen.arrays:
                    then[key] = _Contents(hash(content))
        return found

    def moved(self, before: Opening) -> Iterator[Changed]:
        """The numbers and arrays that were seen and differ from what an earlier pass of the same node began with."""
        todo = [(id(root), key) for key, root in self._roots.items()]
        todo += [(i, i) for i, (thing, _) in self._seen.items() if type(thing) is ModuleType]
        met: set[int] = set()
        while todo:
            i, former = todo.pop()
            if i in met or i not in self._seen or former not in before:
                continue
            met.add(i)
            seen, then = self._seen[i][1], before[former]
            for key, array, content in seen.arrays:
                if type(then.get(key)) is _Contents and then[key] != hash(content):
                    yield Changed(seen.owner, seen.named(key), DIFFERENT, array, seen.where, seen.above)
            for key, after in seen.held.items():
                old = then.get(key)
                if after is old:
                    continue
                if is_number(after):
                    of_tensors = key is WHOLE and any(type(v) is Tensor for v in seen.held.values())
                    if is_number(old) and not is_same_number(old, after) and not of_tensors:
                        yield Changed(seen.owner, seen.named(key), old, after, seen.where, seen.above)
                elif type(old) is tuple:
                    todo.append((id(after), old[0]))

    def changes(
        self, tracked: set[tuple[int, str]], traced: Callable[[Tensor], bool]
    ) -> tuple[list[Tensor], list[Changed]]:
        """The tensors that were replaced, and the places that changed.

        A place also counts as changed if it was ``None`` and holds a tensor of the node now: the next call may read it.

        Args:
            tracked: The places that are declared already, by identity of the owner and by name. They are left out.
            traced: Tells whether a tensor holds a value of the node.
        """
        found = _Comparison(self._seen, tracked, traced)
        for thing, seen in list(self._seen.values()):
            if type(thing) is not tuple or seen.arrays or seen.tensors:  # the items of a tuple stay the same objects
                found.compare(thing, seen)
        while found.deep:
            found.compare(*found.deep.pop())
        return found.tensors, found.changed

    def holding(self, changed: Changed) -> Changed | None:
        """The place that holds the owner of a changed place."""
        for _, seen in list(self._seen.values()):
            if seen.owner is not changed.owner:
                for key, value in seen.held.items():
                    if value is changed.owner:
                        return Changed(seen.owner, seen.named(key), DIFFERENT, DIFFERENT, seen.where, seen.above)
        return None

    def arrays(self) -> Iterator[Changed]:
        """All arrays that were seen, each as a :class:`Changed`, whether it changed or not."""
        for _, seen in list(self._seen.values()):
            for key, array, _ in seen.arrays:
                yield Changed(seen.owner, seen.named(key), array, array, seen.where, seen.above)

    def tensors_over(self, array: np.ndarray[Any, Any]) -> Iterator[Changed]:
        """All tensors that were seen and share memory with an array, each as a :class:`Changed`, whether it changed or not."""
        low, high = bounds(array)
        for _, seen in list(self._seen.values()):
            for key in seen.others:
                t = seen.held[key]
                storage = storage_of(t) if issubclass(type(t), Tensor) else None
                if storage is not None and storage.data_ptr() < high and low < storage.data_ptr() + storage.nbytes():
                    yield Changed(seen.owner, seen.named(key), t, t, seen.where, seen.above)

    def codes(self, tape: Tape) -> list[CodeType]:
        """The user's code that ran in a node, as far as it is known.

        That is the code that made recorded calls, the code that opened the node, the function in which the node is both opened
        and closed, and the functions that these name, directly or through other functions. The latter are needed because a
        function that only counts makes no recorded call. Call it where the node is closed.
        """
        running = {id(code): code for code in (*(call.where.code for call in tape.calls), *self._openers)}
        todo = deque(self._named)
        around = [frame for frame in users_frames() if frame.f_code in self._opened_at]  # none, if another thread opened it
        for frame in (*around[:1], *(frame for frame in around[1:] if id(frame.f_code) in running)):
            running[id(frame.f_code)] = frame.f_code
            todo += _named_functions(frame, variables_of(frame))
        known, held = self._modules_by_file(), self._functions_by_name()
        found: dict[int, CodeType] = {}

        def add(code: CodeType, names: dict[str, Any]) -> None:
            if id(code) not in found and not is_library_code(code):
                found[id(code)] = code
                todo.extend(_functions(code, names))
                todo.extend(function for name in code.co_names for function in held.get(name, ()))

        for code in running.values():
            modules = known.get(code.co_filename) or known.get(None, [])  # the module of a notebook has no file
            add(code, {name: value for names in modules for name, value in _named_in(code, names).items()})
        while todo:
            function = todo.popleft()
            add(function.__code__, {**_named_in(function.__code__, function.__globals__), **closure_of(function)})
        return list(found.values())

    def _modules_by_file(self) -> dict[str | None, list[dict[str, Any]]]:
        """The variables of the modules that were seen, by file."""
        found: dict[str | None, list[dict[str, Any]]] = {}
        for thing, _ in self._seen.values():
            if type(thing) is Globals or type(thing) is ModuleType:
                names = thing.names if type(thing) is Globals else vars(thing)
                found.setdefault(names.get("__file__"), []).append(names)
        return found

    def _functions_by_name(self) -> dict[str, list[FunctionType]]:
        """The functions that objects and containers hold, by the name of the attribute or variable that leads to them."""
        found: dict[str, list[FunctionType]] = {}
        for _, seen in self._seen.values():
            for key in seen.others:
                value = seen.held[key]
                if type(value) is FunctionType:
                    found.setdefault(seen.named(key).partition("[")[0], []).append(value)
        return found

    def inside(self) -> Callable[[Where], bool]:
        """A test whether a place in the code lies between the call that opened the nodes and the call that is running now."""
        opened, closing = dict(self._opened_at), {frame.f_code: frame.f_lasti for frame in users_frames()}
        return lambda at: opened.get(at.code, -1) <= at.instruction <= closing.get(at.code, sys.maxsize)

    def forget(self) -> None:
        """Drop everything that was seen. Call it when no node is open."""
        self._seen, self._openers, self._named, self._opened_at, self._roots = {}, [], [], {}, {}
        self._modules, self._coming, self._left = set(), deque(), _MOST
        forget_classes()


class _Comparison:
    """Compares what objects held when they were seen with what they hold now, and collects the differences."""

    def __init__(
        self, seen: dict[int, tuple[Any, _Seen]], tracked: set[tuple[int, str]], traced: Callable[[Tensor], bool]
    ) -> None:
        self._seen, self._tracked, self._traced = seen, tracked, traced
        self._compared: set[int] = set()
        self._depth = 0
        self.deep: list[tuple[Any, _Seen]] = []
        """Objects below ``_DEEPEST`` levels, to be compared later: a chain of objects may be longer than Python's stack."""
        self.tensors: list[Tensor] = []
        self.changed: list[Changed] = []

    def compare(self, thing: Any, seen: _Seen) -> None:
        """Compare what an object holds now with ``seen``: what the object itself, or the one it replaced, held before."""
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
                # A variable ends with its function, so a dict of results that it fills is not state.
                kept = type(seen.owner) is not Variables and not self._is_tracked(seen, key)
                if kept and self._traced(after):
                    self._note(seen, key, None, "a tensor")
            elif is_number(before) and is_number(after):
                if is_same_number(before, after):
                    continue
                # A changed length is reported only if no item changed and no item is a tensor: those are reported themselves.
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
        if seen.opaque:
            before = after = DIFFERENT
        self.changed.append(Changed(seen.owner, seen.named(key), before, after, seen.where, seen.above))


def _works_as(value: Any) -> Any:
    """What two values must have in common to do the same: the code of a function, the module and name of a class.

    Classes are not compared by identity, since a call may define its class anew.
    """
    return value.__code__ if type(value) is FunctionType else (module_of(value), _working_name(value))


def _working_name(value: Any) -> Shown:
    if type(value) is FunctionType:
        return Shown(value.__qualname__)
    return Shown(type.__dict__["__qualname__"].__get__(value if issubclass(type(value), type) else type(value)))


def _moved(before: dict[Any, Any], after: dict[Any, Any]) -> bool:
    """Whether two dicts of the same length differ in their keys or in the order of the keys."""
    return len(before) == len(after) and any(
        a is not b and not (is_number(a) and is_number(b) and is_same_number(a, b))
        for a, b in zip(before, after, strict=True)
    )


def _named_in(code: CodeType, names: dict[str, Any]) -> dict[str, Any]:
    """The variables among ``names`` that code names."""
    return {name: names[name] for name in code.co_names if name in names}


def _named_functions(frame: FrameType, local: dict[str, Any]) -> list[FunctionType]:
    """The functions that a running function names. ``local`` are its variables."""
    return _functions(frame.f_code, {**_named_in(frame.f_code, frame.f_globals), **local})


def _functions(code: CodeType, names: dict[str, Any]) -> list[FunctionType]:
    """The functions among variables, and those that code names in the user's modules among the variables."""
    modules = (vars(value) for value in names.values() if type(value) is ModuleType and can_hold_state(value))
    named = [v for names in (names, *(_named_in(code, module) for module in modules)) for v in names.values()]
    return [value for value in named if type(value) is FunctionType]
