"""A value that leaves the graph is reported with its line, or the export is refused, or it is right after all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance import COVERAGE, RowError, coverage, silent, trace, wrong_on_a_pass
from tests.tables import all_tables
from tests.tables.case import Case

ALL = all_tables()["escapes"]
# Code that takes nothing but Python's own numbers: given a traced one it raises TypeError, and float(x) is the cure.
INSISTING = """
    json_of_a_number number_for_old_constructor number_for_decimal number_for_timedelta number_for_calendar
    number_for_time number_for_seed
""".split()
# What one pass cannot see; the tests below show that several passes refuse it.
SEVERAL_PASSES = """
    array_protocol_of_function class_of_arrays_over_tensor class_of_arrays_written clock clock_calendar
    clock_imported_by_name clock_perf_counter compiled_class compiled_filter compiled_fortran compiled_lapack
    compiled_session dlpack_made_before dlpack_made_inside first_in_a_list first_in_a_list_for_a_ufunc
    first_in_dot_of_plain first_in_searchsorted_of_plain first_in_take_of_plain first_through_array_protocol
    json_of_a_tensor memoryview mirror_lends_its_memory mirror_made_before mirror_made_inside mirror_memoryview
    mirror_of_a_part mirror_read_by_compiled_code mirror_text numpy_broadcast_object numpy_records numpy_vectorize
    random_generator_made_before random_imported_by_name random_numpy random_numpy_generator random_python
    random_python_made_before random_state_made_before statistics_mean statistics_of_numbers struct_unpack
    view_made_before view_made_before_and_listed view_made_before_and_unpacked view_made_inside
""".split()
CASES = [case for case in ALL if case.name not in INSISTING]
ONE_PASS = [case for case in CASES if case.name not in SEVERAL_PASSES]


def test_enough_patterns() -> None:
    """How many patterns there are, and how many of them one pass reports with the line."""
    assert len(ALL) >= 158
    assert len(ONE_PASS) >= 105


@pytest.mark.parametrize("case", [case for case in ALL if case.name in INSISTING], ids=lambda case: case.name)
def test_code_that_insists_on_numbers(case: Case, tmp_path: Path) -> None:
    with pytest.raises(RowError, match="TypeError"):
        trace([case], "jit", tmp_path, 1)


@pytest.mark.parametrize("case", ONE_PASS, ids=lambda case: case.name)
def test_nothing_freezes_silently(case: Case, tmp_path: Path) -> None:
    """With the default settings the line is named in the report or in the error."""
    assert silent(case, tmp_path) is None


@pytest.mark.parametrize("case", ONE_PASS, ids=lambda case: case.name)
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
