"""Types for ``isinstance`` checks of traced values. No object has these classes: the recorder decides for each object."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from leapp.capture.recorder import Recorder


class _Virtual(type):
    kinds: tuple[type, ...] = (torch.Tensor, np.ndarray)

    def __instancecheck__(cls, value: Any) -> bool:
        recorder = Recorder.current
        return recorder is not None and isinstance(value, cls.kinds) and recorder.arrays.memory.traced(value) is not None


class TracedData(metaclass=_Virtual):
    """Any value that an open node is recording."""


class TracedTensor(TracedData):
    """A torch tensor that an open node is recording."""

    kinds = (torch.Tensor,)


class TracedNpArray(TracedData):
    """A NumPy array that an open node is recording."""

    kinds = (np.ndarray,)
