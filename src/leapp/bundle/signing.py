"""Signs bundles and checks signatures, in the OpenSSF Model Signing format. A signature shows who made a bundle.

``<graph>.sig`` lies beside the description. It is a Sigstore bundle with an in-toto statement that lists the sha256 of every
file of the directory, signed by an elliptic curve key. ``model_signing verify key`` accepts it, and leapp accepts the
signatures of ``model_signing``. The signature is checked before the description is parsed. Each file is checked against the
sha256 in the signature when it is read. All cryptography is that of the package ``cryptography``; no network is used.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from leapp.bundle import json_text
from leapp.bundle.files import as_argument, is_sha256, read_regular, replace_file, sha256_of
from leapp.errors import BundleError, BundleFileError, InputError, InputTypeError, MissingDependencyError

Keys = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""Files with trusted public keys in PEM: one, or several, of which one must have made the signature."""

_MEDIA = "application/vnd.dev.sigstore.bundle.v0.3+json"
_PAYLOAD = "application/vnd.in-toto+json"
_STATEMENT = "https://in-toto.io/Statement/v1"
_PREDICATE = "https://model_signing/signature/v1.0"
_GIT = (".git", ".gitattributes", ".github", ".gitignore")
_CURVES = {"secp256r1": "SHA256", "secp384r1": "SHA384", "secp521r1": "SHA512"}
_MOST = 4 << 20
"""The most bytes of a signature file."""
_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Signature:
    """A signature that was checked.

    Attributes:
        key: The file of the public key that made it.
        files: The sha256 of every signed file, by its path in the directory.
    """

    key: str
    files: Mapping[str, str]


def signature_path(description: Path) -> Path:
    """Where the signature of a bundle lies."""
    return description.with_suffix(".sig")


def key_paths(trust: Keys) -> tuple[str, ...]:
    """The files of trusted keys, as a tuple of paths.

    Raises:
        InputTypeError: Something else was given.
    """
    given = (trust,) if isinstance(trust, (str, os.PathLike)) or not isinstance(trust, Sequence) else trust
    for one in given:
        if not isinstance(one, (str, os.PathLike)):
            raise InputTypeError(f"trust takes files of public keys, got {type(one).__name__}.")
    return tuple(os.fspath(one) for one in given)


def verified_signature(description: Path, trust: Keys) -> Signature:
    """Check the signature of a bundle against trusted keys. Reads nothing but the signature and the keys.

    Raises:
        BundleError: There is no signature, it is damaged, or none of the keys made it.
        InputError: A key cannot be read.
        MissingDependencyError: The package ``cryptography`` is not installed.
    """
    paths = key_paths(trust)
    if not paths:
        raise InputError("trust names no key. Give the file of a public key.")
    keys = {path: _public_key(path) for path in paths}
    path = signature_path(description)
    try:
        data = read_regular(path, "signature", limit=_MOST)
    except BundleFileError:
        raise BundleError(
            f"{description.name}: the bundle is not signed: there is no {path.name}. Sign it with "
            f"'leapp sign {as_argument(description.parent)} --key KEY', or do not ask for a signature."
        ) from None
    try:
        payload, signed = _envelope(data)
    except ValueError as error:
        raise BundleError(f"{path.name} is damaged or not a signature: {error}.") from error
    signer = next((name for name, key in keys.items() if _fits(key, signed, payload)), None)
    if signer is None:
        raise BundleError(f"{description.name}: {path.name} was not made by the key {' or '.join(paths)}, or was changed.")
    try:
        return Signature(signer, _resources(payload))
    except ValueError as error:
        raise BundleError(f"{path.name} signs something that is not a list of files: {error}.") from error


def write_signature(description: Path, key: str | os.PathLike[str], password: bytes | None = None) -> tuple[Path, list[str]]:
    """Sign every file of a bundle's directory.

    Args:
        description: The YAML file.
        key: The private key, in PEM.
        password: Its password, if it has one.

    Returns:
        The file of the signature, and the names of the files it covers.

    Raises:
        BundleError: A file of the directory cannot be read, or its name is not text.
        InputError: The key cannot be used.
        MissingDependencyError: The package ``cryptography`` is not installed.
    """
    private = _private_key(key, password)
    target = signature_path(description)
    names = _names(description.parent, target.name)
    for name in names:
        if not _is_text(name):
            raise BundleError(f"file '{name}': the name is not UTF-8 text, which a signature needs. Rename or remove the file.")
    links = any(os.path.islink(os.path.join(description.parent, name)) for name in names)
    resources = [
        {"name": name, "algorithm": "sha256", "digest": sha256_of(description.parent / name, f"file '{name}'")}
        for name in names
    ]
    root = hashlib.sha256(b"".join(bytes.fromhex(one["digest"]) for one in resources)).hexdigest()
    serialization = {
        "method": "files",
        "hash_type": "sha256",
        "allow_symlinks": links,
        "ignore_paths": [target.name, *_GIT],
    }
    statement = {
        "_type": _STATEMENT,
        "subject": [{"name": Path(os.path.abspath(description.parent)).name, "digest": {"sha256": root}}],
        "predicateType": _PREDICATE,
        "predicate": {"serialization": serialization, "resources": resources},
    }
    payload = msgspec.json.encode(statement)
    material = {"publicKey": {"hint": _hint(private.public_key())}, "tlogEntries": []}
    bundle = {
        "mediaType": _MEDIA,
        "verificationMaterial": material,
        "dsseEnvelope": {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": _PAYLOAD,
            "signatures": [
                {"sig": base64.b64encode(private.sign(_encoded(payload), _algorithm(private))).decode(), "keyid": ""}
            ],
        },
    }
    replace_file(target, msgspec.json.encode(bundle))
    return target, names


def _names(directory: Path, signature: str) -> list[str]:
    """The files below a directory as the format lists them: all but the signature and git's own."""
    found = []
    for folder, folders, files in os.walk(directory):
        here = Path(folder)
        if here == directory:
            folders[:] = [name for name in folders if name not in _GIT]
            files = [name for name in files if name not in (signature, *_GIT)]
        found += [(here / name).relative_to(directory) for name in files]
    return [path.as_posix() for path in sorted(found)]


def _is_text(name: str) -> bool:
    """Whether a name can be written as UTF-8. File names with invalid bytes cannot."""
    return name.isascii() or name.encode(errors="replace").decode() == name


def _envelope(data: bytes) -> tuple[bytes, bytes]:
    """The signed text of a signature file, and the signature over it."""
    bundle = _parsed(data)
    envelope = _member(bundle, "dsseEnvelope", dict)
    if (_member(bundle, "mediaType", str), _member(envelope, "payloadType", str)) != (_MEDIA, _PAYLOAD):
        raise ValueError(f"its type is not {_MEDIA} with {_PAYLOAD}")
    signatures = _member(envelope, "signatures", list)
    if len(signatures) != 1:
        raise ValueError(f"it holds {len(signatures)} signatures, the format has one")
    return _decoded(envelope, "payload"), _decoded(signatures[0], "sig")


def _resources(payload: bytes) -> dict[str, str]:
    """The sha256 of every file that a signed text lists, by name."""
    statement = _parsed(payload)
    if (_member(statement, "_type", str), _member(statement, "predicateType", str)) != (_STATEMENT, _PREDICATE):
        raise ValueError(f"its type is not {_STATEMENT} with {_PREDICATE}")
    predicate = _member(statement, "predicate", dict)
    if _member(_member(predicate, "serialization", dict), "method", str) != "files":
        raise ValueError("it does not list whole files")
    found: dict[str, str] = {}
    for one in _member(predicate, "resources", list):
        name, digest = _member(one, "name", str), _member(one, "digest", str)
        if _member(one, "algorithm", str) != "sha256" or not is_sha256(digest):
            raise ValueError("a file is listed without its sha256")
        if not _is_text(name):
            raise ValueError("a file has a name that is not text")
        if name in found:
            raise ValueError("a file is listed twice")
        found[name] = digest
    return found


def _parsed(text: bytes) -> object:
    try:
        return json_text.parse(text)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error


def _member(holder: object, name: str, kind: type[_T]) -> _T:
    value = holder.get(name) if isinstance(holder, dict) else None
    if not isinstance(value, kind):
        raise ValueError(f"'{name}' is missing or has another type")
    return value


def _decoded(holder: object, name: str) -> bytes:
    text = _member(holder, name, str)
    if len(text) % 4 or _BASE64.fullmatch(text) is None:
        raise ValueError(f"'{name}' is not base64")
    return base64.b64decode(text)


def _encoded(payload: bytes) -> bytes:
    """The bytes that are signed: the text with its type and length, as the DSSE standard defines."""
    return f"DSSEv1 {len(_PAYLOAD)} {_PAYLOAD} {len(payload)} ".encode() + payload


def _cryptography() -> tuple[Any, Any, Any]:
    try:
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise MissingDependencyError("Signatures need the package cryptography: pip install 'leapp[sign]'.") from error
    return ec, hashes, serialization


def _public_key(path: str) -> Any:
    ec, _, serialization = _cryptography()
    try:
        key = serialization.load_pem_public_key(Path(path).read_bytes())
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path} is not a public key in PEM ({error}).") from error
    return _required_curve(ec, key, path)


def _private_key(path: str | os.PathLike[str], password: bytes | None) -> Any:
    ec, _, serialization = _cryptography()
    try:
        key = serialization.load_pem_private_key(Path(path).read_bytes(), password)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{os.fspath(path)} cannot be used as a private key ({error}).") from error
    _required_curve(ec, key.public_key(), os.fspath(path))
    return key


def _required_curve(ec: Any, key: Any, path: str) -> Any:
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name not in _CURVES:
        raise InputError(
            f"{path} is not a key on one of the curves {', '.join(_CURVES)}, which the format takes. Make one with "
            "'openssl ecparam -name prime256v1 -genkey -noout -out key.pem'."
        )
    return key


def _algorithm(key: Any) -> Any:
    ec, hashes, _ = _cryptography()
    return ec.ECDSA(getattr(hashes, _CURVES[key.curve.name])())


def _fits(key: Any, signature: bytes, payload: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(signature, _encoded(payload), _algorithm(key))
    except InvalidSignature:
        return False
    return True


def _hint(key: Any) -> str:
    _, _, serialization = _cryptography()
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(key.public_bytes(serialization.Encoding.PEM, form)).hexdigest()
