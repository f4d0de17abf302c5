"""What ``pip install leapp`` alone can do, with the packages that pyproject.toml declares and no others in reach."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import numpy as np
import pytest

from .conftest import Policy

SOURCES = Path(__file__).parents[2] / "src"


def declared() -> list[str]:
    text = (SOURCES.parent / "pyproject.toml").read_text()
    lines = re.search(r"^dependencies = \[\n(.*?)^\]", text, re.M | re.S)
    assert lines is not None
    return re.findall(r'^  "([A-Za-z0-9_-]+)', lines.group(1), re.M)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with links to the declared packages and to what they need in turn."""
    folder = tmp_path_factory.mktemp("base")
    waiting, seen = declared(), set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        waiting += [re.split(r"[^A-Za-z0-9_-]", r)[0] for r in found.requires or () if "extra ==" not in r]
        for part in {f.parts[0] for f in found.files or () if ".." not in f.parts}:
            link = folder / part
            if not link.exists():
                link.symlink_to(found.locate_file(part))
    assert not {"onnx", "onnxscript", "onnx_ir", "PIL", "rich", "torch"} & set(os.listdir(folder))
    return folder


@pytest.fixture
def base(packages: Path):
    environment = {**os.environ, "PYTHONPATH": f"{SOURCES}:{packages}", "PYTHONSAFEPATH": "1"}

    def run(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-S", *map(str, arguments)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, **options)

    return run


def test_a_bundle_runs_and_gives_what_it_gave_where_it_was_exported(base, policy: Policy, tmp_path: Path) -> None:
    import torch

    q = np.random.default_rng(3).normal(size=(5, 1, 3)).astype(np.float32)
    np.savez(tmp_path / "in.npz", **{"filter/q": q})
    done = base("-m", "leapp", "run", policy.path, "--input", tmp_path / "in.npz", "--output", tmp_path / "out.npz")
    assert done.returncode == 0, done.stderr
    memory = torch.zeros(1, 3)
    with np.load(tmp_path / "out.npz") as written:
        for step, got in enumerate(written["policy/target"]):
            want, memory = policy.step(torch.from_numpy(q[step]), memory)
            np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-6)


VERBS = [
    ["inspect"], ["verify"], ["verify", "--thorough"],
    ["run"], ["bench", "--steps", "20"], ["check", "--target", "onnxruntime"],
]  # fmt: skip


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_the_verbs_of_a_robot_answer(base, policy: Policy, verb: list[str]) -> None:
    done = base("-m", "leapp", verb[0], policy.path, *verb[1:])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_doctor_finds_no_error_and_says_what_exporting_needs(base) -> None:
    done = base("-m", "leapp", "doctor")
    assert done.returncode == 0, done.stdout
    assert 'pip install "leapp[export]"' in done.stdout


def test_a_terminal_without_rich_shows_the_tables(base, packages: Path, policy: Policy) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-S", "-m", "leapp", "inspect", str(policy.path)]
    environment = {**os.environ, "PYTHONPATH": f"{SOURCES}:{packages}", "TERM": "xterm"}
    process = subprocess.Popen(command, env=environment, stdout=theirs, stderr=theirs, stdin=theirs)
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
    assert process.wait(60) == 0, shown
    assert b"filter/q" in shown
    assert b"policy/target" in shown


@pytest.mark.parametrize("verb", [["fuse", "-o", "x.onnx"], ["view", "--no-open", "--output", "page"]], ids=lambda v: v[0])
def test_what_needs_the_rest_says_how_to_get_it(base, policy: Policy, tmp_path: Path, verb: list[str]) -> None:
    done = base("-m", "leapp", verb[0], policy.path, *verb[1:], cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert 'pip install "leapp[export]"' in done.stderr


def test_diff_compares_weights_and_outputs(base, policy: Policy, retrained: Policy) -> None:
    done = base("-m", "leapp", "diff", policy.path, retrained.path)
    assert done.returncode == 1, done.stderr
    assert "Weights that changed (1)" in done.stdout
    assert "1 of 1 outputs move: policy/target." in done.stdout


@pytest.mark.parametrize("verb", ["run", "bench"])
def test_a_torch_model_says_what_it_needs(base, scripted: Policy, verb: str) -> None:
    done = base("-m", "leapp", verb, scripted.path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "needs torch: pip install torch" in done.stderr


def test_tracing_without_torch_is_one_sentence(base) -> None:
    done = base("-c", "import leapp; leapp.start('g')")
    assert "leapp.errors.MissingDependencyError: leapp.start needs torch" in done.stderr


def test_tracing_without_the_exporters_is_one_sentence_and_changes_nothing(packages: Path, tmp_path: Path) -> None:
    """torch is there, its exporters' packages are not."""
    import torch

    folder = tmp_path / "with_torch"
    folder.mkdir()
    site = Path(torch.__file__).parents[1]
    for part in os.listdir(site):
        if part not in ("onnx", "onnxscript", "onnx_ir", "PIL", "rich"):
            (folder / part).symlink_to(site / part)
    code = """
import leapp, torch
try:
    leapp.start('g')
except ImportError as error:
    print(error)
print(leapp.ExportManager.interpreting)
"""
    environment = {**os.environ, "PYTHONPATH": f"{SOURCES}:{folder}"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env=environment, capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    sentence, interpreting = done.stdout.splitlines()
    assert sentence == (
        'Exporting needs onnx, onnxscript, onnx-ir, pillow, which this install of leapp lacks: pip install "leapp[export]".'
    )
    assert interpreting == "False"
    assert not (tmp_path / "g").exists()
