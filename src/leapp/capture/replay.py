"""A node as a ``torch.nn.Module`` that runs the recorded calls again.

Only the calls that reach the outputs are kept. They are the same calls on the same aliases, so in-place writes and views behave
as they did. Inputs and constants that the node writes to are copied first, so the module never changes its inputs or constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch

from leapp.capture.batch.symbolic_size import Measure
from leapp.capture.substitutes import WORKSPACE_LAST
from leapp.capture.tape import Call, Constant, Memory, Ref, Tape
from leapp.capture.trees import ATOMS, mapped, tensors

Tensor = torch.Tensor


@dataclass(slots=True)
class Program:
    """The calls of a tape that reach its outputs."""

    calls: list[Call]
    inputs: list[int]
    outputs: list[int]
    constants: dict[int, Constant]
    copied: set[int]
    """Inputs and constants that the calls write to, and constants that are outputs."""
    spread: frozenset[int] = frozenset()
    """Constants that are one row, repeated for each row of the batch."""
    batch: tuple[int, int] | None = None
    """For a program that takes any batch size: an input slot, and the batch axis of that input."""

    def reads(self) -> set[int]:
        """The slots that some kept call, or an output, uses."""
        used = set(self.outputs)
        for call in self.calls:
            used.update(call.reads)
        return used

    def __str__(self) -> str:
        """The calls, one a line, as log.txt shows them."""
        lines = [f"{_slots(call.outs)} = {_name(call.func)}({_arguments(call)})" for call in self.calls]
        return "\n".join([*lines, f"return {_slots(self.outputs)}"])


def cut(tape: Tape, outputs: Sequence[int], inputs: Sequence[int] | None = None) -> Program:
    """The part of a tape that the outputs depend on, through values or through memory."""
    slots: set[int] = set(outputs)
    memory_of = tape.memory_of
    memories: set[Memory] = {memory_of[s] for s in outputs}
    writing = any(call.writes for call in tape.calls)
    kept: list[Call] = []
    for call in reversed(tape.calls):
        if not slots.isdisjoint(call.outs) or (writing and not memories.isdisjoint(call.writes)):
            kept.append(call)
            slots.update(call.reads)
            if writing:
                memories.update([memory_of[s] for s in call.reads])
    kept.reverse()
    written = {m for call in kept for m in call.writes}
    declared = list(tape.inputs if inputs is None else inputs)
    sources = set(declared) | set(tape.constants)
    return Program(
        calls=kept,
        inputs=declared,
        outputs=list(outputs),
        constants={s: c for s, c in tape.constants.items() if s in slots},
        copied={s for s in sources & slots if tape.memory_of[s] in written} | (set(tape.constants) & set(outputs)),
    )


class Replay(torch.nn.Module):
    """Runs a program: inputs in, a tuple of outputs out."""

    def __init__(self, program: Program, names: Mapping[int, str]) -> None:
        super().__init__()
        self.program: Program
        self.names: dict[int, str]
        self._paths: list[tuple[int, torch.nn.Module, str]]
        # Without the setters of modules, which look for parameters, and without train(), which looks for children.
        vars(self).update(program=program, names=dict(names), _paths=[], training=False)
        for slot, constant in program.constants.items():
            holder, leaf = self._holder(names[slot])
            value = constant.value.detach()
            if slot in program.spread:
                value = value[:1].clone()
            if constant.parameter:
                holder.register_parameter(leaf, torch.nn.Parameter(value, requires_grad=False))
            else:
                holder.register_buffer(leaf, value)
            self._paths.append((slot, holder, leaf))

    def _holder(self, name: str) -> tuple[torch.nn.Module, str]:
        """The module and attribute name for a dotted name, so that files keep the whole name."""
        holder: torch.nn.Module = self
        *path, leaf = name.split(".")
        for part in path:
            child = holder._modules.get(part)
            if child is None:
                child = torch.nn.Module()
                vars(child)["training"] = False
                holder.add_module(part, child)
            holder = child
        return holder, leaf

    @contextmanager
    def holding(self, values: Mapping[int, Tensor]) -> Iterator[None]:
        """Run with other values of some constants, by slot."""
        places = [(values[slot], holder, leaf) for slot, holder, leaf in self._paths if slot in values]
        before = [getattr(holder, leaf) for _, holder, leaf in places]
        try:
            for value, holder, leaf in places:
                is_parameter = leaf in holder._parameters
                setattr(holder, leaf, torch.nn.Parameter(value, requires_grad=False) if is_parameter else value)
            yield
        finally:
            for (_, holder, leaf), value in zip(places, before, strict=True):
                setattr(holder, leaf, value)

    def run(
        self,
        inputs: Sequence[Tensor],
        around: Callable[[int, Call, Any, Any], Any] | None = None,
        constants: set[int] | None = None,
        into: dict[int, Any] | None = None,
    ) -> dict[int, Any]:
        """The values of all slots after running the calls on ``inputs``. What the calls write to is copied first.

        Args:
            inputs: A value for each input.
            around: Called with index, call, arguments and keywords in place of the function of the call. Returns the result.
            constants: This set gets the identities of the constants' tensors.
            into: This dict gets the values as they are computed.
        """
        env: dict[int, Any] = {} if into is None else into
        program = self.program
        for slot, value in zip(program.inputs, inputs, strict=True):
            env[slot] = value.clone() if slot in program.copied else value
        for slot, holder, leaf in self._paths:
            value = getattr(holder, leaf)
            if slot in program.spread:
                assert program.batch is not None
                source, axis = program.batch
                value = value.expand(env[source].size(axis), *value.shape[1:])
            env[slot] = value.clone() if slot in program.copied else value
        if constants is not None:
            constants.update(id(env[slot]) for slot, _, _ in self._paths)
        for index, call in enumerate(program.calls):
            args, kwargs = filled(call, env)
            result = call.func(*args, **kwargs) if around is None else around(index, call, args, kwargs)
            for slot, out in zip(call.outs, results(call, result), strict=True):
                env[slot] = out
        return env

    def reached(self, inputs: Sequence[Tensor]) -> dict[int, Any]:
        """The values of the slots up to the first call that fails on these inputs, as a frozen size may make it do."""
        env: dict[int, Any] = {}
        with suppress(Exception):  # torch raises many types if a call does not take these inputs
            self.run(inputs, into=env)
        return env

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The outputs of the node for the given inputs."""
        env = self.run(inputs)
        return tuple(env[s] for s in self.program.outputs)


def results(call: Call, result: Any) -> list[Any]:
    """The values for the slots of a call, from its result: tensors, or one number."""
    if isinstance(result, Tensor) or type(call.func) is Measure:
        return [result]
    found = list(tensors(result))
    return found[: len(call.outs)] if call.func in WORKSPACE_LAST else found


def filled(call: Call, env: dict[int, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments and keywords of a call, with every slot replaced by its value."""
    # Most arguments are slots or numbers; only nested ones need the slower fill().
    args = [env[v.slot] if type(v) is Ref else v if type(v) in ATOMS else fill(v, env) for v in call.args]
    return args, fill(call.kwargs, env) if call.kwargs else {}


def fill(value: Any, env: dict[int, Any]) -> Any:
    """A recorded argument with every slot replaced by its value."""
    return mapped(value, lambda v: env[v.slot] if type(v) is Ref else v)


def _name(func: Any) -> str:
    module = getattr(func, "__module__", None) or ""
    name = getattr(func, "__name__", None) or str(func)
    owner = getattr(func, "__objclass__", None)
    if owner is not None:
        return f"{owner.__name__}.{name}"
    return f"{module.split('.')[0]}.{name}" if module else name


def _slots(slots: Sequence[int]) -> str:
    return ", ".join(f"%{s}" for s in slots) or "_"


def _arguments(call: Call) -> str:
    parts = [repr(a) for a in call.args] + [f"{k}={v!r}" for k, v in call.kwargs.items()]
    return ", ".join(parts)
