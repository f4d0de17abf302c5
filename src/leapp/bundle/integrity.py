"""The seal of a bundle: a fourth YAML mapping with the sha256 of every written file and one digest over everything.

A seal shows damage and accidental mixing, not authorship: whoever can write the files can seal them again. Pin the
digest (``expect_digest=``) to know that a bundle is the one you tested.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from leapp.bundle import text as yaml_text
from leapp.bundle.layout import SYSTEM
from leapp.errors import BundleError

__all__ = ["INTEGRITY", "UNSEALED", "digest_of", "seal", "sealed_files"]

INTEGRITY = "integrity"
UNSEALED = "unsealed"
_SHA256 = re.compile(r"[0-9a-f]{64}")


def seal(text: str, files: Mapping[str, str]) -> tuple[str, str]:
    """Append the seal to the YAML of a contract.

    Args:
        text: The three mappings.
        files: The sha256 of every file written beside the YAML, by name.

    Returns:
        The whole text, and the digest in its seal.
    """
    digest = digest_of(yaml_text.parse(text, "bundle"), files)
    entry = {INTEGRITY: {"digest": digest, "files": dict(sorted(files.items()))}}
    return text + yaml_text.dump(entry, sort_keys=True) + "\n", digest


def digest_of(document: Mapping[str, Any], files: Mapping[str, str]) -> str:
    """The digest over the meaning of the YAML and the sha256 of every file.

    Layout, comments and the order of keys do not count, so a bundle may be reformatted.
    """
    content = {key: value for key, value in document.items() if key != INTEGRITY}
    return hashlib.sha256(_canonical([content, dict(files)]).encode()).hexdigest()


def sealed_files(document: Mapping[str, Any], name: str) -> tuple[str | None, dict[str, str]]:
    """Check the seal of a parsed document and return its digest and files.

    A description that carries no seal gives ``(None, {})``. leapp 1.0 and later always seal, so a missing seal there
    means that the end of the file is lost; ``integrity: unsealed`` says that somebody removed it on purpose.

    Raises:
        BundleError: If the seal is missing, malformed or does not fit the rest of the document.
    """
    if INTEGRITY not in document:
        _require_unsealed_writer(document, name)
        return None, {}
    entry = document[INTEGRITY]
    if entry == UNSEALED:
        return None, {}
    digest, files = (entry.get("digest"), entry.get("files")) if isinstance(entry, dict) else (None, None)
    if not _is_sha256(digest) or not isinstance(files, dict) or not all(map(_is_sha256, files.values())):
        raise BundleError(f"{name}: '{INTEGRITY}' is damaged. Restore the file or export again.")
    if not all(isinstance(key, str) for key in files):
        raise BundleError(f"{name}: '{INTEGRITY}.files' names something that is not a file.")
    if digest_of(document, files) != digest:
        raise BundleError(
            f"{name}: the description was changed after the export, its digest does not fit. "
            f"Export again, or write '{INTEGRITY}: {UNSEALED}' in place of the seal if you edited it on purpose."
        )
    return digest, files


def _require_unsealed_writer(document: Mapping[str, Any], name: str) -> None:
    system = document.get(SYSTEM)
    version = system.get("leapp version") if isinstance(system, dict) else None
    if not isinstance(version, str) or not re.match(r"0\.\d", version):
        raise BundleError(
            f"{name}: the mapping '{INTEGRITY}' is missing, the end of the file seems to be lost. Restore the file, "
            f"export again, or add the line '{INTEGRITY}: {UNSEALED}' if you wrote it yourself."
        )


def _is_sha256(value: object) -> bool:
    return isinstance(value, str) and _SHA256.fullmatch(value) is not None


def _canonical(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(sorted(f"{_canonical(k)}:{_canonical(v)}" for k, v in value.items())) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_canonical, value)) + "]"
    return json.dumps(value)
