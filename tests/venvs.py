"""Tools of the tests that need an environment of their own: made on first use and kept for later runs."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

from filelock import FileLock

REPOSITORY = Path(__file__).resolve().parents[1]


def programs_of(name: str, *requirements: str) -> Path:
    """The directory of the programs in ``.venv-<name>``, which has these packages."""
    home = REPOSITORY / f".venv-{name}"
    ready = home / ".ready"
    with FileLock(f"{home}.lock"):
        if not ready.exists() or ready.read_text().split() != [*requirements]:
            venv.create(home, clear=True)  # without pip: this interpreter's own pip installs into it
            install = ["--python", home / "bin" / "python", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([sys.executable, "-m", "pip", *install, *requirements], check=True, timeout=900)
            ready.write_text("\n".join(requirements))
    return home / "bin"
