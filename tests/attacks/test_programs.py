"""Bundles of strangers whose models are programs: looking at them runs nothing, running them asks first."""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import leapp
from leapp import InferenceManager, annotate
from leapp.bundle.files import hash_file
from leapp.bundle.integrity import seal
from leapp.cli import main
from leapp.deploy import TritonOptions, deploy_triton
from leapp.errors import BundleError
from leapp.fleet import replay_fleet
from leapp.runtime import Pipeline
from leapp.serve.engine import SharedEngine
from leapp.serve.metrics import Metrics
from leapp.serve.options import Options
from tests.warm import run_python

FILES = {"jit": "n.pt", "pt2": "n.pt2", "onnx": "n.onnx"}


def export(directory: Path, backend: str, factor: float = 2.0) -> Path:
    leapp.start("g", save_path=directory)
    for _ in range(2):
        x = annotate.input_tensors("n", {"x": torch.randn(1, 3)})
        annotate.output_tensors("n", {"y": x * factor + 1.0}, export_with=backend)
    leapp.stop()
    leapp.compile_graph()
    return directory / "g"


def exchange(bundle: Path, name: str, data: bytes) -> None:
    """Another model in place of one, with a seal that fits, as a stranger makes it."""
    (bundle / name).write_bytes(data)
    md5, sha256 = hash_file(bundle / name)
    text, _, rest = (bundle / "g.yaml").read_text().partition("integrity:")
    files = yaml.safe_load("integrity:" + rest)["integrity"]["files"]
    text = text.replace(files[name], sha256)
    (bundle / "g.yaml").write_text(seal(text, {**files, name: sha256})[0])


class Hostile(torch.nn.Module):
    """Writes a file when it is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.full((1,), 2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.w + 1.0

    @torch.jit.export
    def __getstate__(self) -> tuple[torch.Tensor, bool]:
        return (self.w, self.training)

    @torch.jit.export
    def __setstate__(self, state: tuple[torch.Tensor, bool]) -> None:
        self.w = state[0]
        self.training = state[1]
        torch.save(state[0], "marker")


class Payload:
    """What a pickle can do."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("marker",)


def hostile_script(_: bytes) -> bytes:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(Hostile()), buffer)
    return buffer.getvalue()


def hostile_samples(data: bytes) -> bytes:
    """Every name in the archive is that of an exported program; the sample inputs are a pickle."""
    inner = io.BytesIO()
    torch.save((torch.zeros(1), Payload()), inner)
    source, out = zipfile.ZipFile(io.BytesIO(data)), io.BytesIO()
    with zipfile.ZipFile(out, "w") as target:
        for name in source.namelist():
            target.writestr(name, inner.getvalue() if "sample_inputs" in name else source.read(name))
    return out.getvalue()


STRANGERS = {"jit": hostile_script, "pt2": hostile_samples}
LOOKING = [["inspect"], ["verify"], ["verify", "--thorough"], ["view", "--no-open"], ["view", "--no-open", "--verify"],
           ["check", "--target", "onnxruntime"], ["seal"], ["fuse", "-o", "one.onnx"]]  # fmt: skip
RUNNING = [["run"], ["bench", "--steps", "3"], ["replay", "recording.npz"]]


@pytest.fixture(params=STRANGERS)
def stranger(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle with a hostile model, and this process in an empty directory."""
    bundle = export(tmp_path, request.param)
    name = FILES[request.param]
    exchange(bundle, name, STRANGERS[request.param]((bundle / name).read_bytes()))
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return bundle


def test_the_model_is_hostile(stranger: Path) -> None:
    """Otherwise the tests below would show nothing."""
    file = next(path for path in stranger.iterdir() if path.name in FILES.values())
    if file.suffix == ".pt":
        torch.jit.load(str(file))
    else:
        with zipfile.ZipFile(file) as archive:
            (name,) = (name for name in archive.namelist() if "sample_inputs" in name)
            torch.load(io.BytesIO(archive.read(name)), weights_only=False)
    assert os.path.exists("marker")


@pytest.mark.parametrize("verb", LOOKING, ids=" ".join)
def test_looking_runs_nothing(stranger: Path, verb: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code = main([verb[0], str(stranger), *verb[1:]])
    answer = capsys.readouterr()
    assert not os.path.exists("marker")
    if "verify" in verb or "--verify" in verb:
        assert code in (1, 2)
        assert "If you trust the author of this bundle, run 'leapp trust" in " ".join((answer.out + answer.err).split())


def test_comparing_runs_nothing(stranger: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = shutil.copytree(stranger, tmp_path / "other")
    for first, second in ((stranger, other), (other, stranger)):
        main(["diff", str(first), str(second)])
        assert not os.path.exists("marker")
        assert "(--allow-code)" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("verb", RUNNING, ids=lambda verb: verb[0])
def test_running_asks_first(stranger: Path, verb: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("recording.npz", x=np.zeros(1))
    assert main([verb[0], str(stranger), *verb[1:]]) == 2
    assert not os.path.exists("marker")
    assert "is a program, and you did not export it on this machine. If you trust" in capsys.readouterr().err


PYTHON = {
    "Pipeline": lambda path, **given: Pipeline(path, **given),
    "InferenceManager": lambda path, **given: InferenceManager(path, **given),
    "InferenceManager.nodes": lambda path, **given: InferenceManager(path, **given).nodes["n"](torch.zeros(1, 3)),
    "replay_fleet": lambda path, **given: replay_fleet(path, ["recording.npz"], **given),
    "serve": lambda path, **given: SharedEngine(Options(str(path), **given), Metrics()),
    "deploy_triton": lambda path, **given: deploy_triton(path, "repository", **given),
    "deploy_triton in Python": lambda path, **given: deploy_triton(
        path, "repository", TritonOptions(backend="python"), **given
    ),
}


@pytest.mark.parametrize("way", PYTHON)
def test_python_asks_first(stranger: Path, way: str) -> None:
    """The same rule as on the command line, in one sentence that says what to do."""
    np.savez("recording.npz", x=np.zeros(1))
    for allow_code, words in ((None, "is a program, and you did not export it.*allow_code=True"), (False, "allow_code=False")):
        with pytest.raises(BundleError, match=words):
            PYTHON[way](stranger, allow_code=allow_code)
    assert not os.path.exists("marker")
    assert not os.path.exists("repository")


@pytest.mark.parametrize("backend", ["jit", "pt2"])
def test_a_bundle_made_elsewhere_runs_after_one_word(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it came from another machine: this one has no record of it, and the program that runs it cannot be changed."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "there"))
    code = "import sys, pathlib, tests.attacks.test_programs as t; t.export(pathlib.Path(sys.argv[1]), sys.argv[2], 7.0)"
    assert run_python("-c", code, tmp_path, backend).returncode == 0
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "here"))
    bundle, x = tmp_path / "g", torch.randn(1, 3)
    with pytest.raises(BundleError, match="is a program") as refused:
        InferenceManager(bundle)
    want = x * 7.0 + 1.0
    torch.testing.assert_close(InferenceManager(bundle, allow_code=True)({"n/x": x})["n/y"], want)
    command = re.search("'leapp (.+?)' once", str(refused.value))
    assert command is not None
    assert main(shlex.split(command[1])) == 0
    assert capsys.readouterr().out.strip() == "n may run on this machine."
    torch.testing.assert_close(InferenceManager(bundle)({"n/x": x})["n/y"], want)
    assert main(["run", str(bundle)]) == 0


def test_with_consent_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = export(tmp_path, "jit")
    exchange(bundle, "n.pt", hostile_script(b""))
    monkeypatch.chdir(tmp_path)
    assert main(["verify", str(bundle), "--allow-code"]) == 0
    assert main(["run", str(bundle), "--allow-code"]) == 0
    assert os.path.exists("marker")


@pytest.mark.parametrize("backend", FILES)
def test_ones_own_export_runs_without_a_question(backend: str, tmp_path: Path) -> None:
    """In another process, after the bundle was moved, edited and copied."""
    bundle = Path(shutil.move(export(tmp_path, backend), tmp_path / "moved"))
    for verb in (["verify"], ["run"], ["bench", "--steps", "3"], ["seal"], ["verify"]):
        done = run_python("-m", "leapp", verb[0], bundle, *verb[1:])
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_record_that_others_can_write_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    bundle = export(tmp_path, "jit")
    record = tmp_path / "state" / "leapp" / "exported-programs"
    command = ["-m", "leapp", "run", bundle]
    assert run_python(*command).returncode == 0
    record.chmod(0o666)
    assert run_python(*command).returncode == 2
    record.chmod(0o600)
    record.parent.chmod(0o777)
    assert run_python(*command).returncode == 2


def test_an_export_needs_no_place_for_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    bundle = export(tmp_path, "jit")
    assert main(["verify", str(bundle)]) == 0, "this very process exported it"
    x = torch.randn(1, 3)
    np.testing.assert_allclose(Pipeline(bundle)({"n/x": x.numpy()})["n/y"], x.numpy() * 2.0 + 1.0, rtol=1e-6)


def test_trust_that_cannot_be_noted_is_not_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    bundle = export(tmp_path, "jit")
    assert main(["trust", str(bundle)]) == 2
    shown = capsys.readouterr()
    assert "may run" not in shown.out
    assert str(tmp_path / "file" / "leapp") in shown.err


def test_view_draws_the_page_of_the_description(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page in the bundle is the stranger's, even if the seal fits."""
    bundle = export(tmp_path, "onnx")
    exchange(bundle, "g.html", b"<script>alert('evil')</script>")
    assert main(["view", str(bundle), "--no-open"]) == 0
    page = Path(capsys.readouterr().out.strip())
    assert page.parent != bundle
    assert b"evil" not in page.read_bytes()
    assert "float32" in page.read_text()


def test_the_advice_works_for_names_that_look_like_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = export(tmp_path, "jit")
    exchange(bundle, "n.pt", hostile_script(b"") + b"\0")
    os.rename(bundle, tmp_path / "-o x")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BundleError) as refused:
        Pipeline("-o x")
    command = re.search("'leapp (.+)' once", str(refused.value))
    assert command is not None
    assert main(shlex.split(command[1])) == 0
