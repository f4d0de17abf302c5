"""Traces a node into one functional graph of ATen operators.

``torch.export`` followed by ``run_decompositions`` gives the same graph in two passes and patches every composite
operator of torch on each call. One trace, below autograd, with only the operators kept whole that the caller asks for,
is what a backend needs. Knows nothing of ONNX.

A node that writes to no tensor and whose shapes are fixed needs a list of its operators and nothing more; ``_Listing``
makes it at a fraction of the cost of torch's tracer, which does the others.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from leapp.compat.core import OpOverload, TorchDispatchMode, is_composite, with_state
from leapp.compat.graphs import (
    DimDynamic,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    FunctionalTensorMode,
    ShapeEnv,
    constant_source,
    dispatch_functionalize,
    enable_python_dispatcher,
    fake_rules,
    graph_module,
    kept_whole,
    make_fx,
    set_kernels,
)

from .series import shared
from .shadows import Shadows
from .spelling import Spelled

__all__ = ["RUNNING", "AtenGraph", "trace_aten"]

RUNNING: ContextVar[Any] = ContextVar("RUNNING", default=None)
"""The recorded call that is being traced, if somebody wants to know which operators it makes."""


class BatchFixedError(Exception):
    """A trace that was to take any batch takes one."""


@dataclass(slots=True)
class AtenGraph:
    """A functional ATen graph: its placeholders are the inputs, then the constants."""

    module: torch.fx.GraphModule
    inputs: list[torch.fx.Node]
    constants: dict[torch.fx.Node, tuple[str, torch.Tensor]]
    """Placeholder to the name and value it stands for."""
    batch: str | None = None
    """The symbol that stands for the batch in the sizes of values."""


def trace_aten(
    module: torch.nn.Module,
    example: tuple[torch.Tensor, ...],
    decompositions: Mapping[Any, Callable[..., Any]],
    keep: tuple[Any, ...],
    batch_axes: tuple[int | None, ...] = (),
) -> AtenGraph:
    """Trace ``module`` on ``example``.

    Args:
        module: The node; ``forward`` returns a tuple.
        example: Inputs that fix shapes and dtypes. Their values are not looked at.
        decompositions: ATen overloads to replace, with what replaces them.
        keep: Composite overloads that stay whole.
        batch_axes: For each input the axis that takes any size, the same in all of them.

    Raises:
        BatchFixedError: Some operator fixes the size of the batch.
    """
    if any(axis is not None for axis in batch_axes):
        return _trace(module, example, decompositions, keep, ShapeEnv(), batch_axes)
    try:
        return _list(module, example, decompositions, keep)
    except (_NotPlainError, DynamicOutputShapeException):
        pass
    try:
        return _trace(module, example, decompositions, keep, None)
    except DynamicOutputShapeException:
        # Sizes that depend on values need symbols; everything else is quicker without them.
        return _trace(module, example, decompositions, keep, ShapeEnv())


def _kept_whole(keep: tuple[Any, ...]) -> AbstractContextManager[None]:
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


class _NotPlainError(Exception):
    """The node is not a plain list of functional operators."""


class _Listing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down every operator that runs, with decomposed ones replaced."""

    def __init__(self, decompositions: Mapping[Any, Callable[..., Any]], shadows: Shadows) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = torch.fx.Graph()
        self.constants: dict[torch.fx.Node, torch.Tensor] = {}
        self._decompositions = decompositions
        self._shadows = shadows
        # Tensors are known by identity, so each is kept alive.
        self._nodes: dict[int, tuple[torch.Tensor, torch.fx.Node]] = {}
        self._first: torch.fx.Node | None = None

    def know(self, tensor: torch.Tensor, node: torch.fx.Node) -> None:
        """Remember which node makes a tensor."""
        node.meta["val"] = tensor
        self._nodes[id(tensor)] = tensor, node

    def node_of(self, value: Any) -> Any:
        """An argument as the graph spells it."""
        if isinstance(value, torch.Tensor):
            found = self._nodes.get(id(value))
            return found[1] if found is not None else self._constant(value)
        if isinstance(value, (list, tuple)):
            return [self.node_of(item) for item in value]
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise _NotPlainError
        return value

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is being compiled here; to say so to the compiler, torch would import it, which takes a second.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func.namespace == "prim":
            return func(*args, **named)  # asks for a device or a layout
        decompose = self._decompositions.get(func)
        if decompose is not None:
            with self:
                out = decompose(*args, **named)
            if out is not NotImplemented:
                return out
        if not isinstance(func, OpOverload) or func._schema.is_mutable:
            raise _NotPlainError
        if _is_composite(func):
            with self:
                out = func.decompose(*args, **named)
            if out is not NotImplemented:
                return out
        out = self._shadows.run(func, args, named)
        if func in _LIFTS and isinstance(args[0], torch.Tensor) and not isinstance(args[0], FakeTensor):
            self.know(out, self._constant(args[0].clone()))
            return out
        node = self.graph.create_node(
            "call_function",
            func,
            tuple(self.node_of(arg) for arg in args),
            {name: self.node_of(value) for name, value in named.items()},
            name=func.overloadpacket.__name__,
        )
        if (call := RUNNING.get()) is not None:
            node.meta["call"] = call
        self._know_results(out, node)
        return out

    def _know_results(self, out: Any, node: torch.fx.Node) -> None:
        if isinstance(out, torch.Tensor):
            known = self._nodes.get(id(out))
            self.know(out, node)
            if known is not None:
                # The operator handed its argument back.
                known[1].meta["val"] = out
        elif isinstance(out, (list, tuple)):
            node.meta["val"] = out
            for position, value in enumerate(out):
                if not isinstance(value, torch.Tensor):
                    raise _NotPlainError
                self.know(value, self.graph.call_function(operator.getitem, (node, position)))
        else:
            raise _NotPlainError

    def _constant(self, tensor: torch.Tensor) -> torch.fx.Node:
        if isinstance(tensor, FakeTensor):
            raise _NotPlainError  # made where nobody was listening
        with self.graph.inserting_before(self._first):
            node = self.graph.placeholder(f"constant{len(self.constants)}")
        self.constants[node] = tensor
        self.know(tensor, node)
        return node

    def declare(self, tensor: torch.Tensor, name: str) -> torch.fx.Node:
        """A placeholder for an input or a weight."""
        node = self.graph.placeholder(name)
        self.know(tensor, node)
        return node

    def begin(self) -> None:
        """From here on the graph computes."""
        self._first = self.graph.call_function(torch.ops.aten.sym_constrain_range.default, (0,))


_is_composite = functools.cache(is_composite)


_LIFTS = (torch.ops.aten.lift_fresh_copy.default, torch.ops.aten.lift_fresh.default, torch.ops.aten.lift.default)


def _list(
    module: torch.nn.Module,
    example: tuple[torch.Tensor, ...],
    decompositions: Mapping[Any, Callable[..., Any]],
    keep: tuple[Any, ...],
) -> AtenGraph:
    shadows = Shadows()
    state, aliases = _state(module)
    listing = _Listing(decompositions, shadows)
    inputs = [shadows.of(tensor) for tensor in example]
    weights = {name: shadows.of(tensor) for name, tensor in state.items()}
    declared = [listing.declare(tensor, f"arg{position}") for position, tensor in enumerate(inputs)]
    constants = {
        listing.declare(weights[name], f"weight{position}"): (name, tensor)
        for position, (name, tensor) in enumerate(state.items())
    }
    listing.begin()
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(_kept_whole(keep))
        stack.enter_context(enable_python_dispatcher())
        stack.enter_context(with_state(module, {name: weights[first] for name, first in aliases.items()}))
        stack.enter_context(listing)
        stack.enter_context(Spelled())
        outputs = tuple(module(*inputs))
    graph = listing.graph
    graph.output(tuple(listing.node_of(tensor) for tensor in outputs))
    assert listing._first is not None
    graph.erase_node(listing._first)
    constants |= {node: (f"constant{i}", tensor) for i, (node, tensor) in enumerate(listing.constants.items())}
    for node in reversed(graph.nodes):
        # Every operator here is functional: what nobody reads is not needed.
        if node.op == "call_function" and not node.users:
            graph.erase_node(node)
    return AtenGraph(graph_module(graph), declared, constants)


def _trace(
    module: torch.nn.Module,
    example: tuple[torch.Tensor, ...],
    decompositions: Mapping[Any, Callable[..., Any]],
    keep: tuple[Any, ...],
    shape_env: ShapeEnv | None,
    batch_axes: tuple[int | None, ...] = (),
) -> AtenGraph:
    fake = FakeTensorMode(allow_non_fake_inputs=True, shape_env=shape_env)
    state, aliases = _state(module)
    count = len(example)

    def flat(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = dict(zip(state, values[count:], strict=True))
        with with_state(module, {name: given[first] for name, first in aliases.items()}), Spelled():
            return tuple(module(*values[:count]))

    fakes = [
        fake.from_tensor(tensor.detach(), static_shapes=True if shape_env is not None else None)
        for tensor in (*example, *state.values())
    ]
    rows = _follow(fakes, fake, batch_axes)
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(_kept_whole(keep))
        stack.enter_context(enable_python_dispatcher())
        stack.enter_context(fake)
        traced = make_fx(
            dispatch_functionalize(flat, FunctionalTensorMode()),
            decomposition_table=dict(decompositions),
            tracing_mode="real",
            _allow_non_fake_inputs=True,
        )(*fakes)
    if rows is not None and not rows.node.expr.free_symbols:
        raise BatchFixedError(f"it works for a batch of {rows} only.")
    return _lifted(traced, count, state, None if rows is None else str(rows.node.expr))


def _follow(fakes: list[Any], fake: FakeTensorMode, axes: tuple[int | None, ...]) -> Any:
    """Give the inputs one symbol for their batch axes, and return it."""
    chosen = next(((f, a) for f, a in zip(fakes, axes, strict=False) if a is not None), None)
    if chosen is None:
        return None
    env = fake.shape_env
    assert env is not None
    source = constant_source("batch")
    rows = int(chosen[0].shape[chosen[1]])
    symbol = env.create_symbol(rows, source, DimDynamic.DYNAMIC, None)
    size = env.create_symintnode(symbol, hint=rows, source=source)
    for position, axis in enumerate(axes):
        if axis is not None:
            shape = list(fakes[position].shape)
            shape[axis] = size
            with fake:
                fakes[position] = torch.empty(shape, dtype=fakes[position].dtype, device=fakes[position].device)
    return size


def _state(module: torch.nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
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


def _lifted(
    traced: torch.fx.GraphModule, count: int, state: dict[str, torch.Tensor], batch: str | None
) -> AtenGraph:
    """Turn tensors that the trace attached to the module into placeholders beside the parameters."""
    graph = traced.graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    constants = dict(zip(placeholders[count:], state.items(), strict=True))
    last = placeholders[-1] if placeholders else None
    for node in [node for node in graph.nodes if node.op == "get_attr"]:
        tensor = getattr(traced, str(node.target))
        if not isinstance(tensor, torch.Tensor):
            continue
        with graph.inserting_after(last) if last is not None else graph.inserting_before():
            last = graph.placeholder(node.name)
        last.meta["val"] = node.meta.get("val", tensor)
        constants[last] = (f"constant{len(constants) - len(state)}", tensor)
        node.replace_all_uses_with(last)
        graph.erase_node(node)
    graph.eliminate_dead_code()
    return AtenGraph(traced, placeholders[:count], constants, batch)
