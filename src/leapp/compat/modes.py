"""What recording needs of torch below its public modes: the stacks of modes, dispatch keys, the life of memory."""

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
"""As long as an instance lives, no dispatch mode sees what this thread does."""

# A mode that is entered in one function and left in another cannot be a ``with`` block, which is all that is public.
function_modes: Callable[[], int] = _len_torch_function_stack
dispatch_modes: Callable[[], int] = _len_torch_dispatch_stack
push_function_mode: Callable[[Any], None] = _push_on_torch_function_stack
pop_function_mode: Callable[[], Any] = _pop_torch_function_stack
push_dispatch_mode: Callable[[Any], None] = _python_dispatch._push_mode
pop_dispatch_mode: Callable[[], Any] = _python_dispatch._pop_mode

any_autocast: Callable[[], bool] = torch._C._is_any_autocast_enabled
"""Whether autocast is on for some device. ``torch.is_autocast_enabled`` asks for one."""

is_functorch_wrapped: Callable[[torch.Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor
"""Whether ``vmap``, ``grad`` or ``jvp`` has wrapped a tensor, whose memory is another's then."""

backward_task: Callable[[], int] = torch._C._current_graph_task_id
"""The number of the backward pass that is running, or -1. What it calls is on no line of the program."""

free_weak_storage: Callable[[int], None] = torch.UntypedStorage._free_weak_ref
"""Frees a weak reference to memory."""


def storage_uses(storage: torch.UntypedStorage) -> int:
    """The reference count of a memory."""
    uses: int = torch._C._storage_Use_Count(storage._cdata)
    return uses


_PYTHON = torch._C.DispatchKeySet(torch._C.DispatchKey.Python) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.PythonTLSSnapshot
)


def normal_dispatch() -> Any:
    """As long as it lives, calls of this thread reach the modes, even from inside a mode."""
    include, exclude = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    return torch._C._ForceDispatchKeyGuard(include, exclude - _PYTHON)
