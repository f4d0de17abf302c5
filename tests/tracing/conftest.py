"""For all tests of sessions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import leapp


@pytest.fixture(autouse=True)
def leave() -> Iterator[None]:
    """No test leaves a session open."""
    yield
    if leapp.ExportManager.interpreting:
        leapp.stop()
