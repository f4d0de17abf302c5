"""Writes the whole pipeline as one ONNX model.

Its inputs are the graph inputs and the states, its outputs the graph outputs and the next states, all under their ``node/port``
keys. The contract and the initial values are in the metadata of the model, so the file contains everything that is needed to
run it. Needs the ``onnx`` package, imported when a model is fused, and no tensor library.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Collection, Mapping
from itertools import chain, count
from pathlib import Path
from typing import Any

from leapp.bundle import yaml_text
from leapp.bundle.contract_yaml import contract_of, dump_contract
from leapp.bundle.files import read_regular
from leapp.bundle.reading import Bundle, model_file, open_bundle, read_initial_values
from leapp.bundle.safetensors import RawTensor, check_initial_values
from leapp.errors import BundleError
from leapp.extras import require
from leapp.graph.contract import Contract, key
from leapp.graph.validate import execution_order, feedback_ports, graph_ports, ports, sources

CONTRACT = "leapp.contract"
"""The metadata key of the contract, which is the bundle's YAML as JSON."""
INITIAL_VALUES = "leapp.initial_values"
"""The metadata key of the initial values: JSON from state input to dtype, shape and little-endian bytes in base64."""

_LIMIT = 1_800_000_000
_DEFAULT_DOMAINS = ("", "ai.onnx")


def fused_name(contract: Contract, graph: str) -> str:
    """The file name of the fused model: ``<graph>.onnx``, or ``<graph>_fused.onnx`` if a node has that file."""
    taken = {os.path.normpath(n.model.model_path).casefold() for n in contract.nodes.values() if n.model.model_path}
    name = f"{graph}.onnx"
    while name.casefold() in taken:
        name = f"{name.removesuffix('.onnx')}_fused.onnx"
    return name


def fuse_onnx(bundle: str | os.PathLike[str] | Bundle, path: str | os.PathLike[str]) -> Path:
    """Write the pipeline of ``bundle`` as one ONNX model.

    Args:
        bundle: A bundle with ONNX nodes only: its directory, its YAML, or an opened bundle.
        path: The file to write. If the model is too large for protobuf, its weights go to ``<path>.data``.

    Returns:
        ``path``.

    Raises:
        BundleError: If a node is not ONNX, or the models cannot be merged into one file.

    Example:
        >>> from leapp.deploy import fuse_onnx
        >>> fuse_onnx("exports/my_policy", "my_policy.onnx").name
        'my_policy.onnx'
    """
    if not isinstance(bundle, Bundle):
        bundle = open_bundle(bundle)
    require("Fusing models", "onnx")
    import onnx

    contract = bundle.contract
    backends = {name: node.model.backend for name, node in contract.nodes.items()}
    unfit = [f"'{name}' ({backend or 'no model'})" for name, backend in backends.items() if backend != "onnx"]
    if unfit:
        raise BundleError(
            f"Only ONNX nodes can be fused into one file; {', '.join(unfit)} cannot. Export with export_with='onnx'."
        )
    order = execution_order(contract)
    models = {name: _prepared(bundle, name) for name in order}
    opsets = _agree(models)
    graph = onnx.GraphProto(name=bundle.graph)
    _joined(contract, models, graph)
    model = onnx.helper.make_model(graph, producer_name="leapp", opset_imports=opsets)
    model.ir_version = max((m.ir_version for m in models.values()), default=model.ir_version)
    onnx.helper.set_model_props(model, _metadata(bundle))
    return _write(model, Path(path))


def read_fused(path: str | os.PathLike[str]) -> tuple[Contract, dict[str, RawTensor]]:
    """The contract and the initial values that a fused model carries.

    Raises:
        BundleError: If the file was not written by ``fuse_onnx``.

    Example:
        >>> from leapp.deploy import fuse_onnx, read_fused
        >>> contract, initial_values = read_fused(fuse_onnx("exports/my_policy", "my_policy.onnx"))
        >>> contract.pipeline.inputs, list(initial_values)
        ({'policy': ('obs',)}, ['policy/h_in'])
    """
    require("Reading a fused model", "onnx")
    import onnx

    file = Path(path)
    model = onnx.ModelProto.FromString(read_regular(file, "fused model"))
    found = {entry.key: entry.value for entry in model.metadata_props}
    if CONTRACT not in found:
        raise BundleError(f"{file.name}: not a model that leapp fused, its metadata has no '{CONTRACT}'.")
    document = json.loads(found[CONTRACT])
    contract = contract_of(document, file.name, "")
    values = {
        where: RawTensor(entry["dtype"], tuple(entry["shape"]), base64.b64decode(entry["data"], validate=True))
        for where, entry in json.loads(found.get(INITIAL_VALUES, "{}")).items()
    }
    check_initial_values(values, contract, file.name)
    return contract, values


def _metadata(bundle: Bundle) -> dict[str, str]:
    document = yaml_text.parse(dump_contract(bundle.contract), bundle.path.name)
    stored = read_initial_values(bundle)
    values = {
        where: {"dtype": v.dtype, "shape": list(v.shape), "data": base64.b64encode(bytes(v.data)).decode()}
        for where, v in sorted(stored.items())
    }
    return {
        CONTRACT: json.dumps(document, ensure_ascii=False, separators=(",", ":")),
        INITIAL_VALUES: json.dumps(values, ensure_ascii=False, separators=(",", ":")),
    }


def _prepared(bundle: Bundle, name: str) -> Any:
    """A node's model with its weights inside. Its functions are inlined, because their names could clash with others."""
    import onnx
    import onnx.inliner

    try:
        model = onnx.load(os.fspath(model_file(bundle, name)))
        return onnx.inliner.inline_local_functions(model) if model.functions else model
    except BundleError:
        raise
    except Exception as error:  # onnx may raise any type for a damaged file
        raise BundleError(f"Node '{name}': the ONNX model cannot be read: {error}") from error


def _agree(models: dict[str, Any]) -> list[Any]:
    """Convert all models to the same version of each operator set: the highest among them."""
    import onnx
    import onnx.version_converter

    wanted: dict[str, int] = {}
    for model in models.values():
        for entry in model.opset_import:
            domain = "" if entry.domain in _DEFAULT_DOMAINS else entry.domain
            wanted[domain] = max(wanted.get(domain, 0), entry.version)
    for name, model in models.items():
        for entry in model.opset_import:
            domain = "" if entry.domain in _DEFAULT_DOMAINS else entry.domain
            if entry.version == wanted[domain]:
                continue
            what = f"Node '{name}' uses opset {entry.version} of '{domain or 'ai.onnx'}', another node {wanted[domain]}"
            if domain:
                raise BundleError(f"{what}; one file has one version. Export both with the same.")
            try:
                models[name] = onnx.version_converter.convert_version(model, wanted[domain])
            except Exception as error:  # the converter may raise any type
                raise BundleError(f"{what}, and it cannot be converted. Export both with the same opset_version.") from error
    return [onnx.helper.make_opsetid(domain, version) for domain, version in sorted(wanted.items())]


def _joined(contract: Contract, models: Mapping[str, Any], graph: Any) -> None:
    """Move the models into one graph, with unique names for all values."""
    taken = {*ports(contract.nodes, "inputs"), *ports(contract.nodes, "outputs")}
    infos: dict[str, Any] = {}
    for name, model in models.items():
        infos |= _move(contract, name, model.graph, graph, taken)
    entering = (*graph_ports(contract, "inputs"), *feedback_ports(contract))
    leaving = dict.fromkeys([*graph_ports(contract, "outputs"), *contract.pipeline.feedback_flow])
    graph.input.extend(infos[where] for where in entering)
    graph.output.extend(infos[where] for where in leaving)


def _move(contract: Contract, name: str, graph: Any, into: Any, taken: set[str]) -> dict[str, Any]:
    """Move the graph of a node. Returns its inputs and outputs by their keys."""
    import onnx

    node, fed = contract.nodes[name], sources(contract.pipeline.data_flow)
    weights = {tensor.name for tensor in (*graph.initializer, *(s.values for s in graph.sparse_initializer))}
    # Before ONNX IR 4, weights had to be listed among the inputs too.
    inputs = {key(name, value.name): value for value in graph.input if value.name not in weights}
    outputs = {key(name, value.name): value for value in graph.output}
    names = {value.name: fed.get(where, where) for where, value in inputs.items()}
    _check_ports(name, "input", {p.name for p in node.inputs}, names)
    _check_ports(name, "output", {p.name for p in node.outputs}, [value.name for value in graph.output])
    # An output that is an input or a weight is made by no operator, so it needs a copy to get its own name.
    copied = {where: value.name for where, value in outputs.items() if value.name in names or value.name in weights}
    names |= {value.name: where for where, value in outputs.items() if where not in copied}

    def rename(value: str) -> str:
        if not value:
            return value  # empty: an optional input that is not given
        if value not in names:
            names[value] = _free_name(f"{name}/{value}", taken)
            taken.add(names[value])
        return names[value]

    _rename(graph, name, rename)
    into.node.extend(graph.node)
    into.node.extend(onnx.helper.make_node("Identity", [rename(value)], [where]) for where, value in copied.items())
    into.initializer.extend(graph.initializer)
    into.sparse_initializer.extend(graph.sparse_initializer)
    into.value_info.extend(graph.value_info)
    for where, value in (*inputs.items(), *outputs.items()):
        value.name = where
    return inputs | outputs


def _free_name(name: str, taken: Collection[str]) -> str:
    return next(one for one in chain([name], (f"{name}_{n}" for n in count(1))) if one not in taken)


def _check_ports(node: str, side: str, declared: set[str], found: Any) -> None:
    if declared != set(found):
        raise BundleError(f"Node '{node}': its model has the {side}s {sorted(found)}, the bundle says {sorted(declared)}.")


def _rename(graph: Any, prefix: str, rename: Callable[[str], str]) -> None:
    """Rename every value of a graph and of its subgraphs."""
    import onnx

    for node in graph.node:
        node.name = f"{prefix}/{node.name}"
        for side in (node.input, node.output):
            renamed = [rename(value) for value in side]
            del side[:]
            side.extend(renamed)
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _rename(attribute.g, prefix, rename)
            for inner in attribute.graphs:
                _rename(inner, prefix, rename)
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = rename(value.name)
    for sparse in graph.sparse_initializer:
        sparse.values.name = rename(sparse.values.name)


def _write(model: Any, path: Path) -> Path:
    import onnx

    size = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    data = path.with_name(path.name + ".data")
    data.unlink(missing_ok=True)
    if size > _LIMIT:
        onnx.save_model(model, os.fspath(path), save_as_external_data=True, location=data.name)
        onnx.checker.check_model(os.fspath(path))
    else:
        onnx.checker.check_model(model)
        path.write_bytes(model.SerializeToString(deterministic=True))
    return path
