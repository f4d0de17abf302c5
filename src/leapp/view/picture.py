"""The picture of a pipeline: one layout, written as PNG and as SVG.

It reads a contract and nothing else: no model file, no engine, no tensor library.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from leapp.errors import BundleError
from leapp.graph.contract import Contract
from leapp.view.facts import Subject, describe
from leapp.view.layout import Layout, arrange
from leapp.view.marks import Group, compose


class Picture(msgspec.Struct, frozen=True):
    """A finished layout, ready to be written in either format."""

    name: str
    subject: Subject
    layouts: tuple[Layout, ...]
    groups: tuple[Group, ...]

    @property
    def layout(self) -> Layout:
        """The layout that is drawn."""
        return self.layouts[0]

    def png(self) -> bytes:
        """The picture as a PNG file."""
        from leapp.view.png import encode_png

        return encode_png(self.groups, self.layout.width, self.layout.height)

    def svg(self) -> str:
        """The picture as an SVG document."""
        from leapp.view.svg import encode_svg

        return encode_svg(self.groups, self.layout.width, self.layout.height, self.name)


def draw(
    contract: Contract,
    name: str,
    *,
    static_outputs: Collection[str] = (),
    parameter_counts: Mapping[str, int] | None = None,
    aspects: Sequence[float] = (1.6,),
) -> Picture:
    """Lay out the picture of a pipeline.

    Args:
        contract: The pipeline.
        name: The graph's name, shown as the title.
        static_outputs: Keys ``node/port`` of outputs that never change.
        parameter_counts: Number of parameters of each node, as far as known.
        aspects: For each layout, how many times as wide as high its window is. The first layout is the one that is drawn.

    Returns:
        The picture. ``picture.png()`` and ``picture.svg()`` write it.

    Raises:
        BundleError: If the wiring names a port that no node has.
    """
    subject = describe(contract, name, static_outputs=static_outputs, parameter_counts=parameter_counts)
    layouts = arrange(subject, aspects)
    return Picture(name, subject, tuple(layouts), tuple(compose(layouts[0])))


def file_for(directory: str | Path, name: str, suffix: str) -> Path:
    """The file of a graph in ``directory``."""
    if Path(name).name != name:
        raise BundleError(f"The graph name {name!r} cannot name a file. Use a name without path separators.")
    return Path(directory) / f"{name}{suffix}"
