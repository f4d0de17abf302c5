"""What all tests share: the same random numbers in every run, and no writing into the user's state directory."""

from __future__ import annotations

import atexit
import os
import random
import shutil
import sys
import tempfile

os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="leapp-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)


def pytest_runtest_setup() -> None:
    """Seed the generators before each test and its fixtures. Not every environment of the tests has torch and NumPy."""
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
