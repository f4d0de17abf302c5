"""Whose bundle it is: signed by a trusted key, or refused before anything of it is parsed."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from leapp import InferenceManager
from leapp.bundle import open_bundle
from leapp.bundle import reading as bundle_reading
from leapp.bundle.files import hash_file
from leapp.bundle.signing import write_signature
from leapp.cli import main
from leapp.deploy import deploy_triton
from leapp.errors import BundleError, InputError, InputTypeError, LeappError
from leapp.fleet import replay_fleet
from leapp.runtime import Pipeline
from leapp.serve.engine import SharedEngine
from leapp.serve.metrics import Metrics
from leapp.serve.options import Options
from tests.attacks.test_programs import exchange, export, hostile_script
from tests.runtime.bundles import Scale, Stage, write_bundle
from tests.venvs import programs_of

# model-signing 1.1.1 imports pyopenssl without asking for it.
PACKAGES = ("model-signing==1.1.1", "pyopenssl")
CURVES = {"P-256": ec.SECP256R1(), "P-384": ec.SECP384R1(), "P-521": ec.SECP521R1()}


def new_key(folder: Path, name: str = "key", curve: str = "P-256", password: bytes | None = None) -> tuple[Path, Path]:
    """A private key and its public key, as openssl writes them."""
    key = ec.generate_private_key(CURVES[curve])
    hidden = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    private.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden))
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    public.write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, form))
    return private, public


@pytest.fixture
def signed(tmp_path: Path) -> tuple[Path, Path]:
    """A signed bundle of somebody else's TorchScript, and the public key."""
    private, public = new_key(tmp_path)
    bundle = export(tmp_path, "jit")
    exchange(bundle, "n.pt", hostile_script(b""))
    assert main(["sign", str(bundle), "--key", str(private)]) == 0
    return bundle, public


@pytest.mark.parametrize("curve", CURVES)
def test_what_a_trusted_key_signed_runs(
    curve: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    private, public = new_key(tmp_path, curve=curve, password=b"open sesame")
    _, other = new_key(tmp_path, "other")
    bundle = export(tmp_path, "jit")
    exchange(bundle, "n.pt", hostile_script(b""))
    (tmp_path / "word").write_text("open sesame\n")
    assert main(["sign", str(bundle), "--key", str(private), "--password-file", "word"]) == 0
    x = torch.randn(1, 3)
    for face in (Pipeline, InferenceManager):
        made = face(bundle, trust=[other, public])({"n/x": x if face is InferenceManager else x.numpy()})["n/y"]
        np.testing.assert_allclose(np.asarray(made), x.numpy() * 2.0 + 1.0, rtol=1e-6)
    capsys.readouterr()
    assert main(["verify", str(bundle), "--trust", str(public)]) == 0
    assert f"Verified: signed by {public}, samples reproduced." in " ".join(capsys.readouterr().out.split())
    assert main(["run", str(bundle), "--trust", str(public)]) == 0
    with Pipeline(bundle, trust=public).record("recording.npz") as step:
        step({"n/x": x.numpy()})
    assert replay_fleet(bundle, ["recording.npz"], trust=public).same
    assert SharedEngine(Options(str(bundle), trust=(str(public),)), Metrics()).graph == "g"
    assert deploy_triton(bundle, "repository", trust=public).model == "g"


def test_without_a_signature_the_word_is_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A seal is a hash that anybody can make."""
    bundle = export(tmp_path, "onnx")
    capsys.readouterr()
    assert main(["verify", str(bundle)]) == 0
    answer = capsys.readouterr().out
    assert "Checksums match, samples reproduced." in " ".join(answer.split())
    assert "Verified" not in answer


def unsigned(bundle: Path, _: Path) -> None:
    (bundle / "g.sig").unlink()


def by_another_key(bundle: Path, folder: Path) -> None:
    private, _ = new_key(folder, "mallory")
    assert main(["sign", str(bundle), "--key", str(private)]) == 0


def another_description(bundle: Path, _: Path) -> None:
    """Another frequency, say: an annotation, which no seal covers."""
    (bundle / "g.yaml").write_text((bundle / "g.yaml").read_text() + "note: {a: 1}\n")


def another_model(bundle: Path, _: Path) -> None:
    exchange(bundle, "n.pt", hostile_script(b"") + b"\0")


def another_model_behind_the_description(bundle: Path, _: Path) -> None:
    (bundle / "n.pt").write_bytes((bundle / "n.pt").read_bytes() + b"\0")


def another_list_of_files(bundle: Path, _: Path) -> None:
    """The list names what lies there now; the signature is the old one."""
    another_model(bundle, bundle)
    rewrite(bundle, lambda text: text.replace(old_sha(bundle, "n.pt"), hash_file(bundle / "n.pt")[1]))


def a_flipped_bit(bundle: Path, _: Path) -> None:
    document = json.loads((bundle / "g.sig").read_text())
    sig = bytearray(base64.b64decode(document["dsseEnvelope"]["signatures"][0]["sig"]))
    sig[-1] ^= 1
    document["dsseEnvelope"]["signatures"][0]["sig"] = base64.b64encode(sig).decode()
    (bundle / "g.sig").write_text(json.dumps(document))


def no_signature_inside(bundle: Path, _: Path) -> None:
    document = json.loads((bundle / "g.sig").read_text())
    document["dsseEnvelope"]["signatures"] = []
    (bundle / "g.sig").write_text(json.dumps(document))


def noise(bundle: Path, _: Path) -> None:
    (bundle / "g.sig").write_bytes(os.urandom(500))


def deep(bundle: Path, _: Path) -> None:
    (bundle / "g.sig").write_bytes(b'{"dsseEnvelope":' + b"[" * 200_000)


def a_link_to_a_device(bundle: Path, _: Path) -> None:
    (bundle / "g.sig").unlink()
    (bundle / "g.sig").symlink_to("/dev/zero")


def rewrite(bundle: Path, change: object) -> None:
    document = json.loads((bundle / "g.sig").read_text())
    payload = base64.b64decode(document["dsseEnvelope"]["payload"]).decode()
    document["dsseEnvelope"]["payload"] = base64.b64encode(change(payload).encode()).decode()  # type: ignore[operator]
    (bundle / "g.sig").write_text(json.dumps(document))


def old_sha(bundle: Path, name: str) -> str:
    document = json.loads(base64.b64decode(json.loads((bundle / "g.sig").read_text())["dsseEnvelope"]["payload"]))
    return next(one["digest"] for one in document["predicate"]["resources"] if one["name"] == name)


FORGED = [unsigned, by_another_key, another_description, another_model, another_model_behind_the_description,
          another_list_of_files, a_flipped_bit, no_signature_inside, noise, deep, a_link_to_a_device]  # fmt: skip


@pytest.mark.parametrize("forge", FORGED, ids=lambda forge: forge.__name__)
def test_what_is_not_signed_is_refused(
    forge, signed: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle, public = signed
    forge(bundle, tmp_path)
    monkeypatch.chdir(tmp_path)
    if forge is not another_model_behind_the_description:
        # Refused before even the description is parsed.
        monkeypatch.setattr(bundle_reading.yaml_text, "parse", lambda *_: pytest.fail("parsed"))
    for face in (Pipeline, InferenceManager):
        with pytest.raises(BundleError):
            face(bundle, trust=public)
        with pytest.raises(BundleError):
            face(bundle, trust=public, allow_code=True)
    assert main(["verify", str(bundle), "--trust", str(public)]) in (1, 2)
    answer = capsys.readouterr()
    assert "Verified" not in answer.out
    assert "Traceback" not in answer.err
    for verb in (["run"], ["bench", "--steps", "3"], ["deploy", "triton", "-o", "repository"]):
        command = [*verb[:1], str(bundle), *verb[1:]] if verb[0] != "deploy" else ["deploy", "triton", str(bundle), *verb[2:]]
        assert main([*command, "--trust", str(public)]) == 2
    assert not (tmp_path / "marker").exists()
    assert not (tmp_path / "repository").exists()


def test_a_signature_covers_files_that_no_seal_covers(tmp_path: Path) -> None:
    """A bundle of an earlier leapp: its initial values are in no seal."""
    private, public = new_key(tmp_path)
    h = torch.zeros(1, 4)
    stage = Stage(Scale(4, 4), {"x": h}, ["y"], "onnx")
    path = write_bundle(tmp_path / "b", {"p": stage}, feedback_flow={"p/y": ("p/x",)}, initial={"p/x": h}, outputs=["p/y"])
    assert main(["sign", str(path), "--key", str(private)]) == 0
    assert Pipeline(path, trust=public).feedback_inputs == ["p/x"]
    values = path.parent / "g_initial_values.safetensors"
    values.write_bytes(values.read_bytes()[:-16] + np.ones(4, np.float32).tobytes())
    assert Pipeline(path).state()["p/x"].any()
    with pytest.raises(BundleError, match="checksum mismatch"):
        Pipeline(path, trust=public)


def test_what_cannot_be_signed_is_named(tmp_path: Path) -> None:
    private, _ = new_key(tmp_path)
    bundle = export(tmp_path, "onnx")
    odd = os.fsencode(bundle) + b"/\xff.bin"
    with open(odd, "wb"), pytest.raises(BundleError, match="not UTF-8 text"):
        write_signature(bundle / "g.yaml", private)
    os.remove(odd)
    os.mkfifo(bundle / "pipe")
    with pytest.raises(BundleError, match="not a regular file"):
        write_signature(bundle / "g.yaml", private)


def test_only_files_of_keys_are_trusted(signed: tuple[Path, Path]) -> None:
    for trust in (5, b"key.pub", [None], {"key.pub"}):
        with pytest.raises(InputTypeError, match="trust takes files of public keys"):
            Pipeline(signed[0], trust=trust)


@pytest.mark.parametrize("kind", ["missing", "text", "private", "ed25519", "none"])
def test_keys_that_are_none(kind: str, signed: tuple[Path, Path], tmp_path: Path) -> None:
    key = tmp_path / "odd.pub"
    if kind == "text":
        key.write_text("hello")
    elif kind == "private":
        key.write_bytes((tmp_path / "key.pem").read_bytes())
    elif kind == "ed25519":
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        public = ed25519.Ed25519PrivateKey.generate().public_key()
        key.write_bytes(public.public_bytes(serialization.Encoding.PEM, form))
    with pytest.raises(InputError, match="key"):
        open_bundle(signed[0], trust=[] if kind == "none" else key)
    if kind not in ("none", "private"):
        assert main(["sign", str(signed[0]), "--key", str(tmp_path / "odd.pub")]) == 2


def test_a_bundle_that_is_open_is_held_to_the_same(
    signed: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bundle, public = signed
    _, other = new_key(tmp_path, "other")
    with Pipeline(bundle, trust=public).record(tmp_path / "r.npz") as step:
        step({"n/x": np.ones((1, 3), np.float32)})
    unlooked, found = open_bundle(bundle), open_bundle(bundle, trust=public)
    assert Pipeline(found, trust=[other, public], expect_digest=found.digest).digest == found.digest
    for opened, key in ((unlooked, public), (found, other)):
        for run in (
            lambda o, k: Pipeline(o, trust=k, allow_code=True),
            lambda o, k: replay_fleet(o, [tmp_path / "r.npz"], trust=k, allow_code=True),
            lambda o, k: deploy_triton(o, tmp_path / "repository", trust=k, allow_code=True),
        ):
            with pytest.raises(InputError, match="was not checked with these keys"):
                run(opened, key)
    with pytest.raises(BundleError, match="expected the bundle with digest"):
        Pipeline(found, expect_digest="0" * 64)


def test_signing_writes_through_no_link_of_the_bundle(tmp_path: Path) -> None:
    private, public = new_key(tmp_path)
    bundle = export(tmp_path, "onnx")
    precious = tmp_path / "precious"
    precious.write_text("mine")
    for name in (".g.sig.new", "g.sig"):
        (bundle / name).symlink_to(precious)
    assert main(["sign", str(bundle), "--key", str(private)]) == 0
    assert precious.read_text() == "mine"
    assert open_bundle(bundle, trust=public).signature is not None


def test_a_new_export_takes_the_old_signature_away(signed: tuple[Path, Path], tmp_path: Path) -> None:
    bundle, public = signed
    export(tmp_path, "onnx")
    assert not (bundle / "g.sig").exists()
    with pytest.raises(BundleError, match="not signed"):
        Pipeline(bundle, trust=public)


@pytest.fixture(scope="session")
def model_signing() -> Path:
    """OpenSSF's own tool."""
    return programs_of("model-signing", *PACKAGES) / "model_signing"


@pytest.mark.parametrize("curve", CURVES)
def test_others_tools_verify_ours_and_ours_verify_theirs(curve: str, tmp_path: Path, model_signing: Path) -> None:
    private, public = new_key(tmp_path, curve=curve)
    bundle = export(tmp_path, "onnx")
    (bundle / "deep").mkdir()
    (bundle / "deep" / "notes.txt").write_text("hello")
    assert main(["sign", str(bundle), "--key", str(private)]) == 0

    def ask(verb: str, *rest: object) -> subprocess.CompletedProcess[str]:
        command = [model_signing, verb, "key", bundle, "--signature", bundle / "g.sig", *rest]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    done = ask("verify", "--public_key", public)
    assert done.returncode == 0, done.stdout + done.stderr
    notes = (bundle / "deep" / "notes.txt").read_text()
    (bundle / "deep" / "notes.txt").write_text("other")
    assert ask("verify", "--public_key", public).returncode != 0
    with pytest.raises(LeappError):
        open_bundle(bundle, trust=public)
    (bundle / "deep" / "notes.txt").write_text(notes)
    (bundle / "g.sig").unlink()
    assert ask("sign", "--private_key", private).returncode == 0
    found = open_bundle(bundle, trust=public)
    assert found.signature is not None
    assert {"g.yaml", "n.onnx", "deep/notes.txt"} <= set(found.signature.files)
    x = np.ones((1, 3), np.float32)
    np.testing.assert_allclose(Pipeline(found)({"n/x": x})["n/y"], x * 2.0 + 1.0)
