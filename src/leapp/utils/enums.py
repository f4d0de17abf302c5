"""The kind enums under their older path."""

from __future__ import annotations

from leapp.semantics import InputKindEnum, OutputKindEnum

__all__ = ["InputKindEnum", "OutputKindEnum"]
