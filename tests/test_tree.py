"""The tree: a file name says which file is meant."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
EVERYWHERE = ("__init__.py", "conftest.py")
"""Names that Python and pytest give."""


def test_no_file_name_occurs_more_than_twice() -> None:
    files = [path for folder in ("src", "tests") for path in (ROOT / folder).rglob("*.py")]
    names = Counter(path.name for path in files if path.name not in EVERYWHERE)
    assert len(names) > 300
    assert {name: count for name, count in names.items() if count > 2} == {}
