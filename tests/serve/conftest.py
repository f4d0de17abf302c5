"""A served policy for every test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leapp.serve import Options
from tests.serve.serving import Served, export, serving


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tmp_path_factory.mktemp("served"))


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Start servers that end with the test."""
    opened = []

    def start(options: Options, port: int = 0) -> Served:
        context = serving(options, port)
        opened.append(context)
        return context.__enter__()

    yield start
    for context in reversed(opened):
        context.__exit__(None, None, None)
