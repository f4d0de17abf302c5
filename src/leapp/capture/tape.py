"""The tape of one node: every call that touched its values, in order.

A value is a numbered slot. While the node is open, the tape finds the slot of a tensor by its identity or by its memory. The
tape holds slots and weak references, so it does not keep the user's intermediate tensors alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from leapp.capture.aliasing import Geometry, geometry, locate, overlaps, region, storage_id, storage_of, version_of
from leapp.capture.batch.symbolic_size import Followed
from leapp.capture.trees import leaves, mapped
from leapp.capture.user_line import Where, where
from leapp.compat.core import storage_expired
from leapp.compat.modes import DisableTorchFunction, free_weak_storage
from leapp.errors import TraceError

if TYPE_CHECKING:
    from leapp.capture.batch.follower import Follower
    from leapp.capture.indexed_views import IndexedRows

Tensor = torch.Tensor
TEXTS = frozenset({"__repr__", "__str__", "__format__"})
"""Calls that make text of values for people. Text that differs between passes is no proof of a frozen value."""

# A constant up to this number of bytes is copied when it is first read, so that later writes cannot change it. A larger one is
# held by reference: it is copied before a write that leapp sees, and refused after a write that leapp did not see.
BY_VALUE = 64 * 1024

_new = tuple.__new__  # skips NamedTuple's argument checks
_REDUCED = frozenset({torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2})


def _no_tensor() -> None:
    return None


class Ref:
    """A slot as it appears in the arguments of a recorded call.

    While the node is open, ``tensor()`` returns the tensor that holds its value; ``None`` if that is freed, or for a number.
    """

    __slots__ = ("slot", "tensor")

    def __init__(self, slot: int, tensor: Callable[[], Tensor | None] = _no_tensor) -> None:
        self.slot = slot
        self.tensor = tensor

    def __repr__(self) -> str:
        return f"%{self.slot}"


class Call(NamedTuple):
    """One recorded call. ``writes`` are the memories it changed, ``reads`` the slots among its arguments."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outs: tuple[int, ...]
    reads: tuple[int, ...]
    writes: tuple[Memory, ...]
    where: Where


@dataclass(slots=True, eq=False)
class Constant:
    """A plain tensor that the node reads: no traced call made it."""

    value: Tensor
    where: Where
    version: int | None
    """The version counter of ``value`` if that is the user's own tensor, ``None`` if it is a copy."""
    origin: weakref.ref[Tensor]
    """The user's tensor, to find its name in a module and to see whether it changed later."""
    drawn: Where | None = None
    """The line that drew the random numbers in it, if it holds random numbers."""
    origins: frozenset[int] = frozenset()
    """The memories older than the node that it was computed from."""
    lender: weakref.ref[Any] | None = None
    """The array whose memory it lies over, if that is older than the node."""
    undeclared: str | None = None
    """What the value was computed from, if that was not declared: a ``node/port``, or an input of another node."""
    start: int = 0
    """The address of its first element when it was read. Other rows of one array have other addresses."""
    earlier_pass: Where | None = None
    """The line in an earlier pass of the same node that made the value or wrote to its memory, if any."""
    earlier_slot: int | None = None
    """The slot of the value on the tape of the first pass, if it is known."""
    parameter: bool = field(init=False)
    """Whether it is a parameter of a module."""

    def __post_init__(self) -> None:
        origin = self.origin()  # type() first: isinstance() calls torch's metaclass, which takes ten times as long
        self.parameter = type(origin) is not Tensor and isinstance(origin, torch.nn.Parameter)


class Draw(NamedTuple):
    """A call that drew random numbers, the numbers, and the state of torch's generator before the call."""

    call: Call
    values: list[Tensor]
    state: Tensor


@dataclass(slots=True, eq=False)
class Escape:
    """A value that left the graph. Calls that use it later are recorded with its present value."""

    kind: str
    where: Where
    value: Any
    source: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]] | None = None
    """The call that gave ``value``, to be run again on other samples."""
    reads: tuple[int, ...] = ()
    suspicion: bool = False
    """Whether it is not known that the value is used. Two recorded passes that agree show that it is not."""
    cure: str = ""
    """Advice, if it is known at this point."""


class Memory:
    """One storage that the tape knows.

    Attributes:
        traced: Whether values of the node may lie in it. If not, it holds constants only.
        weak: torch's weak reference to the storage. It equals the address and keeps the address from being used again.
        roots: The slots in this memory from which every alias can be derived, with their geometries.
        ids: The identities of the constants that were read from it.
    """

    __slots__ = ("ids", "roots", "traced", "weak")

    def __init__(self, traced: bool, weak: int | None, roots: tuple[tuple[Ref, Geometry | None], ...] = ()) -> None:
        self.traced = traced
        self.weak = weak
        self.roots = roots
        self.ids: tuple[int, ...] = ()

    def clear(self) -> None:
        """Forget all slots and constants."""
        self.roots, self.ids = (), ()


class Tape:
    """What one open node has recorded so far."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.open = self.first = True
        self.autograd = False
        self.calls: list[Call] = []
        self.memory_of: list[Memory] = []
        self.known: dict[int, Ref] = {}
        self.memories: dict[int | None, Memory] = {}
        self._weak: list[int] = []
        """torch's weak references to storages, which must be freed."""
        self._living: set[int] | None = None
        """The constants whose memory still existed when the session ended."""
        self.constants: dict[int, Constant] = {}
        self.constant_ids: dict[int, tuple[Ref, int | None]] = {}
        self.inputs: list[int] = []
        self._declared: dict[int, Where] = {}
        self.escapes: list[Escape] = []
        self.random: list[Where] = []
        self.draws: list[Draw] = []
        """The calls that drew random numbers without reading a traced value."""
        self.dynamic: set[int] = set()
        self.shared_writes: list[Where] = []
        """Where an input was written to that shares memory with another one."""
        self.indexed_rows: IndexedRows
        """Rows ``x[i]`` with a traced ``i``."""
        self.batch: Follower | None = None
        """Finds which sizes depend on the batch, if the node is to take any batch size."""
        self.generators: Any = None
        """The states of the global random generators when the node was opened."""
        self.precision = 0.0
        """The rounding step of the coarsest float type that the node computed with, if that is coarser than float32."""

    def lives(self, slot: int) -> bool:
        """Whether the memory of a constant still exists, or still existed when the session ended."""
        if self._living is not None:
            return slot in self._living
        weak = self.memory_of[slot].weak
        return self.constants[slot].origin() is not None if weak is None else not storage_expired(weak)

    def end(self) -> None:
        """Free what the tape holds, when the session is over or the tape is dropped.

        This is not ``__del__``, because Python loses a Ctrl-C that comes during ``__del__``.
        """
        self._living = {slot for slot in self.constants if self.lives(slot)}
        self.release(())

    def release(self, slots: Iterable[int]) -> None:
        """Free the weak references to storages, except those of these slots."""
        kept = {self.memory_of[s].weak for s in slots}
        while self._weak:
            weak = self._weak.pop()
            if weak not in kept:
                free_weak_storage(weak)
        self._weak = [weak for weak in kept if weak is not None]

    # -- slots ---------------------------------------------------------------------------------------------------------

    def bind(self, t: Tensor) -> Ref:
        """Give a slot to a tensor that a recorded call made."""
        memory_of = self.memory_of
        ref = self.known[id(t)] = Ref(len(memory_of), weakref.ref(t))
        dtype = t.dtype
        if dtype in _REDUCED:
            self.precision = max(self.precision, torch.finfo(dtype).eps)
        try:
            storage = t.untyped_storage()
        except (RuntimeError, NotImplementedError, ValueError):  # sparse tensors have no storage
            memory_of.append(Memory(True, None))
            return ref
        cdata = storage._cdata
        memory = self.memories.get(cdata)
        if memory is None:
            weak: Any = storage._weak_ref()  # the body of _weakly(), inlined because this runs for every recorded call
            self._weak.append(weak)
            try:
                shape: Any = _new(Geometry, (dtype, t.shape, t.stride(), t.storage_offset()))
            except RuntimeError:  # nested tensors have no strides
                shape = None
            memory = self.memories[cdata] = Memory(True, weak, ((ref, shape),))
        elif not memory.traced:
            memory = Memory(True, None)  # a view of a constant
        memory_of.append(memory)
        return ref

    def new_slot(self) -> int:
        """A new slot with memory of its own and without a tensor."""
        self.memory_of.append(Memory(True, None))
        return len(self.memory_of) - 1

    def add(self, func: Callable[..., Any], args: tuple[Any, ...], out: int) -> None:
        """Put a call on the tape that no mode saw, for what the program did at the present line."""
        reads = tuple([ref.slot for ref in leaves(args, Ref)])
        self.calls.append(Call(func, args, {}, (out,), reads, (), where()))

    def made(self, t: Tensor, func: Callable[..., Any], *args: Any) -> None:
        """Record ``t``, which no mode saw being made, as ``func(*args)``."""
        self.add(func, args, self.bind(t).slot)

    def _memory(self, t: Tensor) -> Memory | None:
        storage = storage_of(t)
        if storage is None:
            return None
        cdata = storage._cdata
        memory = self.memories.get(cdata)
        if memory is None:
            memory = self.memories[cdata] = Memory(True, self._weakly(storage))
        return memory

    def _weakly(self, storage: Any) -> int:
        weak: int = storage._weak_ref()
        self._weak.append(weak)
        return weak

    def declare(self, t: Tensor, at: Where, axis: int | str | None = "open") -> Ref:
        """Make ``t`` itself an input of the node. ``axis`` is its batch axis, for a node that takes any batch size."""
        ref = self.known[id(t)] = Ref(len(self.memory_of), weakref.ref(t))
        memory = self._memory(t) or Memory(True, None)
        if not memory.traced:
            self.forget(memory)
            memory.traced = True
        memory.roots += ((ref, _geometry(t)),)
        self.memory_of.append(memory)
        self.inputs.append(ref.slot)
        self._declared[ref.slot] = at
        if self.batch is not None:
            self.batch.declare(ref.slot, t, axis)
        return ref

    # -- looking tensors up --------------------------------------------------------------------------------------------

    def find(self, t: Tensor) -> Ref | None:
        """The slot of a tensor that holds traced values: by identity, else by its memory."""
        ref = self.known.get(id(t))
        if ref is not None and ref.tensor() is t:
            return ref
        return self.alias(t) if self.owns(t) else None

    def owns(self, t: Tensor) -> bool:
        """Whether the memory of ``t`` holds traced values."""
        memory = self.memories.get(storage_id(t))
        if memory is None or not memory.traced:
            return False
        mine = _geometry(t)
        return any(root is None or mine is None or mine == root or overlaps(mine, root) for _, root in memory.roots)

    def note_shared_write(self, t: Tensor) -> None:
        """Call it before a write to ``t``. Notes a write to memory that several inputs share: a model would change only one."""
        memory = self._memory(t)
        if memory is None or len(memory.roots) < 2:
            return
        mine = geometry(t)
        if sum(r.slot in self.inputs and (g is None or overlaps(mine, g)) for r, g in memory.roots) > 1:
            self.shared_writes.append(where())

    def alias(self, t: Tensor) -> Ref:
        """The slot of a tensor that no call returned but whose memory is traced: recorded as a view of a known slot."""
        memory = self.memories[t.untyped_storage()._cdata]
        mine = geometry(t)
        for root, shape in memory.roots:
            found = None if shape is None else locate(mine, shape)
            if found is None:
                continue
            ref = self.known[id(t)] = Ref(len(self.memory_of), weakref.ref(t))
            self.memory_of.append(memory)
            func: Callable[..., Any] = torch.ops.aten.alias.default if shape == mine else region
            args = (root,) if shape == mine else (root, *found)
            self.add(func, args, ref.slot)
            return ref
        raise TraceError(
            f"node '{self.node}': at {where()} a tensor of shape {list(t.shape)} shares only part of its memory with "
            "traced values, so leapp cannot tell which of its elements are traced. "
            "Declare the whole tensor as an input, or clone() the part you use."
        )

    # -- constants -----------------------------------------------------------------------------------------------------

    def known_constant(self, t: Tensor) -> Ref | None:
        """The slot of a plain tensor that was read before and was not written to since."""
        entry = self.constant_ids.get(id(t))
        return entry[0] if entry is not None and entry[0].tensor() is t and entry[1] == version_of(t) else None

    def constant(self, t: Tensor) -> Ref:
        """The slot of a plain tensor, which becomes a constant of the node if it is not one yet."""
        known = self.known_constant(t)
        if known is not None:
            return known
        ref = Ref(len(self.memory_of), weakref.ref(t))
        memory = self._memory(t)
        if memory is None or (memory.traced and memory.roots):
            memory = Memory(False, None)  # it shares the storage with traced values, but does not overlap them
        memory.traced = False
        memory.ids = (*memory.ids, id(t))
        self.memory_of.append(memory)
        version = version_of(t)
        self.constant_ids[id(t)] = (ref, version)
        small = t.numel() * t.element_size() <= BY_VALUE or version is None
        self.constants[ref.slot] = Constant(
            snapshot(t) if small else t, where(), None if small else version, weakref.ref(t),
            start=t.data_ptr() if memory.weak is not None else 0,
        )  # fmt: skip
        return ref

    def adopt(self, t: Tensor, origins: frozenset[int] = frozenset(), lender: weakref.ref[Any] | None = None) -> None:
        """Call it before a traced value is written into plain memory. Makes the present content a value of the tape."""
        memory = self._memory(t)
        if memory is None or (memory.traced and memory.roots):
            return
        self.forget(memory)
        memory.traced = True
        storage = t.untyped_storage()
        whole = t.is_contiguous() and t.numel() * t.element_size() == storage.nbytes()
        root = t if whole else torch.empty(0, dtype=t.dtype, device=t.device).set_(storage)
        ref = Ref(len(self.memory_of), weakref.ref(t))
        self.memory_of.append(memory)
        memory.roots += ((ref, geometry(root)),)
        self.constants[ref.slot] = Constant(snapshot(root), where(), None, weakref.ref(t), origins=origins, lender=lender)
        if whole:
            self.known[id(t)] = ref

    def before_plain_write(self, t: Tensor) -> None:
        """Call it before a call without traced values writes to ``t``. Keeps what was read from that memory."""
        memory = self.memories.get(storage_id(t))
        if memory is not None and not memory.traced:
            self.forget(memory)

    def forget(self, memory: Memory) -> None:
        """Call it before plain memory changes. Copies the constants that were read from it; the next read makes a new one."""
        for i in memory.ids:
            entry = self.constant_ids.pop(i, None)
            if entry is not None:
                constant = self.constants[entry[0].slot]
                if constant.version is not None:
                    constant.value, constant.version = snapshot(constant.value), None
        memory.clear()

    def make_constant(self, slot: int, value: Tensor, origin: Tensor, at: Where) -> None:
        """Turn a declared input into a constant."""
        self.inputs.remove(slot)
        if self.batch is not None:
            self.batch.entries.pop(slot, None)
        self.known.pop(id(origin), None)
        self.constants[slot] = Constant(value, at, None, weakref.ref(origin))

    def freeze(self, draw: Draw) -> None:
        """Turn the random numbers that a call drew into constants."""
        at = draw.call.where
        self.calls = [call for call in self.calls if call is not draw.call]
        self.random = [other for other in self.random if other is not at]
        for slot, value in zip(draw.call.outs, draw.values, strict=True):
            self.constants[slot] = Constant(value, at, None, weakref.ref(value), drawn=at)

    def same(self, source: Tensor, target: Tensor) -> None:
        """Record that ``target`` is a copy of the traced ``source``."""
        ref = self.find(source)
        if ref is not None and self.find(target) is None:
            self.made(target, _copied, ref, target.dtype, target.device)

    def move(self, source: Tensor, target: Tensor, first: int) -> bool:
        """Give the slot of the traced ``source`` to ``target``, with its memory. Returns whether that was possible.

        It is not if a slot older than ``first`` shares the memory: writes to that slot would not reach ``target``.
        """
        ref = self.find(source)
        if ref is None:
            return False
        memory = self.memory_of[ref.slot]
        cdata = source.untyped_storage()._cdata
        alone = len(memory.roots) == 1 and memory.roots[0][0].slot >= first
        if not alone or self.memories.get(cdata) is not memory or memory.weak is None:
            return False
        storage = target.untyped_storage()
        memory.weak = self._weakly(storage)
        del self.memories[cdata]
        self.memories[storage._cdata] = memory
        self.known.pop(id(source), None)
        moved = self.known[id(target)] = Ref(ref.slot, weakref.ref(target))
        memory.roots = ((moved, geometry(target)),)
        return True

    def remember(self, ref: Ref) -> Ref:
        """A new slot with a copy of the present value of another slot, which later writes do not change."""
        kept = Ref(self.new_slot(), ref.tensor)
        self.add(torch.clone, (ref,), kept.slot)
        return kept

    def makers(self, slots: set[int]) -> dict[int, Where]:
        """The line that declared or made each of these slots, for inputs and results of calls."""
        made = {s: call.where for call in self.calls if not slots.isdisjoint(call.outs) for s in call.outs}
        return made | {s: at for s, at in self._declared.items() if s in slots}

    def rewritten(self) -> dict[int, tuple[Where, int]]:
        """The memories of plain tensors that calls wrote to, by storage address: the line of the write and a slot in it."""
        written = {memory: call.where for call in self.calls for memory in call.writes}
        over = ((self.memory_of[slot], slot) for slot in self.constants)
        return {m.weak: (written[m], slot) for m, slot in over if m in written and m.weak is not None}

    def changed_behind(self) -> Constant | None:
        """A constant held by reference that was written to after it was read, or ``None``."""
        for constant in self.constants.values():
            if constant.version is not None and constant.value._version != constant.version:
                return constant
        return None


def refer(value: Any, refs: dict[int, Ref]) -> Any:
    """A copy of an argument with every tensor replaced by its slot."""
    return mapped(value, lambda v: refs[id(v)] if isinstance(v, (Tensor, Followed)) else v)


def _copied(t: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    return t.to(dtype=dtype, device=device, copy=True)


def is_known(known: dict[int, Ref], t: Tensor) -> bool:
    """Whether a tensor has a slot by its identity, not only by its memory."""
    ref = known.get(id(t))
    return ref is not None and ref.tensor() is t


def _geometry(t: Tensor) -> Geometry | None:
    try:
        return geometry(t)
    except RuntimeError:  # sparse and nested tensors have no strides
        return None


def snapshot(t: Tensor) -> Tensor:
    """A copy of a tensor without autograd history, which no mode sees being made and which is not an inference tensor."""
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False):
            return snapshot(t)
    with DisableTorchFunction():
        t = t.detach() if t.requires_grad and torch.is_grad_enabled() else t
        return t.clone(memory_format=torch.contiguous_format) if t.layout == torch.strided else t.clone()
