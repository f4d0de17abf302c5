"""The semantics types under their older path."""

from __future__ import annotations

from leapp.semantics import GraphConfigs, TemporalAxis, TensorDescription, TensorSemantics

__all__ = ["GraphConfigs", "TemporalAxis", "TensorDescription", "TensorSemantics"]
