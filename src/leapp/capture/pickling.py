"""Follows tensors through ``copy`` and ``pickle`` during a session: a tensor that is read back in this process is a copy.

No mode sees how ``copy.copy`` and ``pickle`` take tensors apart, but both look for a function in ``copyreg`` first.
"""

from __future__ import annotations

from typing import Any

import torch

from leapp.capture.provenance import Published
from leapp.capture.recorder import Recorder
from leapp.capture.tape import Escape
from leapp.capture.user_line import frames, where

_SERIALIZATION = torch.serialization.__file__


def reduce(t: torch.Tensor) -> Any:
    """The function that ``copyreg`` has for tensors while a session is open."""
    reduced = t.__reduce_ex__(4)  # type: ignore[no-untyped-call]
    recorder = Recorder.current
    if recorder is None or not isinstance(reduced, tuple):
        return reduced
    saved = _saves_checkpoint()
    with recorder.silence():
        tape = recorder.owner([t]) if recorder.tapes else None
        ref = tape.find(t) if tape is not None else None
        source = recorder.source(t)
        if saved and tape is not None and ref is not None:
            tape.escapes.append(Escape("torch.save", where(), t.detach().clone(), (torch.clone, (ref,), {}), (ref.slot,)))
        if saved or (ref is None and source is None):
            return reduced
        token = len(recorder.pickled)
        recorder.pickled[token] = (tape, tape.remember(ref)) if tape is not None and ref is not None else source
    return (rebuild, (token, *reduced[:2]), *reduced[2:])


def _saves_checkpoint() -> bool:
    """Whether ``torch.save`` is running. Its files are read in other processes, so they must not refer to leapp."""
    return any(frame.f_code.co_filename == _SERIALIZATION for frame in frames())


def rebuild(token: int, func: Any, args: tuple[Any, ...]) -> Any:
    """Read back a tensor that was pickled during the session."""
    result = func(*args)
    recorder = Recorder.current
    found = recorder.pickled.get(token) if recorder is not None else None
    if recorder is None or found is None:
        return result
    with recorder.silence():
        if isinstance(found, Published):
            recorder.published.copy(found, result)
        elif found[0].open and found[0].find(result) is None:
            found[0].made(result, torch.clone, found[1])
    return result
