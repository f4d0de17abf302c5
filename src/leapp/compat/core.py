"""Private names of torch's core: dispatch, modes, TorchScript graphs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.jit._recursive import wrap_cpp_module
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = [
    "DispatchMode", "HigherOrderOperator", "OpOverload", "below_autograd", "clean_script", "copy_all", "default_cpu",
    "disabled_torch_function", "find_operator", "frozen_script", "functorch_level", "fuses_on_cpu", "is_grad_enabled",
    "keep_stance", "new_script_graph", "open_script", "operator_names", "plain_dispatch", "registered_device",
    "script_from_graph", "script_numbers", "script_text", "script_tracer", "set_fusion_strategy", "set_grad_enabled",
    "storage_expired", "taken_apart", "tensor_guards", "tensor_type", "traced_value", "with_state", "wrapper_tensor",
    "writes_inputs", "writes_memory",
]  # fmt: skip

OpOverload: Any = torch._ops.OpOverload
"""The class of ``torch.ops.aten.add.Tensor``. It has no public name, and recorded calls are recognised by it."""

HigherOrderOperator: Any = torch._ops.HigherOrderOperator
"""The class of operators that take functions (``cond``, ``while_loop``), which have no schema to read."""


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that sees every operator.

    Torch's own class loads the compiler at the first operator, to keep it from compiling the mode. That takes more than a
    second, and is not needed, because the compiler runs nothing while a session is open.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


functorch_level: Callable[[], Any] = torch._C._functorch.peek_interpreter_stack
"""The innermost ``vmap``, ``grad`` or ``jvp`` that is running, or ``None``. Inside one, tensors are wrapped."""

storage_expired: Callable[[Any], Any] = torch.UntypedStorage._expired
"""Whether the memory of a weak reference was freed. Storages have no public weak references."""

is_grad_enabled: Callable[[], bool] = torch._C.is_grad_enabled
set_grad_enabled: Callable[[bool], None] = torch._C._set_grad_enabled
"""What ``torch.no_grad`` calls. Its context object takes as long as a step of a small policy."""

registered_device: Callable[[], str] = torch._C._get_privateuse1_backend_name
"""The name of the device that an extension added to torch. Tensors get a method of that name."""

disabled_torch_function: Any = torch._C._disabled_torch_function_impl
"""The ``__torch_function__`` of a tensor class that functions should treat like any tensor."""

plain_dispatch: Callable[[], AbstractContextManager[None]] = torch._C._DisablePythonDispatcher
"""A context in which operators run torch's own kernels, not kernels that Python code registered."""

below_autograd: Callable[[], AbstractContextManager[None]] = torch._C._AutoDispatchBelowAutograd
"""A context without the kernels of autograd. A dispatch mode then sees composite operators before torch takes them apart."""

copy_all: Callable[[Any, Any], Any] = torch._foreach_copy_
"""Copies a list of tensors into another in one call."""

operator_names: Callable[[], Iterable[str]] = torch._C._dispatch_get_all_op_names
"""The names of all operators. ``torch.ops`` lists only those that were used already."""


def find_operator(name: str) -> Any:
    """``torch.ops.aten.<name>``, e.g. ``"cholesky.default"``, or ``None`` where this version of torch has no such operator."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload, None)


@functools.cache
def taken_apart(operator: Any) -> Callable[..., Any] | None:
    """The function that computes an operator by calling other operators; ``None`` if torch has none. Not listed publicly."""
    keys = torch._C.DispatchKey
    found: Callable[..., Any] | None = operator.py_kernels.get(keys.Autograd)
    if found is None and (
        keys.CompositeImplicitAutograd in operator.py_kernels
        or torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd")
    ):
        found = operator.decompose
    return found


def with_state(module: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> AbstractContextManager[Any]:
    """A context in which a module has other parameters and buffers. ``torch.func.functional_call`` would run its hooks too."""
    swapped: AbstractContextManager[Any] = _reparametrize_module(module, tensors)
    return swapped


def wrapper_tensor(cls: type[torch.Tensor], like: torch.Tensor) -> Any:
    """A tensor of class ``cls`` with the shape, dtype and device of ``like``, and without memory."""
    return torch.Tensor._make_wrapper_subclass(
        cls, like.shape, strides=like.stride(), storage_offset=like.storage_offset(), dtype=like.dtype, device=like.device
    )


# TorchScript: torch.jit.trace runs the function again to check it, stores the paths of source files and cannot merge graphs.


def script_tracer(
    function: Callable[..., Any], example: tuple[Any, ...], strict: bool, names: list[str]
) -> Callable[[], Any]:
    """A call that makes a TorchScript function from one run of a Python function, without a Python frame of its own.

    The tracer copies the whole Python stack at each operator.
    """
    trace = torch._C._create_function_from_trace
    return functools.partial(trace, "forward", function, example, lambda _value: "", strict, False, names)


traced_value: Callable[[torch.Tensor], Any] = torch._C._get_value_trace  # type: ignore[attr-defined]
"""The value in the graph that stands for a tensor while ``torch.jit`` traces."""


def default_cpu() -> AbstractContextManager[Any]:
    """A context in which tensors without ``device=`` are made on the CPU, whatever the program has set."""
    return nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")


def open_script(model: bytes | str, device: torch.device) -> Any:
    """A TorchScript module as a C++ object. The Python wrapper of ``torch.jit.load`` takes 50 % longer to make."""
    unit: Any = torch._C.CompilationUnit()
    read: Any = torch._C.import_ir_module_from_buffer if isinstance(model, bytes) else torch._C.import_ir_module
    return read(unit, model, device, {}, False)


def script_numbers(module: Any) -> dict[str, Any]:
    """The attributes of a scripted module that are numbers or texts. They lie in C++, not in its ``__dict__``."""
    types = module._concrete_type.get_attributes()
    kinds = ("int", "float", "bool", "str")
    return {name: getattr(module, name) for name, (kind, _) in types.items() if str(kind) in kinds and name != "training"}


def script_text(graph: Any) -> str:
    """A TorchScript graph as text. Reading its nodes one by one takes several times as long."""
    text: str = graph.str(False)
    return text


def frozen_script(module: Any) -> Any:
    """A module of ``open_script`` in eval mode, with its attributes as constants if that is possible."""
    wrapped: Any = wrap_cpp_module(module).eval()  # type: ignore[no-untyped-call]
    try:
        # Batch norms are not folded into convolutions, which would change the rounding.
        return torch.jit.freeze(wrapped, optimize_numerics=False)._c
    except RuntimeError:
        return wrapped._c


def clean_script(graph: Any) -> None:
    """Drop source locations from a graph of the tracer, which has no unused nodes, and store equal constants once."""
    torch._C._jit_pass_constant_pooling(graph)  # type: ignore[attr-defined]
    empty = new_script_graph()
    nowhere = empty.create("prim::Constant", [], 1)
    blocks = [graph]
    for block in blocks:
        for node in block.nodes():
            node.copyMetadata(nowhere)
            if not node.kind().startswith(("aten::", "prim::Constant")):  # these have none, and to ask takes longest
                blocks += node.blocks()


def rename_operators(graph: Any, names: dict[str, str]) -> None:
    """Replace operators of a TorchScript graph by other ones with the same arguments and results."""
    for kind, other in names.items():
        for node in graph.findAllNodes(kind):
            copy = graph.create(other, list(node.inputs()), node.outputsSize())
            copy.insertBefore(node)
            for old, new in zip(node.outputs(), copy.outputs(), strict=True):
                new.setType(old.type())
                old.replaceAllUsesWith(new)
            node.destroy()


def writes_inputs(graph: Any) -> bool:
    """Whether a TorchScript graph may write into its inputs."""
    found, given = graph.alias_db(), graph.param_node()
    return any(found.has_writers(given.outputsAt(index)) for index in range(given.outputsSize()))


def writes_memory(module: torch.nn.Module) -> bool:
    """Whether a module of an exported program writes into any memory. ``torch.export`` keeps writes as they are."""
    graphs = [part.graph for part in module.modules() if isinstance(part, torch.fx.GraphModule)]
    targets = [node.target for graph in graphs for node in graph.nodes]
    return any(isinstance(target, OpOverload) and target._schema.is_mutable for target in targets)


def new_script_graph() -> Any:
    """An empty TorchScript graph."""
    return torch._C.Graph()


def script_from_graph(graph: Any) -> Any:
    """A TorchScript function from a graph."""
    return torch._C._create_function_from_graph("forward", graph)


def tensor_type() -> Any:
    """TorchScript's type of tensors of any shape."""
    return torch._C.TensorType.get()


def fuses_on_cpu() -> bool:
    """Whether TorchScript may fuse operators on the CPU, which changes their rounding."""
    return bool(torch._C._jit_can_fuse_on_cpu())


def set_fusion_strategy(strategy: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Like ``torch.jit.set_fusion_strategy``, which logs; returns the strategy before."""
    before: list[tuple[str, int]] = torch._C._jit_set_fusion_strategy(strategy)
    return before


def tensor_guards() -> Callable[..., Any] | None:
    """The compiler's check of class, dtype, device, shape and strides of tensors in one call; ``None`` if torch lacks it.

    Reading these attributes in Python takes longer than a small model.
    """
    guards: Callable[..., Any] | None = getattr(getattr(torch._C._dynamo, "guards", None), "TensorGuards", None)
    return guards


def keep_stance() -> Callable[[], None]:
    """A function that restores the compiler's present stance. The public way to restore it is a ``with`` block."""
    from torch._dynamo import eval_frame

    before = eval_frame._stance

    def put_back() -> None:
        eval_frame._set_stance(before)

    return put_back
