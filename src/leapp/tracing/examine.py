"""Collects the values that left the graph of each node, and refuses those that the recorded passes prove wrong."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from leapp.capture.audit import hidden_reads
from leapp.capture.equality import same_bits, same_value
from leapp.capture.functions.standin import unfollowed
from leapp.capture.handled import CURE, handled
from leapp.capture.lost_choices import lost_choices
from leapp.capture.replay import fill
from leapp.capture.unsteady import UnsteadyNames, decides
from leapp.capture.user_line import is_library
from leapp.errors import TraceError
from leapp.tracing.attributes import DIFFERENT, once_for_each_line
from leapp.tracing.likely_mistakes import likely_mistakes
from leapp.tracing.log import logger
from leapp.tracing.report import ConstantInfo, EscapeInfo, GlueInfo, Report
from leapp.tracing.second_pass import STATE
from leapp.tracing.undeclared import departs, kept, replay_of, undeclared_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leapp.capture.user_line import Where
    from leapp.tracing.attributes import Changed
    from leapp.tracing.node import NodeTrace, PassDifference
    from leapp.tracing.session import Session

_UNDECLARED = (
    "undeclared state: a tensor that the node reads and changes (declare it with state_tensors, register_buffer or module)"
)
_DRAWN = "random numbers of Python or NumPy"
_COUNTER = "if an output depends on it later, keep it in a tensor, declared as input or state; trace more passes to see"
_AGREEING_CHOICE = ", which decides something; the passes so far agree"
_CHOOSE = "choose in tensors, as torch.where(torch.rand(()) < p, a, b) does, or declare it with input_tensors()"
_CHOSEN = (
    "instead of table[index] with a plain array, which is not followed, use np.take(table, index) or np.where(mask, a, b); for "
    "a compiled function, a FunctionPatch"
)
_UNSTEADY = "if it reaches an output, declare it with input_tensors(); a second pass tells"


def examine(session: Session) -> Report:
    """Collect the findings of all nodes."""
    session.settle()
    report = Report()
    seen = _Seen()
    for node in session.nodes.values():
        if node.pruned:
            report.pruned[node.name] = list(node.pruned)
        if node.tape is not None and node.program is not None and node.backend is not None:
            report.escapes += _escapes(node, seen)
            report.constants += _constants(node)
            drawn = node.draws()
            if drawn:
                report.random[node.name] = [str(w) for w in drawn]
    report.training, report.notes = list(session.modules.training.lines()), list(likely_mistakes(session))
    for consumer, source, ops, at in session.sources.glue:
        report.glue.append(GlueInfo(consumer, source, tuple(f"{op} at {w}" for op, w in ops), at.file, at.line))
    return report


def enforce(report: Report, policy: str, strict: bool) -> None:
    """Warn of escapes or refuse them, as ``start(escapes=...)`` asked."""
    if policy == "ignore" or not report.escapes:
        return
    varying = [e for e in report.escapes if e.varies] if strict else []
    if policy == "error":
        raise TraceError(_table(report.escapes))
    told = [e for e in report.escapes if e not in varying]  # the error lists those that vary
    if told:
        logger.warning("%s", _table(told))
    if varying:
        shown = "\n".join(f"  {e}" for e in varying)
        trained = "".join(f"\n{line}" for line in report.training if line.partition(":")[0] in {e.node for e in varying})
        raise TraceError(
            f"{len(varying)} frozen value(s) are not the same in every call, so the models would be wrong:\n{shown}\n"
            f"Keep these values as tensors, and declare what the node keeps for its next call.{trained}{unfollowed()}"
        )


def _table(escapes: list[EscapeInfo]) -> str:
    lines = "\n".join(f"  {e}" for e in escapes)
    return f"{len(escapes)} value(s) left the graph and are frozen in the models:\n{lines}"


@dataclass(slots=True)
class _Seen:
    """What was found out for one node and holds for all others too."""

    unsteady: UnsteadyNames = field(default_factory=UnsteadyNames)
    """Clocks and random generators by the code that names them."""
    harmless: set[Any] = field(default_factory=set)
    """Calls that read no value out of a tensor, see :func:`~leapp.capture.audit.hidden_reads`."""


def _escapes(node: NodeTrace, seen: _Seen) -> list[EscapeInfo]:
    tape, program = node.tape, node.program
    assert tape is not None
    assert program is not None
    wrong = _is_wrong(node)
    frozen = _frozen_again(node) if wrong else {}
    found = []
    for i, e in enumerate(tape.escapes):
        if e.suspicion and node.compared and not wrong:
            continue
        varies = any(not same_value(e.value, again) for again in frozen.get(i, ()))
        # The name that users know for an ATen operator.
        name = re.sub(r"\.default\b", "", e.kind.replace("_local_scalar_dense", "item"))
        found.append(_finding(node, name, e.where, _short(e.value), varies, cure=e.cure or _CURES.get(name.split(" ")[0], "")))
    found += _hidden_reads(node, wrong, seen.harmless)
    if not (node.compared and wrong):
        found += _unsteady(node, seen.unsteady)
    if any("random" in e.kind and e.cure == _UNSTEADY for e in found):
        found = [e for e in found if not e.kind.startswith(_DRAWN)]
    for name, at in handled(program.calls) if node.compared and not wrong else ():
        kind = f"whether {name} raises decides what runs; the passes so far agree"
        found.append(_finding(node, kind, at, "that it does not", cure=CURE))
    # An older array that a mask writes to is reported itself, with the advice to register it.
    written = any(isinstance(c.after, np.ndarray) for c in node.changed_again)
    for call, constant in lost_choices(tape, program) if node.compared and not (wrong or written) else ():
        kind = f"an array that the value made at {call.where} may have chosen, unseen; the passes so far agree"
        found.append(_finding(node, kind, constant.where, _short(constant.value), cure=_CHOSEN))
    for constant in program.constants.values():
        if constant.undeclared:
            kind = f"value computed from '{constant.undeclared}' but not declared as an input"
            found.append(_finding(node, kind, constant.where, _short(constant.value)))
        elif constant.drawn is not None and node.difference is None and (wrong or not node.compared):
            found.append(_finding(node, "random numbers, drawn once and frozen", constant.drawn, _short(constant.value)))
    for constant, proven in undeclared_state(node):
        shown = _short(constant.value)
        found.append(_finding(node, _UNDECLARED, constant.where, shown, proven, again="" if wrong else shown))
    found += _unseen(node, any(e.kind.startswith("undeclared state") for e in found))
    # A finding without a value, as of a view of memory, says less than the line and shape of the value that is kept.
    if not any(e.kind.startswith("undeclared state") and e.value != DIFFERENT for e in found) and not wrong:
        found += _outliving(node)
    if node.difference is not None:
        found = [e for e in found if not e.kind.startswith(_DRAWN)]
        difference = node.difference
        lost = lost_choices(tape, program) if difference.what.startswith("a tensor") else ()
        left = next((call.where for call, constant in lost if constant.where == difference.where), None)
        if left is not None:
            what = f"{difference.what}; the value made at {left} left the graph before it"
            difference = difference._replace(what=what, cure=_CHOSEN)
        found = _with_difference(node, found, difference)
    unique: dict[tuple[Any, ...], EscapeInfo] = {}
    for info in found:
        unique.setdefault((info.kind, info.file, info.line, info.varies), info)
    # Proven findings come first, and before them the first difference between the passes.
    first = node.difference.where if node.difference is not None else None
    return sorted(unique.values(), key=lambda e: (not e.varies, first is None or (e.file, e.line) != (first.file, first.line)))


def _finding(
    node: NodeTrace, kind: str, at: Where, value: str, varies: bool = False, again: str = "", cure: str = ""
) -> EscapeInfo:
    return EscapeInfo(node.name, kind, at.file, at.line, at.text, value, varies, again, cure)


def _with_difference(node: NodeTrace, found: list[EscapeInfo], difference: PassDifference) -> list[EscapeInfo]:
    """Add the first difference between the passes to the findings, or to the finding of the same line if there is one."""
    w, first, second = difference.where, _short(difference.first), _short(difference.second)
    at_line = [e for e in found if e.varies and (e.file, e.line) == (w.file, w.line)]
    if not at_line:
        return [*found, _finding(node, difference.what, w, first, True, second, difference.cure)]
    known = at_line[0]
    if known.kind == _UNDECLARED or known.value == first:
        known = replace(known, value=first, again=second)
    kind = known.kind
    if kind.startswith("undeclared state") and difference.what.startswith(("undeclared state", "a number", "the weight")):
        kind, known = difference.what, replace(known, value=first, again=second)
    cure = known.cure or difference.cure
    if known.cure in _CURES.values():  # the general advice for such a read, then that for this one
        cure = f"{known.cure}; {difference.cure}"
    return [replace(known, kind=kind, cure=cure) if e is at_line[0] else e for e in found]


def _unsteady(node: NodeTrace, names: UnsteadyNames) -> Iterator[EscapeInfo]:
    """Clocks and random generators that the code of the node names. A second pass shows whether their numbers are frozen.

    Passes that agree do not clear one that is compared with something: all of them may have taken the same branch.
    """
    assert node.tape is not None
    places = [c.where for c in node.tape.calls] + [e.where for e in node.tape.escapes]
    codes = {id(w.code): w.code for w in places if not is_library(w.file)}
    for what, w in (named for code in codes.values() for named in names.of(code)):
        if not node.compared:
            yield _finding(node, f"{what}, named in the code of the node", w, "a number", cure=_UNSTEADY)
        elif decides(w):
            yield _finding(node, f"{what}{_AGREEING_CHOICE}", w, "the choice", cure=_CHOOSE)


def _is_wrong(node: NodeTrace) -> bool:
    """Whether the recorded passes prove that the recording of the first pass is not what the program computes."""
    assert node.tape is not None
    return node.difference is not None or bool(node.draws()) or departs(node)


def _unseen(node: NodeTrace, arrays_told: bool) -> list[EscapeInfo]:
    """Changes that no recorded call made. After one pass they are suspicions, which further passes prove or clear.

    Args:
        node: The node.
        arrays_told: Whether undeclared state is reported already, so that changed arrays need no report of their own.
    """
    found = []
    several = len(node.samples) > 1
    proven = several and bool(node.read_before or node.changed) and departs(node)
    for r in node.read_before:
        # If the number differs and the samples still agree, the node does not use it, except to choose a branch.
        chooses = several and r.varies and not proven
        if not chooses or decides(r.where):
            what = f"{r.kind} of '{r.source}', read out before the node"
            what += _AGREEING_CHOICE if chooses else ""
            found.append(_finding(node, what, r.where, _short(r.value), proven and r.varies))
    for n in once_for_each_line(node.changed) if proven or not (several or node.compared) else ():
        shown, cure = _short(n.before), ""
        if isinstance(n.after, np.ndarray):
            if arrays_told:
                continue
            what = f"the array {n}, older than the node, was written to in the pass: what is read of it is frozen"
            shown, cure = f"array {list(n.after.shape)}", _followed(node, n)
        elif n.before is None:
            what = f"undeclared state: {n} is empty before the first pass and a tensor after it"
            cure = STATE if proven else f"{STATE} if a call reads what the last one left; a second pass tells"
        else:
            what = f"undeclared state: {n} is {n.after} after the pass (keep it in a tensor, declared as state)"
        found.append(_finding(node, what, n.where, shown, proven, cure=cure))
    for n in node.changed_again if node.compared and not proven else ():
        moved = f" ({n.before!r}, then {n.after!r})" if n.before is not n.after else ""
        what = f"{n} changes from call to call{moved}; the passes so far agree"
        shown, cure = _short(n.before), _COUNTER
        if isinstance(n.after, np.ndarray):
            if node.difference is not None:
                continue
            what = f"the array {n}, older than the node, is written to: what is read of it is frozen; the passes so far agree"
            shown, cure = f"array {list(n.after.shape)}", _followed(node, n)
        found.append(_finding(node, what, n.where, shown, cure=cure))
    for name, (op, at) in node.changed_later.items():
        if name in node.outputs and (not several or _interrupted(node, name)):
            what = f"state '{name}' changed after output_tensors() by {op} (in no model; do it inside the node)"
            found.append(_finding(node, what, at, "nothing", several))
    return found


def _followed(node: NodeTrace, changed: Changed) -> str:
    """The advice for an array that is older than the node that writes to it."""
    spelled = changed.spelled
    port = re.sub(r"\W+", "_", spelled.removeprefix("self.")).strip("_")
    return f"let the node follow it: {spelled} = annotate.register_buffer('{node.name}', {{'{port}': {spelled}}})"


def _outliving(node: NodeTrace) -> list[EscapeInfo]:
    """Values that the program keeps after their pass. They are state if a later call reads them."""
    tells = "the passes so far agree" if node.passes > 1 else "a second pass tells whether it is read"
    cure = "declare it with state_tensors() and update_state() if a later call reads it, else drop it"
    return [
        _finding(
            node, f"a value that outlives its pass: {k.holder} holds it; {tells}", k.where, f"tensor {list(k.shape)}", cure=cure
        )
        for k in kept(node)
    ]


def _interrupted(node: NodeTrace, state: str) -> bool:
    """Whether a recorded pass began with another value of a state than the pass before it left."""
    steps = zip(node.samples, node.samples[1:], strict=False)
    return any(b.passno == a.passno + 1 and not same_bits(a.outputs[state], b.inputs[state]) for a, b in steps)


_CURES = {
    "__bool__": "`if` on a tensor froze the branch; use torch.where",
    "__float__": "float() of a tensor froze its number; compute with the tensor",
    "__int__": "int() of a tensor froze its number; compute with the tensor, or keep it an index",
    "__index__": "a tensor as an index, size or count of Python froze its number; use index_select, gather or a mask",
    "item": ".item() froze the number; compute with the tensor",
    "tolist": ".tolist() froze the numbers; compute with the tensor",
}
"""The advice for a number that was read out of a tensor, by the name of the call that read it."""


def _hidden_reads(node: NodeTrace, wrong: bool, harmless: set[Any]) -> list[EscapeInfo]:
    """Values that torch itself reads out inside a call. If the node is ``wrong``, all samples are run to see if they vary."""
    assert node.replay is not None
    samples = [[s.inputs[n] for n in node.inputs] for s in node.samples]
    passes = [hidden_reads(node.replay, inputs, harmless) for inputs in samples[:1]]
    if passes[0] and wrong:
        passes += [hidden_reads(node.replay, inputs, harmless) for inputs in samples[1:]]
    found = []
    for index, (call, values) in passes[0].items():
        name = getattr(call.func, "__name__", str(call.func))
        varies = any(index in p and p[index][1] != values for p in passes)
        shown = _short(values[0] if len(values) == 1 else values)
        found.append(_finding(node, f"item inside {name}", call.where, shown, varies))
    return found


def _frozen_again(node: NodeTrace) -> dict[int, list[Any]]:
    """What each escape would have frozen on the other recorded samples."""
    tape = node.tape
    assert tape is not None
    if len(node.samples) < 2 or not tape.escapes:
        return {}
    replay = replay_of(node, {s for e in tape.escapes for s in e.reads})
    found: dict[int, list[Any]] = {}
    if replay is None:
        return found
    with torch.no_grad():
        for sample in node.samples[1:]:
            env = replay.reached([sample.inputs[n] for n in node.inputs])
            for i, e in enumerate(tape.escapes):
                if e.source is not None and all(s in env for s in e.reads):
                    func, args, kwargs = e.source
                    found.setdefault(i, []).append(func(*fill(args, env), **fill(kwargs, env)))
    return found


def _short(value: Any) -> str:
    text = f"tensor {list(value.shape)}" if isinstance(value, torch.Tensor) and value.dim() else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _constants(node: NodeTrace) -> list[ConstantInfo]:
    assert node.program is not None
    assert node.replay is not None
    names = node.replay.names
    return [
        ConstantInfo(
            node.name, names[slot], tuple(c.value.shape), str(c.value.dtype).removeprefix("torch."),
            c.value.numel() * c.value.element_size(), c.where.file, c.where.line,
        )
        for slot, c in node.program.constants.items()
    ]  # fmt: skip


