"""The tape of one node: every call that touched its values, in order.

A value is a numbered slot. While the node is open, a tensor is known to the tape by its identity or by its memory; the tape
itself holds slots only, so the user's intermediate tensors die when the user's program lets go of them.
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
"""Calls that write values down for people: that the text differs from pass to pass proves nothing."""

# A constant below this size is copied when first read, so that no later write can reach it. A larger one is held by
# reference: it is copied if a write to it is seen, and refused if one was not.
BY_VALUE = 64 * 1024

_new = tuple.__new__  # skips NamedTuple's argument checks
_REDUCED = frozenset({torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2})


def _no_tensor() -> None:
    return None


class Ref:
    """A slot, where it stands in a recorded call.

    While the node is open, ``tensor()`` is the tensor that holds its value. A number that follows the batch has none.
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
    """A tensor that the node reads and nothing traced produced."""

    value: Tensor
    where: Where
    version: int | None
    """The version counter of ``value`` when that is the user's own tensor, ``None`` for a private copy."""
    origin: weakref.ref[Tensor]
    """The user's tensor, to find its name in a module and to see whether it changed later."""
    drawn: Where | None = None
    """The line that drew the random numbers in it, if it has some."""
    origins: frozenset[int] = frozenset()
    """The memories older than the node that went into it."""
    lender: weakref.ref[Any] | None = None
    """The array whose memory it lies over, if that is older than the node."""
    undeclared: str | None = None
    """What other node the value was computed from, if it was."""
    start: int = 0
    """Where its memory began when it was read: other rows of one array begin elsewhere."""
    earlier_pass: Where | None = None
    """The line by which an earlier pass of the node itself made it, or wrote to its memory, if one did."""
    earlier_slot: int | None = None
    """The slot of that value on the tape of the first pass, if it is known."""
    parameter: bool = field(init=False)
    """Whether it is a parameter of a module."""

    def __post_init__(self) -> None:
        origin = self.origin()  # isinstance() asks torch's metaclass, which takes ten times as long
        self.parameter = type(origin) is not Tensor and isinstance(origin, torch.nn.Parameter)


class Draw(NamedTuple):
    """A call that drew random numbers: what it drew, and the state of torch's generator before."""

    call: Call
    values: list[Tensor]
    state: Tensor


@dataclass(slots=True, eq=False)
class Escape:
    """A value that left the graph and is frozen in what follows."""

    kind: str
    where: Where
    value: Any
    source: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]] | None = None
    """The call that gave ``value``, to be run again on other samples."""
    reads: tuple[int, ...] = ()
    suspicion: bool = False
    """Whether the value may be unused. If two recorded passes agree, it is."""
    cure: str = ""
    """What to do about it, where that is known at once."""


class Memory:
    """One storage that the tape knows.

    Attributes:
        traced: Whether values of the node may lie in it. Otherwise it is of constants.
        weak: A weak reference of torch's, which is the address of the storage and keeps it from being used again.
        roots: The slots over it from which every alias can be derived, with their geometries.
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
        """The weak references to storages that are to be given back."""
        self._living: set[int] | None = None
        """The constants whose memory the program had when the session ended."""
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
        """The rows that traced numbers chose."""
        self.batch: Follower | None = None
        """Which sizes follow the batch, if the node is to take any."""
        self.generators: Any = None
        """Where the global random generators stood when the node was opened."""
        self.precision = 0.0
        """The rounding step of the coarsest float type that the node computed with, if that is coarser than float32."""

    def lives(self, slot: int) -> bool:
        """Whether the program has the memory of a constant still, or had it when the session ended."""
        if self._living is not None:
            return slot in self._living
        weak = self.memory_of[slot].weak
        return self.constants[slot].origin() is not None if weak is None else not storage_expired(weak)

    def end(self) -> None:
        """The session is over, or the tape is dropped. This is not a finaliser, because Python loses a Ctrl-C in finalisers."""
        self._living = {slot for slot in self.constants if self.lives(slot)}
        self.release(())

    def release(self, slots: Iterable[int]) -> None:
        """Give back the weak references to storages, except those of these slots."""
        kept = {self.memory_of[s].weak for s in slots}
        while self._weak:
            weak = self._weak.pop()
            if weak not in kept:
                free_weak_storage(weak)
        self._weak = [weak for weak in kept if weak is not None]

    # -- slots ---------------------------------------------------------------------------------------------------------

    def bind(self, t: Tensor) -> Ref:
        """Give a tensor that a recorded call made its slot."""
        memory_of = self.memory_of
        ref = self.known[id(t)] = Ref(len(memory_of), weakref.ref(t))
        if t.dtype in _REDUCED:
            self.precision = max(self.precision, torch.finfo(t.dtype).eps)
        try:
            storage = t.untyped_storage()
        except (RuntimeError, NotImplementedError, ValueError):  # sparse tensors have none
            memory_of.append(Memory(True, None))
            return ref
        cdata = storage._cdata
        memory = self.memories.get(cdata)
        if memory is None:
            weak: Any = storage._weak_ref()  # as _weakly() does: this is the busiest place of all
            self._weak.append(weak)
            try:
                shape: Any = _new(Geometry, (t.dtype, t.shape, t.stride(), t.storage_offset()))
            except RuntimeError:  # nested tensors have no strides
                shape = None
            memory = self.memories[cdata] = Memory(True, weak, ((ref, shape),))
        elif not memory.traced:
            memory = Memory(True, None)  # a view of a constant
        memory_of.append(memory)
        return ref

    def new_slot(self) -> int:
        """A slot with a memory of its own, which no tensor is known to hold."""
        self.memory_of.append(Memory(True, None))
        return len(self.memory_of) - 1

    def add(self, func: Callable[..., Any], args: tuple[Any, ...], out: int) -> None:
        """Put a call on the tape that no mode saw. It stands for what the program did at the present line."""
        reads = tuple([ref.slot for ref in leaves(args, Ref)])
        self.calls.append(Call(func, args, {}, (out,), reads, (), where()))

    def made(self, t: Tensor, func: Callable[..., Any], *args: Any) -> None:
        """``t`` was made unseen; on the tape it is ``func(*args)``."""
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

    def declare(self, t: Tensor, axis: int | str | None = "open") -> Ref:
        """Make ``t`` itself an input of the node; ``axis`` tells a node that follows the batch where ``t`` has it."""
        ref = self.known[id(t)] = Ref(len(self.memory_of), weakref.ref(t))
        memory = self._memory(t) or Memory(True, None)
        if not memory.traced:
            self.forget(memory)
            memory.traced = True
        memory.roots += ((ref, _geometry(t)),)
        self.memory_of.append(memory)
        self.inputs.append(ref.slot)
        self._declared[ref.slot] = where()
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
        """Whether any traced value lies in the memory of ``t``."""
        memory = self.memories.get(storage_id(t))
        if memory is None or not memory.traced:
            return False
        mine = _geometry(t)
        return any(root is None or mine is None or mine == root or overlaps(mine, root) for _, root in memory.roots)

    def note_shared_write(self, t: Tensor) -> None:
        """Before a write to ``t``: note it if several inputs lie there. The program changes all of them, a model only one."""
        memory = self._memory(t)
        if memory is None or len(memory.roots) < 2:
            return
        mine = geometry(t)
        if sum(r.slot in self.inputs and (g is None or overlaps(mine, g)) for r, g in memory.roots) > 1:
            self.shared_writes.append(where())

    def alias(self, t: Tensor) -> Ref:
        """The slot of a tensor whose memory is traced but which no recorded call returned: derived as a view."""
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
            "traced values, so it cannot be told which of its elements are inputs. "
            "Declare the whole tensor as an input, or clone() the part you use."
        )

    # -- constants -----------------------------------------------------------------------------------------------------

    def known_constant(self, t: Tensor) -> Ref | None:
        """The slot of a plain tensor that was read before and was not written to since."""
        entry = self.constant_ids.get(id(t))
        return entry[0] if entry is not None and entry[0].tensor() is t and entry[1] == version_of(t) else None

    def constant(self, t: Tensor) -> Ref:
        """The slot of a tensor that is plain data to this node."""
        known = self.known_constant(t)
        if known is not None:
            return known
        ref = Ref(len(self.memory_of), weakref.ref(t))
        memory = self._memory(t)
        if memory is None or (memory.traced and memory.roots):
            memory = Memory(False, None)  # nothing traced overlaps it: it only shares the storage
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
        """Before a traced value is written into plain memory: its present content becomes a value of the tape."""
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
        """Before a call without traced values writes to ``t``."""
        memory = self.memories.get(storage_id(t))
        if memory is not None and not memory.traced:
            self.forget(memory)

    def forget(self, memory: Memory) -> None:
        """Before plain memory changes: keep what was read from it, and read it anew next time."""
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
        """From here on ``target`` is a copy of the traced ``source``."""
        ref = self.find(source)
        if ref is not None and self.find(target) is None:
            self.made(target, _copied, ref, target.dtype, target.device)

    def move(self, source: Tensor, target: Tensor, first: int) -> bool:
        """Let the traced ``source`` live in the memory of ``target`` from here on.

        Refused where a slot older than ``first`` shares the memory: ``target`` would not follow writes to that.
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
        """A slot that keeps the present value of another, whatever is written to that later."""
        kept = Ref(self.new_slot(), ref.tensor)
        self.add(torch.clone, (ref,), kept.slot)
        return kept

    def makers(self, slots: set[int]) -> dict[int, Where]:
        """For each of these slots that is an input or the result of a call, the line that made it."""
        made = {s: call.where for call in self.calls if not slots.isdisjoint(call.outs) for s in call.outs}
        return made | {s: at for s, at in self._declared.items() if s in slots}

    def rewritten(self) -> dict[int, tuple[Where, int]]:
        """The memories of plain tensors that calls wrote to, by the address of the storage: the line and a slot over each."""
        written = {memory: call.where for call in self.calls for memory in call.writes}
        over = ((self.memory_of[slot], slot) for slot in self.constants)
        return {m.weak: (written[m], slot) for m, slot in over if m in written and m.weak is not None}

    def changed_behind(self) -> Constant | None:
        """A constant held by reference that was written to after it was read, if there is one."""
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
    """Whether a tensor itself, and not only its memory, has a slot."""
    ref = known.get(id(t))
    return ref is not None and ref.tensor() is t


def _geometry(t: Tensor) -> Geometry | None:
    try:
        return geometry(t)
    except RuntimeError:  # sparse and nested tensors have no strides
        return None


def snapshot(t: Tensor) -> Tensor:
    """A private copy: outside of autograd graphs, made unseen by modes, and not an inference tensor."""
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False):
            return snapshot(t)
    with DisableTorchFunction():
        t = t.detach() if t.requires_grad and torch.is_grad_enabled() else t
        return t.clone(memory_format=torch.contiguous_format) if t.layout == torch.strided else t.clone()
