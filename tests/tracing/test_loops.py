"""Every pattern, on every backend, in closed loop against eager code on new inputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tracing import patterns
from tests.tracing.loops import PATTERNS, export, play

GROUPS = {passes: [p for p in PATTERNS.values() if p.passes == passes] for passes in {p.passes for p in PATTERNS.values()}}


@pytest.mark.parametrize("backend", ["jit", "onnx", "pt2"])
@pytest.mark.parametrize("passes", sorted(GROUPS))
def test_closed_loop(backend: str, passes: int, tmp_path: Path) -> None:
    """Twenty steps of the bundle are twenty steps of the program."""
    assert patterns
    play(GROUPS[passes], backend, export(GROUPS[passes], backend, tmp_path))
