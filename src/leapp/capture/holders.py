"""Finds the object that still holds a value when the pass that made it is over.

The search uses the garbage collector, which visits every object of the process, so it is slow. Attributes, containers and
closures count as holders. Variables of a running function and global variables do not: the next pass assigns them anew.
Knows nothing of tapes.
"""

from __future__ import annotations

import dis
import gc
import sys
from collections import deque
from collections.abc import Collection, Iterable
from types import CellType, FrameType, FunctionType, GeneratorType, ModuleType
from typing import Any

from leapp.capture.user_line import users_frames

_DEPTH = 6
_CONTAINERS = (list, tuple, set, dict, deque)
_OURS = "leapp."


Named = dict[int, tuple[dict[str, Any], str]]
"""Containers by identity, each with the dict of global variables that refers to it, and its name there."""


def containers_in_sight() -> Named:
    """The containers that global variables of the calling program refer to now. Values added to them later are kept there."""
    modules = {id(frame.f_globals): frame.f_globals for frame in users_frames()}
    return {id(v): (names, n) for names in modules.values() for n, v in list(names.items()) if type(v) in _CONTAINERS}


def holders(values: list[Any], older: Named) -> dict[int, str]:
    """A description of the holder for each value that something keeps after its pass, by ``id()`` of the value.

    Args:
        values: The values to look for.
        older: The containers that existed before the node, see :func:`containers_in_sight`.
    """
    # The variable must still refer to the container: a new container may have the id() of one that is gone.
    return _Search({i for i, (names, name) in older.items() if id(names.get(name)) == i}).run(values)


class _Search:
    def __init__(self, older: Collection[int]) -> None:
        self.older = older
        self.keys: dict[int, Any] = {}
        self.mine: set[int] = {id(self.__dict__), id(self.keys)}

    def run(self, values: list[Any]) -> dict[int, str]:
        self.mine.add(id(values))
        found: dict[int, str] = {}
        level: dict[int, tuple[Any, list[int]]] = {id(v): (v, [id(v)]) for v in values}
        self.mine.add(id(level))
        for _ in range(_DEPTH):  # each step looks at every object of the process
            wanted = tuple([item for item, _ in level.values()])  # as a list, it would be copied into a tuple that is found too
            self.mine.update((id(wanted), id(level), *(id(pair) for pair in level.values())))
            above: dict[int, tuple[Any, list[int]]] = {}
            for holder in gc.get_referrers(*wanted):
                if id(holder) in self.mine or isinstance(holder, FrameType):
                    continue
                for item, roots in [level[id(o)] for o in gc.get_referents(holder) if id(o) in level]:
                    name = self._name(holder, item)
                    if name:
                        for root in roots:
                            found.setdefault(root, name)
                    elif self._leads_on(holder):
                        if isinstance(holder, dict):
                            self.keys[id(holder)] = next((k for k, v in holder.items() if v is item), None)
                        above.setdefault(id(holder), (holder, []))[1].extend(roots)
            level = {i: pair for i, pair in above.items() if not all(root in found for root in pair[1])}
            if not level:
                break
        return found

    def _leads_on(self, holder: Any) -> bool:
        """Whether to search for the holder of this holder. The search ends at the global variables of a module."""
        if isinstance(holder, dict) and _are_globals(holder):
            return False
        return isinstance(holder, _CONTAINERS) or type(holder).__module__.startswith(_OURS)

    def _name(self, holder: Any, item: Any) -> str | None:
        """A description of ``holder`` for the user; ``None`` if it does not keep values from one call to the next."""
        if isinstance(holder, ModuleType) or type(holder).__module__.startswith(_OURS):
            return None
        if isinstance(item, dict) and getattr(holder, "__dict__", None) is item:
            return f"{type(holder).__name__}.{self.keys.get(id(item))}"
        if isinstance(holder, CellType):
            return _closure(holder, item)
        if isinstance(holder, GeneratorType):
            return f"the generator {holder.__name__}()"
        if isinstance(holder, _CONTAINERS):  # a newer container is no holder itself, but may belong to one
            return f"a {type(holder).__name__} that is older than the node" if id(holder) in self.older else None
        if isinstance(holder, type):
            return next((f"{holder.__name__}.{k}" for k, v in vars(holder).items() if v is item), None)
        return _attribute(holder, item)


def _are_globals(names: dict[Any, Any]) -> bool:
    module = sys.modules.get(names["__name__"]) if isinstance(names.get("__name__"), str) else None
    return module is not None and vars(module) is names


def _attribute(owner: Any, item: Any) -> str | None:
    names: Iterable[tuple[str, Any]] = list(getattr(owner, "__dict__", {}).items())
    slots = [(s, getattr(owner, s, None)) for c in type(owner).__mro__ for s in _slots(c)]
    return next((f"{type(owner).__name__}.{name}" for name, value in [*names, *slots] if value is item), None)


def _slots(kind: type) -> tuple[str, ...]:
    given = vars(kind).get("__slots__", ())
    return (given,) if isinstance(given, str) else tuple(given)


def _closure(cell: CellType, item: Any) -> str | None:
    """A description of a closure variable, if an inner function assigns it or it refers to a container; else ``None``."""
    for closure in gc.get_referrers(cell):
        if not isinstance(closure, tuple):
            continue
        for function in gc.get_referrers(closure):
            ours = isinstance(function, FunctionType) and function.__module__.startswith(_OURS)
            if isinstance(function, FunctionType) and function.__closure__ is closure and not ours:
                name = function.__code__.co_freevars[closure.index(cell)]
                if isinstance(item, _CONTAINERS) or _assigns(function, name):
                    return f"the variable '{name}' of {function.__qualname__}()"
    return None


def _assigns(function: FunctionType, name: str) -> bool:
    return any(i.opname == "STORE_DEREF" and i.argval == name for i in dis.get_instructions(function.__code__))
