"""``leapp deploy``: a bundle laid out for an inference server."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import fields

from leapp.bundle import open_bundle
from leapp.cli.output import Answer, Table, Text, progress
from leapp.deploy import Deployment, TritonOptions, deploy_triton

__all__ = ["deploy"]


def deploy(arguments: Namespace) -> Answer:
    """Write a bundle as the model repository of a server."""
    given = {
        field.name: getattr(arguments, field.name)
        for field in fields(TritonOptions)
        if getattr(arguments, field.name, None) is not None
    }
    given["dtypes"] = dict(given.get("dtypes", ()))
    bundle = open_bundle(arguments.bundle, allow_outside=arguments.allow_outside)
    with progress("copying"):
        found = deploy_triton(bundle, arguments.output, TritonOptions(**given))
    return Answer(_data(found), _parts(found))


def _data(found: Deployment) -> dict[str, object]:
    sides = {"inputs": found.inputs, "outputs": found.outputs}
    return {
        "repository": str(found.path),
        "model": found.model,
        "models": found.models,
        **{
            side: {key: {"tensor": name, "data_type": kind, "dims": dims} for key, (name, kind, dims) in tensors.items()}
            for side, tensors in sides.items()
        },
        "stateful": found.stateful,
        "digest": found.digest,
    }


def _parts(found: Deployment) -> list[Table | Text]:
    rows = [
        (side, key, name if name != key else "", kind, str(dims))
        for side, tensors in (("input", found.inputs), ("output", found.outputs))
        for key, (name, kind, dims) in tensors.items()
    ]
    parts: list[Table | Text] = [
        Text(f"wrote {found.path}"),
        Table("models", ["model", "run by"], list(found.models.items())),
        Table(f"tensors of {found.model}", ["", "port", "tensor", "type", "dims"], rows),
    ]
    if found.stateful:
        parts.append(
            Text("It keeps state: each client needs a correlation id of its own and the start flag on its first request.")
        )
    return [*parts, Text(f"serve it with: tritonserver --model-repository={found.path}")]
