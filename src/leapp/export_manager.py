"""The export manager under its older path."""

from __future__ import annotations

from leapp.tracing.lifecycle import ExportManager

__all__ = ["ExportManager"]
