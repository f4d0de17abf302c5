"""Whose bundle it is, asked of both runtimes: signed by a trusted key, or refused in the same words."""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from leapp.bundle import RawTensor, signing
from leapp.bundle.safetensors import encode
from tests.attacks.test_signatures import CURVES, new_key
from tests.cpp.makers import state
from tests.cpp.test_attacks import agree
from tests.runtime.bundles import memory

SOAK = bool(os.environ.get("LEAPP_SOAK"))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return state(tmp_path_factory.mktemp("exported"))


@pytest.fixture
def signed(exported: Path, tmp_path: Path) -> Path:
    """A signed bundle with a state, beside key.pem and key.pub."""
    shutil.copytree(exported, tmp_path / "state")
    private, _ = new_key(tmp_path)
    signing.write_signature(tmp_path / "state" / "state.yaml", private)
    return tmp_path / "state"


def accepted(judge, bundle: Path, *keys: Path | str) -> bool:
    """Ask both whether a bundle is signed by one of the keys, and run it."""
    trusted = keys or (bundle.parent / "key.pub",)
    (path,) = bundle.glob("*.yaml")
    return agree(judge, f"signed={','.join(map(str, trusted))}", path)


def envelope_of(bundle: Path) -> dict:
    return json.loads((bundle / "state.sig").read_bytes())


def write_envelope(bundle: Path, document: object) -> None:
    (bundle / "state.sig").write_text(json.dumps(document))


def sign_again(bundle: Path, change: Callable[[str], str]) -> None:
    """Change what is signed, and sign that with the trusted key."""
    document = envelope_of(bundle)
    text = change(base64.b64decode(document["dsseEnvelope"]["payload"]).decode()).encode("utf-8", "surrogatepass")
    private = signing._private_key(bundle.parent / "key.pem", None)
    made = private.sign(signing._encoded(text), signing._algorithm(private))
    document["dsseEnvelope"]["payload"] = base64.b64encode(text).decode()
    document["dsseEnvelope"]["signatures"][0]["sig"] = base64.b64encode(made).decode()
    write_envelope(bundle, document)


def without(name: str) -> Callable[[str], str]:
    """Leave a file out of a statement."""

    def change(text: str) -> str:
        document = json.loads(text)
        listed = document["predicate"]["resources"]
        document["predicate"]["resources"] = [one for one in listed if one["name"] != name]
        assert len(listed) == len(document["predicate"]["resources"]) + 1
        return json.dumps(document)

    return change


@pytest.mark.parametrize("curve", CURVES)
def test_a_bundle_of_a_trusted_key_runs(curve, exported, tmp_path, judge):
    shutil.copytree(exported, tmp_path / "state")
    private, public = new_key(tmp_path, "maker", curve)
    _, other = new_key(tmp_path, "other", "P-384")
    signing.write_signature(tmp_path / "state" / "state.yaml", private)
    assert accepted(judge, tmp_path / "state", public)
    assert accepted(judge, tmp_path / "state", other, public)
    assert not accepted(judge, tmp_path / "state", other)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def unsigned(bundle: Path) -> None:
    (bundle / "state.sig").unlink()


def another_model(bundle: Path) -> None:
    flip(bundle / "policy.onnx", 100)


def another_description(bundle: Path) -> None:
    (bundle / "state.yaml").write_text((bundle / "state.yaml").read_text() + "note: {a: 1}\n")


def another_layout_of_the_description(bundle: Path) -> None:
    (bundle / "state.yaml").write_text((bundle / "state.yaml").read_text() + "\n")


def other_initial_values(bundle: Path) -> None:
    flip(bundle / "state_initial_values.safetensors", -1)


def a_signed_file_that_nothing_names(bundle: Path) -> None:
    (bundle / "log.txt").write_text("other")


def a_signed_file_removed(bundle: Path) -> None:
    (bundle / "state_samples.safetensors").unlink()


def the_signature_of_another_bundle(bundle: Path) -> None:
    other = bundle.parent / "other"
    shutil.copytree(bundle, other)
    another_model(other)
    (other / "state.sig").unlink()
    signing.write_signature(other / "state.yaml", bundle.parent / "key.pem")
    shutil.copy(other / "state.sig", bundle)


def a_signature_by_another_key(bundle: Path) -> None:
    private, _ = new_key(bundle.parent, "mallory")
    signing.write_signature(bundle / "state.yaml", private)


def a_flipped_bit_of_the_list(bundle: Path) -> None:
    document = envelope_of(bundle)
    payload = bytearray(base64.b64decode(document["dsseEnvelope"]["payload"]))
    payload[-20] ^= 1
    document["dsseEnvelope"]["payload"] = base64.b64encode(payload).decode()
    write_envelope(bundle, document)


def a_link_to_a_device(bundle: Path) -> None:
    (bundle / "state.sig").unlink()
    (bundle / "state.sig").symlink_to("/dev/zero")


def a_directory(bundle: Path) -> None:
    (bundle / "state.sig").unlink()
    (bundle / "state.sig").mkdir()


def a_pipe(bundle: Path) -> None:
    (bundle / "state.sig").unlink()
    os.mkfifo(bundle / "state.sig")


def larger_than_the_limit(bundle: Path) -> None:
    (bundle / "state.sig").write_bytes(b" " * (4 << 20) + (bundle / "state.sig").read_bytes())


def a_hundred_gigabytes_of_holes(bundle: Path) -> None:
    os.truncate(bundle / "state.sig", 100 << 30)


def the_description_is_not_listed(bundle: Path) -> None:
    sign_again(bundle, without("state.yaml"))


def the_list_and_the_description_disagree(bundle: Path) -> None:
    """The model that the description means lies there. The list has another one."""
    listed = json.loads(base64.b64decode(envelope_of(bundle)["dsseEnvelope"]["payload"]))["predicate"]["resources"]
    (digest,) = (one["digest"] for one in listed if one["name"] == "policy.onnx")
    sign_again(bundle, lambda text: text.replace(digest, "0" * 64))


FORGED = [
    unsigned, another_model, another_description, another_layout_of_the_description, other_initial_values,
    a_signed_file_that_nothing_names, a_signed_file_removed, the_signature_of_another_bundle, a_signature_by_another_key,
    a_flipped_bit_of_the_list, a_link_to_a_device, a_directory, a_pipe, larger_than_the_limit, a_hundred_gigabytes_of_holes,
    the_description_is_not_listed, the_list_and_the_description_disagree,
]  # fmt: skip


@pytest.mark.parametrize("forge", FORGED, ids=lambda forge: forge.__name__)
def test_what_is_not_signed_is_refused_by_both(forge, signed, judge):
    assert accepted(judge, signed)
    forge(signed)
    assert not accepted(judge, signed)


def test_a_file_that_is_added_is_never_used(signed, judge):
    (signed / "notes.txt").write_text("mine")
    assert accepted(judge, signed)
    samples = signed / "state_samples.safetensors"
    sign_again(signed, without(samples.name))
    assert accepted(judge, signed), "the signed description has its sha256"
    flip(samples, -1)
    assert not accepted(judge, signed)


def test_files_that_no_seal_covers_are_those_that_were_signed(tmp_path, judge):
    """A bundle of an earlier leapp has no seal, and its initial values have no sha256."""
    private, public = new_key(tmp_path)
    path = memory(tmp_path / "memory", "onnx")
    assert not accepted(judge, path.parent, public)
    signing.write_signature(path, private)
    assert accepted(judge, path.parent, public)
    values = path.parent / "g_initial_values.safetensors"
    whole = values.read_bytes()
    values.write_bytes(encode({"p/h_in": RawTensor.of(np.full((1, 2), 9, np.float32))}))
    assert not accepted(judge, path.parent, public)
    values.unlink()
    signing.write_signature(path, private)
    values.write_bytes(whole)
    assert not accepted(judge, path.parent, public)


DAMAGED = {
    "nothing": lambda text: b"",
    "half of it": lambda text: text[: len(text) // 2],
    "noise": lambda text: random.Random(1).randbytes(500),
    "a list": lambda text: b"[" + text + b"]",
    "more behind": lambda text: text + b"{}",
    "blanks behind": lambda text: text + b" \n",
    "UTF-16": lambda text: text.decode().encode("utf-16"),
    "a byte order mark": lambda text: b"\xef\xbb\xbf" + text,
    "not UTF-8": lambda text: text[:-1] + b',"a":"\xff"}',
    "depth": lambda text: b'{"dsseEnvelope":' + b"[" * 200_000,
    "a key twice": lambda text: text[:-1] + b',"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json"}',
    "an envelope twice": lambda text: text[:-1] + b',"dsseEnvelope":{}}',
    "a signature twice": lambda text: text.replace(b'{"sig":', b'{"sig":"QQ==","sig":'),
    "two signatures": lambda text: text.replace(b'"signatures":[', b'"signatures":[{"sig":"QQ=="},'),
    "no signature": lambda text: text.replace(b'"signatures":[', b'"signatures":[],"x":['),
    "a signature of nothing": lambda text: text.replace(b'{"sig":', b'{"sig":"","y":'),
    "a signature that is a number": lambda text: text.replace(b'{"sig":', b'{"sig":1,"y":'),
    "signatures that are text": lambda text: text.replace(b'"signatures":', b'"signatures":"a","x":'),
    "another media type": lambda text: text.replace(b"bundle.v0.3", b"bundle.v0.4"),
    "another payload type": lambda text: text.replace(b"in-toto", b"in-total"),
    "no payload": lambda text: text.replace(b'"payload":', b'"load":'),
    "an empty payload": lambda text: text.replace(b'"payload":', b'"payload":"","x":'),
    "blanks in base64": lambda text: text.replace(b'"payload":"', b'"payload":"    '),
    "three characters of base64": lambda text: text.replace(b'"payload":"', b'"payload":"abc'),
    "padding in the middle": lambda text: text.replace(b'"payload":"', b'"payload":"QQ=='),
    "only padding": lambda text: text.replace(b'"payload":', b'"payload":"====","x":'),
    "the alphabet of addresses": lambda text: text.replace(b'"sig":"', b'"sig":"-_-_'),
    "more to ignore": lambda text: text[:-1] + b',"more":[1e5,-0,null,true,"\\u00e9\\ud83d\\ude00",{"a":{}}]}',
}
"""What is done to a signature file. Three of these leave its meaning as it is."""


def test_damaged_signature_files(signed, judge):
    whole = (signed / "state.sig").read_bytes()
    harmless = set()
    for name, damage in DAMAGED.items():
        (signed / "state.sig").write_bytes(damage(whole))
        if accepted(judge, signed):
            harmless.add(name)
    assert harmless == {"blanks behind", "more to ignore"}


def resource(name: str, length: int = 64, digit: str = "a") -> str:
    return f'{{"name":"{name}","algorithm":"sha256","digest":"{digit * length}"}}'


def listing(entry: str) -> Callable[[str], str]:
    """Add a file to a statement."""
    return lambda text: text.replace('"resources":[', f'"resources":[{entry},')


STATEMENTS: dict[str, Callable[[str], str]] = {
    "not JSON": lambda text: text[:-1],
    "a key twice": lambda text: text[:-1] + ',"_type":"https://in-toto.io/Statement/v1"}',
    "resources twice": lambda text: text.replace('"resources":', '"resources":[],"resources":'),
    "another type": lambda text: text.replace("Statement/v1", "Statement/v2"),
    "another predicate": lambda text: text.replace("signature/v1.0", "signature/v2.0"),
    "shards": lambda text: text.replace('"method":"files"', '"method":"shards"'),
    "another algorithm": lambda text: text.replace('"algorithm":"sha256"', '"algorithm":"blake2b"', 1),
    "a file twice": listing(resource("state.yaml")),
    "a short sha256": listing(resource("z", 62)),
    "upper case": listing(resource("z", digit="A")),
    "a name that is not text": listing('{"name":1}'),
    "half a character": listing(resource("\\ud800")),
    "a file that is missing": listing(resource("z")),
    "a way out": listing(resource("../key.pem")),
    "an absolute path": listing(resource("/etc/hostname")),
    "a device": listing(resource("/dev/zero")),
    "an empty name": listing(resource("")),
    "upper and lower case": listing(resource("STATE_samples.safetensors")),
}
"""What a trusted key might sign by mistake."""


@pytest.mark.parametrize("name", STATEMENTS)
def test_statements_that_are_no_list_of_these_files(name, signed, judge):
    sign_again(signed, STATEMENTS[name])
    assert not accepted(judge, signed)


@pytest.mark.parametrize("kind", ["missing", "text", "private", "ed25519", "directory", "none", "endless"])
def test_keys_that_are_none(kind, signed, tmp_path, judge):
    key = tmp_path / "odd.pub"
    if kind == "text":
        key.write_text("hello")
    elif kind == "private":
        shutil.copy(tmp_path / "key.pem", key)
    elif kind == "directory":
        key.mkdir()
    elif kind == "endless":
        key.write_bytes(b"\n" * (2 << 20))
    elif kind == "ed25519":
        public = ed25519.Ed25519PrivateKey.generate().public_key()
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        key.write_bytes(public.public_bytes(serialization.Encoding.PEM, form))
    assert not accepted(judge, signed, "" if kind == "none" else key)


def test_fuzzed_signature_files(signed, judge):
    """A signature with a few changed bytes fits only if both say so."""
    whole = (signed / "state.sig").read_bytes()
    outcomes: Counter[bool] = Counter()
    for seed in range(20_000 if SOAK else 300):
        choose, data = random.Random(seed), bytearray(whole)
        for _ in range(choose.randint(1, 3)):
            at = choose.randrange(len(data))
            changes = [b"", b"{", b'"', b"[]", b"\0", b"\\u0000", b"=", bytes([choose.randrange(256)]), data[:at][-9:]]
            data[at : at + choose.randint(0, 2)] = choose.choice(changes)
        (signed / "state.sig").write_bytes(data)
        outcomes[accepted(judge, signed)] += 1
    assert outcomes[False] > 0.8 * outcomes.total()
