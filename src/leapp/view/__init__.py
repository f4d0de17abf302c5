"""See an exported pipeline: the picture of a contract, as PNG and SVG."""

from __future__ import annotations

from .picture import Picture, draw, write_picture

__all__ = ["Picture", "draw", "write_picture"]
