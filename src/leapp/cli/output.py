"""What a command answers, and how it is shown: JSON, or tables.

On a terminal a table fits the window: text wraps at spaces, columns that can be spared are left out before a name is broken.
In a pipe every row is one line with all columns.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TextIO

from leapp.errors import visible

__all__ = ["Answer", "Cell", "Table", "Text", "announce", "progress", "report", "write"]

_STYLES = {"bold": "1", "red": "31", "green": "32", "yellow": "33", "cyan": "36", "dim": "2"}
_QUIET_SECONDS, _LINE_SECONDS = 1.0, 10.0
"""After how many seconds a terminal shows progress, and how often a pipe gets a line about it."""

Cell = str | tuple[str, str]
"""A text, or a text with the style it has on a terminal."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a title. Columns that are empty in every row are not shown.

    Attributes:
        title: What stands above it.
        columns: The names of the columns.
        rows: A cell for each column.
        spare: Columns that a narrow window does without, the first to go first.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    spare: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Text:
    """A line."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a command: ``data`` for programs, ``parts`` for people, ``code`` for shells."""

    data: Any
    parts: Sequence[Table | Text] = field(default_factory=list)
    code: int = 0


def write(answer: Answer, *, as_json: bool) -> None:
    """Print an answer."""
    if as_json:
        print(_json(_finite(answer.data)))
    else:
        terminal = _is_terminal(sys.stdout)
        width = shutil.get_terminal_size().columns if terminal else None
        paint = _painted if terminal and not os.environ.get("NO_COLOR") else _unpainted
        lines = [line for part in answer.parts for line in _lines(_harmless(part), width, paint)]
        # A table begins with an empty line, which the first part does not need.
        sys.stdout.writelines(f"{line}\n" for line in lines[bool(lines) and not lines[0] :])
    sys.stdout.flush()


def report(error: Exception, *, expected: bool, as_json: bool) -> int:
    """Print an error on one line and return the exit code."""
    text = visible(" ".join(str(error).split())) or type(error).__name__
    if isinstance(error, OSError) and error.strerror and error.filename:
        text = visible(f"{error.filename}: {error.strerror}")
    if not expected:
        text = f"{type(error).__name__}: {text} (--traceback shows where)"
    if as_json:
        print(_json({"error": text}), flush=True)
    print(f"leapp: {text}", file=sys.stderr)
    return 2


@contextmanager
def progress(label: str, total: int | None = None) -> Iterator[Callable[[], None]]:
    """Show that long work goes on: a bar on a terminal, a line every ten seconds in a pipe.

    Gives the function that advances it. Work that takes less than a second shows nothing.
    """
    done, began, ended = [0], time.monotonic(), threading.Event()
    terminal = _is_terminal(sys.stderr)

    def words() -> str:
        passed = time.monotonic() - began
        count = f" {done[0]} of {total}" if total else ""
        bar = ""
        if terminal and total:
            full = round(20 * min(done[0] / total, 1))
            bar = f" [{'=' * full}{' ' * (20 - full)}]"
        return f"{label}{bar}{count}, {passed:.0f} s"

    def tell() -> None:
        if ended.wait(_QUIET_SECONDS if terminal else _LINE_SECONDS):
            return
        while True:
            sys.stderr.write(f"\r\x1b[K{words()}" if terminal else f"{words()}\n")
            sys.stderr.flush()
            if ended.wait(0.2 if terminal else _LINE_SECONDS):
                break
        if terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def advance() -> None:
        done[0] += 1

    teller = threading.Thread(target=tell, name="leapp-progress", daemon=True)
    teller.start()
    try:
        yield advance
    finally:
        ended.set()
        teller.join()


def announce(text: str) -> None:
    """Print a line before long work during which a moving bar would disturb."""
    print(text, file=sys.stderr, flush=True)


def _is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _finite(value: Any) -> Any:
    """The value without the numbers JSON lacks."""
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and value - value != 0:
        return str(value)
    return value


def _json(value: Any) -> str:
    """As JSON, with control characters written as escapes."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    if text.isascii():
        return text
    return "".join(c if c == "\n" or visible(c) == c else json.dumps(c)[1:-1] for c in text)


def _harmless(part: Table | Text) -> Table | Text:
    """The same with its control characters escaped: names come from bundles, which may be hostile."""
    if isinstance(part, Text):
        return Text(visible(part.text), part.style)

    def cell(found: Cell) -> Cell:
        return visible(found) if isinstance(found, str) else (visible(found[0]), found[1])

    rows = [[cell(found) for found in row] for row in part.rows]
    return Table(visible(part.title), part.columns, rows, part.spare)


def _shown(table: Table) -> tuple[list[str], list[list[Cell]]]:
    kept = [i for i in range(len(table.columns)) if any(_text(row[i]) for row in table.rows)]
    return [table.columns[i] for i in kept], [[row[i] for i in kept] for row in table.rows]


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell[0]


_Paint = Callable[[str, str], str]


def _painted(text: str, style: str) -> str:
    codes = ";".join(_STYLES[name] for name in style.split())
    return f"\x1b[{codes}m{text}\x1b[0m" if codes and text else text


def _unpainted(text: str, style: str) -> str:
    return text


def _size(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _lines(part: Table | Text, width: int | None, paint: _Paint) -> Iterator[str]:
    if isinstance(part, Text):
        yield from (paint(line, part.style) for line in (_wrapped(part.text, width) if width else [part.text]))
        return
    yield ""
    yield paint(part.title, "bold")
    columns, rows = _shown(part)
    if not rows:
        return
    kept = list(range(len(columns)))
    widths = _widths(columns, rows, width)
    for name in part.spare:
        if widths is None and name in columns:
            kept.remove(columns.index(name))
            widths = _widths([columns[i] for i in kept], [[row[i] for i in kept] for row in rows], width)
    if widths is None:
        yield from _records(columns, rows, paint)
        return
    head: list[Cell] = [(name, "dim") for name in columns]
    for row in [head, *rows]:
        yield from _row([row[i] for i in kept], widths, paint)
    if len(kept) < len(columns):
        left_out = ", ".join(name for i, name in enumerate(columns) if i not in kept)
        yield paint(f"  left out to fit {width} columns: {left_out}", "dim")


def _widths(columns: Sequence[str], rows: Sequence[Sequence[Cell]], width: int | None) -> list[int] | None:
    """How wide each column is, or None if the table does not fit. Names stay whole; text wraps at its spaces."""
    texts = [[_text(cell).replace("\n", " ") for cell in row] for row in rows]
    natural = [max(_size(name), *(_size(row[i]) for row in texts)) for i, name in enumerate(columns)]
    if width is None:
        return natural
    least = []
    for i, name in enumerate(columns):
        words = [_size(word) for row in texts for word in row[i].split(" ")]
        least.append(max(_size(name), *words, min(natural[i], 20)))
    room = width - 2 * len(columns) - sum(least)
    if room < 0:
        return None if len(columns) > 1 else [width - 2]
    for i in sorted(range(len(columns)), key=lambda i: natural[i] - least[i]):
        more = min(natural[i] - least[i], room)
        least[i] += more
        room -= more
    return least


def _row(row: Sequence[Cell], widths: Sequence[int], paint: _Paint) -> Iterator[str]:
    cells = [
        ("" if isinstance(cell, str) else cell[1], _wrapped(_text(cell).replace("\n", " "), w))
        for cell, w in zip(row, widths, strict=True)
    ]
    for number in range(max(len(lines) for _, lines in cells)):
        pieces = []
        for (style, lines), wide in zip(cells, widths, strict=True):
            text = lines[number] if number < len(lines) else ""
            pieces.append(paint(text, style) + " " * (wide - _size(text)))
        yield ("  " + "  ".join(pieces)).rstrip()


def _records(columns: Sequence[str], rows: Sequence[Sequence[Cell]], paint: _Paint) -> Iterator[str]:
    """A block for each row, for windows that are too narrow for the names side by side."""
    wide = max(map(_size, columns))
    for number, row in enumerate(rows):
        if number:
            yield ""
        for name, cell in zip(columns, row, strict=True):
            if _text(cell):
                style = "" if isinstance(cell, str) else cell[1]
                yield f"  {paint(name, 'dim')}{' ' * (wide - _size(name))}  {paint(_text(cell), style)}"


def _wrapped(text: str, width: int) -> list[str]:
    """The lines of a text, at most ``width`` columns wide, broken at spaces. A longer word stays whole."""
    if _size(text) <= width:
        return [text]
    lines, line = [], ""
    for word in text.split(" "):
        if line and _size(line) + 1 + _size(word) > width:
            lines.append(line.rstrip())
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line]
