"""Private names of torch for recording: the stacks of modes, dispatch keys, weak references to memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C import (
    DisableTorchFunction,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
    _pop_torch_function_stack,
    _push_on_torch_function_stack,
)
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _python_dispatch

__all__ = [
    "DisableTorchFunction", "FakeTensorMode", "Unseen", "any_autocast", "backward_task", "dispatch_modes", "free_weak_storage",
    "function_modes", "is_functorch_wrapped", "normal_dispatch", "pop_dispatch_mode", "pop_function_mode",
    "push_dispatch_mode", "push_function_mode", "storage_uses",
]  # fmt: skip

Unseen: Callable[[], Any] = torch._C._DisableTorchDispatch
"""While an instance exists, no dispatch mode sees the calls of this thread."""

# The public API for modes is a ``with`` block, but a node enters its modes in one function and leaves them in another.
function_modes: Callable[[], int] = _len_torch_function_stack
"""How many ``TorchFunctionMode`` are active. Torch's layers read it before they use a fused kernel."""

dispatch_modes: Callable[[], int] = _len_torch_dispatch_stack
push_function_mode: Callable[[Any], None] = _push_on_torch_function_stack
pop_function_mode: Callable[[], Any] = _pop_torch_function_stack
push_dispatch_mode: Callable[[Any], None] = _python_dispatch._push_mode
pop_dispatch_mode: Callable[[], Any] = _python_dispatch._pop_mode

any_autocast: Callable[[], bool] = torch._C._is_any_autocast_enabled
"""Whether autocast is on for any device. ``torch.is_autocast_enabled`` needs to know which one."""

is_functorch_wrapped: Callable[[torch.Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor
"""Whether ``vmap``, ``grad`` or ``jvp`` has wrapped a tensor. A wrapped tensor has the memory of another one."""

backward_task: Callable[[], int] = torch._C._current_graph_task_id
"""The number of the running backward pass, or -1. Its calls belong to no line of the program."""

free_weak_storage: Callable[[int], None] = torch.UntypedStorage._free_weak_ref
"""Frees a weak reference to memory."""


def storage_uses(storage: torch.UntypedStorage) -> int:
    """The reference count of a storage."""
    uses: int = torch._C._storage_Use_Count(storage._cdata)
    return uses


_PYTHON = torch._C.DispatchKeySet(torch._C.DispatchKey.Python) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.PythonTLSSnapshot
)


def normal_dispatch() -> Any:
    """While the returned object exists, calls of this thread reach the modes, even from inside a mode."""
    include, exclude = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    return torch._C._ForceDispatchKeyGuard(include, exclude - _PYTHON)
