"""Where a session writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from leapp.tracing.log import Log

LONGEST_NAME = 200
"""The most characters of the name of a graph or a node, which is part of file names."""


@dataclass(slots=True)
class Settings:
    """The graph's name and directory, and what goes there."""

    graph: str
    directory: Path
    dry_run: bool
    log: Log
