"""``leapp deploy``: writes a bundle for an inference server, or a C++ header with its types."""

from __future__ import annotations

import argparse
from argparse import ArgumentParser, Namespace
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING

from leapp.cli.arguments import add_code, add_opened_bundle, count, seconds
from leapp.cli.opening import open_for
from leapp.cli.output import Answer, Table, Text, progress
from leapp.errors import InputError

if TYPE_CHECKING:
    from leapp.deploy import CppHeader, Deployment


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of ``leapp deploy``."""
    parser.add_argument("target", choices=("triton", "cpp"), help="triton: a model repository; cpp: a C++ header with types")
    add_opened_bundle(parser)
    parser.add_argument("-o", "--output", required=True, metavar="DIRECTORY", help="the directory to write")
    add_code(parser)
    # The fields of TritonOptions. Options that are not given keep the defaults of that class.
    add = partial(parser.add_argument, default=argparse.SUPPRESS)
    add("--backend", choices=("native", "python"),
        help="the server's own engines, or leapp.runtime in its Python backend (default: native)")  # fmt: skip
    add("--model-version", type=count, dest="version", metavar="N", help="the number of this version (default: 1)")
    add("--version-policy", choices=("latest", "all", "specific"), help="which versions the server loads (default: latest)")
    add("--max-batch-size", type=count, metavar="N", help="most requests in a batch (default: no batches)")
    add("--instances", type=count, metavar="N", help="instances of each model (default: 1)")
    add("--kind", choices=("auto", "cpu", "gpu"), help="where the engines run (default: auto)")
    add("--gpus", type=_numbers, metavar="0,1", help="the GPUs to use with --kind gpu")
    add("--sequences", type=count, metavar="N", help="most sequences that an instance serves at a time (default: 1024)")
    add("--idle-seconds", type=seconds, metavar="S", help="seconds that an idle sequence keeps its state (default: 60)")
    add("--threads", type=count, metavar="N", help="threads of one ONNX session; Python backend only (default: 1)")
    add("--nonfinite", choices=("ignore", "raise"),
        help="accept or refuse NaN and infinity in inputs; Python backend only (default: ignore)")  # fmt: skip
    add("--dtype", action="append", dest="dtypes", type=_pair, metavar="PORT=DTYPE",
        help="the dtype in which clients send or receive a port; Python backend only (default: its own)")  # fmt: skip


def command(arguments: Namespace) -> Answer:
    """Write a bundle as the model repository of a server, or as a C++ header."""
    from leapp.deploy import TritonOptions, deploy_cpp, deploy_triton

    given = {
        field.name: getattr(arguments, field.name)
        for field in fields(TritonOptions)
        if getattr(arguments, field.name, None) is not None
    }
    bundle = open_for(arguments)
    if arguments.target == "cpp":
        if given:
            raise InputError(f"cpp does not take these options, which are for triton: {', '.join(sorted(given))}.")
        return _header(deploy_cpp(bundle, arguments.output))
    given["dtypes"] = dict(given.get("dtypes", ()))
    with progress("copying"):
        found = deploy_triton(bundle, arguments.output, TritonOptions(**given), allow_code=arguments.allow_code or None)
    return Answer(_data(found), _parts(found))


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.rpartition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port with a dtype such as policy/obs=float32")
    return name, value


def _numbers(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers such as 0,1")
    return tuple(int(part) for part in parts)


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
