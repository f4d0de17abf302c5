"""What the user's objects and variables hold before and after a pass: a counter, a history, an array that was written to.

What an object keeps from one call to the next is state. Torch sees how tensors change, not that ``self.h`` names another one,
that ``self.count`` is a larger number now, or that NumPy wrote into an array that is older than the node. So the objects that
run inside an open node, and those that the code which opens it can name, are looked at before and after.
"""

from __future__ import annotations

import dis
import itertools
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from inspect import CO_OPTIMIZED
from types import CellType, CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

import numpy as np
import torch

from leapp.capture.user_line import Where, is_installed, is_library, users_frames, where

__all__ = ["Attributes", "Changed", "is_memory", "line_that_reads", "line_that_writes"]

Tensor = torch.Tensor
_NUMBERS = (int, float, str)
_HELD = (Tensor, np.ndarray, *_NUMBERS)
_CONTAINED = 64
"""So many items of a container are looked at."""
_OWN = frozenset({"training", "dump_patches", "call_super_init"})
_LARGEST = 1 << 16
"""Arrays with more bytes are not copied to see whether they change."""
_HEAP = 1 << 9
"""The flag of classes that Python code makes. Most values in variables are of types in C."""
_ADDS = frozenset({"append", "appendleft", "extend", "extendleft", "insert", "update", "add", "clear"})
"""Methods that change a container and give nothing back: a log that grows is not read by them."""
_MOST = 64
"""So many objects of one frame are looked at."""


class Changed(NamedTuple):
    """A number that a pass changed, an array that it wrote to, or a place that it filled."""

    owner: Any
    name: str
    before: Any
    after: Any
    where: Where

    def __str__(self) -> str:
        return self.name if isinstance(self.owner, _Variables) else f"{type(self.owner).__name__}.{self.name}"

    @property
    def spelled(self) -> str:
        """As the code of the owner would name it."""
        return self.name if isinstance(self.owner, _Variables) else f"self.{self.name}"


class _Variables:
    """The arrays that the variables of a running function, or of its module, name."""

    def __init__(self, arrays: dict[str, Any]) -> None:
        self.__dict__.update(arrays)


class _Closure(_Variables):
    """The variables that a function shares with the one around it: they live as long as the function."""

    __slots__ = ("function",)

    def __init__(self, function: FunctionType) -> None:
        self.function = function

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        pairs = zip(self.function.__code__.co_freevars, self.function.__closure__ or (), strict=True)
        return {name: cell.cell_contents for name, cell in pairs if not _is_empty(cell)}


class _Globals(_Variables):
    """The global variables of a module, of which the numbers are looked at."""

    __slots__ = ("names",)

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names

    def numbers(self) -> dict[str, Any]:
        return {n: v for n, v in list(self.names.items()) if issubclass(type(v), _NUMBERS) and n[:2] != "__"}


class _Seen(NamedTuple):
    owner: Any
    parts: dict[str, Any]
    contents: dict[str, bytes]
    where: Where


class Attributes:
    """What the objects seen since a node was opened held at first."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}

    def look(self, owner: Any) -> None:
        """Remember what an object holds, unless it was seen before."""
        if id(owner) not in self._seen and not _keeps_nothing(owner):
            self._remember(id(owner), owner)

    def _remember(self, key: int, owner: Any) -> None:
        parts = _parts(owner)
        contents = {n: v.tobytes() for n, v in parts.items() if type(v) is np.ndarray and _is_compared(v)}
        self._seen[key] = _Seen(owner, parts, contents, where())

    def look_around(self) -> None:
        """Look at what the code that opens a node can name: its ``self``, and what its variables hold."""
        for frame in users_frames():
            self._look_at(_variables(frame))
            if id(frame.f_globals) not in self._seen:
                self._remember(id(frame.f_globals), _Globals(frame.f_globals))
                self._look_at(dict(frame.f_globals))

    def _look_at(self, names: dict[str, Any]) -> None:
        owners: list[Any] = []
        arrays: dict[str, Any] = {}
        for name, value in names.items():
            kind = type(value)
            if kind is np.ndarray:
                arrays[name] = value
            elif kind is FunctionType:
                if value.__closure__ and id(value) not in self._seen and not _is_installed(value.__code__):
                    self._remember(id(value), _Closure(value))
            elif kind.__flags__ & _HEAP and _is_the_users(value):
                owners.append(value)
        for owner in owners[:_MOST]:
            self.look(owner)
        if arrays:
            self.look(_Variables(arrays))

    def changes(
        self, tracked: set[tuple[int, str]], traced: Callable[[Tensor], bool]
    ) -> tuple[list[Tensor], list[Changed]]:
        """The tensors that are not where they were, and the numbers and arrays that are not what they were.

        With the numbers come the places that held nothing and hold a value of the node now: its next call may begin with it.

        Args:
            tracked: Owners and names of tensors that need no watching.
            traced: Whether a tensor holds a value of the node.
        """
        tensors: list[Tensor] = []
        changed: list[Changed] = []
        for owner, before, contents, at in self._seen.values():
            now = _parts(owner)
            for name, value in before.items():
                found = now.get(name)
                if found is value:
                    if isinstance(value, np.ndarray) and name in contents and contents[name] != value.tobytes():
                        changed.append(Changed(owner, name, value, value, at))
                elif isinstance(value, Tensor):
                    if (id(owner), name) not in tracked:
                        tensors.append(value)
                elif _is_number(value) and _is_number(found) and found != value:
                    changed.append(Changed(owner, name, value, found, at))
            for name, found in now.items():
                new = name not in before and (id(owner), name) not in tracked
                if new and isinstance(found, Tensor) and traced(found):
                    changed.append(Changed(owner, name, None, "a tensor", at))
        return tensors, changed

    def forget(self) -> None:
        """No node is open any more."""
        self._seen.clear()


def is_memory(changed: Changed, codes: Iterable[CodeType]) -> bool:
    """Whether a change is one that the code of the node made. A global variable may be the program's own loop counter."""
    if not isinstance(changed.owner, _Globals):
        return True
    named = [code for code in codes if changed.name in code.co_names]
    steps = (step for code in named for step in dis.get_instructions(code))
    return any(step.opname == "STORE_GLOBAL" and step.argval == changed.name for step in steps)


def line_that_reads(changed: Changed, codes: Iterable[CodeType]) -> Where | None:
    """Where the code of the node, or of the owner's class, reads a place on a line that does not also write to it."""
    for code in _concerned(changed, codes):
        loads, stores = _uses(code, changed.name.partition("[")[0])
        lines = {w.line for w in stores}
        for at in loads:
            if at.line not in lines:
                return at
    return None


def line_that_writes(changed: Changed, codes: Iterable[CodeType]) -> Where | None:
    """Where it writes to the place."""
    uses = (_uses(code, changed.name.partition("[")[0])[1] for code in _concerned(changed, codes))
    return next((stores[0] for stores in uses if stores), None)


def _concerned(changed: Changed, codes: Iterable[CodeType]) -> Iterator[CodeType]:
    yield from codes
    functions = [f for kind in type(changed.owner).__mro__ for f in vars(kind).values() if isinstance(f, FunctionType)]
    yield from (f.__code__ for f in functions if f.__name__ != "__init__" and not is_library(f.__code__.co_filename))


def _uses(code: CodeType, name: str) -> tuple[list[Where], list[Where]]:
    """Where code reads a variable or an attribute of this name, and where it sets it or an element of it."""
    loads: list[Where] = []
    stores: list[Where] = []
    written: set[int] = set()
    steps = list(dis.get_instructions(code))
    for step, following in zip(steps, [*steps[1:], steps[-1]], strict=True):
        at = Where(code, step.offset)
        if step.opname in ("STORE_SUBSCR", "STORE_SLICE"):
            written.add(at.line)
        elif step.argval == name:
            adds = following.argval in _ADDS
            (stores if adds or step.opname.startswith("STORE_") else loads).append(at)
    stores += [at for at in loads if at.line in written]
    return loads, stores


def _is_the_users(value: Any) -> bool:
    """Whether an object of a class in Python is of one that the user's program defines."""
    kind = type(value)
    if not kind.__dictoffset__ or issubclass(kind, type):
        return False
    if kind.__module__.partition(".")[0] in ("leapp", "torch"):
        return False
    step = next((f for f in vars(kind).values() if isinstance(f, FunctionType)), None)
    return step is not None and not _is_installed(step.__code__)


def _is_installed(code: CodeType) -> bool:
    """Whether code is of a library or another installed package, not of the user's program."""
    return is_installed(code.co_filename)


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
    """Whether a value is a number or text of Python's, by its own type: a traced number passes for one."""
    return issubclass(type(value), _NUMBERS)


def _is_compared(array: Any) -> bool:
    return array.nbytes <= _LARGEST and not array.dtype.hasobject


def _keeps_nothing(owner: Any) -> bool:
    """Whether an object is one of torch's own layers, without buffers."""
    return type(owner).__module__.startswith("torch.nn.") and not owner._buffers


def _parts(owner: Any) -> dict[str, Any]:
    """The tensors, arrays and numbers an object holds, by name; those in containers by name and place."""
    if type(owner) is _Globals:
        return owner.numbers()
    held = getattr(owner, "__dict__", None)
    if not held:
        return {}
    parts: dict[str, Any] = {}
    is_module = isinstance(owner, torch.nn.Module)
    for source in (held, held.get("_buffers")):
        for name, value in list(source.items()) if source else ():
            if (is_module and name[:1] == "_") or name in _OWN:
                continue
            if isinstance(value, _HELD):
                parts[name] = value
            elif isinstance(value, (list, tuple, deque)):
                # Counted from the end: a history grows there, and what is read is the newest.
                last = enumerate(itertools.islice(reversed(value), _CONTAINED))
                parts.update((f"{name}[-{i + 1}]", v) for i, v in last if isinstance(v, _HELD))
            elif isinstance(value, dict):
                items = list(itertools.islice(value.items(), _CONTAINED))
                parts.update((f"{name}[{k!r}]", v) for k, v in items if isinstance(v, _HELD))
    return parts
