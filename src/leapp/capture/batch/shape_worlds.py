"""Computes the shapes of a node's values for several batch sizes.

The recorded calls are run again on tensors without data, in several *worlds* that differ only in the number of rows. A size
depends on the batch if it differs between the worlds. A call that fails in another world has the batch size baked into it.
"""

from __future__ import annotations

import itertools
import logging
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from leapp.capture.aliasing import same_storage
from leapp.capture.batch.symbolic_size import Measure
from leapp.capture.equality import same_rows
from leapp.capture.replay import filled, results
from leapp.capture.tape import Call, Constant, Ref, Tape
from leapp.capture.trees import leaves
from leapp.capture.user_line import Where
from leapp.compat.core import DispatchMode, OpOverload
from leapp.compat.modes import DisableTorchFunction, FakeTensorMode, normal_dispatch

Tensor = torch.Tensor

SIZES = (1, 2, 7, 1009)
"""The numbers of rows that are tried beside the traced one."""

_MAY_BE = (
    "the number {0} may be the batch size. If it is, take it from a tensor, such as x.shape[0]; if it is not, trace with "
    "another batch size than {0}"
)
_VIEW = (
    "the result is a view for some batch sizes and a copy for others, and it or its source is written to later. Clone it before"
)
_TALK = logging.getLogger("torch._subclasses.fake_tensor")


@dataclass(slots=True)
class Entry:
    """An input of a node: its shape, dtype and device, and which axis is the batch.

    ``kind`` says how the axis was decided: ``"told"`` by the user, ``"input"`` from the size, ``"buffer"`` not decided yet.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    axis: int | None
    kind: str = "input"

    def at(self, rows: int) -> tuple[int, ...]:
        """The shape with that many rows."""
        return tuple(rows if d == self.axis else n for d, n in enumerate(self.shape))


@dataclass(frozen=True, slots=True)
class Baked:
    """A place where the traced batch size is part of the node."""

    where: Where
    what: str

    def __str__(self) -> str:
        return f"{self.where.quoted}\n    {self.what}"


def spreads(constant: Constant, rows: int) -> bool:
    """Whether a constant may be one row that was repeated for the traced batch."""
    value = constant.value
    if not value.dim() or value.shape[0] != rows or constant.parameter:
        return False
    return same_rows(value)


class _World:
    """The values of a node for one number of rows, as tensors without data."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.env: dict[int, Any] = {}

    def make(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        with self.mode:
            return torch.empty(tuple(shape), dtype=dtype, device=device)

    def run(self, call: Call, watch: AbstractContextManager[Any] | None = None) -> None:
        with self.mode, watch or nullcontext(), torch.no_grad():
            args, kwargs = filled(call, self.env)
            result = call.func(*args, **kwargs)
        made = results(call, result)
        if len(made) != len(call.outs):
            raise ValueError(f"it gives {len(made)} values and not {len(call.outs)}")
        self.env.update(zip(call.outs, made, strict=True))


@dataclass(eq=False)
class Forms:
    """The shapes of a node's values in every world."""

    rows: int
    """The traced number of rows."""
    tape: Tape
    """The node's tape, for new slots."""
    calls: list[Call]
    """The recorded calls; more may be added later."""
    constants: Mapping[int, Constant]
    """The node's constants by slot."""
    entries: dict[int, Entry]
    """The node's inputs by slot."""
    spread: set[int] = field(default_factory=set)
    """Constants that are one row, repeated for each row of the batch."""
    failed: Baked | None = None

    def __post_init__(self) -> None:
        self._restart()

    def _restart(self) -> None:
        self.done = 0
        self.sometimes: list[tuple[int, int, int]] = []
        """Calls whose result lies in the memory of an argument in some worlds only: index, result, argument."""
        self.worlds = [_World(rows) for rows in (self.rows, *SIZES)]

    def advance(self) -> Baked | None:
        """Run the calls that were not run yet. Returns why one of them fails, else ``None``."""
        with _unseen():
            while self.failed is None and self.done < len(self.calls):
                failure = self._step()
                if failure is not None and not (self._reconsider(self.done) or self._resize(self.done)):
                    self.failed = self._explain(self.calls[self.done], *failure)
        return self.failed

    def shapes(self, slot: int) -> list[tuple[int, ...]]:
        """The shape of a slot in every world, the traced one first."""
        with _unseen():
            for world in self.worlds:
                self._supply(world, (slot,))
            return [tuple(int(n) for n in w.env[slot].shape) for w in self.worlds]

    def _step(self) -> tuple[int, Exception] | None:
        """Run one call in every world. Returns the rows and the error of the first world in which it fails, else ``None``."""
        call = self.calls[self.done]
        for world in self.worlds:
            try:
                self._supply(world, call.reads)
                world.run(call)
            except Exception as error:  # torch raises many types if sizes do not fit
                return world.rows, error
        for out, read in itertools.product(call.outs, call.reads):
            if len({_shares(world.env[out], world.env[read]) for world in self.worlds}) > 1:
                self.sometimes.append((self.done, out, read))
        self.done += 1
        return None

    def _supply(self, world: _World, slots: Iterable[int]) -> None:
        """Make the inputs and constants among the slots that the world does not have yet."""
        for slot in slots:
            if slot in world.env:
                continue
            entry = self.entries.get(slot)
            if entry is not None:
                world.env[slot] = world.make(entry.at(world.rows), entry.dtype, entry.device)
            elif slot in self.constants:
                value = self.constants[slot].value
                shape = (world.rows, *value.shape[1:]) if slot in self.spread else tuple(value.shape)
                world.env[slot] = world.make(shape, value.dtype, value.device)

    def changing_views(self) -> list[Baked]:
        """Calls that return a view for some batch sizes and a copy for others, if a later write makes that a difference."""
        found = []
        for index, out, read in self.sometimes:
            memories = {self.tape.memory_of[out], self.tape.memory_of[read]}
            if any(not memories.isdisjoint(call.writes) for call in self.calls[index + 1 :]):
                found.append(Baked(self.calls[index].where, _VIEW))
        return found

    # -- inputs, constants and sizes that turn out to follow the batch -------------------------------------------------

    def flip(self, slots: Iterable[int]) -> None:
        """Switch inputs and constants between fixed and following the batch, and start over."""
        for slot in slots:
            entry = self.entries.get(slot)
            if entry is None:
                self.spread ^= {slot}
            else:
                entry.axis = first_axis(entry.shape, self.rows) if entry.axis is None else None
        self._restart()

    def _reconsider(self, index: int) -> bool:
        """Let undecided inputs and constants follow the batch so that a failing call succeeds. False if none does it."""
        direct = [s for s in self.calls[index].reads if self._open(s)]
        distant = [s for s in self._origins(index) if self._open(s) and s not in direct]
        trials = [[s] for s in direct] + [direct] + [[s] for s in distant] + [direct + distant]
        for trial in filter(None, trials):
            self.flip(trial)
            if self._reaches(index + 1):
                return True
            self.flip(trial)
        self._reaches(index)
        return False

    def _reaches(self, index: int) -> bool:
        """Whether all calls before ``index`` succeed."""
        while self.done < index:
            if self._step() is not None:
                return False
        return True

    def _resize(self, index: int) -> bool:
        """Let a size among the arguments of a failing ATen operator follow the batch.

        Such an operator comes from a scripted function, whose reads of sizes no mode sees. The fixed size fails in other
        worlds, so it was the batch. If exactly one choice of sizes succeeds in all worlds, the call is recorded with that.
        """
        call = self.calls[index]
        source = next(((s, e.axis) for s, e in self.entries.items() if e.axis is not None), None)
        if source is None or not isinstance(call.func, OpOverload):
            return False
        places = [
            (i, j)
            for i, (given, declared) in enumerate(zip(call.args, call.func._schema.arguments, strict=False))
            if isinstance(given, (list, tuple)) and str(declared.type) == "List[int]"
            for j, n in enumerate(given)
            if isinstance(n, int) and n > 0 and n % self.rows == 0
        ]
        chosen = (c for n in range(1, min(len(places), 4) + 1) for c in itertools.combinations(places, n))
        fitting = [c for c in chosen if self._fits(index, c)]
        if len(fitting) != 1:
            return False
        self.calls[index : index + 1] = self._resized(call, fitting[0], source)
        self._restart()
        return True

    def _fits(self, index: int, places: Sequence[tuple[int, int]]) -> bool:
        self._restart()
        return self._reaches(index) and all(self._runs_in(world, self.calls[index], places) for world in self.worlds)

    def _runs_in(self, world: _World, call: Call, places: Sequence[tuple[int, int]]) -> bool:
        try:
            self._supply(world, call.reads)
            world.run(call._replace(args=_scaled(call.args, places, lambda n: n // self.rows * world.rows)))
        except Exception:  # torch raises many types: this choice of sizes does not fit
            return False
        return True

    def _resized(self, call: Call, places: Sequence[tuple[int, int]], source: tuple[int, int]) -> list[Call]:
        made: list[Call] = []

        def measured(function: Callable[..., Any], args: tuple[Any, ...], reads: tuple[int, ...]) -> Ref:
            ref = Ref(self.tape.new_slot())
            made.append(Call(Measure(function), args, {}, (ref.slot,), reads, (), call.where))
            return ref

        rows = measured(torch.Tensor.size, (Ref(source[0]), source[1]), source[:1])
        by_size = {self.rows: rows}

        def follow(n: int) -> Ref:
            if n not in by_size:
                by_size[n] = measured(operator.mul, (rows, n // self.rows), (rows.slot,))
            return by_size[n]

        args = _scaled(call.args, places, follow)
        reads = dict.fromkeys((*call.reads, *(ref.slot for ref in by_size.values())))
        # torch's tracers follow a symbolic size through a tensor method, but not through an ATen operator.
        name = call.func._opname  # type: ignore[attr-defined]
        func: Any = getattr(torch.Tensor, name, None) or getattr(torch, name, call.func)
        return [*made, call._replace(func=func, args=args, reads=tuple(reads))]

    # -- numbers that may be the batch size ----------------------------------------------------------------------------

    def suspects(self) -> list[Baked]:
        """Calls that compute with a plain number equal to the traced batch size, which may be the batch size."""
        found = []
        world = _World(next(size for size in reversed(SIZES) if size != self.rows))
        with _unseen():
            for call in self.calls:
                self._supply(world, call.reads)
                seen = _Numbers(self.rows)
                world.run(call, seen if _holds(self.rows, (call.args, call.kwargs)) else None)
                if seen.found or any(_is_number(self.constants.get(s), self.rows) for s in call.reads):
                    found.append(Baked(call.where, _MAY_BE.format(self.rows)))
        return found

    def _open(self, slot: int) -> bool:
        """Whether it is still open if an input or a constant follows the batch."""
        entry = self.entries.get(slot)
        if entry is not None:
            undecided = entry.kind == "buffer" or (entry.kind == "input" and entry.axis is None)
            return undecided and first_axis(entry.shape, self.rows) is not None
        return slot in self.constants and slot not in self.spread and spreads(self.constants[slot], self.rows)

    def _origins(self, index: int) -> list[int]:
        wanted = set(self.calls[index].reads)
        for call in reversed(self.calls[:index]):
            if not wanted.isdisjoint(call.outs):
                wanted.update(call.reads)
        return sorted((s for s in wanted if s in self.entries or s in self.constants), reverse=True)

    def _explain(self, call: Call, rows: int, error: Exception) -> Baked:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        name = getattr(call.func, "__name__", call.func)
        if rows == self.rows:
            if type(error).__name__ == "DynamicOutputShapeException":
                reason = "how many elements it gives depends on values. Keep all rows, and choose with torch.where(mask, a, b)."
            return Baked(call.where, f"{name} cannot be followed for other batch sizes: {reason}")
        what = f"with {rows} rows in place of {self.rows}, {name} fails: {reason}"
        fixed = [
            f"It reads a constant of shape {list(c.value.shape)} that has {self.rows} different rows: declare it as an input."
            for s in call.reads
            if (c := self.constants.get(s)) is not None and s not in self.spread and self.rows in c.value.shape[:1]
        ]
        advice = "Take sizes from the tensor itself, such as x.shape[0], and let no list of rows decide the code."
        return Baked(call.where, f"{what}\n    {(fixed or [advice])[0]}")


@contextmanager
def _unseen() -> Iterator[None]:
    """Run calls on leapp's own tensors without data: the modes of the session do not see them, and dispatch is as usual."""
    from leapp.capture.recorder import Recorder

    recorder, level = Recorder.current, _TALK.level
    tapes = [] if recorder is None else recorder.tapes
    try:
        if recorder is not None:
            recorder.tapes = []
        _TALK.setLevel(logging.CRITICAL)  # it would print a traceback for every shape that does not fit
        with DisableTorchFunction(), normal_dispatch():
            yield
    finally:
        _TALK.setLevel(level)
        if recorder is not None:
            recorder.tapes = tapes


def _shares(a: Any, b: Any) -> bool:
    """Whether two values are tensors over the same memory."""
    return isinstance(a, Tensor) and isinstance(b, Tensor) and same_storage(a, b)


def _scaled(args: tuple[Any, ...], places: Sequence[tuple[int, int]], change: Callable[[int], Any]) -> tuple[Any, ...]:
    """The arguments with the numbers at some places changed."""
    chosen = set(places)
    return tuple(
        [change(n) if (i, j) in chosen else n for j, n in enumerate(a)] if any(p[0] == i for p in places) else a
        for i, a in enumerate(args)
    )


def _holds(rows: int, value: Any) -> bool:
    """Whether a nested value has that number in it."""
    return any(n == rows and not isinstance(n, bool) for n in leaves(value, (int, float), skip=()))


def _is_number(constant: Constant | None, rows: int) -> bool:
    return constant is not None and constant.value.dim() == 0 and bool(constant.value == rows)


class _Numbers(DispatchMode):  # type: ignore[no-untyped-call]
    """Notes operators that compute with a number equal to ``rows``. A size is left out: a fixed size fails in other worlds."""

    def __init__(self, rows: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rows = rows
        self.found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for i, declared in enumerate(func._schema.arguments):
            value = args[i] if i < len(args) else kwargs.get(declared.name)
            kind = str(declared.type)
            # torch also passes plain numbers for arguments that the schema declares as tensors.
            if kind in ("number", "Tensor", "float") and type(value) in (int, float) and value == self.rows:
                self.found = True
        return func(*args, **kwargs)


def first_axis(shape: Sequence[int], rows: int | None) -> int | None:
    """The first axis with that many entries."""
    return next((d for d, n in enumerate(shape) if n == rows), None)

