"""What a session replaces in other modules, and puts back on every way out."""

from __future__ import annotations

import copyreg
import functools
import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from leapp.capture.calls import tensors
from leapp.capture.chance import watched
from leapp.capture.numpy.compiled import SEEN_OTHERWISE, compiled_callables, runtime_methods
from leapp.capture.numpy.crossings import constructors, crossings, readers_of_lists
from leapp.capture.numpy.hooks import Hooks
from leapp.capture.numpy.noticing import PLAIN_METHODS, make_number, tell_memory
from leapp.capture.numpy.plain import arrays_in
from leapp.capture.pickling import reduce
from leapp.capture.recorder import Recorder
from leapp.capture.replacing.layout import own_attributes, supported
from leapp.capture.replacing.ledgers import ledger_of
from leapp.capture.replacing.names import Replacements
from leapp.capture.replacing.owners import Part, Undo, names_of, set_names
from leapp.capture.replacing.standins import StandIn
from leapp.errors import AnnotationError, AnnotationTypeError
from leapp.tracing.around import around, onnx_exporter

__all__ = ["FunctionPatch", "Patches", "check_patches"]

_defining: set[str] = set()
"""The loaded modules whose imports are their own affair, as far as they have been seen: there are hundreds."""


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


def _forget_reducer() -> None:
    import torch

    if copyreg.dispatch_table.get(torch.Tensor) is reduce:
        del copyreg.dispatch_table[torch.Tensor]


@functools.cache
def _hooks() -> list[Hooks]:
    return [Hooks(PLAIN_METHODS, make_number, tell_memory)] if supported() else []


class _Modules:
    """The loaded modules, looked at only when there are others than before."""

    def __init__(self) -> None:
        self._ledger = ledger_of(sys.modules)
        self._state: tuple[Any, ...] = ()
        self._all: dict[str, Any] = {}
        self._foreign: list[ModuleType] = []

    def now(self) -> dict[str, Any]:
        """All of them, by name; the same object as long as they are the same."""
        state = self._ledger.state()
        if state != self._state:
            self._all = dict(sys.modules)
            self._foreign = _foreign(self._all)
            self._state = state
        return self._all

    def foreign(self) -> list[ModuleType]:
        """Those that may have imported what is replaced by name."""
        return list(self._foreign)


def _foreign(names: Iterable[str]) -> list[ModuleType]:
    unknown = set(names) - _defining
    _defining.update(name for name in unknown if name.partition(".")[0] in SEEN_OTHERWISE)
    found = {id(m): m for name in names if name not in _defining and isinstance(m := sys.modules.get(name), ModuleType)}
    return list(found.values())


_modules = _Modules()


class Patches:
    """The replacements of one session."""

    def __init__(self, recorder: Recorder, patches: Iterable[FunctionPatch], follow_arrays: bool = True) -> None:
        self._recorder = recorder
        self._follow_arrays = follow_arrays
        self._patches = list(patches)
        self._undo: list[Undo] = []
        self._groups: list[Replacements] = []
        """What was replaced in the session."""
        self._before: dict[str, Any] = {}
        self._treated: dict[str, Any] = {}
        """The modules that are taken care of, and those of them that were there before."""
        self._foreign: list[ModuleType] = []
        """Those of them that may have imported what is replaced by name."""
        self._running: set[type] = set()
        """The classes of leapp that run bundles."""
        self._importing = 0
        self._removed = False

    def install(self) -> None:
        """Put everything in place; nothing stays if one of them fails."""
        try:
            self._before = self._treated = _modules.now()
            self._follow_imports()
            self._run_compiled_code_eagerly()
            self._follow_pickling()
            self._replace_all(around())
            if "torch.onnx" in sys.modules:
                self._replace_all(onnx_exporter())
            self._foreign = _modules.foreign()
            # First, while the modules are as they were found the last time.
            if self._follow_arrays:
                self._put(compiled_callables(self._foreign), self._undo)
            self._replace_all(watched())
            if self._follow_arrays:
                self._replace_all(crossings())
                self._follow_numpy()
            for group in self._groups:
                self._put(group.imported(self._foreign), self._undo)
            self._follow_runtime()
            for patch in self._patches:
                self._replace(patch.module, patch.function_name, self._switch(patch))
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Put the originals back. What interrupts it, or goes wrong with one of them, comes through when that is done."""
        try:
            self._removed = True
            while self._undo:
                self._undo[-1]()
                self._undo.pop()
            self._restore_new_modules()
        except BaseException:
            if not self._undo:
                self._restore_new_modules()
                raise
            try:
                self._undo.pop()()  # once more: it may have been interrupted
            finally:
                self.remove()
            raise

    def _restore_new_modules(self) -> None:
        """Modules imported during the session have taken what they found."""
        for name in self._new_modules(self._before):
            names = own_attributes(module) if isinstance(module := sys.modules[name], ModuleType) else {}
            taken = {n: value.__wrapped__ for n, value in list(names.items()) if self._stands_in(value)}
            if taken:
                set_names(module, taken)

    def _stands_in(self, value: Any) -> bool:
        if value is None:
            return False
        return type(value) is StandIn or any(group.by_identity.get(id(value)) is value for group in self._groups)

    @staticmethod
    def _new_modules(known: Mapping[str, Any]) -> list[str]:
        now = _modules.now()
        return [] if now is known else [n for n, m in now.items() if known.get(n) is not m]

    def _replace(self, owner: Any, name: str, replacement: Any) -> None:
        self._put([names_of(owner, {name: replacement})], self._undo)

    @staticmethod
    def _put(parts: Iterable[Part], undo: list[Undo]) -> None:
        for part in parts:
            undo.append(part.put_back)
            part.install()

    def _replace_all(self, found: Replacements) -> None:
        """Replace functions where they are defined."""
        self._put([found], self._undo)
        self._groups.append(found)

    def _switch(self, patch: FunctionPatch) -> Callable[..., Any]:
        original = getattr(patch.module, patch.function_name)
        recorder = self._recorder

        @functools.wraps(original)
        def switch(*args: Any, **kwargs: Any) -> Any:
            operands = [*tensors((args, kwargs)), *arrays_in((args, kwargs))]
            traced = bool(recorder.tapes) and recorder.arrays.traced_by(operands) is not None
            return patch.replacement(*args, **kwargs) if traced else original(*args, **kwargs)

        return switch

    def _follow_numpy(self) -> None:
        """What lets values be seen to cross between NumPy and torch.

        Python looks a function up before it computes the arguments, so all of them are replaced before there is a traced array.
        Hundreds are replaced only while a node is open or arrays are followed: elsewhere they may be pickled or compared.
        """
        arrays = self._recorder.arrays
        hooks = _hooks()
        undo: list[Undo] = []

        def watch(on: bool) -> None:
            if on and not undo:
                self._treat_new_modules()
                readers = readers_of_lists()
                if readers not in self._groups:
                    self._groups.append(readers)
                self._put([readers, *readers.imported(self._foreign), *hooks], undo)
            while undo and not on:
                undo[-1]()
                undo.pop()

        arrays.watch = watch
        self._undo.append(lambda: watch(False))
        self._put(constructors(), self._undo)

    def _follow_imports(self) -> None:
        """Treat modules that are imported during the session as those that were there before."""
        loader: Any = importlib._bootstrap
        original = loader._find_and_load

        @functools.wraps(original)
        def find_and_load(*args: Any) -> Any:
            self._importing += 1
            try:
                return original(*args)
            finally:
                self._importing -= 1
                if not self._importing and self._removed:
                    self._restore_new_modules()  # the session ended meanwhile
                elif not self._importing:
                    self._treat_new_modules()

        self._replace(loader, "_find_and_load", find_and_load)

    def _treat_new_modules(self) -> None:
        new = self._new_modules(self._treated)
        if not new:
            return
        self._treated = _modules.now()
        foreign = _foreign(new)
        self._foreign += foreign
        if self._follow_arrays:
            self._put(compiled_callables(foreign, new=True), self._undo)
        for group in self._groups:
            self._put(group.imported(foreign, new=True), self._undo)
        self._follow_runtime()
        if "torch._dynamo" in new:
            self._run_compiled_code_eagerly()

    def _follow_runtime(self) -> None:
        """Note which bundles read traced values."""
        self._put(runtime_methods(self._running), self._undo)

    def _follow_pickling(self) -> None:
        import torch

        if torch.Tensor not in copyreg.dispatch_table:
            self._undo.append(_forget_reducer)
            copyreg.pickle(torch.Tensor, reduce)

    def _run_compiled_code_eagerly(self) -> None:
        # torch.compile loads dynamo; without it no compiled function can exist, and loading it costs seconds.
        if "torch._dynamo" not in sys.modules:
            return
        import torch

        stance = torch.compiler.set_stance("force_eager")
        self._undo.append(lambda: stance.__exit__(None, None, None))
