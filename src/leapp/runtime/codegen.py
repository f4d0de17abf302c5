"""Writes one step as a Python function without loops, when a bundle is opened.

An engine evicts the interpreter from the processor's caches, so loops over data that never changes would cost time in every
step. The source contains numbers only: objects enter through the namespace of the function. ``linecache`` has the source, so
debuggers, tracebacks and profilers show its lines.
"""

from __future__ import annotations

import builtins
import functools
import itertools
import linecache
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Protocol

from leapp.bundle.recent import Recent
from leapp.errors import BundleError
from leapp.runtime.arrays import form
from leapp.runtime.buffers import Frame, Program, Slot

if TYPE_CHECKING:
    from leapp.runtime.engine import LocalEngine


class Names:
    """The namespaces of the steps of all frames. They share one text, so what differs between frames has one name in it.

    Attributes:
        spaces: The namespace of each frame.
    """

    def __init__(self, spaces: Sequence[dict[str, Any]]) -> None:
        self.spaces = spaces
        self._numbers = itertools.count()

    def __call__(self, value: Any) -> str:
        """The name of an object that all frames use."""
        made = f"c{next(self._numbers)}"
        for space in self.spaces:
            space[made] = value
        return made

    def each(self, values: Iterable[Any]) -> str:
        """The name of objects, one for each frame. A program with a single frame uses the first."""
        made = f"c{next(self._numbers)}"
        for space, value in zip(self.spaces, values, strict=False):
            space[made] = value
        return made

    def put(self, made: str, value: Any) -> None:
        """Let a name stand for another object in all frames."""
        for space in self.spaces:
            space[made] = value


class CallerCode(Protocol):
    """Writes the lines of a step that take the caller's values and return the results."""

    @property
    def inputs(self) -> Sequence[str]:
        """The keys of the inputs, in the order of the values."""

    def check(self, name: Names, values: Sequence[str]) -> list[str]:
        """Lines that ``return None`` unless the values have the expected form. They may replace values."""

    def load(self, name: Names, values: Sequence[str]) -> list[str]:
        """Lines that copy values into host memory, for engines that read them there."""

    def result(self, name: Names, where: str, slot: Slot, made: str) -> str:
        """The value of an output for the caller. ``made`` is the tensor, if the output lives in a register."""

    def in_order(self, values: Mapping[str, Any]) -> list[Any]:
        """Checked values as a list, in the order of ``inputs``."""


def write_steps(
    engine: LocalEngine,
    program: Program,
    lock: AbstractContextManager[Any],
    caller: CallerCode,
    outputs: Sequence[str],
    trust_form: bool,
) -> None:
    """Write the ``step`` of each frame.

    Args:
        engine: Names the frame that is next.
        program: The memory and the calls.
        lock: Held during a step; its holder may take it again.
        caller: Writes the lines that take inputs and return outputs.
        outputs: The keys of the outputs.
        trust_form: Whether inputs of the right form may be used at once. Otherwise all of them are checked first.
    """
    inputs, frames = caller.inputs, program.frames
    shared: dict[str, Any] = {"engine": engine, "failed": failed, "wrong": wrong, "Refused": BundleError, "lock": lock}
    shared["__builtins__"] = vars(builtins)  # engines that import something look for it in the namespace of their caller
    grad_off = _grad_off(program, shared)
    name = Names([{**shared, "R": frame.registers, "N": frame.next.registers, "frame": frame} for frame in frames])
    values = [f"i{place}" for place in range(len(inputs))]
    entering = [(program.inputs[key], value) for key, value in zip(inputs, values, strict=True)]
    entered = {slot.register: value for slot, value in entering if slot.arrays is None}
    lines = [*_turn(program), *grad_off, *_entry(caller, name, values, trust_form), *caller.load(name, values)]
    lines += [*_calls(frames, entered, name), *_end(program, caller, outputs, name)]
    code, source = _compiled("def step(inputs, values=None):\n with lock:\n  " + "\n  ".join(lines))
    for frame, names in zip(frames, name.spaces, strict=True):
        frame.step = _function(code, source, names)


def _end(program: Program, caller: CallerCode, outputs: Sequence[str], name: Names) -> list[str]:
    """Lines that pass the state to the next frame and return the results."""
    frames = program.frames
    lines = [f"N[{target}] = v{source}" for source, target in frames[0].register_moves]
    for stores in zip(*[frame.register_stores for frame in frames], strict=True):
        lines.append(f"{name.each([store for store, _ in stores])}(v{stores[0][1]})")
    for copies in zip(*[frame.array_copies for frame in frames], strict=True):
        lines.append(f"{name.each([to for to, _ in copies])}[...] = {name.each([array for _, array in copies])}")
    slots = [(key, program.outputs[key]) for key in outputs]
    results = [f"{name(k)}: {caller.result(name, k, slot, f'v{slot.register}')}" for k, slot in slots]
    lines.append(f"made = {{{', '.join(results)}}}")
    if len(frames) > 1:
        # This assignment is what changes the state, so it comes last.
        lines += ["engine.ran = frame", f"engine.frame = {name.each([frame.next for frame in frames])}"]
    return [*lines, "return made"]


def _function(code: CodeType, source: list[str], names: dict[str, Any]) -> FunctionType:
    """The function ``step`` in a namespace. Its source is shown for as long as it exists."""
    file = f"<leapp step {next(_numbers)}>"
    # Each step has code of its own, since the interpreter notes in it where the names of the namespace are found.
    step = names["step"] = FunctionType(code.replace(co_filename=file), names, "step", (None,))
    # Without a modification time, linecache.checkcache() keeps the entry.
    linecache.cache[file] = sum(map(len, source)), None, source, file
    weakref.finalize(step, linecache.cache.pop, file, None).atexit = False
    return step


_recent_code: Recent[tuple[CodeType, list[str]]] = Recent(1 << 20)
"""The code and the lines of steps, by their text. Nodes with the same number and kinds of ports have the same text."""

_numbers = itertools.count(1)


def _compiled(text: str) -> tuple[CodeType, list[str]]:
    """The code of the function in a text, and its lines."""
    found = _recent_code.get(text)
    if found is None:
        module = compile(text, "<leapp step>", "exec")
        code = next(part for part in module.co_consts if isinstance(part, CodeType))
        found = code, text.splitlines(keepends=True)
        _recent_code.put(text, found, 8 * len(text))
    return found


def _turn(program: Program) -> list[str]:
    """Lines that go to the frame that is next, if that is another one. Only under the lock is this certain."""
    alone = len(program.frames) == 1 and not program.resizable
    return [] if alone else ["if engine.frame is not frame: return engine.frame.step(inputs, values)"]


def _grad_off(program: Program, names: dict[str, Any]) -> list[str]:
    if not program.torch:
        return []
    from leapp.compat.core import is_grad_enabled, set_grad_enabled

    names |= {"grad": is_grad_enabled, "set_grad": set_grad_enabled}
    return ["if grad():", " try:", "  set_grad(False)", "  return step(inputs, values)", " finally: set_grad(True)"]


def _entry(caller: CallerCode, name: Names, values: Sequence[str], trust_form: bool) -> list[str]:
    taken = "".join([f"{value}, " for value in values])
    careful = [f"else: {taken}= values"] if values else []
    if not trust_form:
        return ["if values is None: return None", *careful]
    lines = ["if values is None:", f" if inputs.__class__ is not dict or len(inputs) != {len(values)}: return None"]
    if values:
        lines.append(" try:")
        lines += [f"  {value} = inputs[{name(key)}]" for key, value in zip(caller.inputs, values, strict=True)]
        lines.append(" except KeyError: return None")
        lines += [f" {line}" for line in caller.check(name, values)]
    return lines + careful


def _calls(frames: Sequence[Frame], entered: dict[int, str], name: Names) -> list[str]:
    states = {target for _, target in frames[0].register_moves}
    known = dict(entered)

    def argument(register: int) -> str:
        if register in known:
            return known[register]
        return f"R[{register}]" if register in states else name.each([frame.registers[register] for frame in frames])

    lines = ["at = None", "try:"]
    for call, *others in zip(*[frame.calls for frame in frames], strict=True):
        lines.append(f" at = {name(call.label)}")
        for loads in zip(call.loads, *[other.loads for other in others], strict=True):
            lines.append(f" {name.each([load for load, _ in loads])}(v{loads[0][1]})")
        function = name(call.function)
        if call.when_known is not None:
            call.when_known(functools.partial(name.put, function))
        made = f"{function}({', '.join(map(argument, call.inputs))})"
        taken = ", ".join([f"v{register}" for register in call.outputs])
        lines.append(f" {taken}{'' if call.single else ','} = {made}" if taken else f" {made}")
        if call.guard is not None:
            guard = name(call.guard)
            lines.append(f" if not {guard}.check({taken}):")
            for register, *about in call.checks:
                shape, dtype, key = map(name, about)
                lines.append(f"  if v{register}.shape != {shape} or v{register}.dtype is not {dtype}:")
                lines.append(f"   raise wrong(v{register}, {shape}, {dtype}, {key})")
            lines.append(f"  {guard}.saw(({taken},))")
        lines += [f" R[{register}] = v{register}" for register in call.outputs]
        known |= {target: f"v{source}" for source, target in call.moves}
    return [*lines, " pass", "except Refused: raise", "except Exception as error: raise failed(at, error) from error"]


def failed(label: str, error: Exception) -> BundleError:
    """The error of a step in which an engine failed."""
    return BundleError(f"Node {label} failed: {error}")


def wrong(value: Any, shape: Any, dtype: Any, key: str) -> BundleError:
    """The error of a step in which an engine returned a value of another form."""
    found = form(value.dtype, value.shape) if hasattr(value, "dtype") else type(value).__name__
    return BundleError(f"Output {key!r} came out as {found}, the bundle says {form(dtype, shape)}.")
