"""A node as a functional ATen graph: operators that write to no tensor, below autograd, with fixed or symbolic sizes.

Most nodes are traced by :mod:`leapp.export.op_tracer`, the others by torch's own tracer. Knows nothing of ONNX.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from leapp.compat.core import with_state
from leapp.compat.graphs import enable_python_dispatcher, fake_rules, graph_module, kept_whole, set_kernels
from leapp.export.job import RUNNING
from leapp.export.op_tracer import GraphBuilder, NotPlainError, OperatorRules, state_of, trace_ops
from leapp.export.rewrites import FunctionalCalls
from leapp.export.shared_setup import shared


@dataclass(slots=True)
class AtenGraph:
    """A functional ATen graph: its placeholders are the inputs, then the constants."""

    module: torch.fx.GraphModule
    inputs: list[torch.fx.Node]
    constants: dict[torch.fx.Node, tuple[str, torch.Tensor]]
    """Placeholder to the name and value it stands for."""
    batch: str | None = None
    """The symbol that stands for the batch in the sizes of values."""


class BatchFixedError(Exception):
    """An operator of a node with ``dynamic_batch=True`` takes a single size of the batch."""


def trace_aten(
    module: torch.nn.Module,
    example: tuple[torch.Tensor, ...],
    decompositions: Mapping[Any, Callable[..., Any]],
    keep: frozenset[Any],
    batch_axes: tuple[int | None, ...] = (),
) -> AtenGraph:
    """Trace ``module`` on ``example``.

    Args:
        module: The node; ``forward`` returns a tuple.
        example: Inputs that fix shapes and dtypes. The graph does not depend on their values.
        decompositions: ATen overloads to replace, with what replaces them.
        keep: Composite overloads that stay whole.
        batch_axes: For each input the axis that takes any size, the same in all of them.

    Raises:
        BatchFixedError: Some operator fixes the size of the batch.
    """
    from leapp.compat import tracers

    if any(axis is not None for axis in batch_axes):
        return _trace_with_torch(module, example, decompositions, keep, tracers.ShapeEnv(), batch_axes)
    try:
        return _trace_plain(module, example, decompositions, keep)
    except (NotPlainError, tracers.DynamicOutputShapeException):
        pass
    try:
        return _trace_with_torch(module, example, decompositions, keep, None)
    except tracers.DynamicOutputShapeException:
        # Sizes that depend on values need symbols, which make every other trace slower.
        return _trace_with_torch(module, example, decompositions, keep, tracers.ShapeEnv())


# Nodes that write to no tensor and have fixed sizes


def _trace_plain(
    module: torch.nn.Module,
    example: tuple[torch.Tensor, ...],
    decompositions: Mapping[Any, Callable[..., Any]],
    keep: frozenset[Any],
) -> AtenGraph:
    from leapp.export.fake_cache import FakeValues

    builder = _FxBuilder()
    return builder.finish(trace_ops(module, example, OperatorRules(decompositions, keep), builder, FakeValues()))


class _FxBuilder(GraphBuilder):
    """Makes a graph of ``torch.fx``."""

    def __init__(self) -> None:
        self.graph = torch.fx.Graph()
        self.inputs: list[torch.fx.Node] = []
        self.constants: dict[torch.fx.Node, tuple[str, torch.Tensor]] = {}
        # Placeholders go before this node: a constant may be found after operators were added.
        self._first = self.graph.call_function(torch.ops.aten.sym_constrain_range.default, (0,))
        self._unnamed = 0

    def input(self, position: int, tensor: torch.Tensor) -> Any:
        """Add an input of the node."""
        self.inputs.append(self._placeholder(f"arg{position}", tensor))
        return self.inputs[-1]

    def weight(self, name: str, tensor: torch.Tensor, shown: torch.Tensor) -> Any:
        """Add a parameter or buffer of the node."""
        node = self._placeholder(f"weight{len(self.constants)}", shown)
        self.constants[node] = name, tensor
        return node

    def constant(self, tensor: torch.Tensor) -> Any:
        """Add a constant that is not a parameter or buffer."""
        name = f"constant{self._unnamed}"
        self._unnamed += 1
        node = self._placeholder(name, tensor)
        self.constants[node] = name, tensor
        return node

    def call(self, func: Any, args: list[Any], named: dict[str, Any], out: Any) -> Any:
        """Add an operator that returned ``out``."""
        node = self.graph.create_node("call_function", func, tuple(args), named, name=func.overloadpacket.__name__)
        # Keeps the tensors alive: the tracer knows them by identity.
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


# All other nodes


def _kept_whole(keep: frozenset[Any]) -> AbstractContextManager[None]:
    """Keep composite operators whole while nodes are traced."""
    return shared(keep, lambda: _whole(keep))


_patched: dict[Any, tuple[dict[Any, Any], dict[Any, Any], Any]] = {}
"""For each operator that was kept whole: its kernels outside and inside of a trace, and its rule for fake tensors."""


@contextmanager
def _whole(keep: frozenset[Any]) -> Iterator[None]:
    """Keep composite operators whole. Torch makes twenty kernels for each; later traces put the same kernels back."""
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


def _trace_with_torch(
    module: torch.nn.Module,
    example: tuple[torch.Tensor, ...],
    decompositions: Mapping[Any, Callable[..., Any]],
    keep: frozenset[Any],
    shape_env: Any,
    batch_axes: tuple[int | None, ...] = (),
) -> AtenGraph:
    from leapp.compat import tracers

    fake = tracers.FakeTensorMode(allow_non_fake_inputs=True, shape_env=shape_env)
    state, aliases = state_of(module)
    count = len(example)

    def flat(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = dict(zip(state, values[count:], strict=True))
        with with_state(module, {name: given[first] for name, first in aliases.items()}), FunctionalCalls():
            return tuple(module(*values[:count]))

    fakes = [
        fake.from_tensor(tensor.detach(), static_shapes=True if shape_env is not None else None)
        for tensor in (*example, *state.values())
    ]
    rows = _make_batch_symbolic(fakes, fake, batch_axes)
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(_kept_whole(keep))
        stack.enter_context(enable_python_dispatcher())
        stack.enter_context(fake)
        traced = tracers.make_fx(
            tracers.dispatch_functionalize(flat, tracers.FunctionalTensorMode()),
            decomposition_table=dict(decompositions),
            tracing_mode="real",
            _allow_non_fake_inputs=True,
        )(*fakes)
    if rows is not None and not rows.node.expr.free_symbols:
        raise BatchFixedError(f"it works for a batch of {rows} only.")
    return _lift_constants(traced, count, state, None if rows is None else str(rows.node.expr))


def _make_batch_symbolic(fakes: list[Any], fake: Any, axes: tuple[int | None, ...]) -> Any:
    """Give the inputs one symbol for their batch axes, and return it; ``None`` if no input has a batch axis."""
    chosen = next(((f, a) for f, a in zip(fakes, axes, strict=False) if a is not None), None)
    if chosen is None:
        return None
    from leapp.compat.tracers import ConstantSource, DimDynamic

    env = fake.shape_env
    assert env is not None
    source = ConstantSource("batch")
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


def _lift_constants(
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
