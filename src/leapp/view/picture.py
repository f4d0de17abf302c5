"""The picture of a pipeline: one layout, written as PNG and as SVG.

It reads a contract and nothing else: no model file, no engine, no tensor library.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from leapp.errors import BundleError
from leapp.graph.contract import Contract

from .layout import Layout, arrange
from .scene import Group, compose
from .subject import describe

__all__ = ["Picture", "draw", "write_picture"]


class Picture(msgspec.Struct, frozen=True):
    """A finished layout, ready to be written in either format."""

    name: str
    layout: Layout
    groups: tuple[Group, ...]

    def png(self) -> bytes:
        """The picture as a PNG file."""
        from .png import encode_png

        return encode_png(self.groups, self.layout.width, self.layout.height)

    def svg(self) -> str:
        """The picture as an SVG document."""
        from .svg import encode_svg

        return encode_svg(self.groups, self.layout.width, self.layout.height, self.name)


def draw(
    contract: Contract,
    name: str,
    *,
    static_outputs: Collection[str] = (),
    parameter_counts: Mapping[str, int] | None = None,
) -> Picture:
    """Lay out the picture of a pipeline.

    Args:
        contract: The pipeline.
        name: The graph's name, shown as the title.
        static_outputs: Keys ``node/port`` of outputs that never change.
        parameter_counts: Number of parameters of each node, as far as known.

    Returns:
        The picture. ``picture.png()`` and ``picture.svg()`` write it.

    Raises:
        BundleError: If the wiring names a port that no node has.
    """
    subject = describe(contract, name, static_outputs=static_outputs, parameter_counts=parameter_counts)
    layout = arrange(subject)
    return Picture(name, layout, tuple(compose(layout)))


def write_picture(
    contract: Contract,
    name: str,
    directory: str | Path,
    *,
    static_outputs: Collection[str] = (),
    parameter_counts: Mapping[str, int] | None = None,
) -> list[Path]:
    """Write ``<name>.png`` and ``<name>.svg`` into ``directory`` and return their paths. See :func:`draw`."""
    if Path(name).name != name:
        raise BundleError(f"The graph name {name!r} cannot name a file. Use a name without path separators.")
    picture = draw(contract, name, static_outputs=static_outputs, parameter_counts=parameter_counts)
    png, svg = (Path(directory) / f"{name}{suffix}" for suffix in (".png", ".svg"))
    png.write_bytes(picture.png())
    svg.write_text(picture.svg(), encoding="utf-8")
    return [png, svg]
