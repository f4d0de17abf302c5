"""What a command answers, and how it is shown: JSON, tables on a terminal, plain columns in a pipe or without rich."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TextIO

from leapp.extras import has

__all__ = ["Answer", "Cell", "Table", "Text", "announce", "progress", "report", "write"]

Cell = str | tuple[str, str]
"""A text, or a text with the style it has on a terminal."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a title. Columns that are empty in every row are not shown."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


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
        print(json.dumps(_finite(answer.data), indent=2, ensure_ascii=False, default=str))
    elif _is_terminal(sys.stdout) and has("rich"):
        _write_rich(answer.parts)
    else:
        lines = [line for part in answer.parts for line in _plain(part)]
        # Tables keep a distance from what stands above them, and above the first there is nothing.
        sys.stdout.writelines(f"{line}\n" for line in lines[bool(lines) and not lines[0] :])
    sys.stdout.flush()


def report(error: Exception, *, expected: bool, as_json: bool) -> int:
    """Print an error on one line and return the exit code."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, OSError) and error.strerror and error.filename:
        text = f"{error.filename}: {error.strerror}"
    if not expected:
        text = f"{type(error).__name__}: {text} (--traceback shows where)"
    if as_json:
        print(json.dumps({"error": text}, indent=2, ensure_ascii=False), flush=True)
    print(f"leapp: {text}", file=sys.stderr)
    return 2


@contextmanager
def progress(label: str, total: int | None = None) -> Iterator[Callable[[], None]]:
    """A bar on a terminal for work that takes longer than a second. Gives the function that advances it."""
    if not _is_terminal(sys.stderr):
        yield lambda: None
        return
    if not has("rich"):
        announce(f"{label} ...")
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = [TextColumn("{task.description}"), BarColumn(), *([MofNCompleteColumn()] if total else []), TimeElapsedColumn()]
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(label, total=total)
    timer = threading.Timer(1.0, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda: bar.advance(task)
    finally:
        timer.cancel()
        timer.join()
        if bar.live.is_started:
            bar.stop()


def announce(text: str) -> None:
    """Say on a terminal what will take a while, where a moving bar would disturb it."""
    if _is_terminal(sys.stderr):
        print(text, file=sys.stderr)


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


def _shown(table: Table) -> tuple[list[str], list[list[Cell]]]:
    kept = [i for i in range(len(table.columns)) if any(_text(row[i]) for row in table.rows)]
    return [table.columns[i] for i in kept], [[row[i] for i in kept] for row in table.rows]


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell[0]


def _plain(part: Table | Text) -> Iterator[str]:
    if isinstance(part, Text):
        yield part.text
        return
    columns, rows = _shown(part)
    texts = [[_text(cell).replace("\n", " ") for cell in row] for row in rows]
    widths = [max(len(name), *(len(row[i]) for row in texts)) for i, name in enumerate(columns)] if rows else []
    yield ""
    yield part.title
    for row in [columns, *texts] if rows else []:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _write_rich(parts: Sequence[Table | Text]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text as RichText

    console = Console(highlight=False)
    for part in parts:
        if isinstance(part, Text):
            console.print(RichText(part.text, style=part.style))
            continue
        columns, rows = _shown(part)
        console.print(RichText(f"\n{part.title}", style="bold"))
        table = RichTable(box=box.SIMPLE_HEAD, show_edge=False)
        for name in columns:
            table.add_column(RichText(name), overflow="fold")
        for row in rows:
            table.add_row(*(RichText(cell) if isinstance(cell, str) else RichText(*cell) for cell in row))
        console.print(table)
