"""Runs the tests that depend on versions with other versions of Python, torch and NumPy.

    python scripts/matrix.py                        every cell whose Python is on this machine
    python scripts/matrix.py 3.11-2.7 3.13-newest   some

A cell is a file ``tests/matrix/<cell>.txt``: its first line names the Python, the other lines are versions for pip to install.
A line ``# Without:`` says which tests are left out, as pytest's ``-k`` does: what a cell shares with another is run there.
Its venv is ``.venv-matrix-<cell>``, made once and brought up to date when the file or ``pyproject.toml`` changes. torch comes
from ``slimtorch.py``, without CUDA.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CELLS = {path.stem: path for path in sorted((ROOT / "tests" / "matrix").glob("*.txt"))}

TESTS = """
    tests/test_compat.py tests/test_seeds.py tests/test_examples.py tests/test_tables_backends.py tests/random_programs
    tests/tracing/test_sessions.py tests/tracing/test_unseen.py::test_a_function_compiled_inside_a_node
    tests/numpy tests/runtime tests/export/test_files.py tests/export/test_fuse.py
    tests/bundle/test_safetensors.py tests/test_public_api.py tests/test_semantics.py
""".split()
"""README and documents, the demo and the examples, all tables on every backend, random programs, sessions, NumPy, runtime.

What is left out either does not depend on versions or asks for single operators, which the tables have too."""


def output(python: str | Path, program: str) -> str:
    """What a program prints."""
    return subprocess.run([python, "-c", program], capture_output=True, text=True).stdout.strip()


def interpreter(cell: str) -> str | None:
    """The Python of a cell: ``$PYTHON_3_13``, one on the path, one of pyenv's, or one that ``debian_python.sh`` unpacked."""
    version = pinned(cell, r"^# Python (\S+)")
    installed = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    found = [os.environ.get(f"PYTHON_{version.replace('.', '_')}"), shutil.which(f"python{version}")]
    found += sorted((str(path) for path in installed.glob(f"{version}.*/bin/python")), reverse=True)
    found += [str(path) for path in ROOT.glob(f"build/python{version}/usr/bin/python{version}")]
    for python in filter(None, found):
        # pyenv puts a command on the path for versions that are not active as well.
        if output(python, "import sys; print('%d.%d' % sys.version_info[:2])") == version:
            return python
    return None


def pinned(cell: str, pattern: str) -> str:
    """A version that the file of a cell names."""
    found = re.search(pattern, CELLS[cell].read_text(), re.MULTILINE)
    if found is None:
        sys.exit(f"{CELLS[cell]} names no Python or no torch.")
    return found[1]


def prepare(cell: str, interpreter: str) -> Path:
    """The venv of a cell; returns its Python."""
    pins = CELLS[cell].read_text()
    venv = ROOT / f".venv-matrix-{cell}"
    python, stamp = venv / "bin" / "python", venv / ".ready"
    wanted = hashlib.sha256(pins.encode() + (ROOT / "pyproject.toml").read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    torch = pinned(cell, r"^torch==(\S+)")
    if not python.exists():
        subprocess.run([interpreter, "-m", "venv", str(venv)], check=True)
    if output(python, "import torch; print(torch.__version__.split('+')[0])") != torch:
        subprocess.run([python, ROOT / "scripts" / "slimtorch.py", torch, python], check=True)
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", CELLS[cell]]
    subprocess.run([*install, "torch", "-e", f"{ROOT}[test]"], check=True)
    stamp.write_text(wanted)
    return python


def main(names: list[str]) -> int:
    """Run the cells."""
    unknown = [name for name in names if name not in CELLS]
    if unknown:
        sys.exit(f"No such cell: {', '.join(unknown)}. There are {', '.join(CELLS)}.")
    pythons = {cell: interpreter(cell) for cell in names or CELLS}
    missing = [cell for cell, python in pythons.items() if python is None]
    if missing and (names or len(missing) == len(pythons)):
        sys.exit(f"No Python was found for {', '.join(missing)}. Set PYTHON_3_13 or the like to its path.")
    results = []
    for cell, found in pythons.items():
        if found is None:
            continue
        began = time.monotonic()
        python = prepare(cell, found)
        made = time.monotonic()
        print(f"== {cell}", flush=True)
        command = [python, "-m", "pytest", "-n", "2", "--dist", "worksteal", "-m", "not pinned", *TESTS]
        left_out = re.search(r"^# Without: (.+)$", CELLS[cell].read_text(), re.MULTILINE)
        command += ["-k", f"not ({left_out[1]})"] if left_out else []
        failed = subprocess.run(command, cwd=ROOT).returncode
        results.append((cell, failed, made - began, time.monotonic() - made))
    for cell, failed, preparing, testing in results:
        print(f"{'FAILED' if failed else 'passed'}  {cell:<18} venv {preparing:.0f} s, tests {testing:.0f} s")
    for cell in missing:
        print(f"not run {cell:<18} no Python {pinned(cell, r'^# Python (.+)')} was found")
    return int(any(failed for _, failed, _, _ in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
