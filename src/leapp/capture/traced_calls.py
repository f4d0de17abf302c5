"""Runs calls on traced values, and puts them on the tape of the node that the values belong to."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from leapp.capture.aliasing import version_of
from leapp.capture.batch.symbolic_size import Number, bare, numbers
from leapp.capture.call_kinds import Kind, classes_given, classify
from leapp.capture.plain_calls import draws_random_numbers
from leapp.capture.substitutes import CONSTRUCTORS, HANDLERS
from leapp.capture.tape import TEXTS, Call, Escape, Ref, Tape, is_known, refer
from leapp.capture.trees import ATOMS, mapped, tensors
from leapp.capture.user_line import came_through, where

if TYPE_CHECKING:
    from leapp.capture.recorder import Recorder

Tensor = torch.Tensor
PLAIN = frozenset({Tensor, torch.nn.Parameter, torch.nn.Buffer})
"""The types of tensors without behaviour of their own."""
_DISTRIBUTIONS = (
    "torch.distributions checks its arguments by value; if that is all, turn it off before the session: "
    "torch.distributions.Distribution.set_default_validate_args(False)"
)
_new = tuple.__new__  # skips NamedTuple's argument checks


class TracedCalls:
    """Records the calls of one session."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def called(self, func: Any, kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any], whole: bool) -> Any:
        """Run one call and record it if it concerns an open node."""
        followed: list[Number] = []
        if self.recorder.batched:
            args, kwargs, followed = batch_numbers(args, kwargs)
        if self.recorder.arrays.memory.seen or kind.may_mask or kind.writes:
            if func is torch.ops.aten.lift_fresh.default:
                args = (self.recorder.arrays.memory.recognised(args[0]),)
            elif func in CONSTRUCTORS:
                made = self.recorder.arrays.construct(func, args, kwargs)
                if made is not None:
                    return made
            else:
                args, kwargs = self.recorder.arrays.replaced(func, kind, args, kwargs)
        leaves = list(tensors((args, kwargs)))
        tape = self.recorder.owner(leaves) if self.recorder.tapes else None
        if followed:
            tape = tape or followed[0].owner.tape
            if func in CONSTRUCTORS or not whole:
                followed[0].owner.bake(f"{kind.name} takes the batch size as a plain number")
                args, kwargs = bare(args), bare(kwargs)
        if tape is None:
            return self.recorder.plain_calls.run(func, kind, args, kwargs, leaves)
        if kind.metadata:
            return self._metadata(tape, func, kind, args, kwargs, leaves)
        if whole and kind.handled:
            return (HANDLERS.get(func) or HANDLERS[kind.name])(self.recorder, tape, func, args, kwargs)
        return self.record(tape, func, kind, args, kwargs, leaves)

    def called_simply(self, tape: Tape, func: Any, kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A faster ``called`` for the common case: a call on numbers and plain tensors, at least one known to ``tape``."""
        known = tape.known
        recorded: list[Any] = []
        found: list[Ref] = []
        unknown: list[int] = []
        try:
            for a in args:
                if type(a) in ATOMS:  # this and the next case are _looked_up(), inlined for speed
                    recorded.append(a)
                elif (ref := known.get(id(a))) is not None and ref.tensor() is a:
                    recorded.append(ref)
                    found.append(ref)
                elif type(a) in PLAIN:
                    unknown.append(len(recorded))
                    recorded.append(a)
                else:
                    recorded.append(mapped(a, partial(_looked_up, known, found)))
            named = mapped(kwargs, partial(_looked_up, known, found)) if kwargs else kwargs
        except _UnknownError:
            return self.called(func, kind, args, kwargs, whole=True)
        others = len(found) + len(unknown) > 1
        watched = unknown and (kind.hidden_writes or self.recorder.arrays.memory.seen)
        if not found or (others and kind.may_mask) or watched or tape.indexed_rows.rows:
            return self.called(func, kind, args, kwargs, whole=True)
        for i in unknown:
            recorded[i] = ref = tape.find(recorded[i]) or self.recorder.constants.slot(tape, recorded[i])
            found.append(ref)
        held = _versions([t for ref in found if (t := ref.tensor()) is not None]) if kind.hidden_writes else ()
        out = func(*args, **kwargs)
        targets = [t for t, version in held if t._version != version] if held else ()
        before = known.get(id(out))
        same = (before is not None and before.tensor() is out) or (unknown and id(out) in tape.constant_ids)
        if type(out) is not Tensor or targets or same:
            refs = {id(ref.tensor()): ref for ref in found}
            return self.keep(tape, kind, args, kwargs, refs, targets, out)
        reads = (found[0].slot,) if len(found) == 1 else tuple([ref.slot for ref in found])
        call = (kind.call, tuple(recorded), named, (tape.bind(out).slot,), reads, (), where(3))
        tape.calls.append(_new(Call, call))
        return out

    def run(self, tape: Tape, func: Any, args: tuple[Any, ...]) -> Any:
        """Run a call on traced values and put it on the tape."""
        return self.record(tape, func, classify(func), args, {}, list(tensors(args)))

    def record(
        self, tape: Tape, func: Any, kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Tensor]
    ) -> Any:
        """Like :meth:`run`, for a call whose kind and tensors are known already."""
        known = tape.known
        targets = kind.targets(args, kwargs)
        for t in targets:
            unknown = not is_known(known, t) and not tape.owns(t)
            if unknown or (tape.indexed_rows and tape.indexed_rows.concern(t)):
                self.recorder.published.written(t, kind.name)
                tape.adopt(t, *self.recorder.old_memory.origins_and_lender(t))
                self.recorder.arrays.memory.exposed(t)
                self.recorder.old_memory.written(t)
            else:
                tape.note_shared_write(t)
        refs: dict[int, Ref] = {}
        for t in leaves:
            refs[id(t)] = tape.find(t) or self.recorder.constants.slot(tape, t)
        versions = _versions(leaves) if kind.hidden_writes else ()
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
                    self.recorder.constants.adopt_after(tape, t, refs[id(t)])
        self.keep(tape, kind, args, kwargs, refs, targets, out)
        if chance is not None and draws_random_numbers(chance, kwargs, out):
            tape.random.append(tape.calls[-1].where)
        return out

    def keep(
        self,
        tape: Tape,
        kind: Kind,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        refs: dict[int, Ref],
        targets: Sequence[Tensor],
        out: Any,
    ) -> Any:
        """Put a call that has run on the tape. This runs for every call of the user's program, so it must be fast."""
        results = [out] if isinstance(out, Tensor) else list(tensors(out))
        if not results and not targets:
            asked = kind.looks_at is None or any(tape.owns(args[i]) for i in kind.looks_at)
            if asked and out is not None and out is not NotImplemented and out is not kind.covered:
                self._escape(tape, kind, args, kwargs, refs, out)
            return out
        if kind.name == "__setitem__" and tape.indexed_rows and tape.indexed_rows.settled(args, refs):
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
            return out  # the call returned its argument, as contiguous() of a contiguous tensor does
        memories = tuple({tape.memory_of[refs[id(t)].slot]: None for t in targets}) if targets else ()
        reads = tuple([ref.slot for ref in refs.values()])
        at = where(3)
        tape.calls.append(Call(kind.call, recorded_args, recorded_kwargs, tuple(outs), reads, memories, at))
        if kind.may_mask or tape.dynamic or kind.factory:
            self._note_dynamic(tape, kind, args, kwargs, refs, out, outs, results)
        if kind.name == "__getitem__":
            tape.indexed_rows.note(args[0], args[1], out, refs)
        if tape.indexed_rows:
            tape.indexed_rows.follow(refs, [o for o, slot in zip(results, outs, strict=True) if slot >= first])
            if targets:
                tape.indexed_rows.written([refs[id(t)] for t in targets])
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
        """Note results whose shape depends on values: to read such a shape is an escape."""
        if kind.factory and any(True for _ in tensors((args, kwargs))):
            slots = tuple(r.slot for r in refs.values())
            tape.escapes.append(Escape(kind.name, where(), tuple(results[0].shape), None, slots))
        if _sized_by_values(kind, args, kwargs, refs) or not tape.dynamic.isdisjoint(r.slot for r in refs.values()):
            tape.dynamic.update(s for s, o in zip(outs, results, strict=True) if o.dim())
            self.recorder.dynamic = self.recorder.dynamic or bool(tape.dynamic)
            if type(out) in (list, tuple) and not kind.dynamic and kind.name != "where":  # not a named tuple, as of sort()
                self._escape(tape, kind, args, kwargs, refs, len(out))

    def _metadata(
        self, tape: Tape, func: Any, kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Tensor]
    ) -> Any:
        out = func(*bare(args), **bare(kwargs)) if self.recorder.batched else func(*args, **kwargs)
        if kind.shape and tape.batch is not None:
            out = tape.batch.asked(kind.name, leaves[0], args, kwargs, out)
        if kind.tracks_grad:
            # Record ATen ops from here on: a backward pass needs values inside of calls that would be recorded whole.
            self.recorder.autograd = True
        if kind.tells_shape and tape.dynamic and not isinstance(out, Tensor):
            found = [tape.find(t) for t in leaves]
            if any(ref is not None and ref.slot in tape.dynamic for ref in found):
                known = zip(leaves, found, strict=True)
                refs = {id(t): ref or self.recorder.constants.slot(tape, t) for t, ref in known}
                self._escape(tape, kind, args, kwargs, refs, out)
        return out

    def _escape(
        self, tape: Tape, kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any], refs: dict[int, Ref], out: Any
    ) -> None:
        # Text that differs between passes is no proof, so the call is not repeated on other samples.
        source = None if kind.name in TEXTS else (kind.call, refer(args, refs), refer(kwargs, refs))
        at = where()
        cure = _DISTRIBUTIONS if came_through("torch.distributions", at.code) else ""
        tape.escapes.append(Escape(kind.name, at, out, source, tuple(r.slot for r in refs.values()), cure=cure))


def batch_numbers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any], list[Number]]:
    """The arguments with ``torch.Size`` as tuples, and the numbers among them that depend on the batch of an open node."""
    found = list(numbers((args, kwargs)))
    if not found:
        return args, kwargs, found
    if not all(n.owner.tape.open for n in found):
        return bare(args), bare(kwargs), []
    plain = tuple(tuple(a) if isinstance(a, torch.Size) else a for a in args)
    return plain, {k: tuple(v) if isinstance(v, torch.Size) else v for k, v in kwargs.items()}, found


class _UnknownError(Exception):
    """An argument is or contains a value that is neither a known tensor nor plain."""


def _looked_up(known: dict[int, Ref], found: list[Ref], value: Any) -> Ref:
    """The slot of a tensor among the arguments. It is also appended to ``found``."""
    ref = known.get(id(value))
    if ref is None or ref.tensor() is not value:
        raise _UnknownError
    found.append(ref)
    return ref


def _versions(given: list[Tensor]) -> list[tuple[Tensor, int]]:
    """Tensors with their version counters, to see whether a call writes to them. Inference tensors have none."""
    return [(t, version) for t in given if (version := version_of(t)) is not None]


def _sized_by_values(kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any], refs: dict[int, Ref]) -> bool:
    """Whether the shape of the result depends on traced values. The tags of torch tell it for most functions."""
    if kind.name == "one_hot":
        return not classes_given(args, kwargs)
    if kind.name == "repeat_interleave":
        repeats = kwargs.get("repeats", args[min(1, len(args) - 1)] if args else None)
        return id(repeats) in refs and kwargs.get("output_size") is None
    return kind.dynamic or _masked(kind, args)


def _masked(kind: Kind, args: tuple[Any, ...]) -> bool:
    """Whether the number of elements of the result is the number of true elements of a mask."""
    if kind.name == "__getitem__" and len(args) > 1:
        return any(t.dtype in (torch.bool, torch.uint8) and t.dim() for t in tensors(args[1]))
    return kind.name == "where" and len(args) == 1
