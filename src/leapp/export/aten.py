"""Traces a node into one functional graph of ATen operators.

``torch.export`` followed by ``run_decompositions`` gives the same graph in two passes and patches every composite
operator of torch on each call. One trace, below autograd, with only the operators kept whole that the caller asks for,
is what a backend needs. Knows nothing of ONNX.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._export.utils import _special_op_to_preserve_cia
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensorMode, dispatch_functionalize
from torch.export.exported_program import _override_composite_implicit_decomp
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.nn.utils.stateless import _reparametrize_module

from .spelling import Spelled

__all__ = ["AtenGraph", "trace_aten"]


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
        return _trace(module, example, decompositions, keep, None)
    except DynamicOutputShapeException:
        # Sizes that depend on values need symbols; everything else is quicker without them.
        return _trace(module, example, decompositions, keep, ShapeEnv())


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
        with _reparametrize_module(module, {name: given[first] for name, first in aliases.items()}), Spelled():
            return tuple(module(*values[:count]))

    fakes = [
        fake.from_tensor(tensor.detach(), static_shapes=True if shape_env is not None else None)
        for tensor in (*example, *state.values())
    ]
    rows = _follow(fakes, fake, batch_axes)
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(_override_composite_implicit_decomp(dict.fromkeys(keep, _special_op_to_preserve_cia)))
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
