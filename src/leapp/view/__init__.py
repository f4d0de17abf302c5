"""Shows an exported pipeline: the picture of a contract as PNG and SVG, and the HTML page with all details."""

from __future__ import annotations

from leapp.view.page import page, write_page, write_views
from leapp.view.picture import Picture, draw

__all__ = ["Picture", "draw", "page", "write_page", "write_views"]
