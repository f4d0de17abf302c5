"""Lifecycle calls and annotations under their older path."""

from __future__ import annotations

from leapp.annotations import annotate
from leapp.tracing.lifecycle import compile_graph, start, stop

__all__ = ["annotate", "compile_graph", "start", "stop"]
