"""A node as a functional ATen graph, traced with torch's own tools.

A graph of ATen operators with fixed or symbolic sizes, below autograd, with only the operators kept whole that the caller asks
for, is what a backend needs. Knows nothing of ONNX.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch

from leapp.compat.core import with_state
from leapp.compat.graphs import enable_python_dispatcher
from leapp.export.listing import AtenGraph, NotPlainError, list_aten, state_of, whole
from leapp.export.rewrites import Spelled


class BatchFixedError(Exception):
    """A trace that was to take any batch takes one."""


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
    from leapp.compat import tracers

    if any(axis is not None for axis in batch_axes):
        return _trace(module, example, decompositions, keep, tracers.ShapeEnv(), batch_axes)
    try:
        return list_aten(module, example, decompositions, keep)
    except (NotPlainError, tracers.DynamicOutputShapeException):
        pass
    try:
        return _trace(module, example, decompositions, keep, None)
    except tracers.DynamicOutputShapeException:
        # Sizes that depend on values need symbols; everything else is quicker without them.
        return _trace(module, example, decompositions, keep, tracers.ShapeEnv())


def _trace(
    module: torch.nn.Module,
    example: tuple[torch.Tensor, ...],
    decompositions: Mapping[Any, Callable[..., Any]],
    keep: tuple[Any, ...],
    shape_env: Any,
    batch_axes: tuple[int | None, ...] = (),
) -> AtenGraph:
    from leapp.compat import tracers

    fake = tracers.FakeTensorMode(allow_non_fake_inputs=True, shape_env=shape_env)
    state, aliases = state_of(module)
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
        stack.enter_context(whole(keep))
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
    return _lifted(traced, count, state, None if rows is None else str(rows.node.expr))


def _follow(fakes: list[Any], fake: Any, axes: tuple[int | None, ...]) -> Any:
    """Give the inputs one symbol for their batch axes, and return it."""
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
