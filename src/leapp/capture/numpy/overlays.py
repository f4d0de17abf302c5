"""Overlays: for each array that the session follows, a tensor over the same memory.

Whether an array is traced or published is looked up by its tensor.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy import generic, ndarray
from torch.autograd.graph import increment_version

from leapp.capture.aliasing import geometry, storage_of
from leapp.capture.call_kinds import classify
from leapp.capture.equality import same_bits
from leapp.capture.identity import ByIdentity
from leapp.capture.numpy.plain import (
    Array,
    address,
    asarray,
    bare_view,
    bounds,
    from_numpy,
    frozen,
    ordinary,
    owner_of,
    silent_numpy,
    torch_dtype,
)
from leapp.capture.numpy.scalars import TracedScalar, scalar
from leapp.capture.numpy.table import Unmapped
from leapp.capture.numpy.traced import TracedNpArray
from leapp.capture.tape import Escape, Tape, snapshot
from leapp.capture.trees import mapped
from leapp.capture.user_line import where
from leapp.compat.modes import storage_uses

if TYPE_CHECKING:
    from leapp.capture.provenance import Published
    from leapp.capture.recorder import Recorder

Tensor = torch.Tensor
# Memory of arrays up to this number of bytes is kept until the node is finished, to recognise views that no mode has seen.
_HELD = 1 << 20


class Overlay(NamedTuple):
    """The tensor over the memory of an array."""

    array: weakref.ref[Array]
    tensor: Tensor
    flips: tuple[int, ...]
    """The axes along which the tensor is reversed, since torch has no negative strides."""
    root: Tensor
    """The tensor over the whole memory."""


_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def flipped(t: Tensor, dims: tuple[int, ...]) -> Tensor:
    """``t`` reversed along ``dims``. Unsigned types go through signed ones, because torch has no flip for them."""
    signed = _SIGNED.get(t.dtype)
    return torch.flip(t, dims) if signed is None else torch.flip(t.view(signed), dims).view(t.dtype)


def _as_bytes(array: Array) -> Array:
    """An array of records as its bytes; any other array as it is."""
    records = array.dtype.names is not None and array.flags.c_contiguous and not array.dtype.hasobject
    return array.reshape(-1).view(np.uint8) if records else array


def _is_shared(t: Tensor, storage: torch.UntypedStorage) -> bool:
    """Whether another object holds a tensor or its memory."""
    return t._use_count() > 1 or storage_uses(storage) > 2  # type: ignore[attr-defined]


def _same_place(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same elements in the same memory."""
    return a.data_ptr() == b.data_ptr() and geometry(a)[:3] == geometry(b)[:3]


class Overlays:
    """The arrays of one session."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._overlays: dict[int, Overlay] = {}
        self._roots: ByIdentity[weakref.ref[Tensor]] = ByIdentity()
        self._held: dict[int, Tensor] = {}
        """The tensors that leapp itself made over whole arrays for the open nodes, by the identity of the storage."""
        self._exposed: list[tuple[int, int, Tensor]] = []
        #: Whether any array has been followed.
        self.seen = False
        self._quiet = threading.local()

    # -- tensors over arrays ---------------------------------------------------------------------------------------------

    def overlay(self, array: Array) -> Overlay | None:
        """The tensor over the memory of ``array``, or ``None`` if torch cannot describe it."""
        found = self._overlays.get(id(array))
        if found is not None and found.array() is array:
            return found
        with self.recorder.lock, self.recorder.silence():
            return self._derive(array)

    def follows(self, tape: Tape, array: Array) -> bool:
        """Whether the memory of an array holds values of a node."""
        over = self.overlay(array)
        return over is not None and tape.owns(over.tensor)

    def _derive(self, array: Array) -> Overlay | None:
        plain = bare_view(array)
        dtype = torch_dtype(plain.dtype)
        item = plain.itemsize
        if dtype is None or any(s % item for s in plain.strides):
            return None
        root = owner_of(array)
        whole = root.base if isinstance(root.base, Tensor) else self._exposed_memory(plain)
        whole = self._root(root) if whole is None else whole
        if whole is None:
            return None
        storage = whole.untyped_storage()
        start = address(plain) - storage.data_ptr()
        strides, flips = [], []
        for d, (n, s) in enumerate(zip(plain.shape, plain.strides, strict=True)):
            if s < 0 and n > 1:
                start += s * (n - 1)
                flips.append(d)
            strides.append(abs(s) // item)
        if start % item or start < 0:
            return None
        t = torch.empty(0, dtype=dtype).set_(storage, start // item, plain.shape, strides)
        return self.attach(array, ordinary(t), tuple(flips), whole)

    def _root(self, root: Array) -> Tensor | None:
        found = self._roots.get(root)
        known = None if found is None else found()
        if known is not None:
            return known
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns of read-only arrays; nothing here writes to the tensor
                whole = from_numpy(_as_bytes(bare_view(root)))
        except (TypeError, ValueError):
            return None
        self.hold(root, whole)
        if self.recorder.tapes:
            self.recorder.old_memory.over(root, whole)
        return whole

    def held(self) -> list[Tensor]:
        """The tensors over memory that arrays share and that may hold traced values."""
        return [*self._held.values(), *(t for _, _, t in self._exposed)]

    def is_own(self, storage: int) -> bool:
        """Whether leapp made a storage, given by its identity, for the memory of an array: it follows all arrays over it."""
        return storage in self._held

    def exposed(self, t: Tensor) -> None:
        """Follow all arrays over the memory of ``t`` from now on, because traced values get into it.

        Whether there may be such an array is known from the storage: torch does not let a storage grow that it shares with
        NumPy. Sharing through DLPack shows only in the reference count of the tensor.
        """
        storage = storage_of(t)
        if storage is None or not t.is_cpu or (storage.resizable() and not _is_shared(t, storage)):
            return
        self.seen = self.seen or not storage.resizable()
        start, size = storage.data_ptr(), storage.nbytes()
        if not size or self.is_own(storage._cdata):
            return
        with self.recorder.silence():  # a new context: the dispatch mode may have been added since the outer one was entered
            self._exposed.append((start, start + size, torch.empty(0, dtype=torch.uint8).set_(storage)))
            # Drop overlays made earlier over other storage objects of the same memory.
            for i, (_, other, _, _) in list(self._overlays.items()):
                if start <= other.data_ptr() < start + size and other.untyped_storage()._cdata != storage._cdata:
                    del self._overlays[i]
            self._held = {i: whole for i, whole in self._held.items() if not start <= whole.data_ptr() < start + size}

    def _exposed_memory(self, array: Array) -> Tensor | None:
        """The exposed memory that ``array`` lies in."""
        if not self._exposed:
            return None
        low, high = bounds(array)
        return next((t for start, end, t in self._exposed if start <= low and high <= end), None)

    def hold(self, root: Array, whole: Tensor) -> None:
        """Note that ``whole`` is the tensor over all the memory of ``root``."""
        self._roots[root] = weakref.ref(whole)
        if self.recorder.tapes and root.nbytes <= _HELD:
            self._held[whole.untyped_storage()._cdata] = whole

    def attach(self, array: Array, t: Tensor, flips: tuple[int, ...] = (), root: Tensor | None = None) -> Overlay:
        """Let ``t`` be the tensor over ``array`` from now on."""
        i, table = id(array), self._overlays
        # A C function: Python loses an interrupt that comes while a Python callback of a weak reference runs.
        forget: Callable[[Any], Any] = partial(table.pop, i)
        found = Overlay(weakref.ref(array, forget), t, flips, t if root is None else root)
        table[i] = found
        return found

    def tensor(self, array: Array) -> Tensor | None:
        """The value of ``array`` as a tensor: the overlay, or a recorded flip of it."""
        found = self.overlay(array)
        if found is None:
            return None
        self.refresh(found.tensor)
        return self.recorded_call(flipped, found.tensor, found.flips) if found.flips else found.tensor

    def tensors_for(self, value: Any) -> Any:
        """A nested argument with a tensor for each array."""
        return mapped(value, self._tensor_for, slices=False)

    def _tensor_for(self, value: Any) -> Any:
        value = value.array if isinstance(value, TracedScalar) else value
        if isinstance(value, (ndarray, generic)):
            found = self.tensor(asarray(value) if isinstance(value, generic) else value)
            if found is None:
                raise Unmapped
            return found
        if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, generic)):
            return np.dtype(value).name
        return value

    def recorded_call(self, function: Any, *args: Any) -> Any:
        """A torch call that is recorded, also from inside the modes."""
        with self.recorder.silence():
            return self.recorder.calls.called(function, classify(function), args, {}, whole=True)

    def refresh(self, t: Tensor) -> None:
        """Let the tape read a constant again if NumPy changed the memory: torch does not see such writes."""
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

    def recognised(self, t: Tensor) -> Tensor:
        """The tensor over the array whose memory ``t`` shares, or ``t``. torch's old constructors do not report the array."""
        if t.layout != torch.strided:
            return t
        with self.recorder.silence():
            return next((o.tensor for o in self._overlays.values() if not o.flips and _same_place(o.tensor, t)), t)

    def is_root(self, array: Array) -> bool:
        """Whether an array owns memory that a tensor of the session lies over."""
        return isinstance(array.base, Tensor) or array in self._roots

    def living(self) -> dict[int, weakref.ref[Array]]:
        """The arrays that the program still has, by the identity of the tensor over each."""
        return {id(found.tensor): found.array for found in self._overlays.values()}

    def published(self, t: Tensor) -> Published | None:
        """The published output whose memory ``t`` shares through an array: no mode sees such a tensor being made."""
        found = self.recognised(t)
        return None if found is t else self.recorder.source(found)

    def reshaped(self, array: Array) -> None:
        """Forget the overlay of an array whose shape was changed in place."""
        self._overlays.pop(id(array), None)

    def forget(self) -> None:
        """Drop what was kept for the open nodes, and the entries of freed arrays."""
        self._held.clear()
        self._exposed.clear()
        self._roots.forget_dead()

    def clear(self) -> None:
        """Forget everything, at the end of the session."""
        self.forget()
        self._overlays.clear()
        self._roots.clear()

    # -- classes ---------------------------------------------------------------------------------------------------------

    def wrap(self, plain: Array, t: Tensor | None = None, flips: tuple[int, ...] = ()) -> Array:
        """A traced array over the memory of ``plain``."""
        self.seen = True
        made: Array = ndarray.view(plain, TracedNpArray)
        if t is not None:
            over = ordinary(t)
            if over is not t:
                self.copy_source(t, over)
            self.attach(made, over, flips)
        return made

    def follow(self, made: Any, operands: Iterable[Any] = ()) -> Any:
        """The result of a call on untraced ``operands``, with its arrays as traced arrays if a node is open."""
        if not self.recorder.tapes:
            return made
        if type(made) is ndarray and torch_dtype(made.dtype) is not None:
            owner = owner_of(made)
            if not any(owner_of(o) is owner for o in operands if isinstance(o, ndarray)):
                self.recorder.old_memory.made(owner)
            return self.wrap(made)
        if type(made) is tuple or type(made) is list:
            return type(made)(self.follow(m, operands) for m in made)
        return made

    # -- ports -----------------------------------------------------------------------------------------------------------

    def port(self, array: Any) -> Tensor | None:
        """The tensor for an array at a port, or ``None`` if torch does not have the dtype."""
        self.seen = True
        if not isinstance(array, ndarray):
            return self.tensors_for(array) if torch_dtype(array.dtype) is not None else None
        found = self.overlay(array)
        if found is not None and not found.flips:
            return found.tensor
        if found is not None:
            t: Tensor | None = self.tensor(array)
        else:
            with self.recorder.silence():
                t = None if torch_dtype(array.dtype) is None else from_numpy(np.array(bare_view(array)))
        return None if t is None else self.attach(array, t).tensor

    def hand_back(self, array: Any, t: Tensor, alias: Tensor) -> Any:
        """The array to go on with after ``array`` was declared as an input, with ``alias`` over it."""
        if alias is t:
            return array
        if not isinstance(array, ndarray):
            return scalar(self.wrap(silent_numpy(alias), alias))
        plain = bare_view(array)
        with self.recorder.silence():
            elsewhere = address(plain) != t.data_ptr()
        if elsewhere:
            plain = silent_numpy(alias)
        return self.wrap(plain, alias)

    def buffer(self, array: Any, t: Tensor) -> Any:
        """The array to go on with after ``array``, with ``t`` over it, was registered: a traced array."""
        return self.wrap(array, t) if type(array) is ndarray else array

    # -- which values are traced -----------------------------------------------------------------------------------------

    @property
    def listening(self) -> bool:
        """Whether calls are being recorded at all."""
        return self.recorder.installed and not getattr(self._quiet, "depth", 0)

    def quietly(self, call: Callable[[], Any]) -> Any:
        """Run NumPy's own code without reporting the calls it makes."""
        self._quiet.depth = getattr(self._quiet, "depth", 0) + 1
        try:
            return call()
        finally:
            self._quiet.depth -= 1

    def concerned(self, operands: Iterable[Any]) -> bool:
        """Whether any operand holds a traced value, or one that a node published."""
        if not (self.recorder.tapes or self.recorder.published):
            return False
        found = list(self.over(operands))
        with self.recorder.silence():
            if self.recorder.tapes and self.recorder.owner(found) is not None:
                return True
        return any(self.recorder.source(t) is not None for t in found)

    def traced(self, operand: Any) -> Tape | None:
        """The tape that an array, a number or a tensor belongs to."""
        return self.traced_by([operand])

    def traced_by(self, operands: Iterable[Any]) -> Tape | None:
        """The tape that the operands belong to."""
        if not self.recorder.tapes:
            return None
        found = list(self.over(operands))
        with self.recorder.silence():
            return self.recorder.owner(found)

    def over(self, operands: Iterable[Any]) -> Iterator[Tensor]:
        """The tensors among the operands, and those over their arrays."""
        for operand in operands:
            operand = operand.array if isinstance(operand, TracedScalar) else operand
            if isinstance(operand, Tensor):
                yield operand
            elif isinstance(operand, ndarray):
                found = self.overlay(operand)
                if found is not None:
                    yield found.tensor

    def escape(self, tape: Tape | None, kind: str, operands: Iterable[Any], value: Any, source: Any = None) -> None:
        """Note that ``value`` left the graph. ``source`` is a function that computes it again from the only operand."""
        if tape is None:
            for t in self.over(operands):
                self.recorder.plain_calls.read_between(kind, t, frozen(value))
            return
        reads = []
        with self.recorder.silence():
            for t in self.over(operands):
                ref = tape.find(t) if tape.owns(t) or id(t) in tape.known else None
                if ref is not None:
                    reads.append(ref)
        call: Any = None if source is None or len(reads) != 1 else (source, (reads[0],), {})
        tape.escapes.append(Escape(kind, where(), frozen(value), call, tuple(r.slot for r in reads)))

    def copy_source(self, t: Tensor, target: Tensor) -> None:
        """Note that ``target`` is a copy of ``t``, if ``t`` is a published output."""
        found = self.recorder.source(t)
        if found is not None:
            self.recorder.published.copy(found, target)
