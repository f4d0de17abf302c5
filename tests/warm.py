"""Runs programs as ``python program.py`` does, each in a process of its own, without importing torch anew for each.

One server per test process imports the libraries, exports once with each exporter, which loads and caches the rest of
them, and forks for every program. It has one thread: a process that has used torch's threads cannot be forked safely.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import io
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
    done = run_python(script, *arguments, cwd=directory)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def run_python(*words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """What ``python *words`` does, where the words begin with ``-m`` and a module, ``-c`` and code, or a script."""
    command = [str(word) for word in words]
    with tempfile.TemporaryDirectory() as made:
        said = Path(made) / "said"
        server = _server()
        assert server.stdin is not None
        assert server.stdout is not None
        asked = {"command": command, "directory": str(cwd or Path.cwd()), "said": str(said), "environment": dict(os.environ)}
        server.stdin.write(json.dumps(asked) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        return subprocess.CompletedProcess(command, code, said.read_text(), said.with_suffix(".errors").read_text())


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
    """Fork for each line of standard input, which says what to run, and answer with the exit code."""
    for library in LIBRARIES:
        importlib.import_module(library)
    warm_up()
    sys.modules["torch"].manual_seed(0)  # the programs draw the same inputs in every run
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            become(**json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def warm_up() -> None:
    """Export a node with each exporter: the one for TorchScript, our own for ONNX, that of torch for ONNX, that for .pt2."""
    import torch

    import leapp

    with tempfile.TemporaryDirectory() as where, contextlib.redirect_stderr(io.StringIO()):
        for backend, parameters in (("jit", {}), ("onnx", {}), ("onnx", {"opset_version": 17}), ("pt2", {})):
            leapp.start("g", save_path=where)
            for number in range(2):
                x = leapp.annotate.input_tensors("n", {"x": torch.full((1, 3), float(number))})
                leapp.annotate.output_tensors("n", {"y": x @ torch.ones(3, 3)}, export_with=backend, backend_params=parameters)
            leapp.stop()
            leapp.compile_graph()


def become(command: list[str], directory: str, said: str, environment: dict[str, str]) -> NoReturn:
    """Go on as the program, with its output in files.

    The process ends without taking the interpreter down: libraries imported before a fork do not all survive that.
    """
    signal.alarm(SECONDS)
    for number, path in enumerate((os.devnull, said, f"{said}.errors")):
        opened = os.open(path, os.O_RDWR | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    code = 1
    try:
        run(command)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(code)


def run(command: list[str]) -> None:
    """Run a module, a text or a script in this process, as the interpreter does."""
    how, *rest = command
    if how == "-m":
        sys.argv, sys.path[0] = rest, os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif how == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], os.getcwd()
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv, sys.path[0] = command, str(Path(how).parent)
        runpy.run_path(how, run_name="__main__")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        serve()
