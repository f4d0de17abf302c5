"""The marks of a scene as a PNG, drawn by Pillow. No window, no display.

Shapes are drawn enlarged and then shrunk, which smooths their edges, a strip of the picture at a time, which bounds the memory.
Text is drawn over them at its own size: no shape covers text.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from leapp.view.marks import BACKGROUND, Group, Line, Polygon, Rect
from leapp.view.node_box import STYLES, Label, Path, Point, flatten, rounded
from leapp.view.text import drawable, font

if TYPE_CHECKING:
    from PIL import ImageDraw

_HANDY_AREA, _LARGEST_AREA = 3e6, 40e6
_ENLARGED = 2
"""How much larger than the picture shapes are drawn."""
_STRIP_AREA = 4e6
_STROKE, _STROKE_DASH = 1.2, (6.0, 4.0)


def png_scale(width: float, height: float) -> float:
    """Pixels per layout unit: two for small graphs, one for large ones, less only for enormous ones."""
    area = width * height
    return min(2.0, max(1.0, math.sqrt(_HANDY_AREA / area)), math.sqrt(_LARGEST_AREA / area))


def encode_png(groups: Sequence[Group], width: float, height: float) -> bytes:
    """Draw the marks in order."""
    from PIL import Image, ImageDraw

    scale = png_scale(width, height)
    marks = [mark for group in groups for mark in group.marks]
    size = math.ceil(width * scale), math.ceil(height * scale)
    image = Image.new("RGB", size)
    rows = math.ceil(_STRIP_AREA / size[0])
    shapes = [(mark, *_extent(mark)) for mark in marks if not isinstance(mark, Label)]
    for top in range(0, size[1], rows):
        strip = Image.new("RGB", (size[0] * _ENLARGED, min(rows, size[1] - top) * _ENLARGED), BACKGROUND)
        pen = _ShapePen(ImageDraw.Draw(strip), scale, top)
        for shape, highest, lowest in shapes:
            if lowest * scale >= top and highest * scale <= top + rows:
                pen.draw(shape)
        image.paste(strip.reduce(_ENLARGED), (0, top))
    text_pen = ImageDraw.Draw(image)
    for mark in marks:
        if isinstance(mark, Label):
            points, bold, colour = STYLES[mark.style]
            place = round(mark.x * scale), round(mark.baseline * scale)
            text_pen.text(place, drawable(mark.text, bold), colour, font(points * scale, bold), anchor="ls")
    data = io.BytesIO()
    image.save(data, "PNG", compress_level=5, dpi=(72 * scale, 72 * scale))
    return data.getvalue()


def _extent(mark: Rect | Polygon | Line) -> tuple[float, float]:
    """The highest and the lowest place that a shape may reach."""
    if isinstance(mark, Rect):
        return mark.box.y - _STROKE, mark.box.bottom + _STROKE
    width = mark.width if isinstance(mark, Line) else 0.0
    heights = [y for piece in (mark.path if isinstance(mark, Line) else mark.points) for y in piece[1::2]]
    return min(heights) - width, max(heights) + width


class _ShapePen:
    """Draws shapes into a strip that begins ``top`` pixels below the upper border. Straight edges lie on whole pixels."""

    def __init__(self, pen: ImageDraw.ImageDraw, scale: float, top: int) -> None:
        self._pen, self._scale, self._top = pen, scale, top

    def draw(self, mark: Rect | Polygon | Line) -> None:
        if isinstance(mark, Rect):
            self._rect(mark)
        elif isinstance(mark, Polygon):
            self._pen.polygon(self._enlarged([(x * self._scale, y * self._scale) for x, y in mark.points]), mark.fill)
        else:
            self._line(mark.path, mark.colour, mark.width, mark.dash)

    def _enlarged(self, pixels: Sequence[Point]) -> list[Point]:
        return [(x * _ENLARGED, (y - self._top) * _ENLARGED) for x, y in pixels]

    def _rect(self, mark: Rect) -> None:
        box = mark.box
        (x0, y0), (x1, y1) = self._enlarged(
            [(round(x * self._scale), round(y * self._scale)) for x, y in ((box.x, box.y), (box.right, box.bottom))]
        )
        stroke = None if mark.dashed else mark.stroke
        edge = max(1, round(_STROKE * self._scale)) * _ENLARGED
        radius = mark.radius * self._scale * _ENLARGED
        corner = max(x0, x1 - 1), max(y0, y1 - 1)  # in an enormous picture a dot is smaller than a pixel
        self._pen.rounded_rectangle((x0, y0, *corner), radius, mark.fill, stroke, edge if stroke else 0)
        if mark.dashed and mark.stroke:
            start = (box.x + box.width / 2, box.y)
            corners = [start, (box.right, box.y), (box.right, box.bottom), (box.x, box.bottom), (box.x, box.y), start]
            self._line(rounded(corners, mark.radius), mark.stroke, _STROKE, _STROKE_DASH)

    def _line(self, path: Path, colour: str, width: float, dash: tuple[float, float] | None) -> None:
        wide = max(1, round(width * self._scale))
        # The middle of a line an odd number of pixels wide is the middle of a pixel.
        middle = wide % 2 / 2
        points = flatten(tuple(tuple(round(value * self._scale) + middle for value in piece) for piece in path))
        for piece in _dashes(points, *(part * self._scale for part in dash)) if dash else [points]:
            self._pen.line(self._enlarged(piece), colour, wide * _ENLARGED)


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
