"""The traced types under their older path."""

from __future__ import annotations

from leapp.capture.types import TracedData, TracedNpArray, TracedTensor

__all__ = ["TracedData", "TracedNpArray", "TracedTensor"]
