"""Finds clocks and random generators that the code of a node names, and comparisons of types that hold outside of nodes only.

leapp does not replace them, so it does not see calls to them. It reads from the bytecode that a function which ran in the node
names ``time.time`` or ``random.random``, and on which line. That is a suspicion: the line may not have run, and its number may
not be used. Two passes show it for certain. They do not show that ``type(x) is np.ndarray`` chose another branch than it does
outside of a node.
"""

from __future__ import annotations

import builtins
import datetime
import dis
import itertools
import random
import sys
import time
from collections.abc import Iterator
from types import CodeType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from leapp.capture.user_line import Where

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

_names_of: Any = vars(ModuleType)["__dict__"].__get__
"""The dict of a module, read without ``__getattribute__`` of the module, which would load a lazy module."""


class NamesInCode:
    """Finds what the names in code stand for. Reads each function and each module at most once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, CodeType], list[_Named]] = {}
        self._modules: dict[Any, ModuleType] = {}
        self._unseen: list[Any] = [*sys.modules.values(), sys.modules.get("__main__")]

    def of(self, code: CodeType) -> Iterator[tuple[str, Where]]:
        """The clocks and generators that a function names, each with its line."""
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
            module = self._module(code.co_filename) or sys.modules.get("__main__")
            self._known[known] = list(_scan(code, vars(module) if module is not None else {}))
        return self._known[known]

    def _module(self, file: str) -> ModuleType | None:
        """The module of a file. Searches the newest module first: a process has a thousand, and the user's are loaded late."""
        while file not in self._modules and self._unseen:
            module = self._unseen.pop()
            # Libraries wrapped by cffi are in sys.modules too, but are not modules.
            if issubclass(type(module), ModuleType):
                self._modules.setdefault((_names_of(module) or {}).get("__file__"), module)
        return self._modules.get(file)


def decides(where: Where) -> bool:
    """Whether the value of a line is compared with something, on that line or through a variable that the line sets."""
    compared, loads, stored, line = set[int](), dict[int, set[Any]](), set[Any](), 0
    for step in dis.get_instructions(where.code):
        line = Where(where.code, step.offset).line
        if step.opname == "COMPARE_OP":
            compared.add(line)
        elif step.opname.startswith("LOAD_"):
            loads.setdefault(line, set()).update(step.argval if isinstance(step.argval, tuple) else (step.argval,))
        elif step.opname in ("STORE_FAST", "STORE_DEREF", "STORE_NAME") and line == where.line:
            stored.add(step.argval)
    return where.line in compared or any(stored & loads.get(line, set()) for line in compared)


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
