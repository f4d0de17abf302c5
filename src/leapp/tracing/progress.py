"""Shows the progress of an export on a terminal: one line for each node, with the time each step took.

Nothing is shown in pipes, log files and notebooks. Knows neither sessions nor files.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from leapp.extras import has
from leapp.terminal import is_terminal


class Progress:
    """The lines of one compilation. Enter it to show them.

    Args:
        lines: What gets a line, in order.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        self._shown: Any = None
        self._tasks: dict[str, Any] = {}
        self._texts: dict[str, list[str]] = {}
        if is_terminal(sys.stderr) and has("rich"):
            self._shown = _display()
            for line in lines:
                self._texts[line] = []
                self._tasks[line] = self._shown.add_task("", line=line, steps="")

    def __enter__(self) -> Progress:
        if self._shown is not None:
            self._shown.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._shown is not None:
            self._shown.stop()

    def step(self, line: str, name: str) -> Any:
        """A context manager around one step of a line, which shows and times it."""
        return nullcontext() if self._shown is None else self._step(line, name)

    def finish(self, line: str, ok: bool) -> None:
        """Mark a line as done."""
        if self._shown is not None:
            self._write(line, "[green]ok[/]" if ok else "[red]failed[/]")

    @contextmanager
    def _step(self, line: str, name: str) -> Iterator[None]:
        self._write(line, name, keep=False)
        began = time.perf_counter()
        try:
            yield
        except BaseException:  # also on Ctrl-C the line must not look as if the step were still running
            self.finish(line, ok=False)
            raise
        self._write(line, f"{name} {time.perf_counter() - began:.2f} s")

    def _write(self, line: str, text: str, keep: bool = True) -> None:
        done = self._texts[line]
        if keep:
            done.append(text)
        self._shown.update(self._tasks[line], steps="  ".join(done if keep else [*done, f"[cyan]{text}[/] ..."]))


def _display() -> Any:
    from rich.console import Console
    from rich.progress import Progress as Lines
    from rich.progress import TextColumn

    line, steps = TextColumn("{task.fields[line]}", markup=False), TextColumn("{task.fields[steps]}")
    return Lines(line, steps, console=Console(stderr=True))
