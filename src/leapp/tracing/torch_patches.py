"""Replacements of functions of torch and of the standard library while a node is open.

Exporters follow calls as a node does, and are refused. What runs in threads that the node starts is recorded. Layers keep their
fused kernels. Tensors loaded from a file count as made in the node.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from leapp.capture.numpy.patches import Row
from leapp.capture.recorder import Recorder
from leapp.capture.torch_modes import refuse_functions
from leapp.capture.traced_calls import PLAIN
from leapp.capture.trees import tensors
from leapp.capture.user_line import where
from leapp.compat.core import functorch_level, torch_function_modes
from leapp.errors import TraceError

__all__ = ["torch_rows"]


def torch_rows() -> Iterator[Row]:
    """Owner, name, and what makes the replacement of the original."""
    for owner, name in ((torch.jit, "trace"), (torch.export, "export"), (torch.func, "linearize")):
        yield owner, name, functools.partial(_refuse_exporter, f"{owner.__name__}.{name}()")
    if "torch.onnx" in sys.modules:  # it loads slowly
        yield torch.onnx, "export", functools.partial(_refuse_exporter, "torch.onnx.export()")
    yield torch.autograd.forward_ad, "make_dual", _refuse_make_dual
    yield torch, "cond", _refuse_traced_branches
    yield torch, "load", _note_loaded_tensors
    yield torch.overrides, "has_torch_function", _leave_out_own_mode
    yield threading.Thread, "start", _record_started_thread
    yield ThreadPoolExecutor, "submit", _record_submitted_work


def _listening() -> Recorder | None:
    recorder = Recorder.current
    return recorder if recorder is not None and recorder.installed else None


def _refuse_exporter(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """An exporter is refused inside a node."""

    @functools.wraps(original)
    def export(*args: Any, **kwargs: Any) -> Any:
        recorder = _listening()
        if recorder is not None and recorder.tapes:
            raise TraceError(
                f"node '{recorder.tapes[-1].node}': {name} at {where()} follows calls as the open node does, and neither can "
                "see through the other. Export before annotate.input_tensors(); what it gives may be called inside the node."
            )
        return original(*args, **kwargs)

    return export


def _refuse_make_dual(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def make_dual(*args: Any, **kwargs: Any) -> Any:
        recorder = _listening()
        if recorder is not None and recorder.tapes and functorch_level() is None:
            raise TraceError(
                f"node '{recorder.tapes[-1].node}': the forward-mode derivative at {where()} cannot be exported, because "
                "make_dual() is not recorded. Use torch.func.jvp() or torch.func.jacfwd()."
            )
        return original(*args, **kwargs)

    return make_dual


def _refuse_traced_branches(original: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.cond`` compiles its functions, and the compiler cannot see through the modes of a node."""

    @functools.wraps(original)
    def cond(*args: Any, **kwargs: Any) -> Any:
        recorder = _listening()
        if recorder is not None and recorder.tapes:
            with recorder.silence():
                refuse_functions(recorder, "torch.cond()", args, kwargs)
        return original(*args, **kwargs)

    return cond


def _note_loaded_tensors(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        recorder = _listening()
        if recorder is not None and recorder.tapes:
            recorder.old_memory.read_in(tensors(found))
        return found

    return load


def _leave_out_own_mode(original: Callable[..., Any]) -> Callable[..., Any]:
    """Attention layers ask for torch functions before they use their fused kernels; our own mode must not count."""

    @functools.wraps(original)
    def has_torch_function(args: Iterable[Any]) -> bool:
        if torch_function_modes() != 1 or _listening() is None:
            return bool(original(args))
        return any(type(a) not in PLAIN for a in args if isinstance(a, torch.Tensor))

    return has_torch_function


def _recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Work that a node hands to another thread."""
    recorder = _listening()
    if recorder is None or not recorder.tapes:
        return function

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with recorder.other_thread():
            return function(*args, **kwargs)

    return run


def _record_started_thread(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def start(thread: threading.Thread) -> None:
        run = thread.run
        if (listened := _recorded(run)) is not run:
            thread.run = listened  # type: ignore[method-assign]
        original(thread)

    return start


def _record_submitted_work(original: Callable[..., Any]) -> Callable[..., Any]:
    """Work that is handed to a pool, whose threads may be older."""

    @functools.wraps(original)
    def submit(pool: ThreadPoolExecutor, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return original(pool, _recorded(function), *args, **kwargs)

    return submit
