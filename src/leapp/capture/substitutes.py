"""Calls that read the same in torch code but must be recorded as something else.

A handler gets the recorder, the tape and the call; it runs the call so that the user's program sees the very value it would
see untraced, and puts an equivalent call on the tape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from leapp.capture.call_kinds import REWRITTEN, classify, tensors
from leapp.capture.tape import Call, Ref, Tape, refer
from leapp.capture.user_line import where

if TYPE_CHECKING:
    from leapp.capture.recorder import Recorder

__all__ = ["CONSTRUCTORS", "REWRITES", "assemble"]

Tensor = torch.Tensor
Handler = Callable[["Recorder", Tape, Any, tuple[Any, ...], dict[str, Any]], Any]


def _call(recorder: Recorder, tape: Tape, func: Any, *args: Any, **kwargs: Any) -> Any:
    return recorder.record(tape, func, classify(func), args, kwargs, list(tensors((args, kwargs))))


def _iterate(recorder: Recorder, tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if args[0].dim() == 0:
        return func(*args, **kwargs)
    return iter(_call(recorder, tape, torch.unbind, args[0], 0))


def _same_value(result: Any, recorder: Recorder, tape: Tape, source: Tensor) -> Any:
    """``result`` is a copy of ``source`` made by code the modes do not see."""
    ref = tape.find(source)
    if ref is not None:
        new = tape.bind(result)
        tape.calls.append(Call(_copy, (ref, result.dtype), {}, (new.slot,), (ref.slot,), (), where()))
    return result


def _copy(t: Tensor, dtype: torch.dtype) -> Tensor:
    return t.to(dtype, copy=True)


def _deepcopy(recorder: Recorder, tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = func(*args, **kwargs)
    return result if tape.find(result) is not None else _same_value(result, recorder, tape, args[0])


def _construct(recorder: Recorder, tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.tensor``, ``as_tensor`` and ``asarray`` of traced tensors, alone or in nested lists."""
    data = args[0] if args else kwargs["data"]
    result = func(*args, **kwargs)
    if isinstance(data, Tensor):
        return result if result is data else _same_value(result, recorder, tape, data)
    # A list becomes one tensor element by element: the values are read out by item(), which no mode sees.
    leaves = list(tensors(data))
    refs = {id(t): tape.find(t) or recorder.constant(tape, t) for t in leaves}
    args = (refer(data, refs), result.dtype, result.device)
    reads = tuple({r.slot for r in refs.values()})
    tape.calls.append(Call(assemble, args, {}, (tape.bind(result).slot,), reads, (), where()))
    return result


def assemble(data: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What ``torch.tensor`` makes of nested lists that hold tensors, by ops that stay in the graph."""
    if isinstance(data, Tensor):
        return data.to(dtype=dtype, device=device)
    if any(True for _ in tensors(data)):
        return torch.stack([assemble(d, dtype, device) for d in data])
    return torch.tensor(data, dtype=dtype, device=device)


def _data(recorder: Recorder, tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.data`` reads an alias; ``x.data = y`` makes ``x`` an alias of ``y``."""
    if len(args) == 1:
        return _call(recorder, tape, torch.detach, args[0])
    target, value = args[0], args[1]
    ref = tape.find(value) or recorder.constant(tape, value)
    func(*args, **kwargs)
    tape.known[id(target)] = Ref(ref.slot, target)
    return None


def _numpy(recorder: Recorder, tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return recorder.arrays.memory.wrap(func(*args, **kwargs), args[0])


CONSTRUCTORS = frozenset({torch.tensor, torch.as_tensor, torch.asarray})
"""Functions that make a tensor of anything."""

REWRITES: dict[Any, Handler] = {
    "numpy": _numpy,
    "__iter__": _iterate,
    "__deepcopy__": _deepcopy,
    "data": _data,
    **dict.fromkeys(CONSTRUCTORS, _construct),
}

REWRITTEN.update(REWRITES)
