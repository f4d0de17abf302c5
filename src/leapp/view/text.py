"""Measures text before it is drawn: fonts, escapes for unusual characters, line breaking.

It knows neither graphs nor colours. Pillow is imported at the first measurement, so importing this package does not load it.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING

from leapp import errors
from leapp.extras import require

if TYPE_CHECKING:
    from PIL import ImageFont

# The first pair found on the machine is used; without any, the font bundled with Pillow, which has no bold face.
TYPEFACES = (
    ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf"),
    ("NotoSans-Regular.ttf", "NotoSans-Bold.ttf"),
    ("LiberationSans-Regular.ttf", "LiberationSans-Bold.ttf"),
    ("arial.ttf", "arialbd.ttf"),
)

_WORD = re.compile(r"[^\s_/.:,\-]*[\s_/.:,\-]?")
# No font has this character, so it is drawn as the "missing glyph" box.
_MISSING = "\U0010fffe"


@cache
def _face(bold: bool) -> ImageFont.FreeTypeFont:
    require("Drawing", "PIL")
    from PIL import ImageFont

    for pair in TYPEFACES:
        try:
            return ImageFont.truetype(pair[bold], 16)
        except OSError:
            continue
    # Pillow returns a bitmap font here only when it was built without FreeType.
    return ImageFont.load_default(16)  # type: ignore[return-value]


@cache
def font(size: float, bold: bool) -> ImageFont.FreeTypeFont:
    """The font that measures and draws text of this size."""
    return _face(bold).font_variant(size=size)


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


visible = partial(errors.visible, keep="")
"""A text on one line, with control characters escaped."""


@lru_cache(maxsize=4096)
def _has_glyph(char: str, bold: bool) -> bool:
    face = _face(bold)
    glyph, missing = face.getmask(char), face.getmask(_MISSING)
    return glyph.size != missing.size or bytes(glyph) != bytes(missing)


def drawable(text: str, bold: bool) -> str:
    """``text`` with every character the font lacks written as an escape, so that different names look different."""
    if text.isascii():
        return text
    return "".join(c if c.isascii() or _has_glyph(c, bold) else _escape(c) for c in text)


@lru_cache(maxsize=65536)
def text_width(text: str, size: float, bold: bool) -> float:
    """The width of one line in layout units, at least as wide as it is drawn at one and at two pixels a unit."""
    shown = drawable(text, bold)
    return max(font(size, bold).getlength(shown), font(2 * size, bold).getlength(shown) / 2)


def wrap(text: str, size: float, bold: bool, limit: float) -> list[str]:
    """``text`` in lines of at most ``limit`` units, broken after separators where possible. Nothing is dropped."""
    shown = visible(text)
    if len(shown) < 4096 and text_width(shown, size, bold) <= limit:
        return [shown]
    lines, line, used = [], "", 0.0
    for piece in _pieces(shown, size, bold, limit):
        width = text_width(piece, size, bold)
        if line and used + width > limit:
            lines.append(line)
            line, used = "", 0.0
        line += piece
        used += width
    return [*lines, line]


def _pieces(text: str, size: float, bold: bool, limit: float) -> list[str]:
    """Words with their separator; a word wider than a line comes apart into characters with their accents."""
    pieces: list[str] = []
    for word in _WORD.findall(text):
        if len(word) < 256 and text_width(word, size, bold) <= limit:
            pieces.append(word)
            continue
        for char in word:
            if pieces and unicodedata.combining(char):
                pieces[-1] += char
            else:
                pieces.append(char)
    return [piece for piece in pieces if piece]
