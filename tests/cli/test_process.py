"""The command line as a process: start-up, signals, pipes, terminals, shells."""

from __future__ import annotations

import argparse
import os
import pty
import re
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import leapp
from leapp.cli import main
from leapp.cli.parser import VERBS, build

from .conftest import Policy

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(leapp.__file__).parents[1])}


def run(*argv: object, **more: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "leapp", *map(str, argv)]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=120, **more)


def processor_time(command: list[str]) -> float:
    """The best of a few runs, in seconds: the machine is shared."""
    spent = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, env=ENVIRONMENT, stdout=subprocess.DEVNULL, timeout=60)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(spent)


def test_looking_at_a_bundle_is_quick(policy: Policy) -> None:
    """Below 250 ms of processor time, the interpreter included; on a slower machine twelve bare interpreters."""
    bare = processor_time([sys.executable, "-c", "import argparse, json"])
    assert processor_time([sys.executable, "-m", "leapp", "inspect", str(policy.path)]) < max(0.25, 12 * bare)
    program = f"""
import sys
from leapp.cli import main
assert main(["inspect", {str(policy.path)!r}]) == 0
heavy = {{"numpy", "onnx", "onnxruntime", "torch", "rich", "PIL"}} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", program], check=True, env=ENVIRONMENT, stdout=subprocess.DEVNULL, timeout=60)


@pytest.mark.parametrize("command", ["inspect", "verify", "run", "check", "view", "diff"])
def test_no_command_imports_torch_for_an_onnx_bundle(policy: Policy, command: str, tmp_path: Path) -> None:
    more = {"check": ["--target", "tensorrt"], "view": ["--no-open", "--output", str(tmp_path)], "diff": [str(policy.path)]}
    argv = [command, str(policy.path), *more.get(command, [])]
    program = f"""
import sys
from leapp.cli import main
assert main({argv!r}) == 0
heavy = {{"torch", "onnxscript"}} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", program], check=True, env=ENVIRONMENT, stdout=subprocess.DEVNULL, timeout=120)


def test_ctrl_c_ends_cleanly(policy: Policy) -> None:
    command = [sys.executable, "-m", "leapp", "bench", str(policy.path), "--rate", "10", "--steps", "1000"]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "timing 1000 steps at 10 Hz takes 200 s ...\n"
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=120)
    assert (process.returncode, out, error) == (130, "", "leapp: interrupted\n")


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m leapp schema | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=ENVIRONMENT, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def on_terminal(*argv: object, **environment: str) -> str:
    """What a command of leapp prints on a terminal."""
    return in_terminal([sys.executable, "-m", "leapp", *map(str, argv)], **environment)


def in_terminal(command: list[str], **environment: str) -> str:
    main_end, far_end = pty.openpty()
    more = {**ENVIRONMENT, "TERM": "xterm", "COLUMNS": "120", **environment}
    process = subprocess.Popen(command, stdout=far_end, stderr=far_end, env=more)
    os.close(far_end)
    text = b""
    while True:
        try:
            piece = os.read(main_end, 65536)
        except OSError:  # the far end is closed
            break
        if not piece:
            break
        text += piece
    os.close(main_end)
    process.wait()
    return text.decode()


def test_colour_only_on_terminals(policy: Policy) -> None:
    assert "\x1b[" in on_terminal("inspect", policy.path)
    assert "\x1b[3" not in on_terminal("inspect", policy.path, NO_COLOR="1")
    assert "\x1b[" not in run("inspect", policy.path).stdout


def test_a_narrow_terminal_breaks_no_name(policy: Policy) -> None:
    wide, narrow = (on_terminal("inspect", policy.path, NO_COLOR="1", COLUMNS=str(n)) for n in (200, 60))
    assert "left out" not in wide
    assert "left out to fit 60 columns: size, opset" in narrow
    words = set(narrow.split())
    assert {"filter/q", "state/joint/position", "filter/memory_in", "filter/memory_out", "policy/smooth"} <= words
    # The digest is a single word of its own length; everything else fits.
    assert all(len(line) <= 60 or str(policy.path) in line for line in narrow.splitlines() if len(line.split()) > 1)
    for name in ("filter/memory_in", "target/joint/position"):
        assert name in on_terminal("inspect", policy.path, NO_COLOR="1", COLUMNS="20")


def test_long_work_tells_of_itself_on_a_terminal_and_in_a_pipe() -> None:
    program = """
import time
from leapp.cli import output
output._LINE_SECONDS = 0.5
with output.progress("working", 4) as advance:
    for _ in range(4):
        time.sleep(0.4)
        advance()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=ENVIRONMENT, timeout=60)
    lines = done.stderr.splitlines()
    assert 1 <= len(lines) <= 4 and all(line.startswith("working ") and " of 4, " in line for line in lines)
    shown = in_terminal([sys.executable, "-c", program])
    assert "working [" in shown and " of 4, " in shown
    assert shown.endswith("\r\x1b[K")
    quick = program.replace("0.4", "0.01").replace("0.5", "60.0")
    assert subprocess.run([sys.executable, "-c", quick], capture_output=True, env=ENVIRONMENT, timeout=60).stderr == b""


def test_the_module_and_its_help() -> None:
    done = run("--help")
    assert done.returncode == 0
    for verb, text in VERBS.items():
        assert f" {verb} " in done.stdout and text[:30] in done.stdout
    assert run("--version").stdout.startswith("leapp ")


@pytest.mark.parametrize("verb", VERBS)
def test_help_explains_every_option_of_a_verb(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    shown = capsys.readouterr().out
    assert VERBS[verb].split()[0].capitalize() in shown and "--json" in shown
    options = next(a for a in build([verb])._actions if isinstance(a, argparse._SubParsersAction)).choices[verb]._actions
    assert [o.option_strings for o in options if o.option_strings and not o.help] == []


@pytest.mark.parametrize("verb", VERBS)
def test_the_page_of_the_command_line_has_every_option_of_a_verb(verb: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    sections = [text for text in re.split(r"^## ", page, flags=re.MULTILINE) if re.match(rf"[^\n:]*\b{verb}\b", text)]
    assert len(sections) == 1, f"docs/cli.md has no section on {verb}"
    actions = next(a for a in build([verb])._actions if isinstance(a, argparse._SubParsersAction)).choices[verb]._actions
    known = [a.option_strings for a in actions if a.option_strings and a.help != argparse.SUPPRESS and a.dest != "help"]
    assert [names for names in known if not any(re.search(rf"{name}\b", page) for name in names)] == []


def test_there_is_a_module_for_each_verb() -> None:
    folder = Path(leapp.cli.__file__).parent
    answering = {path.stem for path in folder.glob("*.py") if "def command(" in path.read_text()}
    assert answering == set(VERBS)


@pytest.mark.parametrize("argv", [["--help"], ["run", "--help"], ["serve", "--help"], ["completion", "bash"]])
def test_help_and_completion_import_nothing_heavy(argv: list[str]) -> None:
    """A shell may run ``leapp completion`` each time it starts."""
    program = f"""
import sys
from leapp.cli import main
assert main({argv!r}) == 0
heavy = {{"numpy", "onnx", "onnxruntime", "torch", "rich", "PIL", "ray"}} & set(sys.modules)
assert not heavy, heavy
verbs = {{name for name in sys.modules if name.startswith("leapp.")}}
assert {argv!r} != ["--help"] or len(verbs) < 12, verbs
"""
    subprocess.run([sys.executable, "-c", program], check=True, env=ENVIRONMENT, stdout=subprocess.DEVNULL, timeout=60)


def test_bash_completes_commands_options_and_choices() -> None:
    script = run("completion", "bash").stdout

    def complete(*words: str) -> set[str]:
        quoted = " ".join(f"'{word}'" for word in words)
        program = f"{script}\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _leapp; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        return set(subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True).stdout.split())

    assert complete("leapp", "ver") == {"verify"}
    assert complete("leapp", "verify", "--th") == {"--thorough"}
    assert complete("leapp", "check", "--target", "i") == {"isaac-ros"}
    assert complete("leapp", "completion", "") == {"bash", "zsh", "fish"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_every_command(shell: str, tmp_path: Path) -> None:
    script = run("completion", shell).stdout
    for word in ("inspect", "doctor", "thorough", "isaac-ros"):
        assert word in script
    # A shell that is here must at least accept the script.
    if shutil.which(shell):
        (tmp_path / "script").write_text(script)
        subprocess.run([shell, "-n", str(tmp_path / "script")], check=True, timeout=30)
