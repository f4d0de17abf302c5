"""The marks of a scene as a PNG, drawn with Pillow. No window, no display, no font of the system is required."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from .boxes import STYLES, Point, rounded
from .scene import BACKGROUND, Group, Line, Polygon, Rect, Text
from .text import drawable, font

if TYPE_CHECKING:
    from PIL import ImageDraw

__all__ = ["encode_png", "png_scale"]

_HANDY_AREA, _SMOOTH_AREA, _LARGEST_AREA = 5e6, 20e6, 40e6


def png_scale(width: float, height: float) -> float:
    """Pixels per layout unit: two for small graphs, one for large ones, less only for enormous ones."""
    area = width * height
    return min(2.0, max(1.0, math.sqrt(_HANDY_AREA / area)), math.sqrt(_LARGEST_AREA / area))


def encode_png(groups: Sequence[Group], width: float, height: float) -> bytes:
    """Draw the shapes enlarged and shrink them for smooth edges, then set the text on top."""
    from PIL import Image, ImageDraw

    scale = png_scale(width, height)
    size = (math.ceil(width * scale), math.ceil(height * scale))
    # Smooth edges take four times the memory, which the largest pictures must do without.
    smooth = 2 if size[0] * size[1] <= _SMOOTH_AREA else 1
    marks = [mark for group in groups for mark in group.marks]
    image = Image.new("RGB", (size[0] * smooth, size[1] * smooth), BACKGROUND)
    pen = ImageDraw.Draw(image)
    for mark in marks:
        if not isinstance(mark, Text):
            _draw(pen, mark, scale * smooth)
    image = image.reduce(smooth)
    pen = ImageDraw.Draw(image)
    for mark in marks:
        if isinstance(mark, Text):
            points, bold = STYLES[mark.label.style]
            at = (mark.label.x * scale, mark.label.baseline * scale)
            pen.text(at, drawable(mark.label.text, bold), mark.colour, font(points * scale, bold), anchor="ls")
    data = io.BytesIO()
    image.save(data, "PNG", compress_level=3, dpi=(72 * scale, 72 * scale))
    return data.getvalue()


def _draw(pen: ImageDraw.ImageDraw, mark: Rect | Polygon | Line, scale: float) -> None:
    if isinstance(mark, Rect):
        _rect(pen, mark, scale)
    elif isinstance(mark, Polygon):
        pen.polygon([(x * scale, y * scale) for x, y in mark.points], fill=mark.fill)
    else:
        for piece in _dashes(mark.points, *mark.dash) if mark.dash else [mark.points]:
            points = [(x * scale, y * scale) for x, y in piece]
            pen.line(points, fill=mark.colour, width=max(1, round(mark.width * scale)), joint="curve")


def _rect(pen: ImageDraw.ImageDraw, mark: Rect, scale: float) -> None:
    box = mark.box
    corners = (box.x * scale, box.y * scale, box.right * scale - 1, box.bottom * scale - 1)
    outline = None if mark.dashed else mark.stroke
    width = max(1, round(1.2 * scale)) if outline else 0
    pen.rounded_rectangle(corners, mark.radius * scale, fill=mark.fill, outline=outline, width=width)
    if mark.dashed and mark.stroke:
        start = (box.x + box.width / 2, box.y)
        corners_of = [(box.right, box.y), (box.right, box.bottom), (box.x, box.bottom), (box.x, box.y)]
        for piece in _dashes(rounded([start, *corners_of, start], mark.radius), 6, 4):
            pen.line([(x * scale, y * scale) for x, y in piece], fill=mark.stroke, width=max(1, round(1.2 * scale)))


def _dashes(points: Sequence[Point], on: float, off: float) -> list[list[Point]]:
    """The strokes of a dashed line."""
    pieces: list[list[Point]] = []
    left, drawing = on, True
    piece: list[Point] = [points[0]]
    for (x0, y0), (x1, y1) in pairwise(points):
        length = math.hypot(x1 - x0, y1 - y0)
        done = 0.0
        while length - done > left:
            done += left
            at = (x0 + (x1 - x0) * done / length, y0 + (y1 - y0) * done / length)
            if drawing:
                pieces.append([*piece, at])
            piece, drawing = [at], not drawing
            left = on if drawing else off
        left -= length - done
        piece.append((x1, y1))
    return [*pieces, piece] if drawing and len(piece) > 1 else pieces
