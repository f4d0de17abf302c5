"""Replaces functions of other modules while a node is open. The originals are put back when it is done."""

from __future__ import annotations

import copyreg
import functools
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import BuiltinFunctionType, ModuleType
from typing import Any

import torch

from leapp.capture.functions.lists import list_rows
from leapp.capture.functions.readers import reader_rows
from leapp.capture.functions.standin import rotation_rows
from leapp.capture.numpy.arrays import Arrays
from leapp.capture.numpy.patches import Row, array_rows, replaces
from leapp.capture.numpy.plain import arrays_in
from leapp.capture.pickling import reduce
from leapp.capture.ready import READY
from leapp.capture.recorder import Recorder
from leapp.compat.core import keep_stance
from leapp.errors import AnnotationError, AnnotationTypeError
from leapp.tracing.torch_patches import torch_rows


@dataclass(frozen=True)
class FunctionPatch:
    """Use ``replacement`` for ``module.function_name`` while a traced value is among the arguments.

    For functions that torch cannot record, such as compiled NumPy code. The replacement must be pure and written with torch
    ops. Names imported earlier with ``from module import function`` are not affected.

    Example:
        >>> leapp.start("graph", patching=[FunctionPatch(cv2, "cvtColor", torch_cvt_color)])
    """

    module: ModuleType
    function_name: str
    replacement: Callable[..., Any]


def check_patches(patching: Any) -> list[FunctionPatch]:
    """The patches given to ``start()``, checked."""
    if isinstance(patching, FunctionPatch):
        raise AnnotationTypeError("patching= takes a list; write patching=[FunctionPatch(...)].")
    if patching is None:
        return []
    if not isinstance(patching, Iterable):
        raise AnnotationTypeError(f"patching= takes a list of FunctionPatch, not {type(patching).__name__}.")
    patches = list(patching)
    seen: set[tuple[int, str]] = set()
    for patch in patches:
        _check(patch)
        place = (id(patch.module), patch.function_name)
        if place in seen:
            raise AnnotationError(f"{patch.module.__name__}.{patch.function_name} is patched twice.")
        seen.add(place)
    return patches


def _check(patch: Any) -> None:
    if not isinstance(patch, FunctionPatch):
        raise AnnotationTypeError(f"patching= takes FunctionPatch objects, not {type(patch).__name__}.")
    if not isinstance(patch.module, ModuleType):
        raise AnnotationTypeError(f"FunctionPatch: module must be a module, not {type(patch.module).__name__}.")
    if not isinstance(patch.function_name, str) or not patch.function_name:
        raise AnnotationError("FunctionPatch: function_name is empty.")
    if not hasattr(patch.module, patch.function_name):
        raise AnnotationError(f"FunctionPatch: {patch.module.__name__} has no '{patch.function_name}'.")
    if not callable(getattr(patch.module, patch.function_name)):
        raise AnnotationTypeError(f"FunctionPatch: {patch.module.__name__}.{patch.function_name} is not callable.")
    if not callable(patch.replacement):
        raise AnnotationTypeError("FunctionPatch: replacement is not callable.")


class _Missing:
    """Marks an attribute that an owner does not have itself, but may inherit."""


class _Builtin:
    """Replaces a function written in C. Like the original, it does not become a method as an attribute of a class."""

    __qualname__: str
    __wrapped__: Any

    def __init__(self, call: Callable[..., Any], original: Any) -> None:
        self.call = call
        functools.update_wrapper(self, original)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)

    def __reduce__(self) -> str:
        return self.__qualname__

    def __repr__(self) -> str:
        return repr(self.__wrapped__)


class _Names:
    """The attributes of one owner that are replaced: ``made`` are the replacements, ``originals`` what was there before."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self.names = vars(owner)
        self.in_module = isinstance(owner, ModuleType)
        self.made: dict[str, Any] = {}
        self.originals: dict[str, Any] = {}

    def fits(self) -> bool:
        """Whether the owner still has the originals."""
        return list(map(self.names.get, self.originals)) == self._found

    @functools.cached_property
    def _is_plain(self) -> bool:
        return self.in_module and _Missing not in self.originals.values()

    @functools.cached_property
    def _found(self) -> list[Any]:
        return [None if original is _Missing else original for original in self.originals.values()]

    @functools.cached_property
    def _put(self) -> list[Any]:
        return list(self.made.values())

    def put(self) -> None:
        """Set the replacements."""
        if self.in_module:
            self.names.update(self.made)
            return
        for name, made in self.made.items():
            setattr(self.owner, name, made)

    def put_back(self) -> None:
        """Set the originals, except where the program itself has set an attribute meanwhile."""
        if self._is_plain and list(map(self.names.get, self.made)) == self._put:
            self.names.update(self.originals)
            return
        for name, original in self.originals.items():
            if self.names.get(name) is not self.made[name]:
                continue
            if original is _Missing:
                delattr(self.owner, name)
            else:
                setattr(self.owner, name, original)


class _Plan:
    """All replacements by owner, for the modules that are loaded now.

    Args:
        follow_arrays: Whether values are followed through NumPy.
        own: The rows of one session. The rows of the table are the same for all sessions, and are made once.
    """

    def __init__(self, follow_arrays: bool, own: Iterable[Row] = ()) -> None:
        self._loaded = _loaded()
        self.sets: list[_Names] = []
        self.originals: dict[int, tuple[Any, Any]] = {}
        """Replacements and what they replace, by the identity of the replacement."""
        found: dict[int, _Names] = {}
        for row in _table(follow_arrays):
            self._add(found, row, _made)
        for row in own:
            self._add(found, row, {})
        self.sets = list(found.values())

    def _add(self, found: dict[int, _Names], row: Row, known: dict[tuple[int, str, int], tuple[Any, Any]]) -> None:
        owner, name, make = row
        names = found.setdefault(id(owner), _Names(owner))
        original = names.made.get(name, vars(owner).get(name, _Missing))
        key = (id(owner), name, id(original))
        if key not in known or known[key][1] is not original:
            made = _like(original, make(names.made.get(name, getattr(owner, name, None))))
            if isinstance(owner, ModuleType):
                if hasattr(original, "__text_signature__"):
                    made.__text_signature__ = original.__text_signature__
                made.__module__, made.__qualname__ = owner.__name__, name  # pickle finds it by this name
            known[key] = made, original
        names.originals.setdefault(name, original)
        names.made[name] = known[key][0]
        self.originals[id(names.made[name])] = names.made[name], names.originals[name]

    def fits(self) -> bool:
        """Whether the same modules are still loaded, and the owners still have the originals."""
        return self._loaded == _loaded() and all(s.fits() for s in self.sets)


_made: dict[tuple[int, str, int], tuple[Any, Any]] = {}
"""The replacements of the table with what each replaces, by owner, name and original."""
_plans: dict[bool, _Plan] = {}
"""The plans of sessions that have no rows of their own."""


def _loaded() -> tuple[int, str]:
    return len(sys.modules), next(reversed(sys.modules))


def _table(follow_arrays: bool) -> Iterator[Row]:
    """Rows of owner, name and a function from the original to its replacement. A later row for a name wraps the earlier."""
    yield from torch_rows()
    if not follow_arrays:
        return
    yield from array_rows()
    yield from list_rows()
    yield from reader_rows()
    yield from rotation_rows()
    for module, forms in READY.items():
        for name, form in forms.items() if module in sys.modules else ():
            if hasattr(sys.modules[module], name):
                yield sys.modules[module], name, replaces(functools.partial(_both, f"{module}.{name}", form))


def _both(
    name: str, form: Callable[..., Any], arrays: Arrays, original: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Run a function, and on traced arrays also its torch form, which is recorded."""
    return arrays.both(name, original, form, args, kwargs)


def _switch(replacement: Callable[..., Any], arrays: Arrays, original: Any, *args: Any, **kwargs: Any) -> Any:
    """Call the user's replacement if an argument is traced."""
    traced = arrays.memory.traced_by(arrays_in((args, kwargs))) is not None
    return replacement(*args, **kwargs) if traced else original(*args, **kwargs)


class Patches:
    """The replacements of one session. They are in place only while one of its nodes is open.

    Args:
        recorder: Calls :meth:`install` and :meth:`remove` when the first node opens and when the last one is closed.
        patches: What the user asked for.
        follow_arrays: Whether values are followed through NumPy.
    """

    def __init__(self, recorder: Recorder, patches: Iterable[FunctionPatch], follow_arrays: bool = True) -> None:
        self._follow_arrays = follow_arrays
        self._own = [(p.module, p.function_name, replaces(functools.partial(_switch, p.replacement))) for p in patches]
        self._plans: dict[bool, _Plan] = {} if self._own else _plans
        self._undo: list[Callable[[], Any]] = []
        self._originals: dict[int, tuple[Any, Any]] = {}
        self._newest: str | None = None
        """The name of the newest module when the replacements were set."""
        self._is_eager = False
        recorder.on_first_open, recorder.on_last_close = self.install, self.remove
        recorder.on_compile = self._run_compiled_code_eagerly

    def install(self) -> None:
        """Set all replacements."""
        if self._undo:
            return
        self._newest = next(reversed(sys.modules))
        plan = self._plans.get(self._follow_arrays)
        if plan is None or not plan.fits():
            plan = self._plans[self._follow_arrays] = _Plan(self._follow_arrays, self._own)
        self._originals = plan.originals
        self._run_compiled_code_eagerly()
        for names in plan.sets:
            self._undo.append(names.put_back)
            names.put()

    def remove(self) -> None:
        """Put the originals back. An interrupt or an error meanwhile is raised when all of them are back."""
        self._is_eager = False
        try:
            while self._undo:
                self._undo[-1]()
                self._undo.pop()
            self._restore_new_modules()
        except BaseException:  # Ctrl-C may have come in the middle: put the rest back before it is raised
            if self._undo:
                try:
                    self._undo.pop()()  # again: the interrupt may have come in the middle of it
                finally:
                    self.remove()
            raise

    def _restore_new_modules(self) -> None:
        """Put the originals into modules that were imported inside the node: ``from numpy import zeros`` took a replacement."""
        newest_first = itertools.takewhile(lambda name: name != self._newest, reversed(sys.modules))
        for name in list(newest_first) if self._newest is not None else ():
            names = getattr(sys.modules.get(name), "__dict__", {})
            for key, value in list(names.items()):
                made, original = self._originals.get(id(value), (None, None))
                if made is value and made is not None and original is not _Missing:
                    names[key] = original
        self._newest = None

    def _run_compiled_code_eagerly(self) -> None:
        # torch.compile loads dynamo; without it no compiled function can exist, and loading it costs seconds.
        if not self._is_eager and "torch._dynamo" in sys.modules:
            self._is_eager = True
            self._undo.append(keep_stance())
            torch.compiler.set_stance("force_eager")


def _like(original: Any, made: Any) -> Any:
    return _Builtin(made, original) if isinstance(original, BuiltinFunctionType) else made


def follow_copies() -> None:
    """Follow the copies that ``copy`` and ``pickle`` make of tensors.

    This holds from ``start()`` to ``stop()``, because tensors are copied between nodes too.
    """
    copyreg.dispatch_table.setdefault(torch.Tensor, reduce)


def forget_copies() -> None:
    """Undo :func:`follow_copies`."""
    if copyreg.dispatch_table.get(torch.Tensor) is reduce:
        del copyreg.dispatch_table[torch.Tensor]
