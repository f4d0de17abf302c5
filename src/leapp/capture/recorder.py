"""The two torch modes, and the recorder they report to.

The function mode sees every torch API call and records it whole, so that tapes stay readable. Where a call is not
self-contained (functorch levels, autocast, tensor subclasses, autograd inside a node) or never reaches Python (TorchScript,
C++ extensions, backward), the dispatch mode below records the ATen ops instead. Tensors are known by identity or by memory;
the user's tensors are neither wrapped nor changed.
"""

from __future__ import annotations

import random
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from leapp.capture.aliasing import geometry, lent_memory
from leapp.capture.batch.follower import Follower
from leapp.capture.batch.symbolic_size import Number, bare, numbers
from leapp.capture.call_kinds import ATOMS, KINDS, Kind, classify, tensors
from leapp.capture.devices import refuse_mixed
from leapp.capture.indexed_views import Picks
from leapp.capture.modes import DISPATCH_MODES, FUNCTION_MODES, Unseen, silence
from leapp.capture.numpy.arrays import Arrays
from leapp.capture.numpy.plain import address
from leapp.capture.old_memory import Ages
from leapp.capture.provenance import Provenance, Published
from leapp.capture.substitutes import CONSTRUCTORS, REWRITES
from leapp.capture.tape import Call, Escape, Ref, Tape, refer
from leapp.capture.user_line import Where, came_through, where
from leapp.compat.core import DispatchMode, HigherOrderOperator, functorch_level
from leapp.compat.modes import DisableTorchFunction, any_autocast, backward_task, is_functorch_wrapped
from leapp.errors import TraceError

__all__ = ["PLAIN", "Recorder", "refuse_functions"]

Tensor = torch.Tensor
PLAIN = frozenset({Tensor, torch.nn.Parameter, torch.nn.Buffer})
_TEXT = frozenset({"__repr__", "__str__", "__format__"})
_DISTRIBUTIONS = (
    "torch.distributions checks its arguments by value; if that is all, turn it off before the session: "
    "torch.distributions.Distribution.set_default_validate_args(False)"
)
_new = tuple.__new__  # what a named tuple's own does, with less ado


class _On(threading.local):
    """Which modes a thread has. Another thread cannot be reached when a node opens, so it keeps both."""

    function = dispatch = other = False


class Former(NamedTuple):
    """A value of a finished node."""

    tensor: weakref.ref[Tensor]
    node: str
    where: Where
    """The line that made it."""
    slot: int | None = None
    """The slot it had on the tape of the first pass, if that made it."""


class Recorder:
    """All that one session captures."""

    current: ClassVar[Recorder | None] = None
    """The recorder of the session that is open now."""

    def __init__(self) -> None:
        self.tapes: list[Tape] = []
        self.autograd = False
        """Whether an open node computes gradients: its calls are then recorded as ATen ops."""
        self.dynamic = False
        """Whether an open node has sizes that depend on values, or on the batch."""
        self.batched = False
        """Whether some node of the session follows the batch: numbers that do may then be anywhere."""
        self.rows: int | None = None
        """The batch size of the nodes so far."""
        self.published = Provenance()
        self.given: dict[int, tuple[weakref.ref[Tensor], str]] = {}
        """The user's own tensors that were declared as inputs, and of which node."""
        self.former: dict[int, Former] = {}
        """Values of finished nodes that are still alive."""
        self.random: dict[int, tuple[weakref.ref[Tensor], Where]] = {}
        self.born: dict[int, tuple[weakref.ref[Tensor], Where]] = {}
        """Plain tensors that calls inside an open node made, and where."""
        self.ages = Ages()
        self.pickled: dict[int, tuple[Tape, Ref] | Published | None] = {}
        self.arrays = Arrays(self)
        self._function = _FunctionMode(self)
        self._dispatch = _DispatchMode(self)
        self._on = _On()
        self.lock = threading.RLock()
        self.shared = False
        """Whether more than one thread is listened to."""
        self._first: int | None = None
        """The first thread that was."""
        self.replace: Callable[[], None] = _nothing
        self.put_back: Callable[[], None] = _nothing
        """Called when the first node opens, and when the last one is closed."""

    # -- modes on and off ----------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Put the modes at the bottom of this thread's stacks, below any mode the user has entered.

        ATen ops concern open nodes only, so the dispatch mode is there as long as one is open.
        """
        on = self._on
        if not on.function:
            on.function = True
            self.shared = self.shared or self._first not in (None, threading.get_ident())
            self._first = self._first or threading.get_ident()
            FUNCTION_MODES.insert(self._function)
        if on.dispatch != bool(self.tapes or on.other):
            on.dispatch = not on.dispatch
            DISPATCH_MODES.insert(self._dispatch) if on.dispatch else DISPATCH_MODES.discard(self._dispatch)

    def remove(self) -> None:
        """Take the modes off this thread, wherever they stand."""
        on = self._on
        if on.function:
            FUNCTION_MODES.discard(self._function)
            on.function = False
        if on.dispatch:
            DISPATCH_MODES.discard(self._dispatch)
            on.dispatch = False

    @staticmethod
    def sweep() -> None:
        """Take off the modes that a session left on this thread because another thread ended it."""
        now = Recorder.current
        for modes in (FUNCTION_MODES, DISPATCH_MODES):
            modes.keep(lambda m: not isinstance(m, _FunctionMode | _DispatchMode) or m.recorder is now)

    @property
    def installed(self) -> bool:
        """Whether this thread is listened to."""
        return self._on.function

    @contextmanager
    def other_thread(self) -> Iterator[None]:
        """Listen to a thread that was started during the session, for as long as it runs."""
        if self._on.function:
            yield
            return
        self._on.other = self.shared = True
        self.listen()
        try:
            yield
        finally:
            self.remove()

    # -- tapes ---------------------------------------------------------------------------------------------------------

    def open(self, node: str, batched: bool = False, again: Tape | None = None) -> Tape:
        """Begin recording a node, or record it ``again`` as that tape was. ``batched`` asks which sizes follow the batch."""
        tape = Tape(node)
        tape.first = first = again is None
        if again is not None:
            # A state may bring a graph of gradients into the second pass; recorded otherwise, no call would be the same.
            tape.autograd = again.autograd
            self.autograd = self.autograd or tape.autograd
        tape.picks = Picks(tape)
        if batched:
            tape.batch = Follower(tape, self.rows)
            self.dynamic = self.batched = True
        tape.chance = _generators() if first else None
        self.tapes = [*self.tapes, tape]  # not changed in place: another thread may be going through it
        self.replace()
        return tape

    def close(self, tape: Tape) -> None:
        """Stop recording a node; its values are remembered only to refuse their use elsewhere."""
        tape.open = False
        if tape.batch is not None and self.rows is None:
            self.rows = tape.batch.rows
        self.tapes = [t for t in self.tapes if t is not tape]
        if not self.tapes:
            self.put_back()
        alive = [(i, ref) for i, ref in tape.known.items() if ref.tensor() is not None]
        made = tape.makers({ref.slot for _, ref in alive})
        self.former = {i: f for i, f in self.former.items() if f.tensor() is not None}
        for i, ref in alive:
            if ref.slot in made:
                self.former[i] = Former(ref.tensor, tape.node, made[ref.slot], ref.slot if tape.first else None)
        if not self.tapes:
            self.born.clear()
            self.ages.clear()
            self.arrays.memory.forget()
            self.autograd = self.dynamic = False
        elif not any(t.batch is not None for t in self.tapes):
            self.dynamic = any(t.dynamic for t in self.tapes)
        if tape.first and tape.chance != _generators():
            by = "" if threading.active_count() == 1 else " (by this node or by another thread)"
            kind = f"random numbers of Python or NumPy, drawn before{by}"
            tape.escapes.append(Escape(kind, where(), "a number", suspicion=True))
        tape.known.clear()
        tape.memories.clear()
        tape.constant_ids.clear()
        tape.release(tape.constants if tape.first else ())

    def declare(self, tape: Tape, t: Tensor, axis: int | str | None = "auto") -> Tensor:
        """Make the value of ``t`` an input of the tape; the tensor to go on with is a fresh alias of it.

        ``axis`` is the one that holds the batch, for a tape that follows it. To be called in silence.
        """
        with self.silence():  # anew: the dispatch mode of the node may have come meanwhile
            self.arrays.memory.exposed(t)  # while nobody holds it on our behalf
        alias = t.view_as(t) if t.layout == torch.strided else t.detach()
        if type(t) not in PLAIN:
            alias = alias.as_subclass(type(t))
            vars(alias).update(vars(t))
        tape.declare(alias, axis)
        self.given[id(t)] = (weakref.ref(t), tape.node)
        if tape.first and alias.requires_grad and torch.is_grad_enabled():
            tape.autograd = self.autograd = True
        return alias

    silence = staticmethod(silence)
    """Run leapp's own tensor code unseen by the modes."""

    # -- provenance ----------------------------------------------------------------------------------------------------

    def source(self, t: Tensor) -> Published | None:
        """The published output that ``t`` is, or was made from."""
        return self.published.source(t)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def owner(self, leaves: Iterable[Tensor]) -> Tape | None:
        """The open tape that the tensors belong to."""
        tape: Tape | None = None
        for t in leaves:
            found = next((c for c in self.tapes if _is_known(c.known, t)), None) or next(
                (c for c in self.tapes if c.owns(t)), None
            )
            if found is not None and tape is not None and tape is not found:
                raise TraceError(
                    f"at {where()} a value of node '{tape.node}' meets a value of node '{found.node}' while both "
                    f"are open. Finish '{tape.node}' with output_tensors() and pass its output to '{found.node}' "
                    "with input_tensors()."
                )
            tape = found or tape
        return tape

    def called(self, func: Any, kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any], whole: bool) -> Any:
        """Run one call and record it if it concerns an open node."""
        followed: list[Number] = []
        if self.batched:
            args, kwargs, followed = _followed(args, kwargs)
        if self.arrays.memory.seen or kind.may_mask or kind.writes:
            if func is torch.ops.aten.lift_fresh.default:
                args = (self.arrays.memory.recognised(args[0]),)
            elif func in CONSTRUCTORS:
                made = self.arrays.construct(func, args, kwargs)
                if made is not None:
                    return made
            else:
                args, kwargs = self.arrays.replaced(func, kind, args, kwargs)
        leaves: list[Tensor] = []
        for a in args:
            if type(a) in ATOMS:
                continue
            if isinstance(a, Tensor):
                leaves.append(a)
            else:
                leaves.extend(tensors(a))
        if kwargs:
            leaves.extend(tensors(kwargs))
        tape: Tape | None = None
        tapes = self.tapes
        if len(tapes) == 1 and leaves:
            ref = tapes[0].known.get(id(leaves[0]))
            tape = tapes[0] if ref is not None and ref.tensor() is leaves[0] else self.owner(leaves)
        elif tapes:
            tape = self.owner(leaves)
        if followed:
            tape = tape or followed[0].owner.tape
            if func in CONSTRUCTORS or not whole:
                followed[0].owner.bake(f"{kind.name} takes the batch size as a plain number")
                args, kwargs = bare(args), bare(kwargs)
        if tape is None:
            return self._untraced(func, kind, args, kwargs, leaves)
        if kind.metadata:
            return self._metadata(tape, func, kind, args, kwargs, leaves)
        if whole and kind.rewritten:
            return (REWRITES.get(func) or REWRITES[kind.name])(self, tape, func, args, kwargs)
        return self.record(tape, func, kind, args, kwargs, leaves)

    def plain(self, func: Any, kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``called`` for most calls, cheaper: a new tensor from numbers, and from tensors of which the open node knows one."""
        tape = self.tapes[0]
        known = tape.known
        recorded: list[Any] = []
        found: list[Ref] = []
        unknown: list[int] = []
        try:
            for a in args:
                if type(a) in ATOMS:  # the two common cases once more: calling _looked_up() would cost as much again
                    recorded.append(a)
                elif (ref := known.get(id(a))) is not None and ref.tensor() is a:
                    recorded.append(ref)
                    found.append(ref)
                elif type(a) in PLAIN:
                    unknown.append(len(recorded))
                    recorded.append(a)
                else:
                    recorded.append(_looked_up(a, known, found))
            named = {k: _looked_up(v, known, found) for k, v in kwargs.items()} if kwargs else kwargs
        except _UnknownError:
            return self.called(func, kind, args, kwargs, whole=True)
        others = len(found) + len(unknown) > 1
        watched = unknown and (kind.hidden_writes or self.arrays.memory.seen)
        if not found or (others and kind.may_mask) or watched or tape.picks.rows:
            return self.called(func, kind, args, kwargs, whole=True)
        for i in unknown:
            recorded[i] = ref = tape.find(recorded[i]) or self.constant(tape, recorded[i])
            found.append(ref)
        held = _versions(found) if kind.hidden_writes else ()
        out = func(*args, **kwargs)
        targets = [t for t, version in held if t._version != version] if held else ()
        before = known.get(id(out))
        same = (before is not None and before.tensor() is out) or (unknown and any(out is args[i] for i in unknown))
        if type(out) is not Tensor or targets or same:
            refs = {id(ref.tensor()): ref for ref in found}
            return self._keep(tape, kind, args, kwargs, refs, targets, out)
        reads = (found[0].slot,) if len(found) == 1 else tuple(dict.fromkeys([ref.slot for ref in found]))
        call = (kind.call, tuple(recorded), named, (tape.bind(out).slot,), reads, (), where(3))
        tape.calls.append(_new(Call, call))
        return out

    def record(
        self, tape: Tape, func: Any, kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Tensor]
    ) -> Any:
        """Run a call on traced values and put it on the tape."""
        known = tape.known
        targets = _targets(kind, args, kwargs) if kind.writes or kwargs or kind.statistics else []
        for t in targets:
            unknown = not _is_known(known, t) and not tape.owns(t)
            if unknown or (tape.picks and tape.picks.concern(t)):
                self.published.written(t, kind.name)
                tape.adopt(t, *self.ages.origins_and_lender(t))
                with self.silence():
                    self.arrays.memory.exposed(t)
                self.ages.written(t)
            else:
                tape.tear(t)
        refs: dict[int, Ref] = {}
        for t in leaves:
            ref = known.get(id(t))
            refs[id(t)] = ref if ref is not None and ref.tensor() is t else tape.find(t) or self.constant(tape, t)
        versions = [(t, t._version) for t in leaves if not t.is_inference()] if kind.hidden_writes else ()
        chance = torch.get_rng_state() if kind.random else None
        if tape.batch is None:
            out = func(*args, **kwargs)
        else:
            refs.update((id(n), n.ref) for n in numbers((args, kwargs)))
            out = func(*bare(args), **bare(kwargs))
        for t, version in versions:
            if t._version != version:
                targets.append(t)
                if refs[id(t)].slot in tape.constants:
                    self._adopt_after(tape, t, refs[id(t)])
        self._keep(tape, kind, args, kwargs, refs, targets, out)
        if chance is not None and _drawn(chance, kwargs, out):
            tape.random.append(tape.calls[-1].where)
        return out

    def _keep(
        self,
        tape: Tape,
        kind: Kind,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        refs: dict[int, Ref],
        targets: Sequence[Tensor],
        out: Any,
    ) -> Any:
        """Put a call that has run on the tape. Every microsecond here is paid once for each call of the user's program."""
        results = [out] if isinstance(out, Tensor) else list(tensors(out))
        if not results and not targets:
            asked = kind.looks_at is None or any(tape.owns(args[i]) for i in kind.looks_at)
            if asked and out is not None and out is not kind.covered:
                self._escape(tape, kind, args, kwargs, refs, out)
            return out
        if kind.name == "__setitem__" and tape.picks and tape.picks.settled(args, refs):
            return out
        recorded_args = tuple([refs[id(a)] if id(a) in refs else a if type(a) in ATOMS else refer(a, refs) for a in args])
        recorded_kwargs = refer(kwargs, refs) if kwargs else kwargs
        outs, fresh, known, first = [], bool(targets), tape.known, len(tape.memory_of)
        for o in results:
            ref = refs.get(id(o))
            if ref is None:
                ref = known.get(id(o))
                if ref is None or ref.tensor() is not o:
                    ref, fresh = tape.bind(o), True
            outs.append(ref.slot)
        if not fresh:
            return out  # the call gave back what it got, such as contiguous() of a contiguous tensor
        memories = tuple({tape.memory_of[refs[id(t)].slot]: None for t in targets}) if targets else ()
        reads = tuple([ref.slot for ref in refs.values()])
        at = where(3)
        tape.calls.append(Call(kind.call, recorded_args, recorded_kwargs, tuple(outs), reads, memories, at))
        if kind.may_mask or tape.dynamic or kind.factory:
            self._note_dynamic(tape, kind, args, kwargs, refs, out, outs, results)
        if kind.name == "__getitem__":
            tape.picks.note(args[0], args[1], out, refs)
        if tape.picks:
            tape.picks.follow(refs, [o for o, slot in zip(results, outs, strict=True) if slot >= first])
            if targets:
                tape.picks.written([refs[id(t)] for t in targets])
        return out

    def _note_dynamic(
        self,
        tape: Tape,
        kind: Kind,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        refs: dict[int, Ref],
        out: Any,
        outs: list[int],
        results: list[Tensor],
    ) -> None:
        """Remember the values whose shape depends on other values; that there are so many of them is a value that left."""
        if kind.factory and any(True for _ in tensors((args, kwargs))):
            slots = tuple(r.slot for r in refs.values())
            tape.escapes.append(Escape(kind.name, where(), tuple(results[0].shape), None, slots))
        if kind.dynamic or _masked(kind, args) or not tape.dynamic.isdisjoint(r.slot for r in refs.values()):
            tape.dynamic.update(s for s, o in zip(outs, results, strict=True) if o.dim())
            self.dynamic = self.dynamic or bool(tape.dynamic)
            if isinstance(out, (list, tuple)) and not hasattr(out, "_fields") and not kind.dynamic and kind.name != "where":
                self._escape(tape, kind, args, kwargs, refs, len(out))

    def constant(self, tape: Tape, t: Tensor) -> Ref:
        """The slot of a plain tensor; a value of another node is refused here."""
        former = self.former.get(id(t))
        source = self.source(t)
        if source is not None and source.static:
            source = None
        if former is not None and former.tensor() is not t:
            former = None
        owner = former.node if former is not None else source.node if source is not None and not source.glue else None
        if owner is not None and owner != tape.node:
            name = f" ('{source.port}')" if source is not None else ""
            raise TraceError(
                f"node '{tape.node}' uses a value of the finished node '{owner}'{name} at {where()} without declaring it. "
                f"Pass it through annotate.input_tensors('{tape.node}', {{...}}) first."
            )
        self._refuse_other_storage(tape, t)
        before = len(tape.constants)
        ref = tape.constant(t)
        if len(tape.constants) == before:
            return ref
        constant = tape.constants[ref.slot]
        constant.origins, constant.lender = self.ages.origins_and_lender(t)
        born, given = self.random.get(id(t)), self.given.get(id(t))
        if born is not None and born[0]() is t and not constant.parameter:
            constant.drawn = born[1]
        if owner is not None:
            constant.left = former.where if former is not None else constant.where
        elif source is not None:
            constant.undeclared = f"{source.node}/{source.port}"
        if given is not None and given[0]() is t and given[1] != tape.node:
            constant.undeclared = f"an input of node '{given[1]}'"
        return ref

    def _refuse_other_storage(self, tape: Tape, t: Tensor) -> None:
        """Two tensors over one array have a storage each, so nothing but the address tells that they share memory."""
        mine = lent_memory(t)
        if mine is None:
            return
        for other in [*(ref.tensor() for ref in list(tape.known.values())), *self.arrays.memory.held()]:
            theirs = None if other is None else lent_memory(other, lent=False)
            if theirs is None or theirs[0] == mine[0] or theirs[1] >= mine[2] or mine[1] >= theirs[2]:
                continue
            memory = tape.memories.get(theirs[0])
            if memory is not None and memory.traced and memory.root is not None:
                raise TraceError(
                    f"node '{tape.node}': at {where()} a tensor of shape {list(t.shape)} shares memory with traced values by "
                    "way of an array or of DLPack, and what was written there is not seen through it. Make it again where it "
                    "is used, as in torch.from_numpy(array)."
                )

    def _adopt_after(self, tape: Tape, t: Tensor, ref: Ref) -> None:
        """A call wrote to a plain tensor that nothing told of: the copy taken before the call is its value there."""
        constant = tape.constants[ref.slot]
        if constant.version is not None:
            raise TraceError(
                f"node '{tape.node}': the call at {where()} changes a tensor of shape {list(t.shape)} in place in a way that "
                "cannot be recorded. Register it with annotate.register_buffer() or annotate.module() first."
            )
        memory = tape._memory(t)
        if memory is not None:
            memory.traced = True
            memory.clear()
            memory.add(ref, geometry(t))
            tape.memory_of[ref.slot] = memory
        tape.constant_ids.pop(id(t), None)
        tape.known[id(t)] = Ref(ref.slot, t)
        with self.silence():
            self.arrays.memory.exposed(t)

    def _metadata(
        self, tape: Tape, func: Any, kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Tensor]
    ) -> Any:
        out = func(*bare(args), **bare(kwargs)) if self.batched else func(*args, **kwargs)
        if kind.shape and tape.batch is not None:
            out = tape.batch.asked(kind.name, leaves[0], args, kwargs, out)
        if kind.tracks_grad:
            # What autograd saves of a call recorded whole could not be told apart later: record ATen ops from here on.
            self.autograd = True
        if kind.shape and tape.dynamic and not isinstance(out, Tensor):
            ref = tape.find(leaves[0])
            if ref is not None and ref.slot in tape.dynamic:
                self._escape(tape, kind, args, kwargs, {id(leaves[0]): ref}, out)
        return out

    def _escape(
        self, tape: Tape, kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any], refs: dict[int, Ref], out: Any
    ) -> None:
        # Text is for people: that it differs from pass to pass proves nothing.
        source = None if kind.name in _TEXT else (kind.call, refer(args, refs), refer(kwargs, refs))
        at = where()
        cure = _DISTRIBUTIONS if came_through("torch.distributions", at.code) else ""
        tape.escapes.append(Escape(kind.name, at, out, source, tuple(r.slot for r in refs.values()), cure=cure))

    # -- calls that concern no open node -------------------------------------------------------------------------------

    def _untraced(
        self, func: Any, kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Tensor]
    ) -> Any:
        if kind.writes or "out" in kwargs or kind.statistics:
            targets = _targets(kind, args, kwargs)
            tape = next((c for c in self.tapes if c.picks and any(map(c.picks.lie_in, targets))), None)
            if tape is not None:  # traced rows of it show what is written here
                for t in targets:
                    tape.adopt(t, *self.ages.origins_and_lender(t))
                return self.record(tape, func, kind, args, kwargs, leaves)
            self._before_plain_write(targets)
        for tape in self.tapes if not kind.metadata else ():
            for t in leaves:
                self._refuse_other_storage(tape, t)
        before = torch.get_rng_state() if kind.random else None
        out = func(*args, **kwargs)
        if kind.metadata:
            return out
        results = list(tensors(out))
        if self.tapes and self.former:
            self._follow_former(leaves, results)
        drawn = before is not None and _drawn(before, kwargs, out)
        if self.published:
            self.published.follow(kind, args, leaves, results)
        if kind.name == "numpy" and (self._is_new(leaves[0]) or self.source(leaves[0]) is not None):
            return self.arrays.memory.wrap(out, leaves[0])
        draws = where() if drawn else self._drawn_at(leaves) if self.random else None
        if draws is not None:
            for o in results or leaves[:1]:
                self.random[id(o)] = weakref.ref(o), draws
            if self.tapes and not results and out is not None:
                self.tapes[-1].escapes.append(Escape(f"random number read by {kind.name}", where(), out))
        elif not results and out is not None and kind.looks_at is None and leaves:
            self.read_between(kind.name, leaves[0], out)
        if self.tapes:
            target = next(iter(_targets(kind, args, kwargs)), None) if kind.writes or kwargs or kind.statistics else None
            if func in CONSTRUCTORS and args and isinstance(args[0], np.ndarray) and out.data_ptr() == address(args[0]):
                self.ages.over(args[0], out)
            else:
                self.ages.plain_call(kind, target, leaves, results)
            at = where()
            for o in results:
                self.born[id(o)] = weakref.ref(o), at
        return out

    def _follow_former(self, leaves: list[Tensor], results: list[Tensor]) -> None:
        """What an open node computes from a value that its pass before left is such a value too."""
        for t in leaves:
            found = self.former.get(id(t))
            if found is not None and found.tensor() is t and any(tape.node == found.node for tape in self.tapes):
                self.former.update((id(o), Former(weakref.ref(o), found.node, found.where)) for o in results if o is not t)
                return

    def _is_new(self, t: Tensor) -> bool:
        """Whether a call inside the open node made a plain tensor; traced values may be written to it later."""
        found = self.born.get(id(t))
        return found is not None and found[0]() is t

    def read_between(self, kind: str, t: Tensor, out: Any) -> None:
        """A published output became something that is no tensor: frozen in the node that is open, or in one after it."""
        source = self.source(t)
        if source is not None and self.tapes:
            self.tapes[-1].escapes.append(Escape(f"{kind} of '{source.node}/{source.port}'", where(), out))
        elif source is not None and kind not in _TEXT:
            self.published.read(kind, source, out)

    def _drawn_at(self, leaves: list[Tensor]) -> Where | None:
        """The line that drew the random numbers in one of some tensors."""
        for t in leaves:
            found = self.random.get(id(t))
            if found is not None and found[0]() is t:
                return found[1]
        return None

    def _before_plain_write(self, targets: list[Tensor]) -> None:
        for t in targets:
            for tape in self.tapes:
                try:
                    memory = tape.memories.get(t.untyped_storage()._cdata)
                except (RuntimeError, NotImplementedError, ValueError):
                    continue
                if memory is not None and not memory.traced:
                    tape.forget(memory)


def _nothing() -> None:
    pass


def _generators() -> Any:
    """Where the global generators of Python and NumPy stand."""
    return random.getstate(), _comparable(np.random.get_state(legacy=False))


def _comparable(state: Any) -> Any:
    if isinstance(state, dict):
        return {k: _comparable(v) for k, v in state.items()}
    return state.tobytes() if isinstance(state, np.ndarray) else state


def _followed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any], list[Number]]:
    """The arguments, sizes as tuples, and the numbers among them that follow the batch of an open node."""
    found = list(numbers((args, kwargs)))
    if not found:
        return args, kwargs, found
    if not all(n.owner.tape.open for n in found):
        return bare(args), bare(kwargs), []
    plain = tuple(tuple(a) if isinstance(a, torch.Size) else a for a in args)
    return plain, {k: tuple(v) if isinstance(v, torch.Size) else v for k, v in kwargs.items()}, found


def _targets(kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors that a call is known to write to."""
    found = [t for i in kind.writes if i < len(args) for t in tensors(args[i])]
    if kind.statistics:
        found += _statistics(kind, args, kwargs)
    return found + [t for k in kind.write_keywords if k in kwargs for t in tensors(kwargs[k])]


def _drawn(before: Tensor, kwargs: dict[str, Any], out: Any) -> bool:
    """Whether a call drew random numbers. Dropout and attention are tagged even where they do not; the generator tells."""
    if kwargs.get("generator") is not None or not all(t.is_cpu for t in tensors(out)):
        return True
    return not torch.equal(before, torch.get_rng_state())


def _statistics(kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The running statistics that a normalisation in training mode writes to."""
    mean, var, flag = kind.statistics
    training = args[flag] if flag < len(args) else kwargs.get("training", kwargs.get("use_input_stats", False))
    given = [args[i] if i < len(args) else kwargs.get(n) for i, n in ((mean, "running_mean"), (var, "running_var"))]
    return [t for t in given if isinstance(t, Tensor)] if training else []


class _UnknownError(Exception):
    """An argument is, or holds, something else than known tensors and plain values."""


def _looked_up(value: Any, known: dict[int, Ref], found: list[Ref]) -> Any:
    """An argument with slots for its tensors, which are added to ``found``."""
    kind = type(value)
    if kind in ATOMS:
        return value
    ref = known.get(id(value))
    if ref is not None and ref.tensor() is value:
        found.append(ref)
        return ref
    if kind is tuple or kind is list:
        return kind([_looked_up(v, known, found) for v in value])
    if kind is slice:
        return slice(*(_looked_up(v, known, found) for v in (value.start, value.stop, value.step)))
    raise _UnknownError


def _versions(found: list[Ref]) -> list[tuple[Tensor, int]]:
    """The version counters of tensors, to see whether a call writes to them. In inference mode there are none."""
    return [(t, t._version) for ref in found if (t := ref.tensor()) is not None and not t.is_inference()]


def _is_known(known: dict[int, Ref], t: Tensor) -> bool:
    ref = known.get(id(t))
    return ref is not None and ref.tensor() is t


def _masked(kind: Kind, args: tuple[Any, ...]) -> bool:
    """Whether the result has as many elements as a mask has true ones."""
    if kind.name == "__getitem__" and len(args) > 1:
        return any(t.dtype in (torch.bool, torch.uint8) and t.dim() for t in tensors(args[1]))
    return kind.name == "where" and len(args) == 1


class _FunctionMode(TorchFunctionMode):
    """Sees every torch API call of the thread."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind = KINDS.get(func) or classify(func)
        if kwargs is None:
            kwargs = {}
        recorder = self.recorder
        if recorder.batched:
            args, kwargs, _ = _followed(args, kwargs)
        if recorder is not Recorder.current:
            return func(*args, **kwargs)  # another thread ended the session
        if not recorder.tapes:
            made = recorder.arrays.memory.seen and func in CONSTRUCTORS
            if kind.metadata or not (made or kind.random or kind.writes or recorder.published.concerns(args, kwargs)):
                return func(*recorder.arrays.numbers_in(args), **recorder.arrays.numbers_in(kwargs))
        elif kind.metadata and not (recorder.dynamic or kind.tracks_grad):
            return func(*recorder.arrays.numbers_in(args), **kwargs) if len(args) > 1 else func(*args, **kwargs)
        elif (
            kind.autograd
            or recorder.autograd
            or any_autocast()
            or functorch_level() is not None
            or (types and not PLAIN.issuperset(types))
            or (kind.hidden_writes and torch.is_inference_mode_enabled())  # no version tells what such a call writes to
        ):
            return self._aside(func, kind, args, kwargs)
        guard = Unseen()
        try:
            if recorder.shared:
                with recorder.lock:
                    return recorder.called(func, kind, args, kwargs, whole=True)
            if kind.plain and len(recorder.tapes) == 1 and not recorder.dynamic and "out" not in kwargs:
                return recorder.plain(func, kind, args, kwargs)
            return recorder.called(func, kind, args, kwargs, whole=True)
        except RuntimeError as error:
            for tape in recorder.tapes:
                refuse_mixed(tape.node, tape.owns, kind.name, args, kwargs, error)
            raise
        finally:
            del guard  # a traceback would keep it

    def _aside(self, func: Any, kind: Kind, args: Any, kwargs: Any) -> Any:
        """Leave the call to the dispatch mode; only what has no ATen form is handled here."""
        if kind.metadata or kind.rewritten:
            leaves = list(tensors(args))
            if leaves and not is_functorch_wrapped(leaves[0]):
                guard = Unseen()
                try:
                    return self.recorder.called(func, kind, args, kwargs, whole=True)
                finally:
                    del guard
        for number in numbers((args, kwargs)) if self.recorder.batched else ():
            number.owner.bake(f"{kind.name} is recorded as its single operations, which take the batch size as a plain number")
            return func(*bare(args), **bare(kwargs))
        args, kwargs = self.recorder.arrays.replaced(func, kind, args, kwargs)
        return func(*args, **kwargs)


class _DispatchMode(DispatchMode):  # type: ignore[no-untyped-call]
    """Sees the ATen ops of what never reached the function mode."""

    supports_higher_order_operators = True

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        recorder = self.recorder
        kwargs = kwargs or {}
        with DisableTorchFunction():
            if not recorder.tapes:
                return func(*args, **kwargs)
            if isinstance(func, HigherOrderOperator):
                refuse_functions(recorder, str(func), args, kwargs)
                return func(*args, **kwargs)
            if backward_task() != -1:
                _refuse_unseen(recorder, func, args, kwargs)
            with recorder.lock:
                return recorder.called(func, classify(func), args, kwargs, whole=False)


def refuse_functions(recorder: Recorder, name: str, args: Any, kwargs: Any) -> None:
    """Refuse an operator that runs functions of the program, if it gets a value of an open node. To be called in silence."""
    tape = recorder.owner(tensors((args, kwargs)))
    if tape is not None:
        raise TraceError(
            f"node '{tape.node}': {name} at {where()} runs functions that cannot be recorded as one call. "
            "Use torch.where() or ordinary Python control flow in their place."
        )


def _refuse_unseen(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> None:
    """In a backward pass, a tensor nobody has seen is an intermediate value that autograd kept of a whole call."""
    leaves = list(tensors((args, kwargs)))
    tape = recorder.owner(leaves)
    if tape is None:
        return
    for t in leaves:
        seen = recorder.born.get(id(t))
        constant = tape.constant_ids.get(id(t))
        known = constant is not None and constant[0].tensor() is t
        left = recorder.former.get(id(t))  # such as a gradient that the pass before accumulated
        known = known or (seen is not None and seen[0]() is t) or (left is not None and left.tensor() is t)
        if known or tape.find(t) is not None:
            continue
        if t._is_view() or isinstance(t, torch.nn.Parameter) or not t.dim():
            continue
        raise TraceError(
            f"node '{tape.node}': the backward pass at {where()} needs an intermediate value of a call that was recorded "
            "whole. Call requires_grad_() on the declared input before the computation."
        )
