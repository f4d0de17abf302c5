"""NumPy arrays inside a node: NumPy computes what the program sees, torch records how.

Behind each array that matters stands a tensor over the same memory, so whether an array is traced is a question to the tape,
as it is for tensors. A call on arrays runs twice: NumPy's own gives the result, and an expression on the tensors behind is
what the modes record. The two are compared; where they differ, or no expression is known, the call is an escape. The class
:class:`TracedNpArray` only serves to see the calls.
"""

from __future__ import annotations

import inspect
import operator
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.autograd.graph import increment_version

from leapp.capture.calls import classify
from leapp.capture.hooks import ORIGINAL, change_class, supported
from leapp.capture.indexing import basic, is_basic, locate, runs_backwards
from leapp.capture.numpy_table import (
    BLIND,
    CHECKS,
    DATA_SHAPED,
    IN_PLACE,
    NUMBERS,
    NUMPY_UFUNCS,
    SCIPY_UFUNCS,
    SEQUENCES,
    THROUGH,
    UFUNCS,
    Unmapped,
    accumulated,
    lookup,
    reduced,
)
from leapp.capture.regions import geometry
from leapp.capture.rewrites import assemble
from leapp.capture.source import where
from leapp.capture.tape import Call, Escape, Tape, refer, snapshot

if TYPE_CHECKING:
    from leapp.capture.recorder import Recorder

__all__ = ["Arrays", "Behind"]
import os
DEBUG = os.environ.get("NPDEBUG")

Array = np.ndarray[Any, Any]
Tensor = torch.Tensor
_INTERFACE = ORIGINAL["__array_interface__"].__get__  # type: ignore[attr-defined]
_TOLERANCE = {torch.float16: 1e-2, torch.float32: 1e-4, torch.complex64: 1e-4, torch.float64: 1e-9, torch.complex128: 1e-9}
_LOOSE = 1e-3
# Memory of arrays up to this size is kept until the node is finished, so that views the session has not seen are known.
_HELD = 1 << 20


class Behind(NamedTuple):
    """The tensor over the memory of an array. Torch has no negative strides: along ``flips`` it runs the other way."""

    array: weakref.ref[Array]
    tensor: Tensor
    flips: tuple[int, ...]
    root: Tensor


class Arrays:
    """What one session knows about arrays."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._behind: dict[int, Behind] = {}
        self._roots: dict[int, tuple[weakref.ref[Array], weakref.ref[Tensor]]] = {}
        self._held: list[Tensor] = []
        self._changed: list[weakref.ref[Array]] = []
        #: Called before the first array is followed.
        self.on_first_use: Callable[[], None] | None = None
        #: Whether any array has been followed.
        self.seen = False
        #: Whether plain arrays that hold traced values may be watched.
        self.following = False
        self._quiet = 0
        self._alone = True

    # -- tensors behind arrays -----------------------------------------------------------------------------------------

    def behind(self, array: Array) -> Behind | None:
        """The tensor over the memory of ``array``, or ``None`` if torch cannot describe it."""
        found = self._behind.get(id(array))
        if found is not None and found.array() is array:
            return found
        with self.recorder.silence():
            return self._derive(array)

    def _derive(self, array: Array) -> Behind | None:
        plain = bare_view(array)
        dtype = torch_dtype(plain.dtype)
        item = plain.itemsize
        if dtype is None or any(s % item for s in plain.strides):
            return None
        root = _owner(array)
        whole = root.base if isinstance(root.base, Tensor) else self._root(root)
        if whole is None:
            return None
        storage = whole.untyped_storage()
        start = _INTERFACE(plain)["data"][0] - storage.data_ptr()
        strides, flips = [], []
        for d, (n, s) in enumerate(zip(plain.shape, plain.strides, strict=True)):
            if s < 0 and n > 1:
                start += s * (n - 1)
                flips.append(d)
            strides.append(abs(s) // item)
        if start % item or start < 0:
            return None
        t = torch.empty(0, dtype=dtype).set_(storage, start // item, plain.shape, strides)
        return self.attach(array, t, tuple(flips), whole)

    def _root(self, root: Array) -> Tensor | None:
        found = self._roots.get(id(root))
        if found is not None and found[0]() is root:
            known = found[1]()
            if known is not None:
                return known
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch has no read-only tensors; nothing here writes to one
                whole = _from_numpy(bare_view(root))
        except (TypeError, ValueError):
            return None
        self._hold(root, whole)
        return whole

    def _hold(self, root: Array, whole: Tensor) -> None:
        self._roots[id(root)] = (weakref.ref(root), weakref.ref(whole))
        if self.recorder.tapes and root.nbytes <= _HELD:
            self._held.append(whole)

    def attach(self, array: Array, t: Tensor, flips: tuple[int, ...] = (), root: Tensor | None = None) -> Behind:
        """Let ``t`` stand behind ``array`` from now on."""
        i, table = id(array), self._behind
        found = Behind(weakref.ref(array, lambda _: table.pop(i, None)), t, flips, t if root is None else root)
        table[i] = found
        return found

    def tensor(self, array: Array) -> Tensor | None:
        """The value of ``array`` as a tensor: the one behind, or a recorded flip of it."""
        found = self.behind(array)
        if found is None:
            return None
        self._refresh(found.tensor)
        return self._recorded_call(torch.flip, found.tensor, found.flips) if found.flips else found.tensor

    def _recorded_call(self, function: Any, *args: Any) -> Any:
        """A torch call that is recorded, also from inside the modes."""
        with self.recorder.silence():
            return self.recorder.called(function, classify(function), args, {}, whole=True)

    def _refresh(self, t: Tensor) -> None:
        """NumPy changes plain arrays without telling torch: let the tape read a changed constant anew."""
        for tape in self.recorder.tapes:
            entry = tape.constant_ids.get(id(t))
            if entry is None or entry[0].tensor() is not t:
                continue
            constant = tape.constants[entry[0].slot]
            with self.recorder.silence():
                if constant.version is not None:
                    constant.value, constant.version = snapshot(constant.value), None
                if not same_bits(constant.value, t):
                    increment_version(t)

    def forget(self) -> None:
        """Between nodes only what somebody still holds is of interest."""
        self._held.clear()
        for i in [i for i, (ref, _) in self._roots.items() if ref() is None]:
            del self._roots[i]

    # -- classes -------------------------------------------------------------------------------------------------------

    def wrap(self, plain: Array, t: Tensor | None = None, flips: tuple[int, ...] = (), scalar: bool = False) -> Array:
        """An array object that is seen by the session, over the memory of ``plain``."""
        from leapp.capture.traced import TracedNpArray, TracedScalar

        self.seen = True
        made: Array = ORIGINAL["view"](plain, TracedScalar if scalar else TracedNpArray)
        if t is not None:
            self.attach(made, t, flips)
        return made

    def follow(self, array: Array) -> None:
        """See what happens to an existing array from now on."""
        from leapp.capture.traced import TracedNpArray

        item: Any = array
        while isinstance(item, np.ndarray):
            if type(item) is np.ndarray and supported():
                change_class(item, TracedNpArray)
                self._changed.append(weakref.ref(item))
            item = item.base

    def release(self) -> None:
        """Give every array its own class back."""
        from leapp.capture.traced import TracedNpArray

        for ref in [*self._changed, *(b.array for b in self._behind.values())]:
            array = ref()
            if type(array) is TracedNpArray:
                change_class(array, np.ndarray)
        self._behind.clear()
        self._roots.clear()
        self._held.clear()
        self._changed.clear()

    # -- ports ---------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Hear of the calls on traced arrays."""
        from leapp.capture.traced import set_current

        set_current(self)

    def end(self) -> None:
        """Hear no more, and leave every array as NumPy made it."""
        from leapp.capture.traced import set_current

        set_current(None)
        self.release()

    def port(self, array: Array) -> Tensor | None:
        """The value of an array at a port, or ``None`` if torch has no such dtype."""
        self._first_use()
        if not isinstance(array, np.ndarray):
            return self.tensors_for(array) if torch_dtype(array.dtype) is not None else None
        found = self.behind(array)
        if found is not None and not found.flips:
            return found.tensor
        if found is not None:
            t: Tensor | None = self.tensor(array)
        else:
            with self.recorder.silence():
                t = None if torch_dtype(array.dtype) is None else _from_numpy(np.array(bare_view(array)))
        return None if t is None else self.attach(array, t).tensor

    def hand_back(self, array: Array, t: Tensor, alias: Tensor) -> Array:
        """The array to go on with after ``array`` was declared as an input, with ``alias`` behind it."""
        if alias is t:
            return array
        if not isinstance(array, np.ndarray):
            return self.wrap(silent_numpy(alias), alias, scalar=True)
        plain = bare_view(array)
        with self.recorder.silence():
            elsewhere = _INTERFACE(plain)["data"][0] != t.data_ptr()
        if elsewhere:
            plain = silent_numpy(alias)
        return self.wrap(plain, alias, scalar=type(array) is not _array_type() and isinstance(array, np.generic))

    def watched(self, array: Array) -> Array:
        """A published array: what happens to it is of interest, even if it is a plain one."""
        if self.following:
            self.follow(array)
        return array

    def _first_use(self) -> None:
        self.seen = True
        if self.on_first_use is not None:
            self.on_first_use()

    # -- who is concerned ----------------------------------------------------------------------------------------------

    @property
    def listening(self) -> bool:
        """Whether calls are being recorded at all."""
        return not self._quiet and self.recorder.installed

    def quietly(self, call: Callable[[], Any]) -> Any:
        """Run NumPy's own code: what it does inside concerns nobody."""
        self._quiet += 1
        try:
            return call()
        finally:
            self._quiet -= 1

    def concerned(self, operands: Iterable[Any]) -> bool:
        """Whether any operand holds a traced value, or one that a node published."""
        if not (self.recorder.tapes or self.recorder.published):
            return False
        found = list(self._tensors(operands))
        with self.recorder.silence():
            if self.recorder.tapes and self.recorder.owner(found) is not None:
                return True
        return any(self.recorder.source(t) is not None for t in found)

    def traced(self, array: Any) -> Tape | None:
        """The tape that the value of ``array`` belongs to."""
        found = list(self._tensors([array]))
        with self.recorder.silence():
            return self.recorder.owner(found) if found and self.recorder.tapes else None

    def _tensors(self, operands: Iterable[Any]) -> Iterator[Tensor]:
        for operand in operands:
            if isinstance(operand, Tensor):
                yield operand
            elif isinstance(operand, np.ndarray):
                found = self.behind(operand)
                if found is not None:
                    yield found.tensor

    # -- the two runs of a call ----------------------------------------------------------------------------------------

    def perform(
        self, name: str, operands: list[Any], numpy: Callable[[], Any], expression: Callable[[], Any],
        check: str = "values",
    ) -> Any:  # fmt: skip
        """Run a call in NumPy and record it in torch; an escape if the two do not agree."""
        tape = self.traced_by(operands)
        first = 0 if tape is None else len(tape.memory_of)
        found = self._attempt(tape, expression)
        result = self.quietly(numpy)
        self._alone = sum(self.traced(o) is not None for o in operands) < 2
        wrapped = self._wrapped(result, found, tape, first, check)
        if wrapped is not _NO_MATCH:
            return wrapped
        self.escape(tape, name, operands, result)
        return result

    @staticmethod
    def _attempt(tape: Tape | None, expression: Callable[[], Any]) -> Any:
        """What an expression gives, or ``None`` if it cannot do this call or would itself let a value escape."""
        mark = 0 if tape is None else len(tape.escapes)
        try:
            found = expression()
        except Exception:  # whatever the expression cannot do, NumPy may: then the call is an escape
            if DEBUG: import traceback; traceback.print_exc()
            found = None
        if tape is not None and len(tape.escapes) > mark:
            del tape.escapes[mark:]
            found = None
        return found

    def traced_by(self, operands: Iterable[Any]) -> Tape | None:
        """The tape that the operands belong to."""
        found = list(self._tensors(operands))
        with self.recorder.silence():
            return self.recorder.owner(found) if self.recorder.tapes else None

    def escape(self, tape: Tape | None, kind: str, operands: Iterable[Any], value: Any, source: Any = None) -> None:
        """Note that a value left the graph."""
        if tape is None:
            return
        reads = []
        with self.recorder.silence():
            for t in self._tensors(operands):
                ref = tape.find(t) if tape.owns(t) or id(t) in tape.known else None
                if ref is not None:
                    reads.append(ref)
        call = None if source is None or len(reads) != 1 else (source, (reads[0],), {})
        tape.escapes.append(Escape(kind, where(), _frozen(value), call, tuple(r.slot for r in reads)))

    def _wrapped(self, result: Any, found: Any, tape: Tape | None, first: int, check: str) -> Any:
        """The result of a call with the recorded values attached, or ``_NO_MATCH``."""
        if isinstance(result, (np.ndarray, np.generic)):
            return self._wrapped_leaf(result, found, tape, first, check)
        if isinstance(result, (tuple, list)):
            return self._wrapped_sequence(result, found, tape, first, check)
        return _NO_MATCH

    def _wrapped_sequence(self, result: Any, found: Any, tape: Tape | None, first: int, check: str) -> Any:
        if not isinstance(found, (tuple, list)) or len(found) != len(result):
            found = [None] * len(result)
        items, traced = [], False
        for r, f in zip(result, found, strict=True):
            item = r
            if isinstance(r, (np.ndarray, np.generic)) and not isinstance(f, int):
                item = self._wrapped_leaf(r, f, tape, first, check)
                if item is _NO_MATCH and self._constant(r, f, tape):
                    item = r
            if item is _NO_MATCH:
                return _NO_MATCH
            items.append(item)
            traced = traced or item is not r
        if not traced:
            return _NO_MATCH
        return type(result)(*items) if hasattr(result, "_fields") else type(result)(items)

    def _wrapped_leaf(self, result: Any, found: Any, tape: Tape | None, first: int, check: str) -> Any:
        t = _unwrap(found, self)
        dtype = torch_dtype(result.dtype)
        if isinstance(result, np.ndarray):
            view = self._view(result, t)
            if view is not None:
                return view
        with self.recorder.silence():
            fits = t is not None and dtype is not None and tuple(t.shape) == result.shape
        if t is None or not fits:
            return _NO_MATCH
        if t.dtype != dtype:
            t = t.to(dtype)
        if not self._known(t, tape):
            return _NO_MATCH if tape is not None else result
        if check != "shape" and not self._agree(result, t, check == "magnitude"):
            return _NO_MATCH
        scalar = isinstance(result, np.generic)
        plain: Array = np.array(result) if scalar else result
        if any(s < 0 for s in plain.strides) or _owner(plain) is not plain:
            plain = plain.copy(order="K")
        t = self._rebind(tape, t, plain, first)
        return self.wrap(plain, t, scalar=scalar)

    def _constant(self, result: Any, found: Any, tape: Tape | None) -> bool:
        """Whether one of several results does not depend on traced values."""
        t = _unwrap(found, self)
        if t is None or self._known(t, tape):
            return False
        return self._agree(result, t.to(torch_dtype(result.dtype)), magnitude=False)

    def _known(self, t: Tensor, tape: Tape | None) -> bool:
        with self.recorder.silence():
            return tape.find(t) is not None if tape is not None else self.recorder.source(t) is not None

    def _view(self, result: Array, t: Tensor | None) -> Array | None:
        """``result`` as an array to go on with, if it lies in memory that is known already."""
        root = _owner(result)
        known = self._roots.get(id(root))
        if isinstance(root.base, Tensor) or (known is not None and known[0]() is root):
            found = self.behind(result)
            if found is None:
                return None
            with self.recorder.silence():
                same = (
                    t is not None and not found.flips and geometry(found.tensor) == geometry(t)
                    and _same_storage(found.tensor, t)
                )  # fmt: skip
            # Where a view begins may depend on another operand.
            if not same and (not self._alone or found.tensor.dtype != found.root.dtype or self.traced(result) is None):
                return None
            made = self.wrap(result)
            self.attach(made, t if t is not None and same else found.tensor, found.flips, found.root)
            return made
        return None

    def _agree(self, result: Any, t: Tensor, magnitude: bool) -> bool:
        a, b = np.asarray(result), silent_numpy(t)
        return agree(np.abs(a), np.abs(b), _LOOSE) if magnitude else agree(a, b, _TOLERANCE.get(t.dtype, 0.0))

    def _rebind(self, tape: Tape | None, t: Tensor, plain: Array, first: int) -> Tensor:
        """The memory of NumPy's result takes the place of torch's."""
        with self.recorder.silence():
            new = _from_numpy(plain)
            self._hold(plain, new)
            if tape is None:
                self._copy_source(t, new)
            elif not tape.move(t, new, first):
                tape.same(t, new)
        return new

    def _copy_source(self, t: Tensor, target: Tensor) -> None:
        found = self.recorder.source(t)
        if found is not None:
            self.recorder.published.copy(found, target)

    # -- writing -------------------------------------------------------------------------------------------------------

    def write(
        self, name: str, target: Array, operands: list[Any], numpy: Callable[[], Any], record: Callable[[Tensor], Any]
    ) -> Any:
        """Run a call that changes ``target``. ``record`` writes the same to a tensor, or returns the whole new value."""
        plain = bare_view(target)
        before = plain.copy()
        result = self.quietly(numpy)
        after = plain.copy()
        found = self.behind(target)
        if found is None or not self.concerned([target, *operands]):
            return result
        self.watched(target)
        tape = self.traced_by([target, *operands])
        ORIGINAL["__setitem__"](plain, ..., before)
        try:
            if not self._recorded(tape, found, after, record):
                ORIGINAL["__setitem__"](plain, ..., before)
                self.escape(tape, name, operands, after)
                with self.recorder.silence():
                    frozen = _from_numpy(after.copy())
                self._store(found, frozen)
        finally:
            ORIGINAL["__setitem__"](plain, ..., after)
        return result

    def _recorded(self, tape: Tape | None, found: Behind, after: Array, record: Callable[[Tensor], Any]) -> bool:
        mark = 0 if tape is None else len(tape.escapes)
        try:
            target = torch.flip(found.tensor, found.flips) if found.flips else found.tensor
            new = record(target)
            if new is not None or found.flips:
                self._store(found, target if new is None else _unwrap(new, self))
        except Exception:
            if DEBUG: import traceback; traceback.print_exc()
            recorded = False
        else:
            with self.recorder.silence():
                now = found.tensor.detach().numpy()
                now = np.flip(now, found.flips) if found.flips else now
                recorded = agree(after, now, _TOLERANCE.get(found.tensor.dtype, 0.0))
        if tape is not None and (len(tape.escapes) > mark or not recorded):
            del tape.escapes[mark:]
            return False
        return recorded

    def _store(self, found: Behind, value: Any) -> None:
        value = value.to(found.tensor.dtype) if value.dtype != found.tensor.dtype else value
        found.tensor.copy_(torch.flip(value, found.flips) if found.flips else value)

    # -- indexing ------------------------------------------------------------------------------------------------------

    def getitem(self, array: Array, index: Any) -> Any:
        """``array[index]``."""
        plain = bare_view(array)
        bare = unwrapped(index)
        operands = [array, *arrays_in(index)]
        if not self.concerned(operands):
            return ORIGINAL["__getitem__"](plain, bare)
        if not is_basic(index):
            return self._chosen(array, index, ORIGINAL["__getitem__"](plain, bare), operands)
        result = ORIGINAL["__getitem__"](plain, bare)
        found = self.behind(array)
        if found is None:
            return result
        self._refresh(found.tensor)
        parts, flips = basic(index, array.shape, found.flips)
        t = found.tensor[parts]
        if isinstance(result, np.generic):
            return self.perform("__getitem__", operands, lambda: result, lambda: t.clone())
        made = self.wrap(result)
        self.attach(made, t, flips, found.root)
        return made

    def _chosen(self, array: Array, index: Any, result: Any, operands: list[Any]) -> Any:
        """The result of an index with values in it.

        NumPy gives a view for single numbers. Which one it is, the values decide: it can be read, but not written through.
        """
        view = isinstance(result, np.ndarray) and result.base is not None
        apart = result.copy() if view else result
        made = self.perform("__getitem__", operands, lambda: apart, lambda: self._picked(array, index))
        if view:
            made.flags.writeable = False
        return made

    def _picked(self, array: Array, index: Any) -> Tensor:
        t = self.tensor(array)
        if t is None:
            raise Unmapped
        view, place, added = locate(t, self.tensors_for(index))
        found = view[place]
        return found.squeeze(0) if added else found

    def setitem(self, array: Array, index: Any, value: Any) -> None:
        """``array[index] = value``."""
        plain = bare_view(array)
        bare, number = unwrapped(index), unwrapped(value)
        operands = [*arrays_in(index), *arrays_in(value)]

        def record(target: Tensor) -> None:
            view, place = target, basic(index, array.shape, ())[0] if is_basic(index) else None
            if place is None:
                view, place, _ = locate(target, self.tensors_for(index))
            view[place] = self.value_for(value)

        if not self.concerned([array, *operands]):
            ORIGINAL["__setitem__"](plain, bare, number)
            return
        if is_basic(index) and runs_backwards(index):
            self.setitem(self.getitem(array, index), ..., value)
            return
        self.write("__setitem__", array, operands, lambda: ORIGINAL["__setitem__"](plain, bare, number), record)

    def value_for(self, value: Any) -> Any:
        """A value as torch takes it: tensors for arrays, Python numbers for NumPy's."""
        if isinstance(value, (list, tuple)):
            value = self.make(np.array, value) if arrays_in(value) else np.array(value)
        if isinstance(value, np.ndarray):
            return self.tensor(value)
        return value.item() if isinstance(value, np.generic) else value

    def tensors_for(self, value: Any) -> Any:
        """A nested argument with a tensor for each array."""
        if isinstance(value, np.ndarray):
            found = self.tensor(value)
            if found is None:
                raise Unmapped
            return found
        if isinstance(value, np.generic):
            found = self.tensor(np.array(value))
            if found is None:
                raise Unmapped
            return found
        if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
            return np.dtype(value).name
        if isinstance(value, tuple) and not hasattr(value, "_fields"):
            return tuple(self.tensors_for(v) for v in value)
        if isinstance(value, list):
            return [self.tensors_for(v) for v in value]
        if isinstance(value, dict):
            return {k: self.tensors_for(v) for k, v in value.items()}
        return value

    # -- ufuncs --------------------------------------------------------------------------------------------------------

    def ufunc(self, ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of a ufunc, or of one of its methods."""
        inputs = tuple(self.make(np.array, v) if isinstance(v, (list, tuple)) and arrays_in(v) else v for v in inputs)
        outs = kwargs.get("out") or ()
        operands = [*arrays_in(inputs), *arrays_in(kwargs)]
        as_tensor = any(isinstance(v, Tensor) for v in inputs) and not outs and method == "__call__"

        def numpy() -> Any:
            return getattr(ufunc, method)(*unwrapped(inputs), **unwrapped(kwargs))

        if not self.concerned(operands):
            result = self.quietly(numpy)
            return _given(result, outs) if not as_tensor else _as_tensor(result)
        if method == "at":
            target = inputs[0]
            self.write(
                f"{ufunc.__name__}.at", target, operands[1:], numpy,
                lambda t: _at(ufunc, t, *(self.tensors_for(v) if i == 0 else self.value_for(v) for i, v in enumerate(inputs[1:]))),
            )  # fmt: skip
            return None
        options = {k: v for k, v in kwargs.items() if k != "out"}
        name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"

        def expression() -> Any:
            return self._ufunc_expression(ufunc, method, inputs, options, outs)

        if outs:
            return self.into(name, outs, operands, numpy, expression)
        result = self.perform(name, operands, numpy, expression)
        return self.to_tensor(result, wrapping=True) if as_tensor else result

    def into(
        self, name: str, outs: tuple[Any, ...], operands: list[Any], numpy: Callable[[], Any], expression: Callable[[], Any]
    ) -> Any:
        """A call whose results go into given arrays."""
        if len(outs) != 1 or outs[0] is None:
            result = self.quietly(numpy)
            for out in outs:
                if out is not None:
                    self._freeze(name, out, operands)
            return _given(result, outs)
        found = self._attempt(self.traced_by(operands), lambda: _unwrap(expression(), self))

        def record(target: Tensor) -> Any:
            if found is None:
                raise Unmapped
            return found

        self.write(name, outs[0], operands, numpy, record)
        return outs[0]

    def _freeze(self, name: str, out: Array, operands: list[Any]) -> None:
        def fail(_: Tensor) -> None:
            raise Unmapped

        self.write(name, out, operands, lambda: None, fail)

    def _ufunc_expression(
        self, ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], options: dict[str, Any], outs: tuple[Any, ...]
    ) -> Any:
        name = ufunc.__name__
        function = UFUNCS.get(name) if ufunc in NUMPY_UFUNCS else SCIPY_UFUNCS.get(name)
        allowed = {"where", "dtype", "casting", "subok", "order"} if method == "__call__" else {
            "axis", "dtype", "keepdims", "initial", "where"
        }  # fmt: skip
        if function is None or not set(options) <= allowed:
            raise Unmapped
        if method == "reduce" or method == "accumulate":
            dtypes = _reduce_dtype(ufunc, inputs[0], options.get("dtype"))
            x = self.tensors_for(inputs[0])
            axis = inputs[1] if len(inputs) > 1 else options.get("axis", 0)
            if method == "accumulate":
                return accumulated(name, x, axis, dtypes)
            condition = options.get("where", True)
            return reduced(
                name, x, axis, dtypes, bool(options.get("keepdims", False)), self.value_for(options.get("initial")),
                None if condition is True else self.value_for(condition),
            )  # fmt: skip
        if method == "outer":
            a, b = inputs
            grown = self.expand(a, np.ndim(b))
            return self._elementwise(ufunc, function, (grown, b), options)
        if method != "__call__":
            raise Unmapped
        result = self._elementwise(ufunc, function, inputs, options)
        condition = options.get("where", True)
        if condition is True:
            return result
        if len(outs) != 1:
            raise Unmapped
        return torch.where(self.tensors_for(np.asarray(condition)), result, self.tensors_for(outs[0]))

    def expand(self, a: Any, dims: int) -> Any:
        """``a`` with so many axes of length one behind its own."""
        return a[(..., *(None,) * dims)] if isinstance(a, np.ndarray) else a

    def _elementwise(
        self, ufunc: np.ufunc, function: Callable[..., Any], inputs: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        """The expression for a ufunc, in the dtypes in which NumPy computes it."""
        dtypes = _loop(ufunc, inputs, options)
        operands = []
        for value, dtype in zip(inputs, dtypes, strict=False):
            wanted = torch_dtype(dtype)
            if wanted is None:
                raise Unmapped
            if is_number(value):
                number = np.asarray(value).astype(dtype).item()
                operands.append(number if ufunc.__name__ in NUMBERS else torch.tensor(number, dtype=wanted))
                continue
            t = self.tensors_for(value if isinstance(value, (np.ndarray, Tensor)) else np.asarray(value))
            operands.append(t if t.dtype == wanted else t.to(wanted))
        if not any(isinstance(v, Tensor) for v in operands):
            raise Unmapped
        found = function(*operands)
        results = found if isinstance(found, tuple) else (found,)
        cast = tuple(r if r.dtype == d else r.to(d) for r, d in zip(results, map(torch_dtype, dtypes[len(inputs) :]), strict=True))
        return cast if isinstance(found, tuple) else cast[0]

    # -- functions -----------------------------------------------------------------------------------------------------

    def function(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of a function of NumPy."""
        operands = [*arrays_in(args), *arrays_in(kwargs)]
        name = f"np.{function.__name__}"

        def numpy() -> Any:
            return function(*unwrapped(args), **unwrapped(kwargs))

        if function in BLIND or not self.concerned(operands):
            return self.quietly(numpy)
        if function in DATA_SHAPED:
            return self.read_out(name, lambda *a, **k: np.copy(function(*a, **k)), args, kwargs)
        if function is _FULL_LIKE and arrays_in((args[1:], kwargs)):
            filled = np.empty_like(unwrapped(args[0]), **{k: v for k, v in kwargs.items() if k != "fill_value"})
            np.copyto(filled, args[1] if len(args) > 1 else kwargs["fill_value"], casting="unsafe")
            return filled
        if function is _FULL_LIKE:
            return self.quietly(numpy)
        if function in _SHAPES:
            return self._shape(function, args, kwargs)
        if function in IN_PLACE:
            return self._in_place(function, name, args, kwargs, numpy)
        if function in THROUGH:
            result = function._implementation(*args, **kwargs)
            if not any(self.traced(a) is not None for a in arrays_in(result)):
                self.escape(self.traced_by(operands), name, operands, result)
            return result
        if function is _PIECEWISE:
            return self._piecewise(name, args, kwargs, numpy, operands)
        given, options, outs = _without_out(function, args, kwargs)

        def expression() -> Any:
            known = lookup(function)
            if known is None:
                raise Unmapped
            ready = given if function in SEQUENCES else tuple(
                self.make(np.array, a) if isinstance(a, (list, tuple)) and arrays_in(a) else a for a in given
            )  # fmt: skip
            return known(*(self.tensors_for(a) for a in ready), **self.tensors_for(options))

        if outs:
            return self.into(name, outs, operands, numpy, expression)
        return self.perform(name, operands, numpy, expression, CHECKS.get(function, "values"))

    def _piecewise(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], numpy: Callable[[], Any], operands: list[Any]
    ) -> Any:
        """Each function is applied to all elements; NumPy's own result tells whether that made a difference."""

        def piecewise(x: Any, condlist: Any, funclist: Any, *more: Any, **options: Any) -> Any:
            values = [f(x, *more, **options) if callable(f) else f for f in funclist]
            default = values.pop() if len(values) > len(condlist) else 0
            return np.select(list(condlist), values, default)

        return self.perform(name, operands, numpy, lambda: piecewise(*args, **kwargs))

    def _in_place(
        self, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], numpy: Callable[[], Any]
    ) -> Any:
        bound = inspect.signature(IN_PLACE[function]).bind(*args, **kwargs).arguments
        first, target = next(iter(bound.items()))
        rest = {k: v for k, v in bound.items() if k != first}

        def record(t: Tensor) -> Any:
            return IN_PLACE[function](t, **self.tensors_for(rest))

        return self.write(name, target, arrays_in(rest), numpy, record)

    def _shape(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = function(*unwrapped(args), **unwrapped(kwargs))
        if isinstance(args[0], np.ndarray):
            self.shape_read(args[0], function.__name__, result)
        return result

    def shape_read(self, array: Array, kind: str, value: Any) -> None:
        """The shape of an array was asked for: an escape if it depends on values."""
        if not any(tape.dynamic for tape in self.recorder.tapes):
            return
        tape = self.traced(array)
        if tape is None:
            return
        found = self.behind(array)
        with self.recorder.silence():
            ref = None if found is None else tape.find(found.tensor)
        if ref is not None and ref.slot in tape.dynamic:
            self.escape(tape, kind, [array], value)

    def through(self, function: Any, name: str, array: Array, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call whose result is no array: the value leaves the graph."""
        result = function(*unwrapped((array, *args)), **unwrapped(kwargs))
        tape = self.traced(array)
        if tape is not None:
            source = _SOURCES.get(name) if isinstance(result, (bool, int, float)) else None
            self.escape(tape, name, [array], result if source is None else _digits(result), source)
        return result

    def read_out(self, name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that cannot be followed: it gets plain values, and they leave the graph."""
        operands = [*arrays_in(args), *arrays_in(kwargs)]
        result = self.quietly(lambda: function(*unwrapped(args), **unwrapped(kwargs)))
        self.escape(self.traced_by(operands), name, operands, result)
        return result

    # -- making arrays, and crossings between the libraries ------------------------------------------------------------

    def make(self, original: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        """``np.array``, ``np.asarray`` and their kin, of arrays, tensors and nested lists of them."""
        operands = arrays_in(data)
        bare = unwrapped(data)

        def numpy() -> Any:
            return _original(original)(bare, *args, **kwargs)

        result = self.quietly(numpy)
        if not operands or not self.concerned(operands):
            return result
        if isinstance(bare, np.ndarray) and np.may_share_memory(result, bare):
            if isinstance(data, Tensor):
                return self.to_array(data, result) if result is bare else self.wrap(result)
            return data if result is bare else self.wrap(result)
        dtype = torch_dtype(result.dtype)

        def expression() -> Any:
            if dtype is None:
                raise Unmapped
            found = self.assemble(data, dtype)
            return (found.clone() if isinstance(data, (np.ndarray, Tensor)) else found).reshape(result.shape)

        return self.perform(original.__name__, operands, lambda: result, expression)

    def assemble(self, data: Any, dtype: torch.dtype) -> Tensor:
        """A nested list as one tensor."""
        if isinstance(data, Tensor):
            return data.to(dtype)
        if isinstance(data, (list, tuple)) and arrays_in(data):
            return torch.stack([self.assemble(d, dtype) for d in data])
        if isinstance(data, np.ndarray):
            found = self.tensor(data)
            if found is None:
                raise Unmapped
            return found.to(dtype)
        return torch.tensor(unwrapped(data), dtype=dtype)

    def wrapped_ufunc(self, ufunc: np.ufunc, inputs: tuple[Any, ...], result: Any, place: int) -> Any:
        """A ufunc that ran on tensors, as ``Tensor.__array_wrap__`` gets to see it."""
        operands = arrays_in(inputs)
        tape = self.traced_by(operands)
        if tape is not None:  # NumPy has asked the tensors for their arrays; that is no escape
            here = where()
            while tape.escapes and tape.escapes[-1].kind == "__array__" and tape.escapes[-1].where == here:
                tape.escapes.pop()

        def expression() -> Any:
            found = self._ufunc_expression(ufunc, "__call__", inputs, {}, ())
            return found[place] if isinstance(found, tuple) else found

        return self.to_tensor(self.perform(ufunc.__name__, operands, lambda: result, expression), wrapping=True)

    def to_tensor(self, value: Any, wrapping: bool = False) -> Any:
        """A tensor over the memory of a traced array, as ``torch.from_numpy`` or ``Tensor.__array_wrap__`` gives it."""
        if isinstance(value, np.ndarray) and type(value) is not np.ndarray:
            found = self.behind(value)
            if found is not None and not found.flips:
                whole = found.tensor.to(torch.uint8) if wrapping and found.tensor.dtype == torch.bool else found.tensor
                return whole.view_as(whole)
            if not wrapping:
                return _from_numpy(unwrapped(value))
        return _as_tensor(value) if wrapping else _from_numpy(value)

    def number(self, scalar: Any, beside: Tensor) -> Any:
        """A traced number as torch takes a Python number: it does not change the dtype of the tensor beside it."""
        t = self.tensor(scalar)
        if t is None or not t.dtype.is_floating_point or beside.dtype.is_floating_point or beside.dtype.is_complex:
            return t
        return t.to(torch.get_default_dtype())

    def reshaped(self, array: Array) -> None:
        """The array was given another shape in place."""
        self._behind.pop(id(array), None)

    def replaced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a torch call with tensors for arrays."""
        if any(isinstance(a, np.ndarray) for a in arrays_in((args, kwargs))):
            with suppress(Unmapped):
                return self._torch_arguments(args), self._torch_arguments(kwargs)
        return args, kwargs

    def _torch_arguments(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return self.tensors_for(value)
        if isinstance(value, tuple) and not hasattr(value, "_fields"):
            return tuple(self._torch_arguments(v) for v in value)
        if isinstance(value, list):
            return [self._torch_arguments(v) for v in value]
        return {k: self._torch_arguments(v) for k, v in value.items()} if isinstance(value, dict) else value

    def construct(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """``torch.tensor`` and its kin, of traced arrays alone or in lists; ``None`` if there are none."""
        data = args[0] if args else kwargs.get("data", kwargs.get("obj"))
        found = [a for a in arrays_in(data) if isinstance(a, np.ndarray)]
        if not found or not self.concerned(found):
            return None
        result: Tensor = function(*unwrapped(args), **unwrapped(kwargs))
        whole = self.tensor(data) if isinstance(data, np.ndarray) else None
        tape = self.traced_by(found)
        if whole is not None and result.dtype == whole.dtype and result.data_ptr() == whole.data_ptr():
            alias: Tensor = self._recorded_call(torch.Tensor.view_as, whole, whole)
            return alias
        if tape is None:
            if whole is not None and result.dtype == whole.dtype:
                self._copy_source(whole, result)
            return result
        data = self._torch_arguments(data)
        refs = {id(t): tape.find(t) or self.recorder.constant(tape, t) for t in arrays_in(data)}
        reads = tuple({r.slot for r in refs.values()})
        given = (refer(data, refs), result.dtype, result.device)
        function = _copied if isinstance(data, Tensor) else assemble
        tape.calls.append(Call(function, given, {}, (tape.bind(result).slot,), reads, (), where()))
        return result

    def to_array(self, t: Tensor, plain: Array) -> Array:
        """The array over the memory of a traced tensor, as ``Tensor.numpy`` gives it."""
        self._first_use()
        return self.wrap(plain, t)


class _NoMatch:
    pass


_NO_MATCH: Any = _NoMatch()
# As they are before a session replaces them.
_from_numpy = torch.from_numpy
_FULL_LIKE, _PIECEWISE, _SHAPES = np.full_like, np.piecewise, (np.size, np.shape)


def _original(function: Any) -> Any:
    return getattr(function, "__wrapped__", function)


def _array_type() -> Any:
    from leapp.capture.traced import TracedNpArray

    return TracedNpArray


def _copied(t: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    return t.to(dtype=dtype, device=device, copy=True)


def torch_dtype(dtype: Any) -> torch.dtype | None:
    """The torch dtype of a NumPy dtype, or ``None``."""
    return _DTYPES.get(np.dtype(dtype))


_DTYPES: dict[np.dtype[Any], torch.dtype] = {
    np.dtype(name): getattr(torch, name)
    for name in (
        "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128".split()
    )
}


def unwrapped(value: Any) -> Any:
    """A nested argument with plain arrays and NumPy numbers for traced ones."""
    if isinstance(value, np.ndarray):
        kind = type(value)
        if kind is np.ndarray:
            return value
        if kind.__module__ == "leapp.capture.traced":
            plain = bare_view(value)
            return plain if kind is _array_type() else ORIGINAL["__getitem__"](plain, ())
        return value
    if isinstance(value, Tensor):
        with _silence():
            return value.numpy()
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(unwrapped(v) for v in value)
    if isinstance(value, list):
        return [unwrapped(v) for v in value]
    if isinstance(value, dict):
        return {k: unwrapped(v) for k, v in value.items()}
    if isinstance(value, slice):
        # A bound that is traced leaves the graph: its own __index__ tells the tape.
        return slice(*(v if v is None else operator.index(v) for v in (value.start, value.stop, value.step)))
    return value


def silent_numpy(t: Tensor) -> Array:
    """The array over the memory of a tensor, unseen by any mode."""
    with _silence():
        return t.detach().resolve_conj().resolve_neg().numpy()


@contextmanager
def _silence() -> Iterator[None]:
    with torch._C._ExcludeDispatchKeyGuard(_PYTHON_KEYS), torch._C.DisableTorchFunction():
        yield


def bare_view(array: Array) -> Array:
    """A plain array over the same memory."""
    return ORIGINAL["view"](array, np.ndarray)  # type: ignore[no-any-return]


def _owner(array: Array) -> Array:
    """The array at the end of the chain of bases."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


_PYTHON_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.Python) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.PythonTLSSnapshot
)


def arrays_in(value: Any) -> list[Any]:
    """Every array and tensor in a nested argument."""
    if isinstance(value, (np.ndarray, Tensor)):
        return [value]
    if isinstance(value, (list, tuple)):
        return [a for v in value for a in arrays_in(v)]
    if isinstance(value, dict):
        return [a for v in value.values() for a in arrays_in(v)]
    return []


def agree(a: Array, b: Array, tolerance: float) -> bool:
    """Whether two arrays hold the same values, NaN included, up to rounding."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if tolerance == 0.0:
        return bool(np.array_equal(a, b))
    scale = max(1.0, float(np.max(np.abs(a), initial=0.0, where=np.isfinite(a)))) if a.size else 1.0
    return bool(np.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True))


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are the same to the last bit."""
    return silent_numpy(a).tobytes() == silent_numpy(b).tobytes()


def _same_storage(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def _unwrap(found: Any, arrays: Arrays) -> Tensor | None:
    """The tensor in the result of an expression."""
    if isinstance(found, np.ndarray):
        return arrays.tensor(found)
    found = getattr(found, "tensor", found)
    return found if isinstance(found, Tensor) else None


def _given(result: Any, outs: tuple[Any, ...]) -> Any:
    """NumPy's result, with the caller's own output arrays in their places."""
    if not outs:
        return result
    if len(outs) == 1:
        return outs[0]
    return tuple(r if o is None else o for r, o in zip(result, outs, strict=True))


def _as_tensor(value: Any) -> Any:
    """What ``Tensor.__array_wrap__`` makes of NumPy's result."""
    if isinstance(value, tuple):
        return tuple(_as_tensor(v) for v in value)
    value = np.asarray(value)
    return _from_numpy(value.astype(np.uint8) if value.dtype == np.bool_ else value)


def _without_out(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], tuple[Any, ...]]:
    """The arguments of a call, apart from its output arrays."""
    try:
        signature = inspect.signature(function)
        bound = signature.bind(*args, **kwargs)
    except (TypeError, ValueError):
        return args, kwargs, ()
    out = bound.arguments.get("out")
    if out is None:
        return args, kwargs, ()
    del bound.arguments["out"]
    names = list(signature.parameters)
    after = names[names.index("out") + 1 :]
    moved = {n: bound.arguments.pop(n) for n in after if n in bound.arguments and n != "kwargs"}
    return bound.args, {**bound.kwargs, **moved}, out if isinstance(out, tuple) else (out,)


def _loop(ufunc: np.ufunc, inputs: tuple[Any, ...], options: dict[str, Any]) -> tuple[np.dtype[Any], ...]:
    """The dtypes in which NumPy computes a ufunc, inputs first."""
    kinds: list[Any] = []
    for value in inputs:
        if isinstance(value, Tensor):
            kinds.append(np.dtype(str(value.dtype).removeprefix("torch.")))
        elif type(value) in (int, float, complex):
            kinds.append(type(value))
        else:
            kinds.append(value.dtype if isinstance(value, (np.ndarray, np.generic)) else np.asarray(value).dtype)
    more: dict[str, Any] = {}
    if options.get("dtype") is not None:
        more["signature"] = (*(None,) * ufunc.nin, *(np.dtype(options["dtype"]),) * ufunc.nout)
    return ufunc.resolve_dtypes((*kinds, *(None,) * ufunc.nout), **more)  # type: ignore[attr-defined,no-any-return]


def _reduce_dtype(ufunc: np.ufunc, value: Any, dtype: Any) -> torch.dtype | None:
    given = value.dtype if isinstance(value, np.ndarray) else np.asarray(value).dtype
    if dtype is not None:
        return torch_dtype(dtype)
    if ufunc.__name__ in ("add", "multiply") and given.kind in "bui" and given.itemsize < 8:
        return torch.int64
    return None


def _at(ufunc: np.ufunc, t: Tensor, index: Any, *values: Any) -> None:
    if ufunc.__name__ not in ("add", "subtract") or not values:
        raise Unmapped
    value = values[0] if isinstance(values[0], Tensor) else torch.tensor(values[0])
    value = value.to(t.dtype)
    view, place, _ = locate(t, index)
    while place and isinstance(place[-1], slice) and place[-1] == slice(None):
        place = place[:-1]
    if any(not isinstance(p, Tensor) for p in place):
        raise Unmapped
    view.index_put_(place, value if ufunc.__name__ == "add" else -value, accumulate=True)


def _frozen(value: Any) -> Any:
    """A frozen value for the report: no larger than it needs to be, and no longer connected."""
    if isinstance(value, np.ndarray):
        plain = bare_view(value)
        return plain.item() if plain.ndim == 0 and plain.dtype != object else plain.copy()
    return value


def _digits(value: Any) -> Any:
    """A number to the digits that NumPy and torch agree on."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


def is_number(value: Any) -> bool:
    """Whether a value is a number of Python or NumPy. A traced number is an array."""
    return isinstance(value, (bool, int, float, complex, np.generic)) and not isinstance(value, np.ndarray)


def _number(t: Tensor) -> Any:
    return _digits(t.item())


_SOURCES: dict[str, Any] = {
    "__bool__": torch.Tensor.__bool__, "__int__": torch.Tensor.__int__, "__index__": torch.Tensor.__int__,
    "__float__": _number, "item": _number,
}  # fmt: skip
