"""The seal of a bundle: a fourth YAML mapping with the sha256 of every written file and two digests.

``behaviour`` covers everything that determines what a bundle computes: nodes, ports, wiring and files. A description is
accepted if ``behaviour`` matches. ``digest`` covers the whole description and identifies the bundle. The parts that only
``digest`` covers are annotations, which other tools may add or change: unknown top-level keys, the system information,
``pipeline.configs``, and keys of ports that the format does not define.

A seal shows damage and accidental mixing, not authorship: everyone who can write the files can seal them again. Pin the
digest (``expect_digest=``) to know that a bundle is the one you tested.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from json.encoder import encode_basestring_ascii
from typing import Any

from leapp.bundle import yaml_text
from leapp.bundle.contract_yaml import MODELS, PIPELINE, PORT_KEYS, SYSTEM
from leapp.bundle.files import as_argument, is_sha256
from leapp.errors import BundleError

INTEGRITY = "integrity"
UNSEALED = "unsealed"
_VERSION = 2
"""A seal without a version is older: its digest covers everything and must match."""


@dataclass(frozen=True, slots=True)
class Seal:
    """The content of a seal, and whether the description still matches it.

    Attributes:
        digest: The digest of the description and its files as they are now; ``None`` without a seal.
        files: The sha256 of every file leapp wrote beside the YAML, by name.
        covers_annotations: Whether annotations are sealed too, as they were before version 2.
        annotated: Whether annotations changed since the description was sealed.
    """

    digest: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    covers_annotations: bool = False
    annotated: bool = False


def seal(text: str, files: Mapping[str, str]) -> tuple[str, str]:
    """Append the seal to the YAML of a contract.

    Args:
        text: The other mappings.
        files: The sha256 of every file written beside the YAML, by name.

    Returns:
        The whole text, and the digest in its seal.
    """
    digest, behaviour = _digests(yaml_text.parse(text, "bundle"), files)
    entry = {"behaviour": behaviour, "digest": digest, "files": dict(sorted(files.items())), "version": _VERSION}
    return text + yaml_text.dump({INTEGRITY: entry}, sort_keys=True) + "\n", digest


def annotations_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """The annotations of a description, by their path in it: everything that ``behaviour`` does not cover.

    The system information is left out: every bundle has it, and nothing depends on it.
    """
    found = {key: value for key, value in document.items() if key not in (MODELS, PIPELINE, SYSTEM, INTEGRITY)}
    if document[PIPELINE].get("configs"):
        found[f"{PIPELINE}.configs"] = document[PIPELINE]["configs"]
    for node, entry in document[MODELS].items():
        for side in ("inputs", "outputs"):
            for port in entry[side]:
                if not port.keys() <= PORT_KEYS:
                    extra = {key: value for key, value in port.items() if key not in PORT_KEYS}
                    found[f"{node}.{side}.{port['name']}"] = extra
    return found


def verified_seal(document: Mapping[str, Any], name: str) -> Seal:
    """Check the seal of a parsed document that describes a bundle.

    A description without a seal gives an empty one. leapp 1.0 and later always seal, so a missing seal there means that
    the end of the file is lost; ``integrity: unsealed`` says that it was removed on purpose.

    Raises:
        BundleError: If the seal is missing, malformed or does not fit the rest of the document.
    """
    if INTEGRITY not in document:
        _require_unsealed_writer(document, name)
        return Seal()
    entry = document[INTEGRITY]
    if entry == UNSEALED:
        return Seal()
    entry = entry if isinstance(entry, dict) else {}
    sealed, version = entry.get("digest"), entry.get("version", 1)
    files: Any = entry.get("files")
    if isinstance(version, int) and version > _VERSION:
        raise BundleError(f"{name}: the seal has version {version}, this leapp reads up to {_VERSION}. Update leapp.")
    whole = is_sha256(sealed) and isinstance(files, dict) and all(map(is_sha256, files.values()))
    if not whole or type(version) is not int or version < 1 or not (version == 1 or is_sha256(entry.get("behaviour"))):
        raise BundleError(f"{name}: '{INTEGRITY}' is damaged. Restore the file or export again.")
    if not all(isinstance(key, str) for key in files):
        raise BundleError(f"{name}: '{INTEGRITY}.files' names something that is not a file.")
    digest, behaviour = _digests(document, files)
    if (digest != sealed) if version == 1 else (behaviour != entry["behaviour"]):
        raise BundleError(
            f"{name}: the description was changed after it was sealed: its nodes, ports, wiring or files do not fit the seal. "
            f"Restore the file or export again. If you edited it on purpose: leapp seal {as_argument(name)}."
        )
    return Seal(digest, files, covers_annotations=version == 1, annotated=digest != sealed)


def _digests(document: Mapping[str, Any], files: Mapping[str, str]) -> tuple[str, str]:
    """The ``digest`` of a document and its files, and the ``behaviour``.

    Layout, comments and the order of keys do not count, so a bundle may be reformatted.
    """
    parts = {key: _canonical(value) for key, value in document.items() if key != INTEGRITY}
    listed = _canonical(dict(files))
    whole = ",".join(sorted(f"{_canonical(key)}:{text}" for key, text in parts.items()))
    models, pipeline = document.get(MODELS), document.get(PIPELINE)
    computing = [parts.get(MODELS, "null"), parts.get(PIPELINE, "null")]
    bare = _without_annotations(models)
    if bare is not models:
        computing[0] = _canonical(bare)
    if isinstance(pipeline, dict) and "configs" in pipeline:
        computing[1] = _canonical({key: value for key, value in pipeline.items() if key != "configs"})
    return _hash(f"[{{{whole}}},{listed}]"), _hash(f"[{computing[0]},{computing[1]},{listed}]")


def _without_annotations(models: Any) -> Any:
    """The models without the keys of ports that the format does not define; the same object if there are none."""
    bare, found = {}, False
    for name, entry in models.items() if isinstance(models, dict) else ():
        bare[name] = entry
        for side in ("inputs", "outputs"):
            listed = entry.get(side) if isinstance(entry, dict) else None
            if isinstance(listed, list) and any(isinstance(port, dict) and not port.keys() <= PORT_KEYS for port in listed):
                found = True
                bare[name] = {**bare[name], side: [_bare(port) for port in listed]}
    return bare if found else models


def _bare(port: Any) -> Any:
    return {key: value for key, value in port.items() if key in PORT_KEYS} if isinstance(port, dict) else port


def _require_unsealed_writer(document: Mapping[str, Any], name: str) -> None:
    system = document.get(SYSTEM)
    version = system.get("leapp version") if isinstance(system, dict) else None
    if not isinstance(version, str) or not re.match(r"0\.\d", version):
        raise BundleError(
            f"{name}: the mapping '{INTEGRITY}' is missing, the end of the file seems to be lost. Restore the file, "
            f"export again, or run 'leapp seal {as_argument(name)}' if you wrote it yourself."
        )


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


_WORDS = {None: "null", True: "true", False: "false"}


def _canonical(value: Any) -> str:
    """JSON with sorted keys and one way to write each value, so that equal data gives equal text."""
    # Texts, which are most values, are written without a call of this function.
    text, kind = encode_basestring_ascii, type(value)
    if kind is str:
        return text(value)
    if kind is dict:
        pairs = [
            f"{text(key) if type(key) is str else _canonical(key)}:{text(item) if type(item) is str else _canonical(item)}"
            for key, item in value.items()
        ]
        return "{" + ",".join(sorted(pairs)) + "}"
    if kind is list:
        return "[" + ",".join([text(item) if type(item) is str else _canonical(item) for item in value]) + "]"
    # Only floats go through ``json.dumps``, which is slow because it makes an encoder for each value.
    return json.dumps(value) if kind is float else str(value) if kind is int else _WORDS[value]
