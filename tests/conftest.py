"""What all tests share: the same random numbers in every run, one thread, no writing into the user's state directory."""

from __future__ import annotations

import atexit
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import pytest

os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="leapp-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)

# The workers of pytest keep every core busy. More threads of torch and NumPy would only wait for each other, at full load.
for _library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")


def pytest_runtest_setup() -> None:
    """Seed the generators before each test and its fixtures. Not every environment of the tests has torch and NumPy."""
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str], list[Any]]:
    """Lists the arguments of all calls of a function from now on: ``counted(module, "function")``."""

    def count(owner: Any, name: str) -> list[Any]:
        calls: list[Any] = []
        plain = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, **kwargs: calls.append(args) or plain(*args, **kwargs))
        return calls

    return count
