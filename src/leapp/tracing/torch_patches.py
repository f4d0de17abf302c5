"""Replacements for functions of torch and of the standard library while a node is open.

torch's own exporters are refused, because they record calls as a node does. Calls in threads that the node starts are recorded.
Layers keep their fused kernels. Tensors loaded from a file count as made in the node.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from leapp.capture.numpy.arrays import Arrays
from leapp.capture.numpy.patches import Row, replaces
from leapp.capture.recorder import Recorder
from leapp.capture.torch_modes import refuse_functions
from leapp.capture.traced_calls import PLAIN
from leapp.capture.trees import tensors
from leapp.capture.user_line import where
from leapp.compat.core import functorch_level
from leapp.compat.modes import function_modes
from leapp.errors import TraceError


def torch_rows() -> Iterator[Row]:
    """Rows of owner, name, and a function from the original to its replacement."""
    for owner, name in ((torch.jit, "trace"), (torch.export, "export"), (torch.func, "linearize")):
        yield owner, name, _exporter(f"{owner.__name__}.{name}()")
    if "torch.onnx" in sys.modules:  # it loads slowly
        yield torch.onnx, "export", _exporter("torch.onnx.export()")
    yield torch.autograd.forward_ad, "make_dual", _refuse_make_dual
    yield torch, "cond", _refuse_traced_branches
    yield torch, "compile", _run_eagerly
    yield torch, "load", _note_loaded_tensors
    yield torch.overrides, "has_torch_function", _leave_out_own_mode
    yield threading.Thread, "start", _record_started_thread
    yield ThreadPoolExecutor, "submit", _record_submitted_work


def _exporter(name: str) -> Callable[[Any], Any]:
    return replaces(functools.partial(_refuse_exporter, name))


def _refuse_exporter(name: str, arrays: Arrays, original: Any, *args: Any, **kwargs: Any) -> Any:
    raise TraceError(
        f"node '{arrays.memory.recorder.tapes[-1].node}': {name} at {where()} records calls itself, and cannot run while a "
        "node records. Call it before annotate.input_tensors(); its result may be called inside the node."
    )


@replaces
def _refuse_make_dual(arrays: Arrays, original: Any, *args: Any, **kwargs: Any) -> Any:
    if functorch_level() is None:
        raise TraceError(
            f"node '{arrays.memory.recorder.tapes[-1].node}': the forward-mode derivative at {where()} cannot be exported, "
            "because make_dual() is not recorded. Use torch.func.jvp() or torch.func.jacfwd()."
        )
    return original(*args, **kwargs)


@replaces
def _refuse_traced_branches(arrays: Arrays, original: Any, *args: Any, **kwargs: Any) -> Any:
    """Refuse ``torch.cond`` on traced values: it compiles its functions, and the compiler does not run under the modes."""
    recorder = arrays.memory.recorder
    with recorder.silence():
        refuse_functions(recorder, "torch.cond()", args, kwargs)
    return original(*args, **kwargs)


@replaces
def _run_eagerly(arrays: Arrays, original: Any, *args: Any, **kwargs: Any) -> Any:
    """Set the stance of the compiler after ``torch.compile``: the first call loads it, so it could not be set before."""
    made = original(*args, **kwargs)
    arrays.memory.recorder.on_compile()
    return made


@replaces
def _note_loaded_tensors(arrays: Arrays, original: Any, *args: Any, **kwargs: Any) -> Any:
    found = original(*args, **kwargs)
    arrays.memory.recorder.old_memory.read_in(tensors(found))
    return found


@replaces
def _leave_out_own_mode(arrays: Arrays, original: Any, args: Iterable[Any]) -> bool:
    """``has_torch_function`` without leapp's own mode: attention layers use their fused kernels only if it returns false."""
    if function_modes() != 1:
        return bool(original(args))
    return any(type(a) not in PLAIN for a in args if isinstance(a, torch.Tensor))


def _recorded(recorder: Recorder, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that records its calls in whichever thread it runs."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with recorder.other_thread():
            return function(*args, **kwargs)

    return run


@replaces
def _record_started_thread(arrays: Arrays, original: Any, thread: threading.Thread) -> None:
    thread.run = _recorded(arrays.memory.recorder, thread.run)  # type: ignore[method-assign]
    original(thread)


@replaces
def _record_submitted_work(
    arrays: Arrays, original: Any, pool: ThreadPoolExecutor, function: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    """Record work that is submitted to a pool. The threads of the pool may be older than the node."""
    return original(pool, _recorded(arrays.memory.recorder, function), *args, **kwargs)
