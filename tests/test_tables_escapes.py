"""A value that leaves the graph is reported with its line, or the export is refused, or it is right after all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance import COVERAGE, TRACED_SEEDS, RowError, coverage, not_refused, outcome, trace, wrong_on_a_pass
from tests.tables import all_tables
from tests.tables.case import Case

ALL = all_tables()["escapes"]
# Types in C that take nothing but Python's own numbers: given a traced one they raise TypeError, and float(x) is the cure.
INSISTING = "number_for_old_constructor number_for_decimal number_for_timedelta number_for_calendar".split()
CASES = [case for case in ALL if case.name not in INSISTING]


def test_enough_patterns() -> None:
    """The table only grows."""
    assert len(ALL) >= 158


@pytest.mark.parametrize("case", [case for case in ALL if case.name in INSISTING], ids=lambda case: case.name)
def test_code_that_insists_on_numbers(case: Case, tmp_path: Path) -> None:
    with pytest.raises(RowError, match="TypeError"):
        trace([case], "jit", tmp_path, 1)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_two_passes_refuse_it_with_its_line(case: Case, tmp_path: Path) -> None:
    """The second pass shows that the value changes; the message names the line."""
    assert not_refused(case, tmp_path) is None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_escapes_can_be_errors(case: Case, tmp_path: Path) -> None:
    """With ``escapes="error"`` what would be reported is refused."""
    found = outcome(case, tmp_path, TRACED_SEEDS, escapes="error")
    assert found.what in ("refused", "right"), found


def test_one_pass_reports_most_of_them(tmp_path: Path) -> None:
    """With the line, at least 135 of 158; of the others it says that one pass is no proof."""
    silent = []
    for case in CASES:
        where = tmp_path / case.name
        where.mkdir()
        found = outcome(case, where, TRACED_SEEDS[:1])
        assert found.what != "wrong", (case.name, found)
        if found.what == "silent":
            silent.append(case.name)
            assert "was traced in one pass only" in (where / "batch" / "log.txt").read_text()
    assert len(CASES) - len(silent) >= 135, silent
    assert not [name for name in silent if name.startswith("shape_")], "a number of elements that depends on values is seen"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_passes_that_disagree_are_refused(case: Case, tmp_path: Path) -> None:
    """Five passes on different inputs: what was frozen and varies is refused, what is written holds for all of them."""
    assert wrong_on_a_pass(case, tmp_path) is None


def test_coverage_page_is_up_to_date() -> None:
    """docs/coverage.md says what the tables say."""
    assert COVERAGE.read_text(encoding="utf-8") == coverage(), "run: python -m tests.conformance --coverage"
