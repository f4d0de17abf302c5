"""Picture and page of one pipeline, written from one layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leapp.graph.contract import Contract
from leapp.view.page import draw_for_page, page
from leapp.view.picture import file_for

if TYPE_CHECKING:
    from leapp.bundle import Sample

__all__ = ["write_views"]


def write_views(
    contract: Contract,
    name: str,
    directory: str | Path,
    *,
    samples: Mapping[str, Sequence[Sample]] | None = None,
    details: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write ``<name>.png``, ``<name>.svg`` and ``<name>.html`` into ``directory`` and return their paths.

    See :func:`leapp.view.page` for the arguments. The model files are those in ``directory``.
    """
    png, svg, html = (file_for(directory, name, suffix) for suffix in (".png", ".svg", ".html"))
    picture = draw_for_page(contract, name, details or {})
    png.write_bytes(picture.png())
    svg.write_text(picture.svg(), encoding="utf-8")
    text = page(contract, name, samples=samples, details=details, models=Path(directory), picture=picture)
    html.write_text(text, encoding="utf-8")
    return [png, svg, html]
