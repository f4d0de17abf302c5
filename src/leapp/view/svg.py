"""Writes marks as SVG text. Groups have the public names, so that the page can find and highlight them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from leapp.view.marks import BACKGROUND, Group, Line, Mark, Polygon, Rect
from leapp.view.node_box import STYLES, Path, Point
from leapp.view.text import drawable, visible


def encode_svg(groups: Sequence[Group], width: float, height: float, name: str) -> str:
    """A self-contained SVG document: no script, no link, no font file."""
    size = f'width="{_number(width)}" height="{_number(height)}" viewBox="0 0 {_number(width)} {_number(height)}"'
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" '
        "font-family=\"'DejaVu Sans', Verdana, 'Noto Sans', sans-serif\">",
        f"<title>{_safe(name)}</title>",
        f'<rect width="100%" height="100%" fill="{BACKGROUND}"/>',
    ]
    for group in groups:
        key = f' data-key="{_safe(group.key)}"' if group.key else ""
        title = f"<title>{_safe(group.title)}</title>" if group.title else ""
        lines.append(f'<g class="{group.role}"{key}>{title}{"".join(map(encode_mark, group.marks))}</g>')
    return "\n".join([*lines, "</svg>", ""])


def _safe(text: str) -> str:
    return escape(visible(text), quote=True)


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def path_data(path: Path) -> str:
    """The line as the ``d`` of an SVG path."""
    start, *pieces = path
    letters = {2: "L", 4: "Q", 6: "C"}
    return "".join([f"M{_numbers(start)}", *(f"{letters[len(piece)]}{_numbers(piece)}" for piece in pieces)])


def _numbers(values: Iterable[float]) -> str:
    return " ".join([f"{value:.1f}".removesuffix(".0") for value in values])


def _points(points: Iterable[Point]) -> str:
    return " ".join(f"{_number(x)},{_number(y)}" for x, y in points)


def encode_mark(mark: Mark) -> str:
    """One mark as an SVG element."""
    if isinstance(mark, Rect):
        box = mark.box
        place = f'x="{_number(box.x)}" y="{_number(box.y)}" width="{_number(box.width)}" height="{_number(box.height)}"'
        stroke = f' stroke="{mark.stroke}" stroke-width="1.2"' if mark.stroke else ""
        dash = ' stroke-dasharray="6 4"' if mark.dashed else ""
        return f'<rect {place} rx="{_number(mark.radius)}" fill="{mark.fill or "none"}"{stroke}{dash}/>'
    if isinstance(mark, Polygon):
        return f'<polygon points="{_points(mark.points)}" fill="{mark.fill}"/>'
    if isinstance(mark, Line):
        dash = f' stroke-dasharray="{_number(mark.dash[0])} {_number(mark.dash[1])}"' if mark.dash else ""
        stroke = f'stroke="{mark.colour}" stroke-width="{_number(mark.width)}"{dash} stroke-linejoin="round"'
        return f'<path d="{path_data(mark.path)}" fill="none" {stroke}/>'
    size, bold, colour = STYLES[mark.style]
    weight = ' font-weight="bold"' if bold else ""
    # textLength gives the text its measured width in any font. Text with characters that our font lacks was measured with
    # escapes, so its width is not set.
    exact = drawable(mark.text, bold) == mark.text and mark.width > 0
    length = f' textLength="{_number(mark.width)}" lengthAdjust="spacingAndGlyphs"' if exact else ""
    return (
        f'<text x="{_number(mark.x)}" y="{_number(mark.baseline)}" font-size="{_number(size)}"{weight} '
        f'fill="{colour}"{length} xml:space="preserve">{_safe(mark.text)}</text>'
    )
