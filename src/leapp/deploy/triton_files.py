"""The files of a model repository: one directory for each model, with its configuration and its versions."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from leapp.bundle import Bundle
from leapp.bundle.onnx_files import external_files
from leapp.bundle.packages import check_package
from leapp.bundle.reading import model_file, read_model
from leapp.deploy.triton_config import free_name, pbtxt, safe_name
from leapp.graph.contract import Contract
from leapp.graph.formats import FORMATS


def write_config(root: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Write the configuration of a model into its directory, and return what runs it by its name."""
    folder = root / config["name"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(pbtxt(config), encoding="utf-8", newline="\n")
    return {config["name"]: config.get("backend") or config["platform"]}


def write_values(folder: Path, values: Mapping[str, bytes | memoryview]) -> dict[str, str]:
    """Write raw values into files and return the file of each."""
    folder.mkdir(parents=True, exist_ok=True)
    names: dict[str, str] = {}
    for key, value in values.items():
        names[key] = free_name(safe_name(key), names.values(), "_")
        (folder / names[key]).write_bytes(value)
    return names


def copy_model(bundle: Bundle, node: str, folder: Path) -> Path:
    """Copy a node's model, verified, into a directory, and the external data it names along with it.

    Returns:
        The path of the copy.
    """
    backend = bundle.contract.nodes[node].model.backend
    assert backend is not None
    data = read_model(bundle, node)
    folder.mkdir(parents=True)
    path = folder / f"model{FORMATS[backend].suffixes[0]}"
    path.write_bytes(data)
    if backend != "onnx":
        check_package(data, backend, f"The {backend} model of node {node!r}")
        return path
    for location in external_files(data, f"model of node {node!r}"):
        target = folder / location
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(model_file(bundle, node).parent / location, target)
    return path


def move_models(contract: Contract, paths: Mapping[str, str], values: str | None) -> Contract:
    """The contract with the models and the initial values at other places."""
    replace = msgspec.structs.replace
    nodes = {name: replace(node, model=replace(node.model, model_path=paths[name])) for name, node in contract.nodes.items()}
    return replace(contract, nodes=nodes, pipeline=replace(contract.pipeline, initial_values=values))
