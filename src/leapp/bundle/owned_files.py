"""Finds the files in a bundle directory that an earlier export of leapp wrote. All others belong to the user and are kept."""

from __future__ import annotations

import os
from pathlib import Path

from leapp.bundle import yaml_text
from leapp.bundle.contract_yaml import MODELS, PIPELINE
from leapp.bundle.files import descriptions_in
from leapp.bundle.integrity import INTEGRITY
from leapp.bundle.safetensors import INITIAL_VALUES
from leapp.errors import BundleError
from leapp.graph.formats import EXTERNAL_DATA, FORMATS, RUNNABLE

MODEL_SUFFIXES = (*(FORMATS[name].suffixes[0] for name in RUNNABLE), FORMATS["onnx"].suffixes[0] + EXTERNAL_DATA)
"""The suffixes of the files of a node, after the name of the node."""


def owned_files(directory: Path) -> set[str]:
    """The files in a directory that an earlier export wrote, read from its YAML.

    A seal lists them. In a bundle without a seal, they are the files with the names that an export gives. A model that the user
    brought and put here is not one of them.
    """
    owned: set[str] = set()
    for path in descriptions_in(directory):
        try:
            document = yaml_text.parse(path.read_text(encoding="utf-8"), path.name)
            if isinstance(document, dict) and isinstance(document.get(MODELS), dict) and PIPELINE in document:
                owned |= {path.name, f"{path.stem}.sig", *_listed_by(document, path.stem)}
        except (BundleError, OSError, UnicodeDecodeError):
            continue
    return {name for name in owned if link_above(directory, name) is None and os.path.lexists(directory / name)}


def link_above(directory: Path, name: str) -> str | None:
    """The outermost folder in the path ``name`` that is a link or a file, or ``None``.

    A file behind a link lies outside of the directory.
    """
    if "/" not in name and os.sep not in name:
        return None
    parts = Path(name).parts
    for count in range(1, len(parts)):
        folder = os.path.join(*parts[:count])
        if os.path.lexists(directory / folder) and (os.path.islink(directory / folder) or not (directory / folder).is_dir()):
            return folder
    return None


def _listed_by(document: dict[str, object], graph: str) -> set[str]:
    """The names of the files that a description names as its own."""
    entry = document.get(INTEGRITY)
    files = entry.get("files") if isinstance(entry, dict) else None
    if isinstance(files, dict):
        return {name for name in files if isinstance(name, str) and _is_below(name)}
    models = document[MODELS]
    assert isinstance(models, dict)
    names = {f"{node}{suffix}" for node in models for suffix in MODEL_SUFFIXES}
    return {name for name in names if _is_below(name)} | {f"{graph}.png", f"{graph}{INITIAL_VALUES}"}


def _is_below(name: str) -> bool:
    return not os.path.isabs(name) and ".." not in Path(name).parts
