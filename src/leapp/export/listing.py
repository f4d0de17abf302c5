"""Follows the ATen operators that a node runs, one after another.

A node that writes to no tensor and whose shapes are fixed needs a list of its operators and nothing more, which is made here
at a fraction of the cost of torch's tracer. :mod:`leapp.export.aten` handles the other nodes.
"""

from __future__ import annotations

import abc
import operator
import weakref
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from leapp.compat.core import DispatchMode, OpOverload, is_composite, with_state
from leapp.compat.graphs import enable_python_dispatcher, fake_rules, graph_module, kept_whole, set_kernels
from leapp.export.job import RUNNING
from leapp.export.replacing import Replacement
from leapp.export.rewrites import Spelled
from leapp.export.series import shared
from leapp.export.veils import HiddenValueError


@dataclass(slots=True)
class AtenGraph:
    """A functional ATen graph: its placeholders are the inputs, then the constants."""

    module: torch.fx.GraphModule
    inputs: list[torch.fx.Node]
    constants: dict[torch.fx.Node, tuple[str, torch.Tensor]]
    """Placeholder to the name and value it stands for."""
    batch: str | None = None
    """The symbol that stands for the batch in the sizes of values."""


class NotPlainError(Exception):
    """The node is not a plain list of functional operators."""


class UnknownOperatorError(Exception):
    """The node has an operator that the caller does not know."""


def whole(keep: tuple[Any, ...]) -> AbstractContextManager[None]:
    """Keep composite operators whole while nodes are traced."""
    return shared(keep, lambda: _whole(keep))


_patched: dict[Any, tuple[dict[Any, Any], dict[Any, Any], Any]] = {}
"""For each operator that was kept whole: its kernels before and meanwhile, and its rule for tensors without memory."""


@contextmanager
def _whole(keep: tuple[Any, ...]) -> Iterator[None]:
    """Keep composite operators whole. Torch patches each with twenty kernels; what it did once is put in place again."""
    rules = fake_rules
    if not all(op in _patched and op not in rules and op.py_kernels == _patched[op][0] for op in keep):
        before = {op: dict(op.py_kernels) for op in keep}
        free = [op for op in keep if op not in rules]
        with kept_whole(keep):
            _patched.update({op: (before[op], dict(op.py_kernels), rules[op]) for op in free})
            yield
        return
    try:
        for op in keep:
            _, kernels, rules[op] = _patched[op]
            set_kernels(op, kernels)
        yield
    finally:
        for op in keep:
            set_kernels(op, _patched[op][0])
            rules.pop(op, None)


_LIFTS = (torch.ops.aten.lift_fresh_copy.default, torch.ops.aten.lift_fresh.default, torch.ops.aten.lift.default)


class Taker(abc.ABC):
    """Takes down the operators that a node runs. What it returns stands for a tensor in the arguments of later ones."""

    @abc.abstractmethod
    def input(self, position: int, tensor: torch.Tensor) -> Any:
        """An input of the node."""

    @abc.abstractmethod
    def weight(self, name: str, tensor: torch.Tensor, shown: torch.Tensor) -> Any:
        """A tensor of the user's model; ``shown`` is what the operators see of it."""

    @abc.abstractmethod
    def constant(self, tensor: torch.Tensor) -> Any:
        """Any other tensor."""

    @abc.abstractmethod
    def call(self, func: Any, args: list[Any], named: dict[str, Any], out: Any) -> Any:
        """An operator that ran and returned ``out``: a tensor, or a sequence of them, for which a sequence is returned."""


@dataclass(slots=True)
class _Overload:
    """What is asked of an overload whenever it runs."""

    decompose: Callable[..., Any] | None
    asks: bool
    """It asks for a device or a layout."""
    plain: bool
    """It is an operator that writes to no argument."""
    composite: bool
    lifts: bool
    """It turns a constant into a tensor of the graph."""
    known: bool


class _Following(DispatchMode):  # type: ignore[no-untyped-call]
    """Has every operator taken down that runs, with decomposed ones replaced."""

    def __init__(
        self,
        decompositions: Mapping[Any, Callable[..., Any]],
        taker: Taker,
        values: Any,
        known: Container[Any] | None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._decompositions = decompositions
        self._taker = taker
        self._values = values
        self._known = known
        # Tensors are known by identity, as long as they live.
        self._taken: dict[int, tuple[weakref.ref[torch.Tensor], Any]] = {}
        self._constants: list[torch.Tensor] = []
        self._overloads: dict[Any, _Overload] = {}

    def know(self, tensor: torch.Tensor, taken: Any) -> None:
        """Remember what stands for a tensor."""
        self._taken[id(tensor)] = weakref.ref(tensor), taken

    def taken(self, value: Any) -> Any:
        """What stands for an argument."""
        if isinstance(value, torch.Tensor):
            found = self._taken.get(id(value))
            return found[1] if found is not None and found[0]() is value else self._constant(value)
        if isinstance(value, (list, tuple)):
            return [self.taken(item) for item in value]
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise NotPlainError("a size that is not known")
        return value

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        overload = self._overloads.get(func) or self._look_up(func)
        if overload.asks:
            return func(*args, **named)
        decompose = overload.decompose
        if decompose is not None and (not isinstance(decompose, Replacement) or decompose.applies(args)):
            try:
                with self:
                    out = decompose(*args, **named)
            except UnknownOperatorError:  # the one that the user's code runs says more than what it consists of
                raise UnknownOperatorError(str(func)) from None
            if out is not NotImplemented:
                return out
        if not overload.plain:
            raise NotPlainError(str(func))
        if overload.composite:
            with self:
                out = func.decompose(*args, **named)
            if out is not NotImplemented:
                return out
        if overload.lifts and not isinstance(args[0], self._values.hides):
            out = self._values.run(func, args, named)
            self.know(out, self._constant(args[0].clone()))
            return out
        if not overload.known:
            raise UnknownOperatorError(str(func))
        out = self._values.run(func, args, named)
        single = isinstance(out, torch.Tensor)
        if not single and not (isinstance(out, (list, tuple)) and all(isinstance(value, torch.Tensor) for value in out)):
            raise NotPlainError(str(func))
        taken = self._taker.call(
            func, [self.taken(arg) for arg in args], {name: self.taken(value) for name, value in named.items()}, out
        )
        for value, entry in ((out, taken),) if single else zip(out, taken, strict=True):
            self.know(value, entry)
        return out

    def _look_up(self, func: Any) -> _Overload:
        asks = func.namespace == "prim"
        plain = isinstance(func, OpOverload) and not asks and not func._schema.is_mutable
        self._overloads[func] = _Overload(
            decompose=self._decompositions.get(func),
            asks=asks,
            plain=plain,
            composite=plain and is_composite(func),
            lifts=func in _LIFTS,
            known=self._known is None or func in self._known,
        )
        return self._overloads[func]

    def _constant(self, tensor: torch.Tensor) -> Any:
        if isinstance(tensor, self._values.hides):
            raise NotPlainError("a tensor that no listed operator made")
        taken = self._taker.constant(tensor)
        self._constants.append(tensor)
        self.know(tensor, taken)
        return taken


def follow(
    module: torch.nn.Module,
    example: tuple[torch.Tensor, ...],
    decompositions: Mapping[Any, Callable[..., Any]],
    keep: tuple[Any, ...],
    taker: Taker,
    values: Any,
    known: Container[Any] | None = None,
) -> list[Any]:
    """Have the operators of ``module`` on ``example`` taken down; returns what stands for its outputs.

    Args:
        module: The node; ``forward`` returns a tuple.
        example: Inputs that fix shapes and dtypes. Nothing that is taken down depends on their values.
        decompositions: ATen overloads to replace, with what replaces them.
        keep: Composite overloads that stay whole.
        taker: Takes them down.
        values: What the operators compute with: ``Veils`` or ``Shadows``.
        known: The overloads that may run; all, if it is left out.

    Raises:
        NotPlainError: Some operator writes to a tensor, or its result depends on values.
        UnknownOperatorError: Some operator is not among ``known``.
    """
    mode = _Following(decompositions, taker, values, known)
    try:
        state, aliases = state_of(module)
        inputs = [values.of(tensor) for tensor in example]
        weights = {name: values.of(tensor) for name, tensor in state.items()}
        for position, tensor in enumerate(inputs):
            mode.know(tensor, taker.input(position, tensor))
        for name, tensor in state.items():
            mode.know(weights[name], taker.weight(name, tensor, weights[name]))
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(whole(keep))
            stack.enter_context(enable_python_dispatcher())
            stack.enter_context(with_state(module, {name: weights[first] for name, first in aliases.items()}))
            stack.enter_context(mode)
            stack.enter_context(Spelled())
            outputs = tuple(module(*inputs))
        return [mode.taken(tensor) for tensor in outputs]
    except HiddenValueError as error:
        raise NotPlainError(str(error)) from error


class _Graph(Taker):
    """Takes operators down as a graph of ``torch.fx``."""

    def __init__(self) -> None:
        self.graph = torch.fx.Graph()
        self.inputs: list[torch.fx.Node] = []
        self.constants: dict[torch.fx.Node, tuple[str, torch.Tensor]] = {}
        # Constants go before the operators, wherever they are found.
        self._first = self.graph.call_function(torch.ops.aten.sym_constrain_range.default, (0,))
        self._others = 0

    def input(self, position: int, tensor: torch.Tensor) -> Any:
        """An input of the node."""
        self.inputs.append(self._placeholder(f"arg{position}", tensor))
        return self.inputs[-1]

    def weight(self, name: str, tensor: torch.Tensor, shown: torch.Tensor) -> Any:
        """A tensor of the user's model."""
        node = self._placeholder(f"weight{len(self.constants)}", shown)
        self.constants[node] = name, tensor
        return node

    def constant(self, tensor: torch.Tensor) -> Any:
        """Any other tensor."""
        name = f"constant{self._others}"
        self._others += 1
        node = self._placeholder(name, tensor)
        self.constants[node] = name, tensor
        return node

    def call(self, func: Any, args: list[Any], named: dict[str, Any], out: Any) -> Any:
        """An operator that ran and returned ``out``."""
        node = self.graph.create_node("call_function", func, tuple(args), named, name=func.overloadpacket.__name__)
        # Keeps the tensors alive, by which they are known.
        node.meta["val"] = out
        if (call := RUNNING.get()) is not None:
            node.meta["call"] = call
        if isinstance(out, torch.Tensor):
            return node
        parts = [self.graph.call_function(operator.getitem, (node, position)) for position in range(len(out))]
        for part, value in zip(parts, out, strict=True):
            part.meta["val"] = value
        return parts

    def finish(self, outputs: list[Any]) -> AtenGraph:
        """The graph without unused operators, which can be dropped because every operator in it is functional."""
        self.graph.output(tuple(outputs))
        self.graph.erase_node(self._first)
        for node in reversed(self.graph.nodes):
            if node.op == "call_function" and not node.users:
                self.graph.erase_node(node)
        return AtenGraph(graph_module(self.graph), self.inputs, self.constants)

    def _placeholder(self, name: str, tensor: torch.Tensor) -> torch.fx.Node:
        with self.graph.inserting_before(self._first):
            node = self.graph.placeholder(name)
        node.meta["val"] = tensor
        return node


def list_aten(
    module: torch.nn.Module,
    example: tuple[torch.Tensor, ...],
    decompositions: Mapping[Any, Callable[..., Any]],
    keep: tuple[Any, ...],
) -> AtenGraph:
    """The operators of ``module`` on tensors like ``example`` as a graph. See :func:`follow`."""
    from leapp.export.fake_cache import Shadows

    graph = _Graph()
    return graph.finish(follow(module, example, decompositions, keep, graph, Shadows()))


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
