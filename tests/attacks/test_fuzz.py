"""Coverage-guided fuzzing of every parser: 3,000 inputs each, an hour with ``LEAPP_SOAK=1``. ``corpus`` has the first inputs.

What it finds on the way is kept in ``build/corpus``, and the next run begins with it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.venvs import programs_of

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TARGETS = tuple(sorted(path.name for path in (HERE / "corpus").iterdir()))
RUNS = 3000
LIMIT = f"-max_total_time={3600 // len(TARGETS)}" if os.environ.get("LEAPP_SOAK") else f"-runs={RUNS}"


def fuzz(target: str, limit: str) -> int:
    """How many inputs a parser was given within a limit of libFuzzer. Raises with the report if one of them broke it."""
    found = ROOT / "build" / "corpus" / target
    found.mkdir(parents=True, exist_ok=True)
    python = programs_of("atheris", "atheris==3.0.0") / "python"
    command = [python, HERE / "fuzz.py", target, found, HERE / "corpus" / target, limit,
               "-timeout=20", "-rss_limit_mb=2048", f"-artifact_prefix={found.parent}/{target}-"]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=3600)
    runs = re.search(r"Done (\d+) runs", done.stderr)
    assert done.returncode == 0 and runs is not None, done.stderr[-3000:]
    return int(runs[1])


@pytest.mark.parametrize("target", TARGETS)
def test_no_input_breaks_a_parser(target: str) -> None:
    assert fuzz(target, LIMIT) >= RUNS
