"""Seal a bundle again after an edit by hand. The rest of the text stays as it is, comments included."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from leapp.bundle import yaml_text
from leapp.bundle.contract_yaml import contract_of
from leapp.bundle.files import locate, read_regular, replace_file, sha256_of
from leapp.bundle.integrity import INTEGRITY, seal
from leapp.bundle.onnx_files import beside, external_files
from leapp.bundle.reading import description_text, find_description
from leapp.bundle.safetensors import SAMPLES
from leapp.errors import BundleError
from leapp.graph.contract import Contract, Node


def seal_again(path: str | os.PathLike[str]) -> tuple[Path, str]:
    """Write a new seal for the present description of a bundle and the files beside it.

    An edit of the description is accepted, a changed file is not: models must have the sha256 of their ``parameters``, other
    files that of the old seal. A file that the old seal does not name is sealed as it is. A file that the old seal names and
    that does not exist any more is left out.

    Args:
        path: The ``.yaml`` or ``.yml`` file, or the directory that holds exactly one bundle.

    Returns:
        The description and its new digest.

    Raises:
        BundleError: If the file is not a bundle description, or another file has not the sha256 that it must have.
    """
    found = find_description(path)
    text = description_text(found)
    document = yaml_text.parse(text, found.name)
    contract = contract_of(document, found.name, text)
    entry = document.get(INTEGRITY)
    listed = entry.get("files") if isinstance(entry, dict) else None
    files = _files_of(contract, found, listed if isinstance(listed, dict) else {})
    rest = {key: value for key, value in document.items() if key != INTEGRITY}
    kept = _without_seal(text)
    if kept is None or yaml_text.parse(kept, found.name) != rest:
        kept = yaml_text.dump(rest, sort_keys=False)  # the seal cannot be cut out of this layout, so the text is written anew
    sealed, digest = seal(kept.rstrip("\n") + "\n\n", files)
    replace_file(found, sealed.encode())
    return found, digest


def _files_of(contract: Contract, description: Path, listed: Mapping[Any, Any]) -> dict[str, str]:
    """The files that a bundle consists of, each with its sha256."""
    files = {str(name): str(sha256) for name, sha256 in listed.items() if (description.parent / str(name)).exists()}
    models = {node.model.model_path for node in contract.nodes.values()}
    for name, sha256 in files.items():
        if name not in models:
            _check(description, name, sha256)
    for own in (contract.pipeline.initial_values, f"{description.stem}{SAMPLES}"):
        if own is not None and own not in files and (description.parent / own).exists():
            files[own] = _sha256(description, own, f"file '{own}'", anywhere=False)
    for name, node in contract.nodes.items():
        model = node.model
        if model.model_path is None or model.sha256sum is None:
            continue
        _check(description, model.model_path, model.sha256sum, f"model of node '{name}'")
        if not os.path.isabs(model.model_path) and ".." not in model.model_path.split("/"):
            files[model.model_path] = model.sha256sum
        files = {**_external(node, name, description), **files}
    return files


def _external(node: Node, name: str, description: Path) -> dict[str, str]:
    if node.model.backend != "onnx":
        return {}
    assert node.model.model_path is not None
    what = f"model of node '{name}'"
    path = locate(os.path.realpath(description.parent), node.model.model_path, what, anywhere=True)
    locations = [beside(node.model.model_path, location) for location in external_files(read_regular(path, what), what)]
    return {data: _sha256(description, data, f"external data of node '{name}'") for data in locations}


def _sha256(description: Path, name: str, what: str, *, anywhere: bool = True) -> str:
    return sha256_of(locate(os.path.realpath(description.parent), name, what, anywhere=anywhere), what)


def _check(description: Path, name: str, sha256: object, what: str | None = None) -> None:
    what = what or f"file '{name}'"
    found = _sha256(description, name, what)
    if found != sha256:
        raise BundleError(
            f"{what}: the file was changed or damaged, its sha256 is {found}. Restore it; or, if you changed it on purpose, "
            f"write that number where {description.name} has {sha256}, and seal again."
        )


def _without_seal(text: str) -> str | None:
    """The text without the lines of its seal; ``None`` if they are not lines of their own."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(node, yaml.MappingNode) or node.flow_style:
        return None
    starts = [key.start_mark.line for key, _ in node.value]
    lines = text.splitlines(keepends=True)
    for index, (key, _) in enumerate(node.value):
        if key.value == INTEGRITY:
            end = starts[index + 1] if index + 1 < len(starts) else len(lines)
            return "".join(lines[: starts[index]] + lines[end:])
    return text
