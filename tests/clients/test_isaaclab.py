"""Isaac Lab 3.0.0 with this leapp: its own tests, from its wheel. What cannot run without its simulator: docs/interop.md."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import isaaclab
import pytest

TESTS = Path(isaaclab.__file__).parent / "source" / "isaaclab_rl" / "test" / "export"


@pytest.mark.parametrize(
    ("files", "count"),
    [
        (["test_leapp_proxy.py", "test_leapp_selectors.py"], 16),
        (["test_leapp_recurrent_state.py", "test_sb3_leapp_export.py"], 13),
    ],
)
def test_own_tests(files: list[str], count: int, tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-c", "pytest.ini", "-p", "no:cacheprovider"]
    run = subprocess.run([*command, *(TESTS / f for f in files)], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    summary = run.stdout.strip().splitlines()[-1]
    assert summary.startswith(f"{count} passed"), run.stdout
    assert "skipped" not in summary, run.stdout
