"""Private names for graphs of operators in torch: composite operators kept whole, modules made of graphs.

``torch.export`` with ``run_decompositions`` is the public way to a functional graph; it traces twice and patches every
composite operator of torch on each call. Its tracers, slow to load, are in :mod:`leapp.compat.tracers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._export.utils import _is_preservable_cia_op, _special_op_to_preserve_cia
from torch._subclasses import fake_impls
from torch.export.exported_program import _override_composite_implicit_decomp
from torch.fx._lazy_graph_module import _make_graph_module, _use_lazy_graph_module

__all__ = [
    "core_decompositions", "enable_python_dispatcher", "fake_rules", "graph_module", "is_whole_composite", "kept_whole",
    "set_kernels",
]  # fmt: skip

fake_rules: dict[Any, Any] = fake_impls.op_implementations_dict
"""The rules for operators on tensors without memory. A composite operator that is kept whole needs one during a trace."""


def kept_whole(operators: Iterable[Any]) -> AbstractContextManager[None]:
    """Keep composite operators whole in a trace."""
    kept: AbstractContextManager[None] = _override_composite_implicit_decomp(
        dict.fromkeys(operators, _special_op_to_preserve_cia)
    )
    return kept


def is_whole_composite(operator: Any) -> bool:
    """Whether an operator is composed of other operators and a trace can keep it whole."""
    return bool(_is_preservable_cia_op(operator))


def set_kernels(operator: Any, kernels: dict[Any, Any]) -> None:
    """Set the Python kernels of an operator that ``kept_whole`` made before. Torch takes half a second to make them."""
    operator.py_kernels.clear()
    operator.py_kernels.update(kernels)
    operator._dispatch_cache.clear()


def graph_module(graph: torch.fx.Graph) -> torch.fx.GraphModule:
    """A module that compiles the code of its graph when it is first called. ``GraphModule`` does so at once."""
    with _use_lazy_graph_module(True):
        return _make_graph_module(torch.nn.Module(), graph)


def core_decompositions() -> dict[Any, Callable[..., Any]]:
    """Torch's whole table of decompositions. The public ``torch.export.default_decompositions`` lacks derivatives."""
    from torch._decomp import decomposition_table

    return decomposition_table
