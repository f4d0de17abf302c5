"""Finds the lines where code reads or sets a variable or an attribute, from its bytecode."""

from __future__ import annotations

import dis
import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import CO_OPTIMIZED
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from leapp.capture.user_line import Where
from leapp.tracing.attributes import DIFFERENT, VARIABLE_OWNERS, Changed
from leapp.tracing.contents import Globals, Variables
from leapp.tracing.value_roles import (
    SUSPENDED,
    Length,
    bases,
    is_layer_of_torch,
    is_library_code,
    members,
    suspended_code,
)

_ADDS = frozenset({"append", "appendleft", "extend", "extendleft", "insert", "update", "add", "clear", "discard",
                   "rotate", "reverse", "sort", "move_to_end"})  # fmt: skip
"""Methods that change a container without reading it, such as appending to a log."""

_BY_TEXT = frozenset({"getattr", "vars", "globals", "attrgetter", "__dict__", "__getattribute__"})
"""What gets an attribute or a global variable whose name is a text."""
_LOCAL_BY_TEXT = frozenset({"locals", "vars"})
"""The same for a variable of a function."""

_HIGHEST = 8
"""How many levels of holders above a place are searched."""


def is_memory(changed: Changed, codes: Iterable[CodeType]) -> bool:
    """Whether the code of the node made a change. A global variable that it does not set may count the caller's loop."""
    if not issubclass(type(changed.owner), Globals):
        return True
    named = ((_instructions(code), _mentions(code).words.get(changed.name, ())) for code in codes)
    return any(steps[i].opname == "STORE_GLOBAL" for steps, found in named for i in found)


def anywhere(at: Where) -> bool:
    """A test that every place passes."""
    return True


def line_that_reads(
    changed: Changed, codes: Iterable[CodeType], inside: Callable[[Where], bool] = anywhere
) -> Where | None:
    """The first line where the code of the node, or of the owner, reads a place. Lines that only update it are skipped."""
    return next((at for code in _concerned(changed, codes) for at in _uses(code, changed).reads() if inside(at)), None)


def line_that_needs(
    changed: Changed,
    codes: Sequence[CodeType],
    inside: Callable[[Where], bool],
    counts: Callable[[Where], bool] = anywhere,
) -> Where | None:
    """The first line where the code of the node reads a place before it sets it.

    Besides ``codes``, that is those methods of the owner that the code of the node names: others may run outside of the node.

    Args:
        changed: The place.
        codes: The code of the node.
        inside: Tells whether a place in the code belongs to the node.
        counts: Tells whether a line that reads the place counts.
    """
    owner = changed.owner
    if issubclass(type(owner), Variables) and owner.code is not None:
        codes = [owner.code]
    found, methods = list(codes), list(_outermost(changed, ()))
    for code in found:
        if any(isinstance(constant, CodeType) for constant in code.co_consts):
            nested = ((step.argval, Where(code, step.offset)) for step in _instructions(code))
            found += [value for value, at in nested if isinstance(value, CodeType) and inside(at)]
        named = [m for m in methods if m.co_name in code.co_names or (m.co_name[:2] == "__" and m.co_name != "__init__")]
        methods = [m for m in methods if m not in named]
        found += named
    for code in found:
        uses = _uses(code, changed)
        if not uses.loads:
            continue
        # log[number] = y keeps a result, under a number that no result depends on.
        steps = _instructions(code)
        keys = {steps[i - 1].offset for i in _mentions(code).sets}
        read = [at for at in uses.reads() if at.instruction not in keys and inside(at) and counts(at)]
        if read and not any(inside(at) and at.instruction < read[0].instruction for at in uses.stores):
            return read[0]
    return None


def line_that_uses(
    changed: Changed,
    holding: Callable[[Changed], Changed | None],
    codes: Sequence[CodeType],
    inside: Callable[[Where], bool],
) -> Where | None:
    """The first line where the code of the node, or of the owner, reads a place; its holder's place if no code names it.

    A place that no code names was changed through ``setattr``, ``vars``, a descriptor, or by code of a library, so whether
    it is read is not known.
    """
    for _ in range(_HIGHEST):
        concerned = list(_concerned(changed, codes))
        if any(any(_uses(code, changed)) for code in concerned):
            return line_that_reads(changed, codes, inside)
        # A counter of torch's own layers, as batch normalisation has, is reported with the training mode of the layer.
        above = None if is_layer_of_torch(changed.owner) else holding(changed)
        if above is None:
            return None
        changed = above
    return None


def line_that_writes(changed: Changed, codes: Iterable[CodeType]) -> Where | None:
    """The first line where the code of the node, or of the owner, sets a place or an element of its value."""
    uses = (_uses(code, changed) for code in _concerned(changed, codes))
    return next((at for u in uses for at in (*u.stores, *u.adds, *u.into)), None)


def by_name(codes: Iterable[CodeType]) -> dict[str, list[CodeType]]:
    """Code by each name and each text in it. No other code than that of its name can use a place."""
    found: dict[str, list[CodeType]] = {}
    for code in codes:
        for name in _names(code) | _texts(code):
            found.setdefault(name, []).append(code)
    return found


def line_that_writes_into(
    changed: Changed, codes: Mapping[str, Iterable[CodeType]], inside: Callable[[Where], bool]
) -> Where | None:
    """The first line where the code of the node itself sets an element of the value of a place.

    ``codes`` is the code of the node, as :func:`by_name` gives it: a program may have thousands of places.
    """
    named = codes.get(_base(changed), ())
    return next((at for code in named for at in _uses(code, changed).into if inside(at)), None)


def is_read_inside(changed: Changed, codes: Iterable[CodeType], inside: Callable[[Where], bool]) -> bool:
    """Whether the code of the node itself reads a place."""
    return any(inside(at) for code in codes for at in _uses(code, changed).reads())


def _concerned(changed: Changed, codes: Iterable[CodeType]) -> Iterator[CodeType]:
    """The code of the owner and of its holder, then that of the node, each with the functions defined inside."""
    todo = list(_outermost(changed, codes))[::-1]
    while todo:
        code = todo.pop()
        yield code
        nested = [c for c in code.co_consts if isinstance(c, CodeType)]
        todo += nested if code.co_flags & CO_OPTIMIZED else [c for c in nested if c.co_name[0] == "<"]


def _outermost(changed: Changed, codes: Iterable[CodeType]) -> Iterator[CodeType]:
    for owner in (changed.owner, changed.above):
        if issubclass(type(owner), FunctionType):
            yield owner.__code__
        elif issubclass(type(owner), SUSPENDED):
            yield suspended_code(owner)
        elif issubclass(type(owner), ModuleType):
            functions = [v for v in list(vars(owner).values()) if type(v) is FunctionType]
            yield from (f.__code__ for f in functions if not is_library_code(f.__code__))
        elif issubclass(type(owner), functools.partial) and isinstance(owner.func, FunctionType):
            yield owner.func.__code__
        elif issubclass(type(owner), Variables):
            yield from () if owner.code is None else (owner.code,)
        elif owner is not None:
            kind = owner if issubclass(type(owner), type) else type(owner)
            functions = [f for base in bases(kind) for member in list(members(base).values()) for f in _methods(member)]
            # __init__ of an object ran before the node. Of a class, it may read what earlier objects counted.
            yield from (f.__code__ for f in functions if kind is owner or f.__name__ != "__init__")
    yield from codes


def _methods(member: Any) -> Iterator[FunctionType]:
    """The function of the user's program behind a member of a class, if there is one."""
    function = member
    if issubclass(type(member), property):
        function = member.fget
    elif issubclass(type(member), (classmethod, staticmethod)):
        function = member.__func__
    if type(function) is FunctionType:
        generated = function.__code__.co_filename == "<string>"  # by dataclass
        if not generated and not is_library_code(function.__code__):
            yield function


class _Uses(NamedTuple):
    """The places in code that use a variable or an attribute."""

    loads: list[Where]
    """Where its value is loaded, for whatever purpose."""
    stores: list[Where]
    """Where it gets another value."""
    into: list[Where]
    """Where an element of its value is set."""
    adds: list[Where]
    """Where a method changes its value without giving a result, such as ``append``."""

    def reads(self) -> Iterator[Where]:
        """The loads of lines with more loads than writes: ``x += 1`` loads the value only to write it."""
        written = Counter(at.line for at in (*self.stores, *self.into))
        read = Counter(at.line for at in self.loads)
        return (at for at in self.loads if read[at.line] > written[at.line])


def _uses(code: CodeType, changed: Changed) -> _Uses:
    """Where code uses a changed place. A text that names the place reads it, as in ``getattr()``."""
    uses = _Uses([], [], [], [])
    name, bracket = _base(changed), "[" in changed.name
    # A variable with the name of an attribute is another place, and so is a local variable with the name of a global one.
    is_attribute = not issubclass(type(changed.owner), (*VARIABLE_OWNERS, functools.partial))
    is_global = issubclass(type(changed.owner), Globals)
    getters = _LOCAL_BY_TEXT if type(changed.owner) is Variables and changed.owner.code is not None else _BY_TEXT
    as_text = name in _texts(code)
    if not as_text and name not in _names(code):
        return uses  # without reading the instructions, which is slow
    by_text = not getters.isdisjoint(code.co_names)
    has_elements = bracket or changed.after is DIFFERENT or isinstance(changed.after, (np.ndarray, Length))
    own_levels = changed.name.count("][") + 1 if bracket and isinstance(changed.after, np.ndarray) else 0
    steps, mentions = _instructions(code), _mentions(code)
    concerned = [*mentions.words.get(name, ())]
    if has_elements:
        concerned += mentions.sets
    if as_text and (by_text or is_attribute):
        concerned += mentions.texts.get(name, ())
    added = 0
    for i in sorted(concerned):
        step, following = steps[i], steps[min(i + 1, len(steps) - 1)]
        at = Where(code, step.offset)
        if step.opname in _KEYS and has_elements:
            reached = next((levels for word, levels in _set_in(steps, i, is_attribute) if word == name), 0)
            if reached:  # rows[0] = y gives the place rows[0] another value, rows[0][1] = y and rows[0] += y write into it
                (uses.into if reached > own_levels else uses.stores).append(at)
        if step.opname == "LOAD_CONST":
            if following.opname == "MATCH_CLASS":  # case Robot(count=9)
                uses.loads.extend([at] if is_attribute else [])
            elif by_text and following.opname != "IMPORT_NAME":
                if following.opname == "STORE_SUBSCR" or following.opname in _REPEATS:  # vars(self)["count"] = 1, or += 1
                    uses.stores.append(at)
                if following.opname != "STORE_SUBSCR":
                    uses.loads.append(at)
            continue
        words = _words(step)
        if name not in words or (is_attribute and not step.opname.endswith(("_ATTR", "_METHOD"))):
            continue
        if is_global and step.opname.startswith(_LOCALS):
            continue
        for word, verb in zip(words, _verbs(step.opname), strict=False):
            if word != name:
                continue
            if verb == "LOAD" and _only_writes(following):
                uses.adds.append(at)
                added = _end_of_call(steps, i)
            elif verb == "STORE":
                uses.stores.append(at)
            elif i >= added:  # a load among the arguments of such a method serves only to add
                uses.loads.append(at)
    return uses


def _end_of_call(steps: list[dis.Instruction], i: int) -> int:
    """The index of the instruction that calls the method whose object instruction ``i`` loads."""
    depth = 1
    for end, step in enumerate(steps[i + 1 :], i + 1):
        depth += dis.stack_effect(step.opcode, step.arg, jump=False)
        if depth == 1 and step.opname.startswith("CALL"):
            return end
    return i


def _only_writes(step: dis.Instruction) -> bool:
    """Whether an instruction loads a method that changes its object and is not called for its result: ``append``, ``add_``."""
    name = step.argval if step.opname in ("LOAD_ATTR", "LOAD_METHOD") else ""
    return name in _ADDS or (name.endswith("_") and not name.endswith("__"))


@functools.lru_cache(maxsize=256)
def _instructions(code: CodeType) -> list[dis.Instruction]:
    return list(dis.get_instructions(code))


class _Mentions(NamedTuple):
    """The indices of the instructions of some code that may use a place."""

    words: dict[str, list[int]]
    """Of those with a name, by name."""
    texts: dict[str, list[int]]
    """Of those that load a text, or several, by text."""
    sets: list[int]
    """Of those that set an element."""


@functools.lru_cache(maxsize=256)
def _mentions(code: CodeType) -> _Mentions:
    found = _Mentions({}, {}, [])
    for i, step in enumerate(_instructions(code)):
        if step.opname in _KEYS:
            found.sets.append(i)
        elif step.opname == "LOAD_CONST":
            for text in _texts_in(step.argval):
                found.texts.setdefault(text, []).append(i)
        else:
            for word in {word for word in _words(step) if type(word) is str}:
                found.words.setdefault(word, []).append(i)
    return found


def _base(changed: Changed) -> str:
    """The name of the attribute or variable that leads to a place: ``rows`` for ``rows[0]``."""
    return changed.name.partition("[")[0]


def _names(code: CodeType) -> set[str]:
    """The names of the attributes and variables that some code uses."""
    return {*code.co_names, *code.co_varnames, *code.co_cellvars, *code.co_freevars}


@functools.lru_cache(maxsize=1024)
def _texts(code: CodeType) -> frozenset[str]:
    """The texts among the constants of some code."""
    return frozenset(text for constant in code.co_consts for text in _texts_in(constant))


def _texts_in(constant: Any) -> Iterable[str]:
    """A constant that is a text, or the texts in a tuple or set: ``for name in ("gain", "bias")``."""
    if type(constant) is str:
        return (constant,)
    return {item for item in constant if type(item) is str} if type(constant) in (tuple, frozenset) else ()


@functools.cache
def _verbs(operation: str) -> list[str]:
    """What an instruction does with each of its names: ``LOAD_FAST_STORE_FAST`` loads one and stores the other."""
    return re.findall("LOAD|STORE|IMPORT_FROM", operation)


_KEYS = {"STORE_SUBSCR": 1, "STORE_SLICE": 2}
"""The instructions that set an element, and how many values on the stack are its index."""
_CHOOSES = {"BINARY_SUBSCR": 1, "BINARY_SLICE": 2}
"""The instructions that get an element, likewise."""
_REPEATS = ("COPY", "DUP_TOP_TWO")
_LOCALS = ("LOAD_FAST", "STORE_FAST", "LOAD_DEREF", "STORE_DEREF")


def _words(step: dis.Instruction) -> tuple[Any, ...]:
    """The names in an instruction. Since Python 3.13 one instruction may load or store two variables."""
    return step.argval if isinstance(step.argval, tuple) else (step.argval,) if step.opname != "LOAD_CONST" else ()


def _set_in(steps: list[dis.Instruction], i: int, attributes_only: bool) -> Iterator[tuple[Any, int]]:
    """The names that lead to the container whose element instruction ``i`` sets: ``rows``, ``x`` for ``x.rows[0][1] = y``.

    Each comes with how many levels below it the write happens: 2 in the example, 3 for ``x.rows[0][1] += y``.
    """
    keys, levels = _KEYS[steps[i].opname], 1
    i -= 1
    if steps[i].opname in ("SWAP", "ROT_THREE", "ROT_FOUR"):  # += loads the container and the index before it computes
        levels += 1
        while i > 0 and steps[i].opname not in _REPEATS:
            i -= 1
        while i > 0 and steps[i].opname in _REPEATS:
            i -= 1
    while i >= 0:
        depth = 0
        while depth < keys and i >= 0:
            depth += dis.stack_effect(steps[i].opcode, steps[i].arg, jump=False)
            i -= 1
        if depth > keys:  # one instruction loads the container and an index
            yield from () if attributes_only else ((word, levels) for word in _words(steps[i + 1])[:1])
            return
        while i >= 0 and steps[i].opname in ("LOAD_ATTR", "LOAD_METHOD"):
            yield steps[i].argval, levels
            i -= 1
        if i < 0:
            return
        chosen = steps[i].opname == "BINARY_OP" and steps[i].argrepr == "[]"  # Python 3.14's BINARY_SUBSCR
        keys = 1 if chosen else _CHOOSES.get(steps[i].opname, 0)
        if not keys:
            yield from () if attributes_only else ((word, levels) for word in _words(steps[i])[-1:])
            return
        i, levels = i - 1, levels + 1
