"""One node while it is being traced: its ports, its tape, its samples."""

from __future__ import annotations

import enum
import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from leapp.capture.holders import Named
from leapp.capture.user_line import where
from leapp.errors import AnnotationError, AnnotationTypeError, TraceError
from leapp.graph.dtypes import DTYPES

if TYPE_CHECKING:
    import weakref

    from leapp.capture.provenance import Read
    from leapp.capture.replay import Program, Replay
    from leapp.capture.tape import Tape
    from leapp.capture.user_line import Where
    from leapp.semantics import TensorSemantics
    from leapp.tracing.attributes import Changed, Opening

Role = Literal["input", "output", "state", "buffer", "static"]


class Stage(enum.Enum):
    """How far a node has come since its first ``input_tensors()``. Its ports are fixed at the end of the first pass."""

    FIRST_PASS = "first pass"
    """A tape is recording."""
    BETWEEN_PASSES = "between passes"
    """``output_tensors()`` was called, and the program is cut."""
    LATER_PASS = "later pass"
    """The node was entered again. The second pass has a tape of its own."""
    SETTLED = "settled"
    """The session is over, and it is decided which registered tensors are state."""


@dataclass(frozen=True, slots=True)
class Source:
    """The published output that feeds an input: in the same pass, or (``delayed``) from the pass before."""

    node: str
    port: str
    delayed: bool

    def __str__(self) -> str:
        return f"'{self.node}/{self.port}'" + (" of the pass before" if self.delayed else "")


@dataclass(slots=True)
class InputPort:
    """An input of a node. ``slot`` is ``None`` for a node that is not traced."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    role: Role
    slot: int | None
    where: Where
    semantics: TensorSemantics | None = None
    source: Source | None = None
    batch: int | str | None = "auto"
    """The batch axis that the user gave; ``"auto"`` leaves it to leapp."""
    axis: int | None = None
    """The axis that is the batch, known when the session is compiled."""


@dataclass(slots=True)
class OutputPort:
    """An output of a node."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    role: Role
    slot: int | None
    where: Where
    semantics: TensorSemantics | None = None
    axis: int | None = None
    """The axis that is the batch, known when the session is compiled."""


@dataclass(slots=True)
class Sample:
    """The values of one pass, by port name."""

    passno: int = 0
    inputs: dict[str, torch.Tensor] = field(default_factory=dict)
    outputs: dict[str, torch.Tensor] = field(default_factory=dict)


class Topic(enum.Enum):
    """What a finding is about. Findings of one topic may make others superfluous."""

    NUMBER = enum.auto()
    """A number that differs between the passes."""
    TENSOR = enum.auto()
    """A tensor that differs between the passes."""
    WEIGHT = enum.auto()
    """A weight that differs between the passes."""
    STATE = enum.auto()
    """State that is not declared."""
    DRAWN = enum.auto()
    """Random numbers of Python or NumPy that were drawn during the pass."""
    GENERATOR = enum.auto()
    """A random generator that the code of the node names."""
    OTHER = enum.auto()


class PassDifference(NamedTuple):
    """The first place where the second pass differs from the first: the value in each pass, and the advice for it."""

    topic: Topic
    what: str
    where: Where
    first: Any
    second: Any
    cure: str


class KeptValue(NamedTuple):
    """A value that outlives its pass: the line that made it, a description of its holder, and its shape."""

    where: Where
    holder: str
    shape: tuple[int, ...]


@dataclass(slots=True, eq=False)
class TrackedBuffer:
    """A tensor that the node may write to and that may turn out to be state.

    It is a registered buffer of ``module``, or (``module`` is ``None``) a tensor given to ``register_buffer``. The last four
    fields are about the latter.
    """

    port: str
    tensor: torch.Tensor
    module: torch.nn.Module | None = None
    name: str = ""
    fresh: bool = False
    """Whether the tensor was created while the node was open."""
    left: torch.Tensor | None = None
    """Its value at the end of the last pass."""
    carried: bool = True
    """Whether every later pass began with the value that the pass before left."""
    reset: bool = True
    """Whether every later pass began with the value of the first pass."""
    same_memory: bool = True
    """Whether it was the same memory in every pass."""


class NodeTrace:
    """Everything a session knows about one node."""

    def __init__(self, name: str, tape: Tape | None, entered: int = 0) -> None:
        self.name = name
        self.begin(tape, entered)
        self.dropped_passes = 0
        """How many passes were dropped because the node was traced again in a later one."""
        self.order = -1
        self.wanted: set[str] = set()
        self.read_before: list[Read] = []
        """Values of other nodes that were read out before this one was opened."""
        self.left: dict[str, torch.Tensor] = {}
        """The tensors that the last pass gave as new values of states."""
        self.changed_later: dict[str, tuple[str, Where]] = {}
        """States that were changed after a pass, each with the operation and its line."""
        self.older: Named = {}
        """The containers that global variables named when the node was opened."""
        self.alive: list[tuple[weakref.ref[Any], Where, int]] = []
        """Values of the first pass that are alive when the session ends, with the lines that made them and their slots."""
        self.inlined: set[Any] = set()
        """Decorated functions that ran as part of this node."""

    def begin(self, tape: Tape | None, entered: int) -> None:
        """Start over: nothing is declared, nothing recorded."""
        self.tape = tape
        self.second: Tape | None = None
        """The tape of the second pass, while that pass runs."""
        self.second_slots: dict[str, int] = {}
        """The slots of the input ports on the tape of the second pass."""
        self.difference: PassDifference | None = None
        """The first difference between the first two passes that matters."""
        self.compared = False
        """Whether the first two passes were both recorded."""
        self.entered = entered
        self.inputs: dict[str, InputPort] = {}
        self.outputs: dict[str, OutputPort] = {}
        self.pruned: list[str] = []
        self.updates: dict[str, tuple[torch.Tensor, Where]] = {}
        self.buffers: list[TrackedBuffer] = []
        self.aliases: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        self.again: list[str] = []
        """Inputs that were declared a second time with the same value."""
        self.late: set[str] = set()
        """States that were updated before they were declared."""
        self.registered = 0
        self.suspects: dict[int, bool] = {}
        """The slots of constants whose tensor is older than the node and was changed in the first pass. False if unsure."""
        self.read_again: set[int] = set()
        """Constants of the first pass whose memory the second pass reads too."""
        self.changed: list[Changed] = []
        """The places in the user's objects that the first pass changed."""
        self.opening: Opening = {}
        """The numbers that the first pass began with, until the second pass is compared."""
        self.lengths: dict[str, int] = {}
        """The containers in the user's objects whose length the first pass changed, by name, with the new length."""
        self.written: dict[str, weakref.ref[torch.Tensor]] = {}
        """The plain tensors in the user's objects that the first pass wrote to, by name."""
        self.changed_again: list[Changed] = []
        """The numbers in the user's objects that the second pass changed too, each with the line that reads it."""
        self.samples: list[Sample] = []
        self.compared_later: list[Sample] = []
        """Passes beyond the samples, to be compared with the recorded calls when the session is compiled."""
        self.current = Sample(entered)
        self.passes = 0
        self.missed = 0
        """How many passes of other nodes lie between its own."""
        self.stage = Stage.FIRST_PASS
        self.backend: str | None = None
        self.backend_params: dict[str, Any] = {}
        self.asked: tuple[Any, Any, Any] | None = None
        """The settings of ``output_tensors()`` in the first pass, if there is only a backend among them."""
        self.program: Program | None = None
        self.names: dict[int, str] = {}
        """Names for the constants of the program, by slot."""
        self._replay: Replay | None = None

    @property
    def finished(self) -> bool:
        """Whether the first pass has ended."""
        return self.stage is not Stage.FIRST_PASS

    @property
    def in_pass(self) -> bool:
        """Whether a pass is under way."""
        return self.stage is Stage.FIRST_PASS or self.stage is Stage.LATER_PASS

    @property
    def to_retrace(self) -> bool:
        """Whether the next pass replaces the recording of the first, which updated a state without declaring it."""
        return bool(self.late) and not self.dropped_passes

    def take(self, program: Program, names: dict[int, str]) -> None:
        """Make this the program of the node."""
        self.program, self.names, self._replay = program, names, None

    @property
    def replay(self) -> Replay | None:
        """The program as a module, made when it is asked for."""
        if self._replay is None and self.program is not None:
            from leapp.capture.replay import Replay

            self._replay = Replay(self.program, self.names)
        return self._replay

    def check(self, port: InputPort | OutputPort, t: torch.Tensor, what: str, at: Where | None = None) -> None:
        """Refuse a value whose shape or dtype differs from the first pass."""
        if t.shape != port.shape or spelled(t.dtype) != port.dtype:
            raise AnnotationError(
                f"node '{self.name}', {what} '{port.name}' (at {at or where()}) was declared as {port.dtype} "
                f"{list(port.shape)} (at {port.where}) and is {spelled(t.dtype)} {list(t.shape)} now. Ports keep their shape "
                "and dtype in every pass."
            )

    def draws(self) -> list[Where]:
        """The lines that draw random numbers whenever the node runs, without those that reach no output."""
        if self.tape is None or self.program is None or not self.tape.random:
            return []
        kept = {id(call.where) for call in self.program.calls}
        return list(dict.fromkeys(w for w in self.tape.random if id(w) in kept))

    @property
    def recording(self) -> Tape | None:
        """The tape that the present pass is recorded on."""
        return self.second if self.finished else self.tape

    def require_traced(self) -> Tape:
        """The tape of an open, traced node."""
        if self.tape is None:
            raise TraceError(f"node '{self.name}' is not traced.")
        return self.tape


def dtype_name(t: torch.Tensor) -> str:
    """The dtype as the YAML spells it."""
    return spelled(t.dtype)


@functools.cache
def spelled(dtype: torch.dtype) -> str:
    """A dtype as the YAML spells it."""
    return str(dtype).removeprefix("torch.")


def refuse_form(node: NodeTrace, name: str, t: torch.Tensor, at: Where | None = None) -> None:
    """Raise for a tensor that has no dense memory of its own, or a dtype that bundles do not have."""
    wrapper = type(t).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    if wrapper or t.is_nested or t.layout != torch.strided or t.is_meta:
        form = type(t).__name__ if wrapper else "nested" if t.is_nested else "meta" if t.is_meta else "sparse"
        raise AnnotationTypeError(
            f"node '{node.name}', port '{name}' (at {at or where()}): a {form} tensor cannot be a port. Pass a dense tensor."
        )
    if spelled(t.dtype) not in DTYPES:
        raise AnnotationTypeError(
            f"node '{node.name}', port '{name}' (at {at or where()}): a tensor of {spelled(t.dtype)} cannot be a port. Convert "
            f"it to one of {', '.join(DTYPES)}."
        )
