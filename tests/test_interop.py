"""Bundles travel both ways between this leapp and leapp 0.7.2, installed in an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

from .interop import graphs

REPOSITORY = Path(__file__).resolve().parents[1]
PEER = REPOSITORY / ".venv-peer"
REQUIREMENTS = ("torch==2.13.0", "leapp==0.7.2")
DIRECTIONS = ["ours to peer", "peer to ours"]


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


def run(python: Path | str, *arguments: str | Path) -> None:
    """Run the graphs' script; the peer must not find this repository's leapp on the way."""
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    if str(python) != sys.executable:
        env.pop("PYTHONPATH", None)
    command = [str(python), graphs.__file__, *map(str, arguments)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both exports, and each played by the other side; done once for all workers."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "interop"
    with FileLock(f"{shared}.lock"):
        if not (shared / "done").exists():
            shared.mkdir(exist_ok=True)
            ours, theirs = sys.executable, peer_python()
            graphs.record(shared / "inputs.npz", shared / "eager.npz")
            run(ours, "export", shared / "ours")
            run(theirs, "export", shared / "theirs")
            run(theirs, "play", shared / "ours", shared / "inputs.npz", shared / "ours to peer.npz")
            run(ours, "play", shared / "theirs", shared / "inputs.npz", shared / "peer to ours.npz")
            (shared / "done").touch()
    return shared


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("graph", graphs.GRAPHS)
def test_bundles_give_the_same_values_on_the_other_side(graph: str, direction: str, played: Path) -> None:
    """Ten closed-loop steps on new inputs equal the eager code, on every output the graph declares."""
    exporter = "ours" if direction == "ours to peer" else "theirs"
    for errors in (played / exporter / "errors", played / f"{direction}.errors"):
        assert not (errors / f"{graph}.txt").exists(), (errors / f"{graph}.txt").read_text()
    wanted, got = np.load(played / "eager.npz"), np.load(played / f"{direction}.npz")
    keys = [key for key in wanted.files if key.startswith(f"{graph}:")]
    assert len(keys) >= graphs.STEPS
    for key in keys:
        np.testing.assert_allclose(got[key], wanted[key], rtol=1e-4, atol=1e-5, err_msg=key)
    outputs = {key.split(":", 2)[2] for key in keys}
    moving = [key for key in outputs if not np.array_equal(wanted[f"{graph}:0:{key}"], wanted[f"{graph}:9:{key}"])]
    assert moving, "the eager values do not change, so nothing was compared"
