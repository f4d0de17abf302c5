"""Finds clocks and random generators that the code of a node names, and comparisons of types that hold outside of nodes only.

leapp does not replace them, so it does not see calls to them. It reads from the bytecode that a function which ran in the node,
or one that such a function calls, names ``time.time`` or ``random.random``, and on which line. That is a suspicion: the line
may not have run, and its number may not be used. Two passes show it for certain. They do not show that
``type(x) is np.ndarray`` chose another branch than it does outside of a node.
"""

from __future__ import annotations

import builtins
import datetime
import dis
import itertools
import os
import random
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from leapp.capture.user_line import Where, is_library

_CLOCKS = frozenset(
    getattr(time, name)
    for name in "time time_ns perf_counter perf_counter_ns monotonic monotonic_ns process_time thread_time".split()
)
_CALENDAR = (datetime.datetime, datetime.date)
_NOW = frozenset({"now", "utcnow", "today"})
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState)
_SETTING = frozenset("seed setstate getstate get_state set_state spawn bit_generator".split())
_NOTHING = object()
_OWN_CLASSES = (np.ndarray, np.generic)
"""Traced arrays and numbers have classes of their own in place of these and their subclasses."""

_TELLING = frozenset({"random", *_NOW, *(clock.__name__ for clock in _CLOCKS)})
"""Code that reads a clock or draws random numbers has one of these names, or one that :func:`_is_telling` knows."""

Bounds = Mapping[int, range]
"""For some code, by identity, the instructions that belong to a node."""

_names_of: Any = vars(ModuleType)["__dict__"].__get__
"""The dict of a module, read without ``__getattribute__`` of the module, which would load a lazy module."""

_bases: Any = type.__dict__["__mro__"].__get__
_own: Any = type.__dict__["__dict__"].__get__
"""A class with its base classes, and what it defines itself, read past its metaclass."""

_WRAPPERS = (property, staticmethod, classmethod)
_MOST = 256
"""How many functions that a node may call are searched."""


class NamesInCode:
    """Finds what the names in code stand for. Reads each function and each module at most once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, CodeType], list[_Named]] = {}
        self._callees: dict[str, dict[str, list[CodeType]]] = {}
        self._modules: dict[Any, ModuleType] = {}
        self._unseen: list[Any] = [*sys.modules.values(), sys.modules.get("__main__")]

    def reached(self, codes: Iterable[CodeType], bounds: Bounds) -> list[CodeType]:
        """Some code, and the code of the user's that it calls, as far as the names tell.

        A function is found by its name in the module of the caller, a method by its name in the classes that this module knows.
        So a method of another class may be taken for it.
        """
        todo = list(codes)
        found = set(map(id, todo))
        for code in todo:
            callees = self._callees_in(code.co_filename)
            used = (*code.co_names, *code.co_consts)
            if id(code) in bounds:
                used = tuple(what for what, w in _loaded(code) if is_inside(w, bounds))
            named = [callee for what in used if type(what) is str for callee in callees.get(what, ())]
            for callee in (*named, *(what for what in used if type(what) is CodeType)):
                if id(callee) not in found and len(todo) < _MOST:
                    found.add(id(callee))
                    todo.append(callee)
        return todo

    def of(self, code: CodeType) -> Iterator[tuple[str, Where]]:
        """The clocks and generators that a function names, each with its line."""
        variables = self._variables(code.co_filename)
        if not any(name in _TELLING or _is_telling(variables.get(name)) for name in code.co_names):
            return  # without reading the instructions, which is slow
        for named in self._names(code):
            what = _given_by_part(named.owner, named.path.rpartition(".")[2]) or _given_by(named.value)
            if what is not None:
                yield f"{what} of {named.path}", named.where

    def exact_types(self, code: CodeType) -> Iterator[tuple[str, Where]]:
        """The classes of NumPy that a function compares with ``type(x)`` by ``is``, each with its line."""
        names = self._names(code)
        asking = {named.where.line for named in names if named.value is type}
        steps = itertools.pairwise(dis.get_instructions(code)) if asking else ()
        compared = {step.offset for step, following in steps if following.opname == "IS_OP"}
        for named in names:
            is_class = isinstance(named.value, type) and issubclass(named.value, _OWN_CLASSES)
            if is_class and named.where.line in asking and named.where.instruction in compared:
                yield named.path, named.where

    def _names(self, code: CodeType) -> list[_Named]:
        known = code.co_filename, code  # code of two files may be equal
        if known not in self._known:
            self._known[known] = list(_scan(code, self._variables(code.co_filename)))
        return self._known[known]

    def _callees_in(self, file: str) -> dict[str, list[CodeType]]:
        """The user's functions and methods that the code of a file can name."""
        if file not in self._callees:
            found = self._callees[file] = dict[str, list[CodeType]]()
            for name, value in list(self._variables(file).items()):
                for key, member in _members(name, value):
                    part = "fget" if type(member) is property else "__func__"
                    function = getattr(member, part) if type(member) in _WRAPPERS else member
                    if type(function) is FunctionType and not is_library(function.__code__.co_filename):
                        found.setdefault(key, []).append(function.__code__)
        return self._callees[file]

    def _variables(self, file: str) -> dict[str, Any]:
        """The global variables of the code of a file."""
        module = self._module(file) or sys.modules.get("__main__")
        return vars(module) if module is not None else {}

    def _module(self, file: str) -> ModuleType | None:
        """The module of a file. A process has a thousand modules, so those whose names fit the path are tried first."""
        if file not in self._modules:
            for name in _likely_names(file):
                module = sys.modules.get(name)
                if module is not None and _file_of(module) == file:
                    self._modules[file] = module
                    return module
        while file not in self._modules and self._unseen:  # the newest first: the user's are loaded late
            module = self._unseen.pop()
            self._modules.setdefault(_file_of(module), module)
        return self._modules.get(file)


def _file_of(module: Any) -> Any:
    """The file of a module; ``None`` for libraries wrapped by cffi, which are in ``sys.modules`` too."""
    return (_names_of(module) or {}).get("__file__") if issubclass(type(module), ModuleType) else None


def _likely_names(file: str) -> Iterator[str]:
    """The names that the module of a file may have: that of the program, then the last parts of the path, joined by dots."""
    yield "__main__"
    parts = os.path.splitext(file)[0].removesuffix(f"{os.sep}__init__").split(os.sep)
    yield from (".".join(parts[first:]) for first in range(len(parts) - 1, 0, -1))


def _members(name: str, value: Any) -> list[tuple[str, Any]]:
    """The attributes of a module or class of the user's. Any other value itself, by its name."""
    if issubclass(type(value), ModuleType):
        names = _names_of(value) or {}
        file = names.get("__file__")
        return [] if type(file) is not str or is_library(file) else list(names.items())
    if not issubclass(type(value), type):
        return [(name, value)]
    return [pair for kind in _bases(value) if kind is not object for pair in _own(kind).items()]


def is_inside(where: Where, bounds: Bounds) -> bool:
    """Whether a place is not outside of the bounds of its code."""
    return id(where.code) not in bounds or where.instruction in bounds[id(where.code)]


def deciding(
    numbers: Iterable[tuple[str, Where]], codes: Sequence[CodeType], bounds: Bounds
) -> Iterator[tuple[str, Where]]:
    """The lines that compare one of some numbers: the line that makes it, or one that calls the function which returns it."""
    todo, followed = list(numbers), set[int]()
    for what, where in todo:
        if decides(where):
            yield what, where
        elif id(where.code) not in followed and _leads_to(where, "RETURN_VALUE"):
            followed.add(id(where.code))
            called = where.code.co_name
            calls = [place for code in codes if called in code.co_names for name, place in _loaded(code) if name == called]
            todo += [(what, place) for place in calls if is_inside(place, bounds)]


def decides(where: Where) -> bool:
    """Whether the value of a line is compared with something, on that line or through a variable that the line sets."""
    return _leads_to(where, "COMPARE_OP")


def may_choose(where: Where) -> bool:
    """Whether the value of a line may choose what runs: it is compared, or the line has a condition."""
    return _leads_to(where, "COMPARE_OP", "POP_JUMP", "JUMP_IF")


def _leads_to(where: Where, *operations: str) -> bool:
    """Whether one of some operations is on a line, or on a line that reads a variable which that line sets."""
    having, loads, stored = set[int](), dict[int, set[Any]](), set[Any]()
    lines = {i: line for start, end, line in where.code.co_lines() if line is not None for i in range(start, end)}
    for step in dis.get_instructions(where.code):
        line = lines.get(step.offset, where.code.co_firstlineno)
        if step.opname.startswith(operations):
            having.add(line)
        elif step.opname.startswith("LOAD_"):
            loads.setdefault(line, set()).update(step.argval if isinstance(step.argval, tuple) else (step.argval,))
        elif step.opname in ("STORE_FAST", "STORE_DEREF", "STORE_NAME") and line == where.line:
            stored.add(step.argval)
    return where.line in having or any(stored & loads.get(line, set()) for line in having)


def _loaded(code: CodeType) -> Iterator[tuple[Any, Where]]:
    """The names of global variables and attributes that code reads, and its constants, each with its place."""
    for step in dis.get_instructions(code):
        if step.opname.startswith("LOAD_") and not step.opname.startswith(("LOAD_FAST", "LOAD_DEREF")):
            yield step.argval, Where(code, step.offset)


class _Named(NamedTuple):
    """A name in code, such as ``np.random.rand``."""

    path: str
    value: Any
    """What it names, or ``_NOTHING``."""
    owner: Any
    """What the part before the last dot names, or ``_NOTHING``."""
    where: Where


def _scan(code: CodeType, names: dict[str, Any]) -> Iterator[_Named]:
    """Follow ``name`` and ``name.attribute`` through the instructions; everything else ends a chain."""
    found, path = _NOTHING, ""
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            owner, path = _NOTHING, str(step.argval)
            found = names.get(path, vars(builtins).get(path, _NOTHING))
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and found is not _NOTHING:
            owner, path = found, f"{path}.{step.argval}"
            found = getattr(owner, step.argval, _NOTHING) if isinstance(owner, ModuleType) else _NOTHING
        else:
            if step.opname not in ("CACHE", "PUSH_NULL", "PRECALL"):
                found = _NOTHING
            continue
        yield _Named(path, found, owner, Where(code, step.offset))


def _is_telling(value: Any) -> bool:
    """Whether the name of a global variable tells that code may read a clock or draw random numbers."""
    return value is random or value is np.random or isinstance(value, _GENERATORS) or _given_by(value) is not None


def _given_by(found: Any) -> str | None:
    """What a function returns, if it is a clock or a method of a random generator; else ``None``."""
    if isinstance(found, type(time.time)) and found in _CLOCKS:
        return "the time"
    drawn = isinstance(getattr(found, "__self__", None), _GENERATORS) and getattr(found, "__name__", "") not in _SETTING
    return "random numbers" if drawn else None


def _given_by_part(owner: Any, name: str) -> str | None:
    if name in _NOW and any(owner is kind for kind in _CALENDAR):
        return "the time"
    if name in _SETTING or not (isinstance(owner, _GENERATORS) or owner is random or owner is np.random):
        return None
    made = getattr(owner, name, None)
    return "random numbers" if callable(made) and not isinstance(made, type) else None
