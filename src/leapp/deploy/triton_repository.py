"""The base class for writing a model repository: one directory for each model, with its configuration and its versions."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from leapp.bundle import Bundle, RawTensor, read_initial_values
from leapp.bundle.onnx_files import external_files
from leapp.bundle.packages import check_package
from leapp.bundle.reading import model_file, read_model
from leapp.deploy.triton_config import TritonOptions, Word, entries, free_name, output_names, pbtxt, safe_name
from leapp.graph.contract import Contract
from leapp.graph.formats import FORMATS
from leapp.runtime.plan import Plan


@dataclass
class Repository:
    """Writes the parts that the repositories of both backends have in common.

    Attributes:
        bundle: The bundle to deploy.
        plan: Its plan.
        root: The directory to write.
        options: How to write it.
        model: The model that clients call.
        names: The server's name of each output.
        values: The initial value of each state: zeros where the bundle has none.
    """

    bundle: Bundle
    plan: Plan
    root: Path
    options: TritonOptions

    def __post_init__(self) -> None:
        self.model = safe_name(self.bundle.graph)
        self.names = output_names(self.plan)
        stored, ports = read_initial_values(self.bundle), {k: self.plan.input_ports[k] for k in self.plan.feedback}
        self.values = {k: stored.get(k) or RawTensor(p.dtype, p.shape, bytes(p.nbytes)) for k, p in ports.items()}

    def write(self) -> tuple[Contract, dict[str, str]]:
        """Write everything.

        Returns:
            The contract with paths relative to the root, and the models, each with its backend.
        """
        raise NotImplementedError

    def version_folder(self, model: str) -> Path:
        """The directory of this version of a model."""
        return self.root / model / str(self.options.version)

    def config(self, name: str, inputs: list[Any], outputs: list[Any], **more: Any) -> dict[str, Any]:
        """The configuration of a model. A model with a backend also gets an ``instance_group``."""
        options = self.options
        policy = {"latest": {"num_versions": 1}, "all": {}, "specific": {"versions": [options.version]}}
        config = {
            "name": name,
            "max_batch_size": options.max_batch_size,
            "version_policy": {options.version_policy: policy[options.version_policy]},
            "input": inputs,
            "output": outputs,
            **more,
        }
        if "backend" in more:
            on_cpu = more["backend"] == "python"
            gpus = {"gpus": list(options.gpus)} if options.gpus and not on_cpu else {}
            kind = Word("KIND_CPU" if on_cpu else f"KIND_{options.kind.upper()}")
            config["instance_group"] = [{"count": options.instances, "kind": kind, **gpus}]
        return config

    def python_config(self, inputs: list[Any], outputs: list[Any], settings: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration of a Python model that clients call. The model reads its ``settings`` from it."""
        parameters = entries({"leapp": {"string_value": json.dumps(settings, ensure_ascii=False)}})
        state = {"sequence_batching": self.sequence_batching()} if self.plan.feedback else {}
        return self.config(self.model, inputs, outputs, backend="python", parameters=parameters, **state)

    def sequence_batching(self) -> dict[str, Any]:
        """The ``sequence_batching`` of a model with state, without the entries for the states.

        Sequences are served oldest first. Triton's other strategy reserves a slot of a batch for each sequence, and without
        batches there is only one slot.
        """
        return {
            "max_sequence_idle_microseconds": round(self.options.idle_seconds * 1e6),
            "oldest": {"max_candidate_sequences": self.options.sequences},
        }

    def write_config(self, config: Mapping[str, Any]) -> dict[str, str]:
        """Write the configuration of a model into its directory, and return its name and backend."""
        folder = self.root / config["name"]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.pbtxt").write_text(pbtxt(config), encoding="utf-8", newline="\n")
        return {config["name"]: config.get("backend") or config["platform"]}

    def copy_model(self, node: str, folder: Path) -> Path:
        """Copy a node's model and its external data, both verified, into a directory.

        Returns:
            The path of the copy.
        """
        backend = self.bundle.contract.nodes[node].model.backend
        assert backend is not None
        data = read_model(self.bundle, node)
        folder.mkdir(parents=True)
        path = folder / f"model{FORMATS[backend].suffixes[0]}"
        path.write_bytes(data)
        if backend != "onnx":
            check_package(data, backend, f"The {backend} model of node {node!r}")
            return path
        for location in external_files(data, f"model of node {node!r}"):
            target = folder / location
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(model_file(self.bundle, node).parent / location, target)
        return path

    def contract(self, paths: Mapping[str, str], values: str | None) -> Contract:
        """The contract of the bundle with other paths of its models and initial values."""
        contract, replace = self.bundle.contract, msgspec.structs.replace
        models = {name: replace(node.model, model_path=paths[name]) for name, node in contract.nodes.items()}
        nodes = {name: replace(node, model=models[name]) for name, node in contract.nodes.items()}
        return replace(contract, nodes=nodes, pipeline=replace(contract.pipeline, initial_values=values))


def write_values(folder: Path, values: Mapping[str, bytes]) -> dict[str, str]:
    """Write raw values into files and return the file of each."""
    folder.mkdir(parents=True, exist_ok=True)
    names: dict[str, str] = {}
    for key, value in values.items():
        names[key] = free_name(safe_name(key), names.values(), "_")
        (folder / names[key]).write_bytes(value)
    return names
