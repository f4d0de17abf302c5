"""Every row of the tables of user code, on every backend, on inputs it was not traced with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance import BACKENDS, refused_wrongly, unsound, verdict
from tests.tables import all_tables
from tests.tables.case import Case
from tests.tables.refused import refusal

TABLES = {name: cases for name, cases in all_tables().items() if name != "escapes"}
ROWS = [(case, backend) for cases in TABLES.values() for backend in BACKENDS for case in cases]
RIGHT = [pytest.param(c, b, id=f"{c.table}-{b}-{c.name}") for c, b in ROWS if refusal(c, b) is None]
REFUSED = [pytest.param(c, b, id=f"{c.table}-{b}-{c.name}") for c, b in ROWS if refusal(c, b) is not None]


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that all processes of this test run see."""
    base = tmp_path_factory.getbasetemp()
    if base.name.startswith("popen-"):
        base = base.parent
    path = base / "tables"
    path.mkdir(exist_ok=True)
    return path


LEAST = {"torch_ops": 500, "idioms": 150, "layers": 120, "numpy_ops": 250, "packages": 50, "edges": 600}


@pytest.mark.parametrize(("table", "least"), LEAST.items())
def test_rows_prove_something(table: str, least: int) -> None:
    """Each row is deterministic, keeps its shapes, and depends on each of its inputs."""
    assert len(TABLES[table]) >= least
    assert {case.name: problem for case in TABLES[table] if (problem := unsound(case))} == {}


@pytest.mark.parametrize(("case", "backend"), RIGHT)
def test_row(case: Case, backend: str, shared: Path) -> None:
    """Tracing changes nothing, and the bundle equals eager code on new inputs."""
    assert verdict(case, backend, shared) is None


@pytest.mark.parametrize(("case", "backend"), REFUSED)
def test_row_is_refused(case: Case, backend: str, tmp_path: Path) -> None:
    """What a backend cannot do is refused with an error that names the node."""
    assert refused_wrongly(case, backend, tmp_path) is None
