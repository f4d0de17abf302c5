"""Rows that a backend's own exporter or engine cannot do, grouped by the reason that docs/coverage.md gives."""

from __future__ import annotations

from tests.tables.case import Case

# backend -> reason -> table -> row names
REFUSED: dict[str, dict[str, dict[str, str]]] = {
    "jit": {},
    "onnx": {},
    "pt2": {},
}


def refusal(case: Case, backend: str) -> str | None:
    """Why ``backend`` refuses the row, or None."""
    for reason, tables in REFUSED[backend].items():
        if case.name in tables.get(case.table, "").split():
            return reason
    return None
