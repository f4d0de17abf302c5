"""Finds state that was not declared: plain tensors that a node reads and changes, so that its next call reads another value.

A tensor is suspected if it is older than the node and the pass wrote to it. A second pass proves the suspicion or clears it.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from leapp.capture.equality import same_bits, same_value
from leapp.capture.holders import holders
from leapp.capture.replay import Replay, cut
from leapp.check.compare import compare
from leapp.graph.tolerances import ATOL, RTOL
from leapp.tracing.log import logger
from leapp.tracing.node import KeptValue

if TYPE_CHECKING:
    from leapp.capture.recorder import Recorder
    from leapp.capture.tape import Constant
    from leapp.capture.user_line import Where
    from leapp.tracing.node import NodeTrace, Sample

Tensor = torch.Tensor
_LOOKED_FOR = 32


def rewritten_constants(node: NodeTrace) -> set[int]:
    """The slots of constants whose tensors changed after they were read. Call it right after the first pass."""
    assert node.program is not None
    found = set()
    for slot, constant in node.program.constants.items():
        origin = constant.origin()
        if origin is None or slot in node.program.copied or not constant.origins or constant.version is not None:
            continue
        if constant.parameter or origin.shape != constant.value.shape:
            continue
        if not same_bits(constant.value, origin):
            found.add(slot)
    return found


def undeclared_state(node: NodeTrace) -> list[tuple[Constant, bool]]:
    """The constants that are state, each with whether a later pass proved it."""
    assert node.program is not None
    program = node.program
    suspects = [s for s in program.constants if s in node.suspects]
    if not suspects:
        return []
    if len(node.samples) > 1:
        if departs(node):
            return [(program.constants[s], True) for s in suspects]
        # Proven only if the second pass reads the same memory: the program may use new memory in every call, or reset it.
        further = [s for s in suspects if s in program.copied and _changes_further_out(node, s)]
        return [(program.constants[s], s in node.read_again and _is_at_rest(node, s)) for s in further]
    # If only traced values were written to the memory, running the calls shows whether its old content is used.
    return [
        (program.constants[s], False)
        for s in suspects
        if node.suspects[s] or s not in program.copied or (_lives_on(node, s) and _matters(node, s))
    ]


def _lives_on(node: NodeTrace, slot: int) -> bool:
    """Whether the memory of a constant still exists in the user's program."""
    assert node.tape is not None
    assert node.program is not None
    constant = node.program.constants[slot]
    if constant.lender is not None:
        return constant.lender() is not None
    return node.tape.lives(slot)


def outliving(node: NodeTrace, recorder: Recorder) -> list[tuple[weakref.ref[Any], Where, int]]:
    """The tensors and arrays that the first pass made and that are alive when the session ends, with lines and slots.

    Outputs, states and values that a later pass declared are left out.
    """
    arrays = recorder.arrays.memory.living()
    declared = {id(t) for t in node.left.values()} | {id(b.tensor) for b in node.buffers}
    older = {node.inputs[b.port].slot for b in node.buffers if b.port in node.inputs}  # tensors that no pass made
    alive: list[tuple[weakref.ref[Any], Where, int]] = []
    for t, former in recorder.former_values.living():
        if former.node != node.name or former.slot is None or not former.itself or id(t) in declared:
            continue
        if former.slot not in older and recorder.source(t) is None and t not in recorder.declared_tensors:
            alive.append((arrays.get(id(t)) or weakref.ref(t), former.where, former.slot))
    return alive


def kept(node: NodeTrace) -> list[KeptValue]:
    """The values of the first pass that an object of the program still holds: state, if a later call reads them.

    This is slow, because it searches all objects of the process.
    """
    found = _held(node)
    if found:
        gc.collect()  # an object in a reference cycle that nothing else refers to is alive until then, but keeps nothing
        found = _held(node)
    same = independent_of_inputs(node, set(found)) if found and node.compared else set()
    return [value for slot, value in found.items() if slot not in same]


def _held(node: NodeTrace) -> dict[int, KeptValue]:
    """The values of the first pass that something holds, by slot."""
    # Only one list refers to the values: each other holder of them would be searched for holders of its own.
    values = list({id(t): t for t in (ref() for ref, _, _ in node.alive) if t is not None}.values())
    if not values:
        return {}
    # Values that autograd may hold come last: there can be thousands of them.
    values.sort(key=_may_belong_to_autograd)
    del values[_LOOKED_FOR:]
    made = {id(ref()): (at, slot) for ref, at, slot in node.alive}
    shapes = {id(t): tuple(t.shape) for t in values}
    return {made[i][1]: KeptValue(made[i][0], holder, shapes[i]) for i, holder in holders(values, node.older).items()}


def _may_belong_to_autograd(t: Any) -> bool:
    return getattr(t, "grad_fn", None) is not None


def independent_of_inputs(node: NodeTrace, slots: set[int]) -> set[int]:
    """The slots among these whose value is the same for the inputs of the first two passes, and for 100 times these inputs."""
    replay = replay_of(node, slots)
    if replay is None:
        return set()
    given = [[s.inputs[n] for n in node.inputs] for s in node.samples[:2]]  # one, if no more were to be kept
    runs = []
    with torch.no_grad(), torch.random.fork_rng(devices=()):
        for inputs in (*given, _scaled(given[0], 100.0), _scaled(given[0], -100.0)):
            torch.manual_seed(0)
            runs.append(replay.reached(inputs))
    return {s for s in slots if all(s in run and same_value(run[s], runs[0][s]) for run in runs)}


def replay_of(node: NodeTrace, slots: set[int]) -> Replay | None:
    """The recorded calls that compute some values; ``None`` if they read a pruned input, which later samples do not have."""
    tape = node.tape
    assert tape is not None
    declared = [p.slot for p in node.inputs.values() if p.slot is not None]
    program = cut(tape, sorted(slots), declared)
    if not set(tape.inputs) & program.reads() <= set(declared):
        return None
    return Replay(program, {s: f"c{s}" for s in program.constants})


def departs(node: NodeTrace) -> bool:
    """Whether the recorded calls, with their constants, give other values than the program did in a later pass.

    A node that draws random numbers always gives other values. For such a node the comparison of the first two passes decides.
    """
    if node.compared and node.draws():
        return node.difference is not None
    return any(contradicts(node, sample) for sample in node.samples[1:])


def contradicts(node: NodeTrace, sample: Sample) -> bool:
    """Whether the recorded calls give other values on a sample than the program did, or do not run on it at all."""
    assert node.replay is not None
    try:
        with torch.no_grad():
            outputs = node.replay(*(sample.inputs[n] for n in node.inputs))
    except Exception as error:  # torch raises many types: a frozen size does not fit these values
        logger.info("node '%s': its recorded calls fail on the values of a later pass: %s", node.name, error)
        return True
    wanted = [sample.outputs[n] for n in node.outputs]
    # Values of a float type below float32 cannot agree better than its rounding step.
    step = 2 * (node.tape.precision if node.tape is not None else 0.0)
    return not all(reproduces(a, b, max(RTOL, step), max(ATOL, step)) for a, b in zip(outputs, wanted, strict=True))


def reproduces(a: Tensor, b: Tensor, rtol: float = 1e-5, atol: float = 1e-6) -> bool:
    """Whether two outputs are the same but for rounding."""
    return compare(as_array(a), as_array(b), rtol, atol) is None


def as_array(t: Tensor) -> Any:
    """A tensor as an array for a comparison. Float types below float32, some of which NumPy lacks, become float32."""
    t = t.detach().cpu().resolve_conj().resolve_neg()
    return (t.float() if t.is_floating_point() and t.dtype.itemsize < 4 else t).numpy()


def _changes_further_out(node: NodeTrace, slot: int) -> bool:
    """Whether memory that no recorded pass changed would be state for inputs 100 times as large."""
    assert node.tape is not None
    if node.tape.random or not _lives_on(node, slot):
        return False
    first = [node.samples[0].inputs[n] for n in node.inputs]
    for factor in (100.0, -100.0):
        try:
            far = _scaled(first, factor)
            # A latch that the large inputs set is seen in the next call with ordinary inputs.
            if any(_matters(node, slot, far, after) for after in (far, first)):
                return True
        except Exception as error:  # torch raises many types: the calls do not take such inputs
            logger.debug("node '%s': its recorded calls fail on inputs times %g: %s", node.name, factor, error)
    return False


def _is_at_rest(node: NodeTrace, slot: int) -> bool:
    """Whether the first pass left the memory of a constant as it was."""
    assert node.replay is not None
    assert node.program is not None
    with torch.no_grad():
        left = node.replay.run([node.samples[0].inputs[n] for n in node.inputs])
    return same_bits(left[slot], node.program.constants[slot].value)


def _scaled(inputs: Iterable[Tensor], factor: float) -> list[Tensor]:
    return [t * factor if t.is_floating_point() else t for t in inputs]


def _matters(node: NodeTrace, slot: int, left_by: Sequence[Tensor] | None = None, then: Sequence[Tensor] | None = None) -> bool:
    """Whether the node gives other values in the call after one that changed the memory of a constant.

    Args:
        node: The node.
        slot: The slot of the constant.
        left_by: The inputs of the first of the two calls. By default those of the first pass.
        then: The inputs of the second call. By default the same.
    """
    assert node.replay is not None
    assert node.program is not None
    left_by = left_by or [node.samples[0].inputs[n] for n in node.inputs]
    then = then or left_by
    constants = node.program.constants
    with torch.no_grad():
        first = node.replay.run(left_by)
        after = first[slot].clone()
        if then is not left_by:
            first = node.replay.run(then)
        # Other constants may be earlier reads of the same memory.
        same = {
            s for s, c in constants.items()
            if c.origins == constants[slot].origins and c.value.shape == after.shape and c.value.dtype == after.dtype
        }  # fmt: skip
        with node.replay.holding({s: after.clone() for s in same | {slot}}):
            second = node.replay.run(then)
    return any(not same_bits(first[s], second[s]) for s in node.program.outputs)
