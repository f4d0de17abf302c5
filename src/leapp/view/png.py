"""Writes marks as a PNG with at most 256 colours, one byte for each pixel. Needs no window and no display.

Straight lines and boxes are filled areas on whole pixels. Text, curves and corners are masks from Pillow, which say how much of
each pixel is covered; the colour is mixed with the colour below. This is several times faster, and gives smaller files, than
drawing the picture enlarged in full colour.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from leapp.view.marks import BACKGROUND, Group, Line, Mark, Polygon, Rect
from leapp.view.node_box import STYLES, Label, Point, flatten, rounded
from leapp.view.text import drawable, font

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from PIL import Image

    Mask = npt.NDArray[np.uint8]

_HANDY_AREA, _LARGEST_AREA = 3e6, 40e6
_LEVELS = 16
"""How many steps there are between a colour and the colour below it."""
_SMOOTH = 3
"""By this factor a mask is drawn larger before it is shrunk, for smooth edges."""


def png_scale(width: float, height: float) -> float:
    """Pixels for each layout unit: two for small graphs, one for large ones, less for very large ones."""
    area = width * height
    return min(2.0, max(1.0, math.sqrt(_HANDY_AREA / area)), math.sqrt(_LARGEST_AREA / area))


def encode_png(groups: Sequence[Group], width: float, height: float) -> bytes:
    """Draw the marks in order."""
    scale = png_scale(width, height)
    marks = [mark for group in groups for mark in group.marks]
    canvas = _Canvas(math.ceil(width * scale), math.ceil(height * scale), scale, [BACKGROUND, *_colours(marks)])
    for mark in marks:
        canvas.draw(mark)
    return canvas.encode()


def _colours(marks: Iterable[Mark]) -> Iterator[str]:
    for mark in marks:
        if isinstance(mark, Rect):
            yield from (colour for colour in (mark.fill, mark.stroke) if colour)
        elif isinstance(mark, Label):
            yield STYLES[mark.style][2]
        else:
            yield mark.fill if isinstance(mark, Polygon) else mark.colour


class _Canvas:
    """An image with a palette: pixels are indices into a table of colours."""

    def __init__(self, width: int, height: int, scale: float, colours: Iterable[str]) -> None:
        import numpy as np

        self._scale = scale
        self._numbers = {colour: number for number, colour in enumerate(dict.fromkeys(colours))}
        self._count = len(self._numbers)
        self._palette = np.zeros((256, 3))
        self._palette[: self._count] = [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in self._numbers]
        # For a mixed colour: the colour below with which it was mixed, and how much it covers.
        self._origin: dict[int, tuple[int, int]] = {}
        self._mixes: dict[int, Mask] = {}
        self._mixed: dict[int, npt.NDArray[np.bool_]] = {}
        self._masks: dict[object, tuple[Mask, int, int]] = {}
        self._pixels = np.full((height, width), self._numbers[BACKGROUND], np.uint8)

    def draw(self, mark: Mark) -> None:
        if isinstance(mark, Rect):
            self._rect(mark)
        elif isinstance(mark, Polygon):
            self._polygon(mark.points, mark.fill)
        elif isinstance(mark, Line):
            points = flatten(mark.path)
            for piece in _dashes(points, *mark.dash) if mark.dash else [points]:
                self._line(piece, mark.colour, mark.width)
        else:
            self._text(mark)

    def encode(self) -> bytes:
        from PIL import Image

        image = Image.fromarray(self._pixels)
        image.putpalette(self._palette[: self._count].astype("uint8").tobytes())
        data = io.BytesIO()
        image.save(data, "PNG", compress_level=3, dpi=(72 * self._scale, 72 * self._scale))
        return data.getvalue()

    def _mix(self, colour: int, under: Mask) -> Mask:
        """A table from level and colour below to the index of the mixed colour, complete for the colours in ``under``."""
        import numpy as np

        if colour not in self._mixes:
            self._mixes[colour] = np.full((_LEVELS, 256), colour, np.uint8)
            self._mixed[colour] = np.zeros(256, bool)
        table, known = self._mixes[colour], self._mixed[colour]
        there = known[under]
        if there.all():
            return table
        for ground in set(under[~there].tolist()):
            known[ground] = True
            origin, level = self._origin.get(ground, (ground, 0))
            if level:
                # Where two edges meet in a pixel, as at a crossing, the one that covers more of it is shown.
                table[:, ground] = self._mix(colour, np.array([origin]))[:, origin]
                table[: level + 1, ground] = ground
            else:
                table[1:-1, ground] = self._between(colour, ground)
                table[0, ground] = ground
        return table

    def _between(self, colour: int, ground: int) -> list[int]:
        """The indices of the colours from ``ground`` to ``colour``: new ones, or similar ones if the palette is full."""
        import numpy as np

        part = np.arange(1, _LEVELS - 1)[:, None] / (_LEVELS - 1)
        wanted = np.rint(self._palette[ground] + (self._palette[colour] - self._palette[ground]) * part)
        far = np.abs(self._palette[: self._count] - wanted[:, None]).max(axis=2)
        numbers: list[int] = far.argmin(axis=1).tolist()
        for level, rgb in enumerate(wanted, 1):
            if far[level - 1, numbers[level - 1]] > 3 and self._count < 256:
                numbers[level - 1] = self._count
                self._palette[self._count] = rgb
                self._origin[self._count] = (ground, level)
                self._count += 1
        return numbers

    def _fill(self, x0: float, y0: float, x1: float, y1: float, colour: int) -> None:
        """Fill an area, given in pixels."""
        left, top = max(round(x0), 0), max(round(y0), 0)
        self._pixels[top : max(round(y1), top + 1), left : max(round(x1), left + 1)] = colour

    def _stamp(self, mask: Mask, x: int, y: int, colour: int) -> None:
        """Mix a colour into the pixels under a mask of levels."""
        height, width = self._pixels.shape
        mask = mask[max(-y, 0) : height - y, max(-x, 0) : width - x]
        if not mask.size:
            return
        x, y = max(x, 0), max(y, 0)
        under = self._pixels[y : y + mask.shape[0], x : x + mask.shape[1]]
        under[...] = self._mix(colour, under)[mask, under]

    def _shape(self, key: object, points: Sequence[Point], width: float | None) -> tuple[Mask, int, int]:
        """The mask of a polygon, or of a line of some width, and the pixel of its upper left corner. Points are pixels."""
        from PIL import Image, ImageDraw

        pad = 1 if width is None else math.ceil(width / 2) + 1
        left, top = (math.floor(min(p[i] for p in points)) - pad for i in (0, 1))
        right, bottom = (math.ceil(max(p[i] for p in points)) + pad for i in (0, 1))
        found = self._masks.get(key) if key is not None else None
        if found is not None:
            return found[0], left, top
        image = Image.new("L", ((right - left) * _SMOOTH, (bottom - top) * _SMOOTH))
        pen = ImageDraw.Draw(image)
        enlarged = [((x - left) * _SMOOTH, (y - top) * _SMOOTH) for x, y in points]
        if width is None:
            pen.polygon(enlarged, fill=255)
        else:
            pen.line(enlarged, fill=255, width=round(width * _SMOOTH))
        mask = _levels(image.reduce(_SMOOTH))
        if key is not None:
            self._masks[key] = (mask, left, top)
        return mask, left, top

    def _polygon(self, points: Sequence[Point], fill: str) -> None:
        scaled = [(x * self._scale, y * self._scale) for x, y in points]
        # The offset from a whole pixel: the same shape with the same offset has the same mask.
        x, y = (round(scaled[0][i]) - scaled[0][i] for i in (0, 1))
        moved = [(px + x, py + y) for px, py in scaled]
        shape = tuple((round(px - moved[0][0], 1), round(py - moved[0][1], 1)) for px, py in moved)
        self._stamp(*self._shape(shape, moved, None), self._numbers[fill])

    def _line(self, points: Sequence[Point], colour: str, width: float) -> None:
        """Draw horizontal and vertical pieces as areas, and the others as masks of a few points each, to keep masks small."""
        ink, wide = self._numbers[colour], max(1, round(width * self._scale))
        scaled = [(x * self._scale, y * self._scale) for x, y in points]
        bent: list[Point] = []
        for (x0, y0), (x1, y1) in pairwise(scaled):
            level, upright = abs(y0 - y1) < 0.02, abs(x0 - x1) < 0.02
            if level or upright:
                self._bent(bent, ink, wide)
                bent = []
                half = wide / 2
                if level:
                    top = round(y0 - half)
                    self._fill(min(x0, x1), top, max(x0, x1), top + wide, ink)
                else:
                    left = round(x0 - half)
                    self._fill(left, min(y0, y1), left + wide, max(y0, y1), ink)
            else:
                if not bent or len(bent) == 8:
                    self._bent(bent, ink, wide)
                    # Includes one point of the piece before, so that there is no gap.
                    bent = [*bent[-2:-1], (x0, y0)]
                bent.append((x1, y1))
        self._bent(bent, ink, wide)

    def _bent(self, points: Sequence[Point], ink: int, width: int) -> None:
        if len(points) < 2:
            return
        if not ink:
            # The background colour, index 0, is visible only where something was drawn before.
            left, top, right, bottom = (round(edge(p[i] for p in points)) for edge in (min, max) for i in (0, 1))
            if not self._pixels[max(top - width, 0) : bottom + width, max(left - width, 0) : right + width].any():
                return
        self._stamp(*self._shape(None, points, width), ink)

    def _rect(self, mark: Rect) -> None:
        scale, box = self._scale, mark.box
        x0, y0, x1, y1 = (round(v * scale) for v in (box.x, box.y, box.right, box.bottom))
        r = min(round(mark.radius * scale), (x1 - x0) // 2, (y1 - y0) // 2)
        if mark.fill:
            areas = [(x0 + r, y0, x1 - r, y1), *([(x0, y0 + r, x1, y1 - r)] if 0 < 2 * r < y1 - y0 else [])]
            self._rounded(areas, (x0, y0, x1, y1), r, r, mark.fill)
        if mark.stroke and mark.dashed:
            start = (box.x + box.width / 2, box.y)
            corners = [(box.right, box.y), (box.right, box.bottom), (box.x, box.bottom), (box.x, box.y)]
            for piece in _dashes(flatten(rounded([start, *corners, start], mark.radius)), 6, 4):
                self._line(piece, mark.stroke, 1.2)
        elif mark.stroke:
            edge = max(1, round(1.2 * scale))
            areas = [(x0 + r, y0, x1 - r, y0 + edge), (x0 + r, y1 - edge, x1 - r, y1)]
            areas += [(x0, y0 + r, x0 + edge, y1 - r), (x1 - edge, y0 + r, x1, y1 - r)]
            self._rounded(areas, (x0, y0, x1, y1), r, edge, mark.stroke)

    def _rounded(
        self, areas: Iterable[tuple[int, int, int, int]], box: tuple[int, int, int, int], r: int, edge: int, colour: str
    ) -> None:
        """Fill the straight parts of a rectangle, and its corners: quarters of a ring as thick as ``edge``."""
        ink, (x0, y0, x1, y1) = self._numbers[colour], box
        for area in areas:
            self._fill(*area, ink)
        if r:
            corner = self._corner(r, edge)
            self._stamp(corner, x0, y0, ink)
            self._stamp(corner[:, ::-1], x1 - r, y0, ink)
            self._stamp(corner[::-1], x0, y1 - r, ink)
            self._stamp(corner[::-1, ::-1], x1 - r, y1 - r, ink)

    def _corner(self, r: int, edge: int) -> Mask:
        """The mask of an upper left corner: a quarter of a ring as thick as ``edge``."""
        from PIL import Image, ImageDraw

        if (r, edge) not in self._masks:
            image = Image.new("L", (r * _SMOOTH, r * _SMOOTH))
            pen = ImageDraw.Draw(image)
            size = 2 * r * _SMOOTH - 1
            pen.ellipse((0, 0, size, size), fill=255)
            if edge < r:
                inner = edge * _SMOOTH
                pen.ellipse((inner, inner, size - inner, size - inner), fill=0)
            self._masks[r, edge] = (_levels(image.reduce(_SMOOTH)), 0, 0)
        return self._masks[r, edge][0]

    def _text(self, label: Label) -> None:
        import numpy as np

        size, bold, colour = STYLES[label.style]
        if (label.text, label.style) not in self._masks:
            mask, (left, top) = font(size * self._scale, bold).getmask2(drawable(label.text, bold), "L", anchor="ls")
            width, height = mask.size
            pixels = (np.frombuffer(bytes(mask), np.uint8) >> 4).astype(np.uint8).reshape(height, width)
            self._masks[label.text, label.style] = (pixels, left, top)
        pixels, left, top = self._masks[label.text, label.style]
        x, y = round(label.x * self._scale) + left, round(label.baseline * self._scale) + top
        self._stamp(pixels, x, y, self._numbers[colour])


def _levels(image: Image.Image) -> Mask:
    """How much of each pixel a shape covers, in sixteenths."""
    import numpy as np

    return (np.frombuffer(image.tobytes(), np.uint8) >> 4).astype(np.uint8).reshape(image.height, image.width)


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
