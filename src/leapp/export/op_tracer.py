"""A small tracer: runs a node and gives each ATen operator that it runs to a graph builder.

It takes nodes that write to no tensor and whose sizes are fixed, at a fraction of the cost of torch's tracer, which
:mod:`leapp.export.aten` uses for the other nodes. It runs below autograd: there torch shows composite operators whole, without
kernels in Python for each of them. Knows nothing of graphs.
"""

from __future__ import annotations

import abc
import weakref
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from leapp.compat.core import DispatchMode, OpOverload, below_autograd, taken_apart, with_state
from leapp.export.hidden_values import HiddenValueError
from leapp.export.rewrites import FunctionalCalls


class NotPlainError(Exception):
    """The node writes to a tensor, has a size that is not fixed, or reads the value of a tensor."""


class WriteError(NotPlainError):
    """The node writes to a tensor, or takes elements by their place in memory."""


class UnknownOperatorError(Exception):
    """The node runs an operator that the caller does not translate."""


class GraphBuilder(abc.ABC):
    """Adds inputs, constants and operators to a graph. What a method returns stands for the tensor in later calls."""

    @abc.abstractmethod
    def input(self, position: int, tensor: torch.Tensor) -> Any:
        """Add an input of the node."""

    @abc.abstractmethod
    def weight(self, name: str, tensor: torch.Tensor, shown: torch.Tensor) -> Any:
        """Add a parameter or buffer of the node; ``shown`` is the tensor that the operators see in its place."""

    @abc.abstractmethod
    def constant(self, tensor: torch.Tensor) -> Any:
        """Add a constant that is not a parameter or buffer."""

    @abc.abstractmethod
    def call(self, func: Any, args: list[Any], named: dict[str, Any], out: Any) -> Any:
        """Add an operator that returned ``out``. For a sequence of tensors it returns a sequence."""


class TraceValues(Protocol):
    """The tensors that a node is traced on: ``HiddenValues`` or ``FakeValues``."""

    hides: type[torch.Tensor]

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor that the node sees in place of ``tensor``."""

    def run(self, func: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """What an operator returns."""


_DETACHES = torch.ops.aten.detach_.default
_LIFTS = (torch.ops.aten.lift_fresh_copy.default, torch.ops.aten.lift_fresh.default, torch.ops.aten.lift.default)


@dataclass(slots=True)
class _Overload:
    """What the tracer asks of an overload each time that it runs."""

    decompose: Callable[..., Any] | None
    applies: Callable[[Any], bool] | None
    """Whether ``decompose`` may replace a call with these arguments; ``None`` if it may replace every call."""
    queries: bool
    """It returns a device or a layout, not a tensor."""
    plain: bool
    """It is an operator that writes to no argument."""
    composite: Callable[..., Any] | None
    """Computes it by other operators."""
    by_place: bool
    """It takes elements by their place in memory, which is another one where operators are replaced."""
    lifts: bool
    """It turns a constant into a tensor of the graph."""
    known: bool


class OperatorRules:
    """What a trace does with each operator. Nodes that are traced by the same rules share what is looked up.

    Args:
        decompositions: ATen overloads to replace, with what replaces them.
        keep: Composite overloads that stay whole.
        known: The overloads that the graph builder takes; every overload, if it is left out.
    """

    def __init__(
        self, decompositions: Mapping[Any, Callable[..., Any]], keep: Container[Any], known: Container[Any] | None = None
    ) -> None:
        self._decompositions, self._keep, self._known = decompositions, keep, known
        self._found: dict[Any, _Overload] = {}

    def of(self, func: Any) -> _Overload:
        """What the tracer asks of an overload."""
        return self._found.get(func) or self._look_up(func)

    def _look_up(self, func: Any) -> _Overload:
        queries = func.namespace == "prim"
        plain = isinstance(func, OpOverload) and not queries and not func._schema.is_mutable
        decompose = self._decompositions.get(func)
        self._found[func] = _Overload(
            decompose=decompose,
            applies=getattr(decompose, "applies", None),
            queries=queries,
            plain=plain,
            composite=taken_apart(func) if plain and func not in self._keep else None,
            by_place=func is torch.ops.aten.as_strided.default and decompose is not None,
            lifts=func in _LIFTS,
            known=self._known is None or func in self._known,
        )
        return self._found[func]


class OpTracer(DispatchMode):  # type: ignore[no-untyped-call]
    """Replaces operators that have a decomposition, and gives the others to a graph builder."""

    as_in_memory = False
    """Whether tensors lie in memory as in eager code. ``reshape()`` returns a view or a copy by that."""

    def __init__(self, rules: OperatorRules, builder: GraphBuilder, values: TraceValues) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rules = rules
        self._builder = builder
        self._values = values
        # Tensors are known by identity, as long as they live.
        self._entries: dict[int, tuple[weakref.ref[torch.Tensor], Any]] = {}
        self._constants: list[torch.Tensor] = []

    def remember(self, tensor: torch.Tensor, entry: Any) -> None:
        """Remember what stands for a tensor in the graph."""
        self._entries[id(tensor)] = weakref.ref(tensor), entry

    def entry(self, value: Any) -> Any:
        """What stands for an argument in the graph."""
        if isinstance(value, torch.Tensor):
            found = self._entries.get(id(value))
            return found[1] if found is not None and found[0]() is value else self._constant(value)
        if isinstance(value, (list, tuple)):
            return [self.entry(item) for item in value]
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise NotPlainError("a size that is not known")
        return value

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        overload = self._rules.of(func)
        if overload.queries:
            return func(*args, **named)
        if func is _DETACHES and isinstance(args[0], self._values.hides):  # as torch.tensor() does
            return args[0]
        if overload.by_place and not self.as_in_memory:
            raise WriteError(str(func))
        if overload.decompose is not None and (overload.applies is None or overload.applies(args)):
            try:
                with self:
                    out = overload.decompose(*args, **named)
            except UnknownOperatorError:  # name the operator of the user's code, not one that it consists of
                raise UnknownOperatorError(str(func)) from None
            if out is not NotImplemented:
                return out
        if not overload.plain:
            raise WriteError(str(func))
        if overload.composite is not None:
            with self:
                out = overload.composite(*args, **named)
            if out is not NotImplemented:
                return out
        if overload.lifts and not isinstance(args[0], self._values.hides):
            out = self._values.run(func, args, named)
            self.remember(out, self._constant(args[0].clone()))
            return out
        if not overload.known:
            raise UnknownOperatorError(str(func))
        out = self._values.run(func, args, named)
        single = isinstance(out, torch.Tensor)
        if not single and not (isinstance(out, (list, tuple)) and all(isinstance(value, torch.Tensor) for value in out)):
            raise NotPlainError(str(func))
        made = self._builder.call(
            func, [self.entry(arg) for arg in args], {name: self.entry(value) for name, value in named.items()}, out
        )
        for value, entry in ((out, made),) if single else zip(out, made, strict=True):
            self.remember(value, entry)
        return out

    def _constant(self, tensor: torch.Tensor) -> Any:
        if isinstance(tensor, self._values.hides):
            raise NotPlainError("a tensor that no operator of the graph made")
        entry = self._builder.constant(tensor)
        self._constants.append(tensor)
        self.remember(tensor, entry)
        return entry


def trace_ops(
    module: torch.nn.Module,
    example: tuple[torch.Tensor, ...],
    rules: OperatorRules,
    builder: GraphBuilder,
    values: TraceValues,
    tracer: type[OpTracer] = OpTracer,
) -> list[Any]:
    """Run ``module`` on ``example`` and give its operators to ``builder``.

    Args:
        module: The node; ``forward`` returns a tuple.
        example: Inputs that fix shapes and dtypes. The graph does not depend on their values.
        rules: What to do with each operator.
        builder: Makes the graph.
        values: The tensors that the node is traced on.
        tracer: What sees the operators.

    Returns:
        What stands for the outputs of the node in the graph.

    Raises:
        WriteError: Some operator needs a tracer that follows what happens in memory.
        NotPlainError: The result of some operator depends on values.
        UnknownOperatorError: The builder does not take some operator.
    """
    mode = tracer(rules, builder, values)
    try:
        state, aliases = state_of(module)
        inputs = [values.of(tensor) for tensor in example]
        weights = {name: values.of(tensor) for name, tensor in state.items()}
        for position, tensor in enumerate(inputs):
            mode.remember(tensor, builder.input(position, tensor))
        for name, tensor in state.items():
            mode.remember(weights[name], builder.weight(name, tensor, weights[name]))
        shown = {name: weights[first] for name, first in aliases.items()}
        with torch.no_grad(), below_autograd():
            with with_state(module, shown), mode, FunctionalCalls():
                outputs = tuple(module(*inputs))
            return [mode.entry(tensor) for tensor in outputs]
    except HiddenValueError as error:
        raise NotPlainError(str(error)) from error


def state_of(module: torch.nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Parameters and buffers by name, each memory once; and for every name the one that holds its value."""
    state: dict[str, torch.Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[Any, str] = {}
    for named in (module.named_parameters, module.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.device)
            aliases[name] = first.setdefault(place if tensor.numel() else name, name)
            if aliases[name] == name:
                state[name] = tensor
    return state, aliases
