"""Texts of a bundle that a terminal would obey: escape sequences, and marks that turn writing around."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from leapp.bundle import open_bundle
from leapp.cli import main
from leapp.errors import BundleError
from tests.attacks.test_models import exchange, one, out_of_bounds
from tests.bundle.conftest import write

EVIL = ["\x1b]0;owned\x07", "\x9b31m", "\u202egnp.exe", "\u2066x", "\u2028"]
RAW = set("\x1b\x07\x9b\u202e\u2066\u2028")


def put(place: str, text: str, document: dict) -> None:
    if place == "block":
        document[f"block{text}"] = {f"key{text}": f"value{text}"}
    elif place == "port key":
        document["models"]["pre"]["inputs"][0]["units"] = text
    elif place == "kind":
        document["models"]["pre"]["inputs"][0]["kind"] = text
    elif place == "names":
        document["models"]["pre"]["inputs"][0]["element_names"] = [[text, "b"]]
    elif place == "config":
        document["pipeline"]["configs"][text] = text
    elif place == "file":
        document["models"]["pre"]["parameters"]["model_path"] = f"no{text}.pt"
    elif place == "dtype":
        document["models"]["pre"]["inputs"][0]["dtype"] = text
    elif place == "wiring":
        document["pipeline"]["inputs"] = {f"pre{text}": ["x"]}
    elif place == "version":
        document["system information"]["leapp config version"] = text


PLACES = ["block", "port key", "kind", "names", "config", "file", "dtype", "wiring", "version"]
VERBS = [["inspect"], ["inspect", "--json"], ["verify"], ["verify", "--json"], ["check", "--target", "isaac-ros"]]


@pytest.mark.parametrize("place", PLACES)
def test_nothing_raw_reaches_a_terminal(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "g")
    path = tmp_path / "g" / "g.yaml"
    whole = path.read_text()
    for text in EVIL:
        document = yaml.safe_load(whole)
        put(place, text, document)
        document["integrity"] = "unsealed"
        path.write_text(yaml.safe_dump(document, allow_unicode=False))
        for verb in VERBS:
            main([verb[0], str(path), *verb[1:]])
            out, err = capsys.readouterr()
            assert not RAW & set(out + err), (verb, text)
            if "--json" in verb:
                found = json.loads(out)
                if verb[0] == "inspect" and place == "block":
                    assert found["annotations"][f"block{text}"] == {f"key{text}": f"value{text}"}
        try:
            open_bundle(path)
        except BundleError as error:
            assert not RAW & set(str(error))


def test_the_log_of_an_engine_does_not_reach_a_terminal(tmp_path: Path) -> None:
    """ONNX Runtime writes the name of an operator that failed to its log as it is."""
    path = one(tmp_path / "b", "onnx")
    exchange(path, "p.onnx", out_of_bounds((path.parent / "p.onnx").read_bytes(), EVIL[0]))
    done = subprocess.run([sys.executable, "-m", "leapp", "run", path], capture_output=True, text=True)
    assert done.returncode == 2 and "Gather" in done.stderr
    assert not RAW & set(done.stdout + done.stderr)


def test_a_terminal_gets_our_own_sequences_only(tmp_path: Path) -> None:
    write(tmp_path / "g")
    path = tmp_path / "g" / "g.yaml"
    document = yaml.safe_load(path.read_text())
    document["block"] = {"key": "\x1b]0;owned\x07 \x9b31m"}
    path.write_text(yaml.safe_dump(document))
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "leapp", "inspect", str(path)], stdout=theirs, stderr=theirs, stdin=theirs,
        env={**os.environ, "TERM": "xterm"},
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 1 << 16)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    assert process.wait(60) == 0
    assert b"block" in shown
    assert b"\x1b]0" not in shown
    assert "\x9b".encode() not in shown


def test_file_names_that_mean_something_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle called like an option, and a graph whose name is a path."""
    write(tmp_path / "-o")
    monkeypatch.chdir(tmp_path)
    assert main(["inspect", "./-o"]) == 0
    assert main(["inspect", "--", "-o"]) == 0
    assert main(["view", "--no-open", "--output", "page", "--", "-o"]) == 0
    assert sorted(os.listdir(tmp_path)) == ["-o", "page"]
