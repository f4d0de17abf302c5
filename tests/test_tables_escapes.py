"""A value that leaves the graph is reported with its line, or the export is refused, or it is right after all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance import COVERAGE, coverage, silent, wrong_on_a_pass
from tests.tables import all_tables
from tests.tables.case import Case

CASES = all_tables()["escapes"]


def test_enough_patterns() -> None:
    """The table has at least forty patterns."""
    assert len(CASES) >= 40


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_nothing_freezes_silently(case: Case, tmp_path: Path) -> None:
    """With the default settings the line is named in the report or in the error."""
    assert silent(case, tmp_path) is None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_escapes_can_be_errors(case: Case, tmp_path: Path) -> None:
    """With ``escapes="error"`` what would be reported is refused."""
    assert silent(case, tmp_path, escapes="error") is None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_passes_that_disagree_are_refused(case: Case, tmp_path: Path) -> None:
    """Five passes on different inputs: what was frozen and varies is refused, what is written holds for all of them."""
    assert wrong_on_a_pass(case, tmp_path) is None


def test_coverage_page_is_up_to_date() -> None:
    """docs/coverage.md says what the tables say."""
    assert COVERAGE.read_text(encoding="utf-8") == coverage(), "run: python -m tests.conformance --coverage"
