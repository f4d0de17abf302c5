"""Runs programs as ``python program.py`` does, each in a process of its own, without importing torch anew for each.

One server per test process imports the libraries and forks for every program. It computes nothing itself: a process that
has used torch's threads cannot be forked safely.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from functools import cache
from pathlib import Path
from typing import NoReturn

REPOSITORY = Path(__file__).resolve().parents[1]
LIBRARIES = ("torch", "torch.export", "torch.onnx", "onnx", "onnxruntime", "onnxscript", "leapp.tracing", "leapp.runtime")
SECONDS = 600


def run_program(script: Path, directory: Path, *arguments: str) -> str:
    """Run a program in a directory and return what it printed. It must succeed."""
    with tempfile.TemporaryDirectory() as made:
        said = Path(made) / "said"
        server = _server()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps([str(script), str(directory), list(arguments), str(said)]) + "\n")
        server.stdin.flush()
        code = server.stdout.readline().strip()
        assert code == "0", f"exit code {code}\n" + said.read_text() + said.with_suffix(".errors").read_text()
        return said.read_text()


@cache
def _server() -> subprocess.Popen[str]:
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.warm"],
        cwd=REPOSITORY,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None
    atexit.register(server.stdin.close)  # the end of its input ends it
    return server


def serve() -> None:
    """Fork for each line of standard input, which names a program, and answer with the exit code."""
    for library in LIBRARIES:
        importlib.import_module(library)
    sys.modules["torch"].manual_seed(0)  # the programs draw the same inputs in every run
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            become(*json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def become(script: str, directory: str, arguments: list[str], said: str) -> NoReturn:
    """Go on as the program, with its output in files.

    The process ends without taking the interpreter down: libraries imported before a fork do not all survive that.
    """
    signal.alarm(SECONDS)
    for number, path in enumerate((os.devnull, said, f"{said}.errors")):
        opened = os.open(path, os.O_RDWR | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(directory)
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    code = 1
    try:
        runpy.run_path(script, run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        serve()
