"""What became of every row in both directions, and the table of it in ``docs/interop.md``.

    python -m tests.interop.table          play all bundles and write the table
    python -m tests.interop.table --pin    first export the bundles of leapp 0.7.2 again and keep them in the repository

The rows that leapp 0.7.2 refuses, or gets wrong, are listed with its own words.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from . import graphs

REPOSITORY = Path(__file__).resolve().parents[2]
TABLE = REPOSITORY / "docs" / "interop.md"
PEER = REPOSITORY / ".venv-peer"
REQUIREMENTS = ("torch==2.13.0", "leapp==0.7.2")
PINNED = Path(__file__).with_name("leapp-0.7.2.zip")
"""The bundles of leapp 0.7.2, what it computes with them, and the digest of the programs they were made from."""
ROWS = {name: (chosen, backend) for name, chosen, backend in graphs.rows()}
HEAD = """# Isaac Lab, and bundles of leapp 0.7.2

## Isaac Lab 3.0.0

`make test-clients` runs the tests that Isaac Lab 3.0.0 has of its leapp export, from its own wheel, with this leapp,
Python 3.12 and torch 2.11, without a simulator:

| file of `isaaclab_rl/test/export` | passed |
|---|---|
| `test_leapp_proxy.py`, `test_leapp_selectors.py` | 16 of 16 |
| `test_leapp_recurrent_state.py`, `test_sb3_leapp_export.py` | 13 of 13, with RSL-RL, RL-Games, skrl and Stable-Baselines3 |
| `test_leapp_export_flow.py` | cannot run: 0 of 18 |

The 18 tests of `test_leapp_export_flow.py` start a simulation. All of them put their tensors on `cuda:0`, which the tests
cannot change, and load robots and ground planes from NVIDIA's asset server; ten also download a trained checkpoint, and three
ask for Isaac Sim or PhysX. With the device changed to the CPU by hand, `Isaac-Cartpole` on Newton's MuJoCo Warp solver gets as
far as loading its ground plane, and stops where the asset server cannot be reached. None of them reached a call of leapp.

## Isaac ROS Deploy 4.4 and 4.5

They read the YAML of a bundle themselves, with yaml-cpp, and convert every entry of `element_names` to a list of strings. An
entry that is not a list ends the load with an error. An axis without names is therefore written as `[]`, which leapp 0.7.2
reads as well.

One spelling cannot suit both: the axis over time (`TemporalAxis`). leapp 0.7.2 writes the text `__temporal_axis__` in its
place and documents it as the mark by which a program finds that axis; its `InferenceManager` hands the description on as it
is. Isaac ROS Deploy needs a list there, and a YAML node is a text or a list, never both. `[]` would load on both sides, but
programs that look for the mark would take the axis for one without names and say nothing, while Isaac ROS Deploy refuses the
mark aloud. So the mark is the default. For Isaac ROS Deploy export with `compile_graph(target="isaac-ros")`: it writes `[]`,
keeps `temporal_period_ms`, and notes in `temporal_axis` which entry is the axis over time. `leapp check BUNDLE --target
isaac-ros` names the ports of a bundle that need it.

## Bundles of leapp 0.7.2

Bundles travel both ways: what this leapp exports runs in the `InferenceManager` of leapp 0.7.2, and what 0.7.2 exported runs
here, in `InferenceManager` and, where every node is ONNX, in `leapp.runtime`. Each row below is one program, exported by both
sides with each backend, then run by the other side over {steps} closed-loop steps on new inputs and compared with eager
PyTorch.

This file is written by `python -m tests.interop.table`; a test keeps it true. "0.7.2" gives the reason of leapp 0.7.2 where
that refuses a program, or says that its model is wrong: then this leapp gives the same wrong values, as the file says.

| program | backends | leapp to 0.7.2 | 0.7.2 to leapp |
|---|---|---|---|
"""


def peer_python() -> Path:
    """The interpreter that has leapp 0.7.2; made on first use and kept for later runs."""
    python, ready = PEER / "bin" / "python", PEER / ".ready"
    with FileLock(f"{PEER}.lock"):
        if not ready.exists() or ready.read_text() != " ".join(REQUIREMENTS):
            venv.create(PEER, with_pip=True, clear=True)
            for requirement in REQUIREMENTS:  # torch first, so that leapp cannot choose another
                install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement]
                subprocess.run(install, check=True, timeout=900)
            ready.write_text(" ".join(REQUIREMENTS))
    return python


def start(python: Path | str, *arguments: str | Path) -> subprocess.Popen[str]:
    """Begin to run the script; the peer must not find this repository's leapp on the way."""
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    if str(python) != sys.executable:
        env.pop("PYTHONPATH", None)
    command = [str(python), graphs.__file__, *map(str, arguments)]
    return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def together(*running: subprocess.Popen[str]) -> None:
    """Wait for processes that run side by side."""
    for process in running:
        _, errors = process.communicate(timeout=2400)
        assert process.returncode == 0, errors


def programs() -> str:
    """The digest of the programs that both sides export."""
    return hashlib.sha256(Path(__file__).with_name("patterns.py").read_bytes()).hexdigest()


def pin() -> None:
    """Export every row with leapp 0.7.2, play the bundles there on the inputs of the test, and keep what came out."""
    peer = peer_python()
    with tempfile.TemporaryDirectory() as made:
        where = Path(made)
        graphs.record(where / "inputs.npz", where / "eager.npz")
        together(start(peer, "export", where / "theirs"))
        together(start(peer, "play", where / "theirs", where / "inputs.npz", where / "peer to peer.npz"))
        keep(where)


def keep(where: Path) -> None:
    """Pack the bundles of leapp 0.7.2 and what it computed with them, without logs."""
    files = [*where.glob("peer to peer.*"), *(f for f in where.glob("theirs/**/*") if f.is_file() and f.name != "log.txt")]
    with zipfile.ZipFile(PINNED, "w", zipfile.ZIP_LZMA) as archive:
        archive.comment = programs().encode()
        for file in sorted(files):
            archive.writestr(zipfile.ZipInfo(str(file.relative_to(where))), file.read_bytes(), zipfile.ZIP_LZMA)


def play_all(where: Path) -> None:
    """Export every row with this leapp, play its bundles with leapp 0.7.2, and play the pinned bundles here."""
    ours, theirs, inputs = sys.executable, peer_python(), where / "inputs.npz"
    with zipfile.ZipFile(PINNED) as archive:
        archive.extractall(where)
    graphs.record(inputs, where / "eager.npz")
    playing = start(ours, "play", where / "theirs", inputs, where / "peer to ours.npz")
    together(start(ours, "export", where / "ours"))
    together(playing, start(theirs, "play", where / "ours", inputs, where / "ours to peer.npz"))


class Played:
    """The outcome of one run of everything."""

    def __init__(self, where: Path) -> None:
        self._where = where

    def not_exported(self, by: str, row: str) -> str | None:
        """Why a side did not export a row."""
        found: dict[str, str] = json.loads((self._where / by / "errors.json").read_text())
        return found.get(row)

    def not_played(self, direction: str, row: str) -> str | None:
        """Why a bundle did not run."""
        found: dict[str, str] = json.loads((self._where / f"{direction}.json").read_text())
        return found.get(row)

    @cache  # noqa: B019
    def _by_row(self, file: str) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        with np.load(self._where / f"{file}.npz") as stored:
            for key in stored.files:
                row, place = key.split(":", 1)
                found.setdefault(row, {})[place] = stored[key]
        return found

    def values(self, direction: str, row: str) -> dict[str, Any]:
        """What came out, by step and output."""
        return self._by_row(direction).get(row, {})

    def wanted(self, row: str) -> dict[str, Any]:
        """What eager PyTorch gives, by step and output."""
        return self._by_row("eager")[ROWS[row][0].name]

    def difference(self, row: str, got: dict[str, Any]) -> str | None:
        """How values depart from eager PyTorch, if they do."""
        for key, value in self.wanted(row).items():
            found = got.get(key, got.get(f"{key}_out"))
            step, port = key.split(":", 1)
            if found is None:
                return f"'{port}' is no output of the graph"
            rtol = 1e-2 if value.dtype == np.float16 else 1e-4
            if found.shape != value.shape or not np.allclose(found, value, rtol, 1e-5, equal_nan=True):
                return f"'{port}' is wrong from step {step} on"
        return None

    def to_peer(self, row: str) -> str:
        """What became of our bundle on the other side."""
        failed = self.not_exported("ours", row)
        if failed:
            return failed
        failed = self.not_played("ours to peer", row) or self.difference(row, self.values("ours to peer", row))
        reader = ROWS[row][0].reader
        return "equal" if not failed else f"0.7.2: {reader}" if reader else failed

    def from_peer(self, row: str) -> str:
        """What became of the peer's bundle here, or of the peer's attempt to make one."""
        failed = self.not_exported("theirs", row) or self.not_played("peer to peer", row)
        if failed:
            return f"0.7.2: {failed}"
        failed = self.not_played("peer to ours", row)
        if failed:
            return failed
        wrong = self.difference(row, self.values("peer to peer", row))
        return f"0.7.2: {wrong}" if wrong else self.difference(row, self.values("peer to ours", row)) or "equal"


def table(played: Played) -> str:
    """The text of the page."""
    lines: dict[tuple[str, str, str], list[str]] = {}
    for row, (chosen, backend) in ROWS.items():
        lines.setdefault((chosen.name, played.to_peer(row), played.from_peer(row)), []).append(backend)
    text = HEAD.format(steps=graphs.STEPS)
    for (name, there, back), backends in lines.items():
        about = (graphs.PATTERNS[name].make.__doc__ or "").strip().splitlines()[0].rstrip(".")
        cells = (f"{name.replace('_', ' ')}: {about}", ", ".join(backends), there, back)
        text += "| " + " | ".join(c.replace("|", "\\|").replace("<", "&lt;") for c in cells) + " |\n"
    return text


if __name__ == "__main__":
    if "--pin" in sys.argv:
        pin()
    with tempfile.TemporaryDirectory() as made:
        play_all(Path(made))
        TABLE.write_text(table(Played(Path(made))), encoding="utf-8")
