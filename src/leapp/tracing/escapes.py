"""Finds the values that left the graph of a node: numbers that were read out, state that is not declared, random numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from leapp.capture.audit import hidden_reads
from leapp.capture.equality import same_bits, same_value
from leapp.capture.handled import CURE, handled
from leapp.capture.lost_choices import lost_choices
from leapp.capture.names_in_code import NamesInCode, decides, deciding, is_inside
from leapp.capture.replay import fill
from leapp.capture.user_line import is_library
from leapp.tracing.attributes import DIFFERENT, once_for_each_line
from leapp.tracing.node import Topic
from leapp.tracing.report import EscapeInfo
from leapp.tracing.second_pass import STATE
from leapp.tracing.undeclared import departs, kept, replay_of, undeclared_state

if TYPE_CHECKING:
    from types import CodeType

    from leapp.capture.user_line import Where
    from leapp.tracing.attributes import Changed
    from leapp.tracing.node import NodeTrace

_AGREE = "the passes so far agree"
_UNDECLARED = (
    "undeclared state: a tensor that the node reads and changes (declare it with state_tensors, register_buffer or module)"
)
_COUNTER = "if an output depends on it later, keep it in a tensor, declared as input or state; trace more passes to see"
_AGREEING_CHOICE = f", which decides something; {_AGREE}"
_CHOOSE = "choose in tensors, as torch.where(torch.rand(()) < p, a, b) does, or declare it with input_tensors()"
_BY_TIME = "measure the time outside of the node, and declare it, or the choice, with input_tensors()"
_CHOSEN = (
    "instead of table[index] with a plain array, which is not followed, use np.take(table, index) or np.where(mask, a, b); for "
    "a compiled function, a FunctionPatch"
)
_EXACT_TYPE = "use isinstance(), or compare types with =="
_UNSTEADY = "if it reaches an output, declare it with input_tensors(); a second pass tells"
_KEPT = "declare it with state_tensors() and update_state() if a later call reads it, else drop it"
_READ_OUT = {
    "__bool__": "`if` on a tensor froze the branch; use torch.where",
    "__float__": "float() of a tensor froze its number; compute with the tensor",
    "__int__": "int() of a tensor froze its number; compute with the tensor, or keep it an index",
    "__index__": "a tensor as an index, size or count of Python froze its number; use index_select, gather or a mask",
    "item": ".item() froze the number; compute with the tensor",
    "tolist": ".tolist() froze the numbers; compute with the tensor",
    "np.vectorize": "it gives plain numbers to the function; call the function with the array, with np.where for its branches",
}
"""The advice for a number that was read out of a tensor, by the name of the call that read it."""


@dataclass(slots=True)
class SharedFacts:
    """What was found out for one node and holds for all nodes of the session."""

    names: NamesInCode = field(default_factory=NamesInCode)
    """What the names in the code of the nodes stand for."""
    harmless: set[Any] = field(default_factory=set)
    """Calls that read no value out of a tensor, see :func:`~leapp.capture.audit.hidden_reads`."""
    arrays: bool = False
    """Whether arrays were traced."""


def escapes(node: NodeTrace, shared: SharedFacts) -> list[EscapeInfo]:
    """The values that left the graph of a node whose passes are over."""
    found = _Search(node)
    found.numbers_read_out()
    found.numbers_read_by_torch(shared.harmless)
    if not (node.compared and found.wrong):
        found.clocks_and_generators(shared.names)
    if shared.arrays:
        found.exact_types(shared.names)
    if node.compared and not found.wrong:
        found.choices_outside_torch()
    found.constants()
    found.numbers_read_before()
    found.changes_of_the_first_pass()
    found.changes_of_the_second_pass()
    found.states_changed_later()
    if not found.wrong:
        found.values_that_outlive_the_pass()
    if node.difference is not None:
        found.first_difference()
    return found.listed()


class _Search:
    """The findings about one node, each with its topic."""

    def __init__(self, node: NodeTrace) -> None:
        assert node.tape is not None
        assert node.program is not None
        assert node.replay is not None
        self.node, self.tape, self.program, self.replay = node, node.tape, node.program, node.replay
        departed = departs(node)
        self.wrong = node.difference is not None or bool(node.draws()) or departed
        """Whether the passes prove that the recording of the first pass is not what the program computes."""
        self.several = len(node.samples) > 1
        self.proven = self.several and bool(node.read_before or node.changed) and departed
        """Whether a later pass proves that a change which no recorded call made reaches an output."""
        self.found: list[tuple[Topic, EscapeInfo]] = []

    def add(
        self,
        kind: str,
        at: Where,
        value: str,
        varies: bool = False,
        again: str = "",
        cure: str = "",
        topic: Topic = Topic.OTHER,
    ) -> None:
        info = EscapeInfo(self.node.name, kind, at.file, at.line, at.text, value, varies, again, cure)
        self.found.append((topic, info))

    def has(self, topic: Topic) -> bool:
        return any(t is topic for t, _ in self.found)

    def drop(self, topic: Topic) -> None:
        self.found = [(t, info) for t, info in self.found if t is not topic]

    def listed(self) -> list[EscapeInfo]:
        """The findings, each once. Proven ones come first, and before them the first difference between the passes."""
        unique: dict[tuple[Any, ...], EscapeInfo] = {}
        for _, info in self.found:
            unique.setdefault((info.kind, info.file, info.line, info.varies), info)
        difference = self.node.difference
        first = None if difference is None else (difference.where.file, difference.where.line)
        return sorted(unique.values(), key=lambda e: (not e.varies, first is not None and (e.file, e.line) != first))

    # -- values that were read out -------------------------------------------------------------------------------------

    def numbers_read_out(self) -> None:
        """Numbers and arrays that Python or NumPy got out of tensors, as the tape noted them."""
        frozen = self._frozen_again() if self.wrong else {}
        for i, e in enumerate(self.tape.escapes):
            if e.suspicion and self.node.compared and not self.wrong:
                continue
            varies = any(not same_value(e.value, again) for again in frozen.get(i, ()))
            # The name that users know for an ATen operator.
            name = re.sub(r"\.default\b", "", e.kind.replace("_local_scalar_dense", "item"))
            cure = e.cure or _READ_OUT.get(name.split(" ")[0], "")
            topic = Topic.DRAWN if e.suspicion else Topic.OTHER
            self.add(name, e.where, _short(e.value), varies, cure=cure, topic=topic)

    def _frozen_again(self) -> dict[int, list[Any]]:
        """What each escape would have frozen on the other recorded samples."""
        node, noted = self.node, self.tape.escapes
        replay = replay_of(node, {s for e in noted for s in e.reads}) if self.several and noted else None
        found: dict[int, list[Any]] = {}
        if replay is None:
            return found
        with torch.no_grad():
            for sample in node.samples[1:]:
                env = replay.reached([sample.inputs[n] for n in node.inputs])
                for i, e in enumerate(noted):
                    if e.source is not None and all(s in env for s in e.reads):
                        func, args, kwargs = e.source
                        found.setdefault(i, []).append(func(*fill(args, env), **fill(kwargs, env)))
        return found

    def numbers_read_by_torch(self, harmless: set[Any]) -> None:
        """Values that torch itself reads out inside a call. If the node is wrong, all samples are run to see if they vary."""
        samples = [[s.inputs[n] for n in self.node.inputs] for s in self.node.samples]
        passes = [hidden_reads(self.replay, inputs, harmless) for inputs in samples[:1]]
        if passes[0] and self.wrong:
            passes += [hidden_reads(self.replay, inputs, harmless) for inputs in samples[1:]]
        for index, (call, values) in passes[0].items():
            name = getattr(call.func, "__name__", str(call.func))
            varies = any(index in p and p[index][1] != values for p in passes)
            self.add(f"item inside {name}", call.where, _short(values[0] if len(values) == 1 else values), varies)

    def numbers_read_before(self) -> None:
        """Numbers that were read out of a value of another node, before this one was opened."""
        for r in self.node.read_before:
            # If the number differs and the samples still agree, the node does not use it, except to choose a branch.
            chooses = self.several and r.varies and not self.proven
            if not chooses or decides(r.where):
                what = f"{r.kind} of '{r.source}', read out before the node{_AGREEING_CHOICE if chooses else ''}"
                self.add(what, r.where, _short(r.value), self.proven and r.varies)

    # -- choices -------------------------------------------------------------------------------------------------------

    def clocks_and_generators(self, names: NamesInCode) -> None:
        """Clocks and random generators that the code of the node names. A second pass shows whether their numbers are frozen.

        Passes that agree do not clear one that is compared with something: all of them may have taken the same branch.
        """
        bounds = self._bounds()
        codes = names.reached(self._codes(), bounds)
        found = [(what, w) for code in codes for what, w in names.of(code) if is_inside(w, bounds)]
        if self.node.compared:
            for what, w in deciding(found, codes, bounds):
                self.add(f"{what}{_AGREEING_CHOICE}", w, "the choice", cure=_CHOOSE if "random" in what else _BY_TIME)
            return
        for what, w in found:
            topic = Topic.GENERATOR if "random" in what else Topic.OTHER
            self.add(f"{what}, named in the code of the node", w, "a number", cure=_UNSTEADY, topic=topic)
        if self.has(Topic.GENERATOR):
            self.drop(Topic.DRAWN)

    def _codes(self) -> list[CodeType]:
        """The code of the user's that made recorded calls or read values out."""
        places = [c.where for c in self.tape.calls] + [e.where for e in self.tape.escapes]
        return list({id(w.code): w.code for w in places if not is_library(w.file)}.values())

    def _bounds(self) -> dict[int, range]:
        """For code that declares inputs and outputs: the instructions between the first input and the last output."""
        opened, closed = ([p.where for p in ports.values()] for ports in (self.node.inputs, self.node.outputs))
        first = {id(w.code): min(v.instruction for v in opened if v.code is w.code) for w in opened}
        last = {id(w.code): max(v.instruction for v in closed if v.code is w.code) for w in closed}
        return {code: range(first[code], end + 1) for code, end in last.items() if first.get(code, end) < end}

    def exact_types(self, names: NamesInCode) -> None:
        """Comparisons with ``is`` that do not hold for the arrays and numbers of a node."""
        for path, w in (named for code in self._codes() for named in names.exact_types(code)):
            self.add(f"type() is {path}, which does not hold for the values of a node,", w, "the choice", cure=_EXACT_TYPE)

    def choices_outside_torch(self) -> None:
        """Calls that may raise inside a ``try`` statement, and elements of plain arrays that a traced index may have chosen."""
        for name, at in handled(self.program.calls):
            self.add(f"whether {name} raises decides what runs; {_AGREE}", at, "that it does not", cure=CURE)
        if any(isinstance(c.after, np.ndarray) for c in self.node.changed_again):
            return  # an older array that a mask writes to is reported itself, with the advice to register it
        for call, constant in lost_choices(self.tape, self.program):
            kind = f"an array that the value made at {call.where} may have chosen, unseen; {_AGREE}"
            self.add(kind, constant.where, _short(constant.value), cure=_CHOSEN)

    # -- what the program keeps ----------------------------------------------------------------------------------------

    def constants(self) -> None:
        """Constants that are values of another node, random numbers, or state."""
        for constant in self.program.constants.values():
            shown = _short(constant.value)
            if constant.undeclared:
                kind = f"value computed from '{constant.undeclared}' but not declared as an input"
                self.add(kind, constant.where, shown)
            elif constant.drawn is not None and self.node.difference is None and (self.wrong or not self.node.compared):
                self.add("random numbers, drawn once and frozen", constant.drawn, shown)
        for constant, proven in undeclared_state(self.node):
            shown = _short(constant.value)
            again = "" if self.wrong else shown
            self.add(_UNDECLARED, constant.where, shown, proven, again, topic=Topic.STATE)

    def changes_of_the_first_pass(self) -> None:
        """Changes that no recorded call made. After one pass they are suspicions, which further passes prove or clear."""
        if not self.proven and (self.several or self.node.compared):
            return
        arrays_told = self.has(Topic.STATE)
        for n in once_for_each_line(self.node.changed):
            if isinstance(n.after, np.ndarray):
                if not arrays_told:
                    what = f"the array {n}, older than the node, was written to in the pass: what is read of it is frozen"
                    self.add(what, n.where, f"array {list(n.after.shape)}", self.proven, cure=self._registered(n))
                continue
            what, cure = f"undeclared state: {n} is {n.after} after the pass (keep it in a tensor, declared as state)", ""
            if n.before is None:
                what = f"undeclared state: {n} is empty before the first pass and a tensor after it"
                cure = STATE if self.proven else f"{STATE} if a call reads what the last one left; a second pass tells"
            self.add(what, n.where, _short(n.before), self.proven, cure=cure, topic=Topic.STATE)

    def changes_of_the_second_pass(self) -> None:
        """Changes that the second pass made too, though its calls are those of the first."""
        for n in self.node.changed_again if self.node.compared and not self.proven else ():
            if not isinstance(n.after, np.ndarray):
                moved = f" ({n.before!r}, then {n.after!r})" if n.before is not n.after else ""
                self.add(f"{n} changes from call to call{moved}; {_AGREE}", n.where, _short(n.before), cure=_COUNTER)
            elif self.node.difference is None:
                what = f"the array {n}, older than the node, is written to: what is read of it is frozen; {_AGREE}"
                self.add(what, n.where, f"array {list(n.after.shape)}", cure=self._registered(n))

    def _registered(self, changed: Changed) -> str:
        """The advice for an array that is older than the node that writes to it."""
        spelled = changed.spelled
        port = re.sub(r"\W+", "_", spelled.removeprefix("self.")).strip("_")
        return f"let the node follow it: {spelled} = annotate.register_buffer('{self.node.name}', {{'{port}': {spelled}}})"

    def states_changed_later(self) -> None:
        """States that were changed after ``output_tensors()``."""
        for name, (op, at) in self.node.changed_later.items():
            if name in self.node.outputs and (not self.several or self._is_interrupted(name)):
                what = f"state '{name}' changed after output_tensors() by {op} (in no model; do it inside the node)"
                self.add(what, at, "nothing", self.several)

    def _is_interrupted(self, state: str) -> bool:
        """Whether a recorded pass began with another value of a state than the pass before it left."""
        steps = zip(self.node.samples, self.node.samples[1:], strict=False)
        return any(b.passno == a.passno + 1 and not same_bits(a.outputs[state], b.inputs[state]) for a, b in steps)

    def values_that_outlive_the_pass(self) -> None:
        """Values that the program keeps after their pass. They are state if a later call reads them."""
        # A finding without a value, as of a view of memory, says less than the line and shape of the value that is kept.
        if any(topic is Topic.STATE and info.value != DIFFERENT for topic, info in self.found):
            return
        tells = _AGREE if self.node.passes > 1 else "a second pass tells whether it is read"
        for k in kept(self.node):
            kind = f"a value that outlives its pass: {k.holder} holds it; {tells}"
            self.add(kind, k.where, f"tensor {list(k.shape)}", cure=_KEPT)

    # -- what the two recordings show ----------------------------------------------------------------------------------

    def first_difference(self) -> None:
        """Add the first difference between the passes to the findings, or to the finding of the same line if there is one."""
        difference = self.node.difference
        assert difference is not None
        self.drop(Topic.DRAWN)
        topic, what, at, cure = difference.topic, difference.what, difference.where, difference.cure
        first, second = _short(difference.first), _short(difference.second)
        lost = lost_choices(self.tape, self.program) if topic is Topic.TENSOR else ()
        left = next((call.where for call, constant in lost if constant.where == at), None)
        if left is not None:
            what, cure = f"{what}; the value made at {left} left the graph before it", _CHOSEN
        here = ((i, t, e) for i, (t, e) in enumerate(self.found) if e.varies and (e.file, e.line) == (at.file, at.line))
        index, known_topic, known = next(here, (None, topic, None))
        if index is None or known is None:
            self.add(what, at, first, True, second, cure)
            return
        if known.kind == _UNDECLARED or known.value == first:
            known = replace(known, value=first, again=second)
        if known_topic is Topic.STATE and topic in (Topic.STATE, Topic.NUMBER, Topic.WEIGHT):
            known = replace(known, kind=what, value=first, again=second)
        if known.cure in _READ_OUT.values():  # the general advice for such a read, then that for this one
            cure = f"{known.cure}; {cure}"
        elif known.cure:
            cure = known.cure
        self.found[index] = known_topic, replace(known, cure=cure)


def _short(value: Any) -> str:
    text = f"tensor {list(value.shape)}" if isinstance(value, torch.Tensor) and value.dim() else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
