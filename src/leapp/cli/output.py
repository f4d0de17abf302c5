"""The answer of a command, and its output as JSON or as tables.

On a terminal a table fits the window: text wraps at spaces, and ``spare`` columns are left out before a name is broken.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from leapp.errors import visible
from leapp.terminal import is_terminal

_STYLES = {"bold": "1", "red": "31", "green": "32", "yellow": "33", "cyan": "36", "dim": "2"}
_QUIET_SECONDS, _LINE_SECONDS = 1.0, 10.0
"""After how many seconds a terminal shows progress, and how often a pipe gets a line about it."""

Cell = str | tuple[str, str]
"""A text, or a text with the style it has on a terminal."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a title. A table without rows, and columns that are empty in every row, are not shown.

    Attributes:
        title: The line above the table.
        columns: The names of the columns.
        rows: A cell for each column.
        spare: Columns that are left out in a narrow window, in this order.
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
        terminal = is_terminal(sys.stdout)
        width = shutil.get_terminal_size().columns if terminal else None
        paint = _paint if terminal and not os.environ.get("NO_COLOR") else lambda text, style: text
        lines = [line for part in answer.parts for line in _lines(part, width, paint)]
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
    """Show the progress of long work: a bar on a terminal, a line every ten seconds in a pipe.

    Gives the function that advances the bar. Work that takes less than a second shows nothing.
    """
    done, began, ended = [0], time.monotonic(), threading.Event()
    terminal = is_terminal(sys.stderr)

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
    """Print a line before long work that a moving bar would disturb, such as timing."""
    print(text, file=sys.stderr, flush=True)



def _finite(value: Any) -> Any:
    """The value without NaN and infinity, which JSON lacks."""
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


_Styled = tuple[str, str]
"""A cell with its style, on one line, with its control characters escaped."""


def _styled(cell: Cell) -> _Styled:
    """The cell as it is printed. Names come from bundles, which may be hostile."""
    text, style = (cell, "") if isinstance(cell, str) else cell
    return visible(text).replace("\n", " "), style


_Paint = Callable[[str, str], str]


def _paint(text: str, style: str) -> str:
    codes = ";".join(_STYLES[name] for name in style.split())
    return f"\x1b[{codes}m{text}\x1b[0m" if codes and text else text


def _size(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _lines(part: Table | Text, width: int | None, paint: _Paint) -> Iterator[str]:
    if isinstance(part, Text):
        text = visible(part.text)
        yield from (paint(line, part.style) for line in (_wrapped(text, width) if width else [text]))
        return
    rows = [[_styled(cell) for cell in row] for row in part.rows]
    # By column, because empty columns are not shown and others may be left out.
    table = {name: [row[i] for row in rows] for i, name in enumerate(part.columns) if any(row[i][0] for row in rows)}
    if not table:
        return
    yield ""
    yield paint(visible(part.title), "bold")
    kept = dict(table)
    widths = _widths(kept, width)
    for name in part.spare:
        if widths is None and name in kept:
            del kept[name]
            widths = _widths(kept, width)
    if widths is None:
        yield from _records(table, paint)
        return
    yield from _row([(name, "dim") for name in kept], widths, paint)
    for row in zip(*kept.values(), strict=True):
        yield from _row(row, widths, paint)
    if left_out := [name for name in table if name not in kept]:
        yield paint(f"  left out to fit {width} columns: {', '.join(left_out)}", "dim")


def _widths(table: Mapping[str, Sequence[_Styled]], width: int | None) -> list[int] | None:
    """How wide each column is, or None if the table does not fit. Names stay whole; text wraps at its spaces."""
    natural = [max(_size(name), *(_size(text) for text, _ in cells)) for name, cells in table.items()]
    if width is None:
        return natural
    least = []
    for whole, (name, cells) in zip(natural, table.items(), strict=True):
        words = [_size(word) for text, _ in cells for word in text.split(" ")]
        least.append(max(_size(name), *words, min(whole, 20)))
    room = width - 2 * len(table) - sum(least)
    if room < 0:
        return None if len(table) > 1 else [width - 2]
    for i in sorted(range(len(least)), key=lambda i: natural[i] - least[i]):
        more = min(natural[i] - least[i], room)
        least[i] += more
        room -= more
    return least


def _row(row: Sequence[_Styled], widths: Sequence[int], paint: _Paint) -> Iterator[str]:
    cells = [(_wrapped(text, wide), style, wide) for (text, style), wide in zip(row, widths, strict=True)]
    for number in range(max(len(lines) for lines, _, _ in cells)):
        pieces = []
        for lines, style, wide in cells:
            text = lines[number] if number < len(lines) else ""
            pieces.append(paint(text, style) + " " * (wide - _size(text)))
        yield ("  " + "  ".join(pieces)).rstrip()


def _records(table: Mapping[str, Sequence[_Styled]], paint: _Paint) -> Iterator[str]:
    """A block for each row, for windows that are too narrow for the columns side by side."""
    wide = max(map(_size, table))
    for number, row in enumerate(zip(*table.values(), strict=True)):
        if number:
            yield ""
        for name, (text, style) in zip(table, row, strict=True):
            if text:
                yield f"  {paint(name, 'dim')}{' ' * (wide - _size(name))}  {paint(text, style)}"


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
