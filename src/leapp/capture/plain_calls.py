"""Runs calls without traced values, inside an open node or between nodes.

They are not recorded, except draws of random numbers that an open node uses. Facts about their results are kept, since a node
may read the results later: which tensors hold random numbers, which were made inside a node, which memory is older than the
node, and which tensors were made from published outputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from leapp.capture.call_kinds import Kind
from leapp.capture.identity import ByIdentity
from leapp.capture.numpy.plain import address
from leapp.capture.substitutes import CONSTRUCTORS
from leapp.capture.tape import TEXTS, Draw, Escape, Ref, Tape, snapshot
from leapp.capture.trees import tensors
from leapp.capture.user_line import Where, where

if TYPE_CHECKING:
    from leapp.capture.recorder import Recorder

Tensor = torch.Tensor


class _DrawnCall(NamedTuple):
    """A call that drew random numbers, or computed with such numbers, with its arguments and result."""

    kind: Kind
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaves: list[Tensor]
    out: Any
    versions: list[tuple[Tensor, int]]
    """Results and arguments with their version counters. If one was written to since, the call cannot be recorded later."""
    state: Tensor | None
    """The state of torch's generator before a draw."""
    where: Where


class PlainCalls:
    """Runs the plain calls of one session, and keeps facts about their results."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.random_tensors: ByIdentity[Where] = ByIdentity()
        """Tensors that hold random numbers, each with the line that drew them."""
        self.made_inside: ByIdentity[Where] = ByIdentity()
        """Tensors that were made inside an open node, each with the line that made it."""
        self.drawn: dict[int, _DrawnCall] = {}
        """The calls that drew tensors while a node is open, or computed with such tensors, by identity of the result."""

    def run(self, func: Any, kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Tensor]) -> Any:
        """Run a call."""
        recorder = self.recorder
        targets = kind.targets(args, kwargs)
        for tape in recorder.tapes if targets else ():
            if tape.indexed_rows and any(map(tape.indexed_rows.lie_in, targets)):  # the write changes a row that is traced
                for t in targets:
                    tape.adopt(t, *recorder.old_memory.origins_and_lender(t))
                return recorder.calls.record(tape, func, kind, args, kwargs, leaves)
            for t in targets:
                tape.before_plain_write(t)
        for tape in recorder.tapes if not kind.metadata else ():
            for t in leaves:
                recorder.constants.refuse_other_storage(tape, t)
        before = torch.get_rng_state() if kind.random else None
        out = func(*args, **kwargs)
        if kind.metadata:
            return out
        results = list(tensors(out))
        former = recorder.former_values.first(leaves)
        if former is not None and any(tape.node == former.node for tape in recorder.tapes):
            # A plain tensor that an open node computes from a value of its pass before goes back to that value too.
            for o in results:
                if o not in recorder.former_values:
                    recorder.former_values[o] = former._replace(itself=False)
        drawn = before is not None and draws_random_numbers(before, kwargs, out)
        if recorder.tapes and (drawn or (self.drawn and any(id(t) in self.drawn for t in leaves))):
            self._remember_draw(before if drawn else None, kind, args, kwargs, leaves, out)
        if recorder.published:
            recorder.published.follow(kind, args, leaves, results)
        if kind.name == "numpy" and (recorder.tapes or recorder.source(leaves[0]) is not None):
            return recorder.arrays.memory.wrap(out, leaves[0])
        draws = where() if drawn else self.random_tensors.first(leaves)
        if draws is not None:
            for o in results or leaves[:1]:
                self.random_tensors[o] = draws
            if recorder.tapes and not results and out is not None:
                recorder.tapes[-1].escapes.append(Escape(f"random number read by {kind.name}", where(), out))
        elif not results and out is not None and kind.looks_at is None and leaves:
            self.read_between(kind.name, leaves[0], out)
        if recorder.tapes:
            if func in CONSTRUCTORS and args and isinstance(args[0], np.ndarray) and out.data_ptr() == address(args[0]):
                recorder.old_memory.over(args[0], out)
            else:
                recorder.old_memory.plain_call(kind, targets, leaves, results)
            at = where()
            for o in results:
                self.made_inside[o] = at
        return out

    def _remember_draw(
        self, state: Tensor | None, kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Tensor], out: Any
    ) -> None:
        """Remember a call that drew random tensors, or computed with such tensors, in case an open node reads its result.

        Draws from a generator of the user's, and draws written into existing memory, are not remembered: the generator may be
        seeded in every call, and the write may be an initialisation. They become constants, and the second pass shows whether
        they change.
        """
        results = list(tensors(out))
        own = kind.writes or kind.statistics or kind.handled or "out" in kwargs or kwargs.get("generator") is not None
        if own or not results or any(t.is_inference() for t in (*results, *leaves)) or {*map(id, results)} & {*map(id, leaves)}:
            return
        versions = [(t, t._version) for t in (*results, *leaves)]
        found = _DrawnCall(kind, args, kwargs, leaves, out, versions, state, where())
        self.drawn.update((id(o), found) for o in results)

    def record_draw(self, tape: Tape, t: Tensor) -> Ref | None:
        """Record the calls that drew a tensor on the tape of the node that reads it, so that its model draws too."""
        found = self.drawn.get(id(t))
        if found is None or any(u._version != version for u, version in found.versions):
            return None
        refs = {id(leaf): tape.find(leaf) or self.recorder.constants.slot(tape, leaf) for leaf in found.leaves}
        self.recorder.calls.keep(tape, found.kind, found.args, found.kwargs, refs, (), found.out)
        call = tape.calls[-1] = tape.calls[-1]._replace(where=found.where)
        if found.state is not None:
            tape.random.append(call.where)
            tape.draws.append(Draw(call, [snapshot(o) for o in tensors(found.out)], found.state))
        return tape.find(t)

    def read_between(self, kind: str, t: Tensor, out: Any) -> None:
        """Note that a published output was read out as a number or a list: it is frozen in the open node, or in a later one."""
        source = self.recorder.source(t)
        if source is not None and self.recorder.tapes:
            self.recorder.tapes[-1].escapes.append(Escape(f"{kind} of '{source.node}/{source.port}'", where(), out))
        elif source is not None and kind not in TEXTS:
            self.recorder.published.read(kind, source, out)


def draws_random_numbers(before: Tensor, kwargs: dict[str, Any], out: Any) -> bool:
    """Whether a call drew random numbers, which the state of the generator shows. Dropout is tagged random in any mode."""
    if kwargs.get("generator") is not None or not all(t.is_cpu for t in tensors(out)):
        return True
    return not torch.equal(before, torch.get_rng_state())
