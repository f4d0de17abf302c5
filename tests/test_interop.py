"""Bundles travel both ways between this leapp and leapp 0.7.2, installed in an environment of its own."""

from __future__ import annotations

import os
import zipfile

import numpy as np
import pytest
from filelock import FileLock

from .interop import graphs
from .interop.table import PINNED, ROWS, TABLE, Played, play_all, programs, table


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """The bundles of each side, played by the other; done once for all workers."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "interop"
    with FileLock(f"{shared}.lock"):
        if not (shared / "done").exists():
            shared.mkdir(exist_ok=True)
            play_all(shared)
            (shared / "done").touch()
    return Played(shared)


@pytest.mark.parametrize("row", [row for row, (chosen, _) in ROWS.items() if chosen.runs and not chosen.reader])
def test_our_bundles_run_on_the_other_side(row: str, played: Played) -> None:
    """Twenty closed-loop steps on new inputs equal the eager code, on every output that the graph declares."""
    assert played.to_peer(row) == "equal"
    wanted = played.wanted(row)
    assert len({key.split(":")[0] for key in wanted}) == graphs.STEPS >= 20
    first = {key.split(":", 1)[1]: value for key, value in wanted.items() if key.startswith("0:")}
    assert any(not np.array_equal(value, wanted[f"9:{key}"]) for key, value in first.items()), "nothing changes"


@pytest.mark.parametrize("row", ROWS)
def test_bundles_of_the_other_side_run_here(row: str, played: Played) -> None:
    """What leapp 0.7.2 could export runs here as it runs there; why it could not is in the table."""
    answer = played.from_peer(row)
    if answer.startswith("0.7.2: "):
        assert answer.removeprefix("0.7.2: ").split(":")[0] in TABLE.read_text(encoding="utf-8")
    else:
        assert answer == "equal"
    if not played.not_exported("theirs", row) and not played.not_played("peer to peer", row):
        theirs, here = played.values("peer to peer", row), played.values("peer to ours", row)
        assert sorted(theirs) == sorted(here)
        for key, value in theirs.items():
            np.testing.assert_allclose(here[key], value, rtol=1e-4, atol=1e-5, err_msg=key)


@pytest.mark.parametrize("row", [row for row, (chosen, _) in ROWS.items() if chosen.reader])
def test_what_the_other_runtime_cannot_do(row: str, played: Played) -> None:
    """It gets the same program wrong when it runs a bundle of its own, or refuses to make one."""
    assert played.to_peer(row).startswith("0.7.2: ")
    assert played.from_peer(row).startswith("0.7.2: ")


@pytest.mark.parametrize("row", [row for row, (chosen, _) in ROWS.items() if not chosen.runs])
def test_nodes_without_a_model_are_refused_with_their_name(row: str, played: Played) -> None:
    """Both sides can describe such a graph, and neither can run it."""
    assert played.not_exported("ours", row) is None
    assert "node 'a'" in str(played.not_played("peer to ours", row))


def test_the_pinned_bundles_are_those_of_the_programs() -> None:
    """``make pin-peer`` exports them again."""
    with zipfile.ZipFile(PINNED) as archive:
        assert archive.comment.decode() == programs()


def test_the_table_is_true(played: Played) -> None:
    """``python -m tests.interop.table`` writes it."""
    assert TABLE.read_text(encoding="utf-8") == table(played)
