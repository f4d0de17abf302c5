"""A repository with one model, which runs the whole bundle in the server's Python backend."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leapp.bundle import Bundle, RawTensor
from leapp.bundle.sidecars import write_initial_values
from leapp.bundle.staging import Staging
from leapp.deploy.triton_config import (
    TritonOptions,
    describe,
    entries,
    free_name,
    instance_group,
    output_names,
    safe_name,
    seen_ports,
    sequence_batching,
    versions,
)
from leapp.deploy.triton_files import copy_model, move_models, write_config
from leapp.graph.contract import Contract
from leapp.runtime.plan import Plan

_BUNDLE = "bundle"
_MODEL = '''"""Runs the bundle beside this file. The Python of this server needs leapp and onnxruntime."""

from leapp.deploy.bundle_model import TritonPythonModel

__all__ = ["TritonPythonModel"]
'''


def write_hosted(
    bundle: Bundle, plan: Plan, values: Mapping[str, RawTensor], model: str, root: Path, options: TritonOptions
) -> tuple[Contract, dict[str, str]]:
    """Write the model, with a bundle of its own in the directory of its version.

    Returns:
        The contract as seen from ``root``, and the model with what runs it.
    """
    folder = root / model / str(options.version)
    with Staging(folder / _BUNDLE) as staging:
        paths: dict[str, str] = {}
        for node in plan.order:
            name = free_name(safe_name(node), [Path(path).parent.name for path in paths.values()], "_")
            copied = copy_model(bundle, node, staging.path / name)
            paths[node] = copied.relative_to(staging.path).as_posix()
        file = write_initial_values(staging.path, bundle.graph, values, bundle.contract) if values else None
        staging.commit(bundle.graph, move_models(bundle.contract, paths, file))
        digest = staging.digest
    (folder / "model.py").write_text(_MODEL, encoding="utf-8", newline="\n")
    names = output_names(plan)
    inputs, outputs = seen_ports(plan, options.dtypes)
    found = {
        "bundle": _BUNDLE,
        "digest": digest,
        "threads": options.threads,
        "nonfinite": options.nonfinite,
        "idle_seconds": options.idle_seconds,
        "outputs": {key: names[key] for key in plan.outputs},
        "dtypes": {key: outputs[key].dtype for key in plan.outputs},
    }
    config: dict[str, Any] = {
        "name": model,
        "backend": "python",
        "max_batch_size": 0,
        "version_policy": versions(options),
        "input": [describe(k, k, port, None) for k, port in inputs.items()],
        "output": [describe(k, names[k], port, None) for k, port in outputs.items()],
        "instance_group": instance_group(options, engine=False),
        "parameters": entries({"leapp": {"string_value": json.dumps(found, ensure_ascii=False)}}),
    }
    if plan.feedback:
        config["sequence_batching"] = sequence_batching(options)
    models = write_config(root, config)
    here = folder.relative_to(root) / _BUNDLE
    moved = {node: (here / path).as_posix() for node, path in paths.items()}
    return move_models(bundle.contract, moved, (here / file).as_posix() if file else None), models
