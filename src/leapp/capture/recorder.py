"""The recorder: holds everything that one session captures, and puts the modes on the threads that are recorded.

Tensors are recognised by identity or by memory. The user's tensors are neither wrapped nor changed.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import torch

from leapp.capture.batch.follower import Follower
from leapp.capture.constants import Constants
from leapp.capture.identity import ByIdentity
from leapp.capture.indexed_views import IndexedRows
from leapp.capture.mode_stacks import DISPATCH_MODES, FUNCTION_MODES, silence
from leapp.capture.numpy.arrays import Arrays
from leapp.capture.old_memory import OldMemory
from leapp.capture.plain_calls import PlainCalls
from leapp.capture.provenance import FormerValue, Provenance, Published
from leapp.capture.tape import Escape, Ref, Tape, is_known
from leapp.capture.torch_modes import DispatchMode, FunctionMode
from leapp.capture.traced_calls import PLAIN, TracedCalls
from leapp.capture.user_line import Where, where
from leapp.errors import TraceError

Tensor = torch.Tensor


class _On(threading.local):
    """Which modes are on in this thread. ``other`` marks a thread that a node started: it keeps both modes while it runs.

    Only a thread itself can enter and leave modes.
    """

    function = dispatch = other = False


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
        """Whether a node takes any batch size. Then any call may have numbers that depend on the batch among its arguments."""
        self.rows: int | None = None
        """The batch size of the nodes so far."""
        self.published = Provenance()
        self.declared_tensors: ByIdentity[str] = ByIdentity()
        """The user's own tensors that were declared as inputs, each with the node."""
        self.former_values: ByIdentity[FormerValue] = ByIdentity()
        """Values of finished nodes that are still alive."""
        self.former_memory: dict[str, dict[int, tuple[Where, int]]] = {}
        """For each node the memories of plain tensors that its first pass wrote to, see :meth:`Tape.rewritten`."""
        self.old_memory = OldMemory()
        self.pickled: dict[int, tuple[Tape, Ref] | Published | None] = {}
        self.arrays = Arrays(self)
        self.calls = TracedCalls(self)
        self.plain_calls = PlainCalls(self)
        self.constants = Constants(self)
        self._function = FunctionMode(self)
        self._dispatch = DispatchMode(self)
        self._on = _On()
        self.lock = threading.RLock()
        self.shared = False
        """Whether more than one thread is recorded."""
        self._first: int | None = None
        """The thread that was recorded first."""
        self.on_first_open: Callable[[], None] = _nothing
        self.on_last_close: Callable[[], None] = _nothing
        """These two are called when the first node opens, and when the last one is closed."""
        self.on_compile: Callable[[], None] = _nothing
        """Called when an open node has called ``torch.compile``."""

    # -- modes on and off ----------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Put the modes at the bottom of this thread's stacks, below any mode the user has entered.

        The dispatch mode is needed only for open nodes, so it is there only while a node is open.
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
        """Remove the modes from this thread's stacks, wherever they are in them."""
        on = self._on
        if on.function:
            FUNCTION_MODES.discard(self._function)
            on.function = False
        if on.dispatch:
            DISPATCH_MODES.discard(self._dispatch)
            on.dispatch = False

    @staticmethod
    def sweep() -> None:
        """Remove the modes of earlier sessions from this thread. They stay if another thread ended the session."""
        now = Recorder.current
        for modes in (FUNCTION_MODES, DISPATCH_MODES):
            modes.keep(lambda m: not isinstance(m, FunctionMode | DispatchMode) or m.recorder is now)

    @property
    def installed(self) -> bool:
        """Whether this thread is recorded."""
        return self._on.function

    @contextmanager
    def other_thread(self) -> Iterator[None]:
        """Record a thread that was started during the session, for as long as it runs."""
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
        """Begin recording a node.

        Args:
            node: Its name.
            batched: Whether to find out which sizes follow the batch.
            again: The tape of the first pass, if this is the second.
        """
        tape = Tape(node)
        tape.first = first = again is None
        if again is not None:
            # A state with gradients may enter the second pass. Both passes must be recorded alike, whole or as ATen ops.
            tape.autograd = again.autograd
            self.autograd = self.autograd or tape.autograd
        tape.indexed_rows = IndexedRows(tape)
        if batched:
            tape.batch = Follower(tape, self.rows)
            self.dynamic = self.batched = True
        tape.generators = _generators() if first else None
        self.tapes = [*self.tapes, tape]  # a new list, because another thread may be iterating over the old one
        self.on_first_open()
        return tape

    def close(self, tape: Tape) -> None:
        """Stop recording a node. Its values are remembered, so that their use in another node can be refused."""
        tape.open = False
        if tape.batch is not None and self.rows is None:
            self.rows = tape.batch.rows
        self.tapes = [t for t in self.tapes if t is not tape]
        if not self.tapes:
            self.on_last_close()
        alive = [(t, ref.slot) for ref in tape.known.values() if (t := ref.tensor()) is not None]
        made = tape.makers({slot for _, slot in alive})
        self.former_values.forget_dead()
        for t, slot in alive:
            if slot in made:
                self.former_values[t] = FormerValue(tape.node, made[slot], slot if tape.first else None)
        if tape.first:
            self.former_memory[tape.node] = tape.rewritten()
        if not self.tapes:
            self.plain_calls.made_inside.clear()
            self.plain_calls.drawn.clear()
            self.old_memory.end()
            self.old_memory = OldMemory()
            self.arrays.memory.forget()
            self.autograd = self.dynamic = False
        elif not any(t.batch is not None for t in self.tapes):
            self.dynamic = any(t.dynamic for t in self.tapes)
        if tape.first and tape.generators != _generators():
            by = "" if threading.active_count() == 1 else " (by this node or by another thread)"
            kind = f"random numbers of Python or NumPy, drawn before{by}"
            tape.escapes.append(Escape(kind, where(), "a number", suspicion=True))
        tape.known.clear()
        tape.memories.clear()
        tape.constant_ids.clear()
        tape.release(tape.constants if tape.first else ())

    def declare(self, tape: Tape, t: Tensor, at: Where, axis: int | str | None = "auto") -> Tensor:
        """Make the value of ``t`` an input of the tape. Returns a new alias of ``t``, which the user's code goes on with.

        ``axis`` is the batch axis, for a tape that takes any batch size. Call it inside ``silence()``.
        """
        self.arrays.memory.exposed(t)  # first, since it counts references, and leapp itself holds one afterwards
        alias = t.view_as(t) if t.layout == torch.strided else t.detach()
        if type(t) not in PLAIN:
            alias = alias.as_subclass(type(t))
        vars(alias).update(vars(t))
        tape.declare(alias, at, axis)
        self.declared_tensors[t] = tape.node
        if tape.first and alias.requires_grad and torch.is_grad_enabled():
            tape.autograd = self.autograd = True
        return alias

    silence = staticmethod(silence)
    """A context for leapp's own tensor code, in which the modes see nothing."""

    def source(self, t: Tensor) -> Published | None:
        """The published output that ``t`` is, or was made from."""
        return self.published.source(t)

    def owner(self, leaves: Iterable[Tensor]) -> Tape | None:
        """The open tape that the tensors belong to."""
        if len(self.tapes) == 1:
            only = self.tapes[0]
            return only if any(is_known(only.known, t) or only.owns(t) for t in leaves) else None
        tape: Tape | None = None
        for t in leaves:
            found = next((c for c in self.tapes if is_known(c.known, t)), None) or next(
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


def _nothing() -> None:
    pass


def _generators() -> Any:
    """The states of the global random generators of Python and NumPy, to be compared. Python's is 625 numbers, so a hash."""
    return hash(random.getstate()), _plain(np.random.get_state(legacy=False))


def _plain(state: Any) -> Any:
    """The state of a generator as a value that can be compared."""
    if isinstance(state, dict):
        return [_plain(part) for part in state.values()]
    return state.tobytes() if isinstance(state, np.ndarray) else state
