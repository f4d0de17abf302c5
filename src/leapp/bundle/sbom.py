"""Writes a CycloneDX bill of materials for machine learning (ML-BOM) of a bundle, in JSON.

The same bundle gives the same text: it holds no time, and its serial number comes from the sha256 of the models.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from leapp.bundle.files import hash_file
from leapp.bundle.reading import Bundle
from leapp.bundle.system import package_version
from leapp.graph.contract import Node
from leapp.graph.formats import FORMATS

_SPACE = uuid.UUID("6f1f6f0e-2f0b-5d0a-9a5e-6c65617070ff")
_LIBRARIES = {"torch version": "torch", "leapp version": "leapp", "warp version": "warp-lang"}
"""Packages that the system information names."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Facts about the export of a bundle that only the exporting process knows.

    Attributes:
        commit: The git commit of the program that exported it; with ``+`` if files of it were changed since.
        repository: The address of its repository.
        engines: The versions of the engines that proved it.
    """

    commit: str | None = None
    repository: str | None = None
    engines: Mapping[str, str] = field(default_factory=dict)


def bom_name(graph: str) -> str:
    """The file name of the bill of materials in a bundle."""
    return f"{graph}.cdx.json"


def bom_text(bundle: Bundle, origin: Origin | None = None, licence: str | None = None) -> str:
    """The bill of materials of a bundle.

    Args:
        bundle: The bundle. Its models are not opened.
        origin: Where it was exported from, if that is known.
        licence: Its licence, as an SPDX identifier or expression.
    """
    origin = origin or Origin()
    system = bundle.contract.system
    digest = _identity(bundle)
    nodes = [_model(name, node) for name, node in bundle.contract.nodes.items() if node.model.model_path is not None]
    models = {os.path.normpath(str(node.model.model_path)) for node in bundle.contract.nodes.values()}
    own = (bom_name(bundle.graph), f"{bundle.graph}.html")  # left out: they cannot contain their own hash
    files = [_file(name, sha256) for name, sha256 in sorted(bundle.files.items()) if name not in models and name not in own]
    versions = {name: str(system[key]) for key, name in _LIBRARIES.items() if system.get(key)} | dict(origin.engines)
    libraries = [_library(name, version) for name, version in sorted(versions.items())]
    root: dict[str, Any] = {
        "type": "machine-learning-model",
        "bom-ref": f"bundle:{bundle.graph}",
        "name": bundle.graph,
        "version": digest,
        "properties": _properties({"leapp:commit": origin.commit, **{f"leapp:{k}": v for k, v in system.items()}}),
    }
    if licence is not None:
        root["licenses"] = [{"expression": licence}]
    if origin.repository is not None:
        root["externalReferences"] = [{"type": "vcs", "url": origin.repository}]
    parts = [*nodes, *files, *libraries]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_SPACE, digest)}",
        "version": 1,
        "metadata": {
            "tools": {"components": [_library("leapp", str(system.get("leapp version") or "unknown"), "tool:leapp")]},
            "component": root,
        },
        "components": parts,
        "dependencies": [{"ref": root["bom-ref"], "dependsOn": [part["bom-ref"] for part in parts]}],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def write_bom(bundle: Bundle, licence: str | None) -> Path:
    """Write the bill of materials beside the files of a bundle that this process exports. The seal then covers it.

    Args:
        bundle: The bundle, before it is sealed. The files in its directory are listed.
        licence: Its licence, as an SPDX identifier or expression.
    """
    folder = bundle.directory
    names = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
    files = {name: hash_file(folder / name)[1] for name in names if not name.startswith(".")}
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    origin = describe_origin(Path(main).resolve() if main else Path.cwd(), _engines(bundle))
    path = folder / bom_name(bundle.graph)
    path.write_text(bom_text(replace(bundle, files=files), origin, licence), encoding="utf-8", newline="\n")
    return path


def _engines(bundle: Bundle) -> dict[str, str]:
    """The versions of the engines that ran the models; torch is in the system information."""
    backends = {node.model.backend for node in bundle.contract.nodes.values()}
    engines = sorted({FORMATS[name].engine or "torch" for name in backends if name in FORMATS} - {"torch"})
    return {engine: version for engine in engines if (version := package_version(engine)) is not None}


def _identity(bundle: Bundle) -> str:
    """A number that identifies the models of a bundle. Not the digest: the seal that has it covers the bill of materials."""
    models = {name: node.model.sha256sum for name, node in bundle.contract.nodes.items()}
    return hashlib.sha256(json.dumps(models, sort_keys=True).encode()).hexdigest()


def _model(name: str, node: Node) -> dict[str, Any]:
    model = node.model
    sides = {
        side: [{"format": f"{port.name}: {port.dtype} {list(port.shape)}"} for port in getattr(node, side)]
        for side in ("inputs", "outputs")
    }
    form = FORMATS[model.backend].title if model.backend in FORMATS else model.backend
    facts = {"leapp:backend": model.backend, "leapp:file": model.model_path}
    facts |= {f"leapp:{key}": value for key, value in model.extra.items()}
    return {
        "type": "machine-learning-model",
        "bom-ref": f"model:{name}",
        "name": name,
        "description": f"{form} model of the node",
        "hashes": [{"alg": "SHA-256", "content": model.sha256sum}],
        "modelCard": {"modelParameters": sides},
        "properties": _properties(facts),
    }


def _file(name: str, sha256: str) -> dict[str, Any]:
    return {"type": "file", "bom-ref": f"file:{name}", "name": name, "hashes": [{"alg": "SHA-256", "content": sha256}]}


def _library(name: str, version: str, ref: str | None = None) -> dict[str, Any]:
    found = {"type": "library", "bom-ref": ref or f"library:{name}", "name": name, "version": version}
    return {**found, "purl": f"pkg:pypi/{name}@{version.replace('+', '%2B')}"}


def _properties(facts: Mapping[str, Any]) -> list[dict[str, str]]:
    return [{"name": name, "value": str(value)} for name, value in facts.items() if value is not None]


def describe_origin(program: Path, engines: Mapping[str, str]) -> Origin:
    """Where a program lies in git, if it does, with the versions of the engines.

    Args:
        program: A file or directory of it.
        engines: The versions of the engines by name.
    """
    import subprocess

    folder = program if program.is_dir() else program.parent

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return Origin(engines=engines)
    changed = git("status", "--porcelain", "--untracked-files=no")
    address = git("remote", "get-url", "origin") or ""
    # An address with a password is left out, and so is a path on this machine.
    is_local = not address or os.path.isabs(address) or address.startswith((".", "file:"))
    safe = None if is_local or "@" in address.partition("://")[2].partition("/")[0] else address
    return Origin(f"{commit}+" if changed else commit, safe, engines)
