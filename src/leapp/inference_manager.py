"""The inference manager under its older path."""

from __future__ import annotations

from leapp.runtime.inference_manager import InferenceManager

__all__ = ["InferenceManager"]
