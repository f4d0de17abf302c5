"""The mistakes that users make are answered as the table says; the pages about mistakes and messages are up to date."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

import leapp
from leapp import ExportManager
from leapp.cli import main
from leapp.graph.suggest import close

from .tables.mistakes import MISTAKES, PREAMBLE, Mistake

ROOT = Path(__file__).resolve().parents[1]


def script(name: str) -> Any:
    """A module of scripts/."""
    spec = importlib.util.spec_from_file_location(f"leapp_script_{name}", ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("case", MISTAKES, ids=lambda case: case.name)
def test_mistake(case: Mistake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """The class of the answer, the line that it names, and its words."""
    monkeypatch.chdir(tmp_path)
    path, code = tmp_path / "mistake.py", PREAMBLE + case.code
    path.write_text(code)
    error: Exception | None = None
    ExportManager()._reset()
    try:
        exec(compile(code, str(path), "exec"), {"__name__": "mistake"})
    except Exception as raised:
        error = raised
    finally:
        if ExportManager.interpreting:
            leapp.stop()
        ExportManager()._reset()
    console = capsys.readouterr().err
    answer = type(error).__name__ if error is not None else "WARNING" if "[WARNING]" in console else "RIGHT"
    said = str(error) if error is not None else console
    assert answer == case.answer, said
    for words in case.says:
        assert words in said
    lines = [number for number, line in enumerate(code.splitlines(), 1) if line.endswith("# HERE")]
    for number in lines:
        assert f"mistake.py:{number}" in said, f"line {number} is not named in: {said}"


def test_the_table_is_large_enough() -> None:
    """At least 60, half of which nobody had reported, and no two alike."""
    wrong = [case for case in MISTAKES if case.answer != "RIGHT"]
    assert len(wrong) >= 60 and sum(not case.issue for case in wrong) * 2 >= 60
    assert len({case.name for case in MISTAKES}) == len({case.code for case in MISTAKES}) == len(MISTAKES)


def test_the_page_of_mistakes_is_up_to_date() -> None:
    assert (ROOT / "docs" / "mistakes.md").read_text() == script("mistakes").page(), "run python scripts/mistakes.py"


def test_every_message_has_its_entry() -> None:
    """The page lists what the source raises and logs."""
    messages = script("messages")
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    found = messages.messages()
    assert len(found) > 300
    missing = [m.text for m in found if " ".join(m.text.split()) not in page]
    assert not missing, "run python scripts/messages.py"


@pytest.mark.parametrize(
    ("typed", "meant"), [("inspekt", "inspect"), ("verfy", "verify"), ("veiw", "view"), ("doktor", "doctor"), ("serv", "serve")]
)
def test_a_misspelt_command_gets_the_nearest(typed: str, meant: str, capsys: Any) -> None:
    assert main([typed, "bundle"]) == 2
    assert f"Did you mean '{meant}'?" in capsys.readouterr().err


def test_hints_are_given_only_where_something_is_near() -> None:
    assert close("nonsense", ["jit", "onnx", "pt2", "None"]) == "" and close("ONXX", ["jit", "onnx"]) == " Did you mean 'onnx'?"
