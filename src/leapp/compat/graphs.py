"""What is private in torch's tracers: tensors without memory, functional traces, composite operators kept whole.

``torch.export`` with ``run_decompositions`` is the public way to the same graph; it traces twice and patches every composite
operator of torch on each call.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._export.utils import _collect_all_valid_cia_ops_for_aten_namespace, _special_op_to_preserve_cia
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensorMode, dispatch_functionalize
from torch.export.exported_program import _override_composite_implicit_decomp
from torch.fx._lazy_graph_module import _make_graph_module, _use_lazy_graph_module
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, statically_known_true

__all__ = [
    "DimDynamic", "DynamicOutputShapeException", "FakeTensor", "FakeTensorMode", "FunctionalTensorMode", "ShapeEnv",
    "constant_source", "core_decompositions", "dispatch_functionalize", "enable_python_dispatcher", "fake_rules",
    "graph_module", "kept_whole", "make_fx", "set_kernels", "statically_known_true", "whole_composites",
]  # fmt: skip

fake_rules: dict[Any, Any] = fake_impls.op_implementations_dict
"""How operators run on tensors without memory. A composite that is kept whole needs a rule for the time of a trace."""


def kept_whole(operators: tuple[Any, ...]) -> AbstractContextManager[None]:
    """Keep composite operators whole in a trace."""
    kept: AbstractContextManager[None] = _override_composite_implicit_decomp(
        dict.fromkeys(operators, _special_op_to_preserve_cia)
    )
    return kept


def whole_composites() -> set[Any]:
    """The composite operators that a trace can keep whole."""
    return set(_collect_all_valid_cia_ops_for_aten_namespace())


def set_kernels(operator: Any, kernels: dict[Any, Any]) -> None:
    """Put back the Python kernels that ``kept_whole`` gave to an operator, which takes torch half a second to make."""
    operator.py_kernels.clear()
    operator.py_kernels.update(kernels)
    operator._dispatch_cache.clear()


def graph_module(graph: torch.fx.Graph) -> torch.fx.GraphModule:
    """A module that compiles the code of its graph when it is first called. ``GraphModule`` does so at once."""
    with _use_lazy_graph_module(True):
        return _make_graph_module(torch.nn.Module(), graph)


def constant_source(name: str) -> Any:
    """The origin that a symbolic size must have. Slow to import, and few need it."""
    from torch._dynamo.source import ConstantSource

    return ConstantSource(name)


def core_decompositions() -> dict[Any, Callable[..., Any]]:
    """Torch's table of operators written as others, whole. ``torch.export.default_decompositions`` leaves out derivatives."""
    from torch._decomp import decomposition_table

    return decomposition_table
