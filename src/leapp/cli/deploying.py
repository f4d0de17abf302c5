"""``leapp deploy``: a bundle laid out for an inference server, or as a C++ header with types."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import fields

from leapp.cli.consent import open_for
from leapp.cli.output import Answer, Table, Text, progress
from leapp.deploy import CppHeader, Deployment, TritonOptions, deploy_cpp, deploy_triton
from leapp.errors import InputError

__all__ = ["deploy"]


def deploy(arguments: Namespace) -> Answer:
    """Write a bundle as the model repository of a server, or as a C++ header."""
    given = {
        field.name: getattr(arguments, field.name)
        for field in fields(TritonOptions)
        if getattr(arguments, field.name, None) is not None
    }
    bundle = open_for(arguments)
    if arguments.target == "cpp":
        if given:
            raise InputError(f"{', '.join(sorted(given))}: options of triton, which cpp does not have.")
        return _header(deploy_cpp(bundle, arguments.output))
    given["dtypes"] = dict(given.get("dtypes", ()))
    with progress("copying"):
        found = deploy_triton(bundle, arguments.output, TritonOptions(**given), allow_code=arguments.allow_code or None)
    return Answer(_data(found), _parts(found))


def _header(found: CppHeader) -> Answer:
    rows = [(side, key, name) for side in ("inputs", "outputs") for key, name in getattr(found, side).items()]
    data = {
        "header": str(found.path), "namespace": found.namespace, "inputs": found.inputs, "outputs": found.outputs,
        "enums": {name: list(names) for name, names in found.enums.items()}, "digest": found.digest,
    }  # fmt: skip
    return Answer(data, [Text(f"wrote {found.path}"), Table(f"namespace {found.namespace}", ["", "port", "field"], rows)])


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
