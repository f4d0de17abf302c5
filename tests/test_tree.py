"""The tree: a file name says which file is meant."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "src"


def test_no_file_name_occurs_more_than_twice() -> None:
    names = Counter(path.name for path in SOURCES.rglob("*.py") if path.name != "__init__.py")
    assert len(names) > 200
    assert {name: count for name, count in names.items() if count > 2} == {}
