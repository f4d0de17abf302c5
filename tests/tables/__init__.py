"""Tables of user code: each row is a function and the inputs it is fed. They know torch and NumPy, nothing of leapp."""

from __future__ import annotations

import importlib
from functools import cache

from tests.tables.case import Case

NAMES = ("torch_ops", "idioms", "layers", "numpy_ops", "packages", "edges", "escapes")


@cache
def all_tables() -> dict[str, list[Case]]:
    """The rows of every table."""
    return {name: importlib.import_module(f"tests.tables.{name}").CASES for name in NAMES}
