"""Every row of the tables of user code, on every backend, on inputs it was not traced with.

Rows are run in batches, because opening a session and an exporter costs more than most rows. A failure lists the rows that are
wrong; ``python -m tests.conformance TABLE BACKEND ROW`` runs one of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance import BACKENDS, batches, refused_wrongly, run_cases, unsound
from tests.tables import all_tables
from tests.tables.case import Case
from tests.tables.refused import refusal

TABLES = {name: cases for name, cases in all_tables().items() if name != "escapes"}
# The same rows on each backend, one after the other: what they do without leapp is computed once.
NUMBERS = [(table, n) for table, cases in TABLES.items() for n in range(len(cases))]
BATCHES = [(table, backend, n) for table, n in NUMBERS for backend in BACKENDS if n < len(batches(table, backend))]
ROWS = [(case, backend) for cases in TABLES.values() for backend in BACKENDS for case in cases]
REFUSED = [pytest.param(c, b, id=f"{c.table}-{b}-{c.name}") for c, b in ROWS if refusal(c, b) is not None]

LEAST = {"torch_ops": 500, "idioms": 150, "layers": 120, "numpy_ops": 250, "packages": 50, "edges": 600}


@pytest.mark.parametrize(("table", "least"), LEAST.items())
def test_rows_prove_something(table: str, least: int) -> None:
    """Each row is deterministic, keeps its shapes, and depends on each of its inputs."""
    assert len(TABLES[table]) >= least
    assert {case.name: problem for case in TABLES[table] if (problem := unsound(case))} == {}


def test_every_row_is_in_one_batch_or_refused() -> None:
    batched = [(case.table, case.name, b) for table, b, n in BATCHES for case in batches(table, b)[n]]
    assert len(batched) == len(set(batched)) == len(ROWS) - len(REFUSED)


@pytest.mark.parametrize(("table", "backend", "number"), BATCHES)
def test_rows(table: str, backend: str, number: int, tmp_path: Path) -> None:
    """Tracing changes nothing, and the bundle equals eager code on new inputs."""
    rows = batches(table, backend)[number]
    found = run_cases(rows, backend, tmp_path)
    assert found.keys() == {case.name for case in rows}
    assert {name: problem for name, problem in found.items() if problem} == {}


@pytest.mark.parametrize(("case", "backend"), REFUSED)
def test_row_is_refused(case: Case, backend: str, tmp_path: Path) -> None:
    """What a backend cannot do is refused with an error that names the node."""
    assert refused_wrongly(case, backend, tmp_path) is None
