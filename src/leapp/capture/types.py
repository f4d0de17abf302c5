"""The traced types, for ``isinstance`` checks. No tensor is ever of these classes: they are answered by identity."""

from __future__ import annotations

from typing import Any

import torch

from leapp.capture.recorder import Recorder

__all__ = ["TracedData", "TracedNpArray", "TracedTensor"]


class _Virtual(type):
    def __instancecheck__(cls, value: Any) -> bool:
        recorder = Recorder.current
        if recorder is None or not isinstance(value, torch.Tensor):
            return False
        with recorder.silence():
            return recorder.owner([value]) is not None


class TracedData(metaclass=_Virtual):
    """Any value that an open node is recording."""


class TracedTensor(TracedData):
    """A torch tensor that an open node is recording."""


class TracedNpArray(TracedData):
    """A NumPy array that an open node is recording."""
