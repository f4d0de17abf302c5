"""The rules of the known targets, and the check whether a target can run a bundle.

The rules are about descriptions and file names. No model is run here, so a target may still refuse an operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from msgspec.structs import replace

from leapp.bundle import yaml_text
from leapp.bundle.contract_yaml import TARGET, dump_contract
from leapp.bundle.onnx_files import external_files
from leapp.bundle.reading import Bundle, read_initial_values, read_model
from leapp.graph.contract import Contract, Port, key
from leapp.graph.dtypes import DTYPES
from leapp.semantics import TEMPORAL_AXIS


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem that a target has with a bundle. An ``error`` means that the target cannot run it, a ``warning``
    that values change or that something must be done first.
    """

    level: Literal["error", "warning"]
    where: str
    text: str


@dataclass(frozen=True, slots=True)
class TargetRules:
    """The rules of a target.

    Attributes:
        about: A sentence about the target.
        dtypes: Port dtypes that it accepts.
        converted: Port dtypes that it converts to another dtype.
        opsets: The lowest and highest ONNX opset it reads, ``None`` without a bound.
        opset: The ONNX opset that an export for it is written in.
        any_batch: What to do about models that take any batch; ``None`` if they run as they are.
        more: Further rules of this target.
    """

    about: str
    dtypes: frozenset[str]
    converted: tuple[tuple[str, str], ...] = ()
    opsets: tuple[int | None, int | None] = (7, None)
    opset: int = 20
    any_batch: str | None = None
    more: Callable[[Bundle], Iterator[Finding]] | None = None


def check_target(bundle: Bundle, name: str) -> list[Finding]:
    """The problems that the target ``name`` (a key of ``TARGETS``) has with a bundle, errors first."""
    rules = TARGETS[name]
    found = [*_models(bundle, rules), *_dtypes(bundle.contract, rules), *_batches(bundle.contract, rules)]
    found += rules.more(bundle) if rules.more else ()
    return sorted(found, key=lambda finding: finding.level)


def spelled(contract: Contract, name: str) -> Contract:
    """The contract in the form that the target ``name`` reads best. Its meaning stays the same."""
    contract = replace(contract, system={**contract.system, TARGET: name})
    if name != "isaac-ros":
        return contract
    nodes = {
        node: replace(entry, inputs=_listed(entry.inputs), outputs=_listed(entry.outputs))
        for node, entry in contract.nodes.items()
    }
    return replace(contract, nodes=nodes)


def _listed(ports: tuple[Port, ...]) -> tuple[Port, ...]:
    """Ports with element names as one list for each axis. ``temporal_axis`` says which axis runs over time."""
    found = []
    for port in ports:
        names = port.element_names or []
        time = {"temporal_axis": names.index(TEMPORAL_AXIS)} if TEMPORAL_AXIS in names else {}
        lists = [axis if isinstance(axis, list) else [] for axis in names]
        found.append(replace(port, element_names=lists, extra=time | port.extra) if names else port)
    return tuple(found)


def _models(bundle: Bundle, rules: TargetRules) -> Iterator[Finding]:
    low, high = rules.opsets
    for name, node in bundle.contract.nodes.items():
        backend, opset = node.model.backend, node.model.extra.get("opset_version")
        if backend is None:
            yield Finding("error", name, "the node has no model.")
        elif backend != "onnx":
            yield Finding("error", name, f"the model is {backend}, only ONNX is read. Export with export_with='onnx'.")
        elif isinstance(opset, int) and ((low and opset < low) or (high and opset > high)):
            yield Finding(
                "error", name, f"opset {opset} is outside {low} to {high or 'any'}. Export with "
                f"backend_params={{'opset_version': {high or low}}}.",
            )  # fmt: skip


def _dtypes(contract: Contract, rules: TargetRules) -> Iterator[Finding]:
    converted = dict(rules.converted)
    for name, node in contract.nodes.items():
        for port in (*node.inputs, *node.outputs):
            if port.dtype in converted:
                yield Finding("warning", key(name, port.name), f"{port.dtype} is computed as {converted[port.dtype]}.")
            elif port.dtype not in rules.dtypes:
                yield Finding("error", key(name, port.name), f"{port.dtype} is not a type it takes.")


def _batches(contract: Contract, rules: TargetRules) -> Iterator[Finding]:
    for name, node in contract.nodes.items() if rules.any_batch else ():
        if any(port.batch_axis is not None for port in (*node.inputs, *node.outputs)):
            yield Finding("warning", name, f"the model takes any batch. {rules.any_batch}")


def _isaac_ros(bundle: Bundle) -> Iterator[Finding]:
    contract = bundle.contract
    for name, node in contract.nodes.items():
        for port in (*node.inputs, *node.outputs):
            for axis in port.element_names or ():
                if not isinstance(axis, list):
                    shown = "null" if axis is None else repr(axis)
                    yield Finding(
                        "error", key(name, port.name), f"element_names has {shown} for an axis; each entry must be a list. "
                        "Export with target='isaac-ros', or write [] for the axis.",
                    )  # fmt: skip
        names = [port.name for port in (*node.inputs, *node.outputs)]
        for twice in sorted({n for n in names if names.count(n) > 1}):
            yield Finding("error", key(name, twice), "an input and an output share this name. Rename one.")
    for side in ("inputs", "outputs"):
        listed: list[str] = [port for ports in getattr(contract.pipeline, side).values() for port in ports]
        for twice in sorted({n for n in listed if listed.count(n) > 1}):
            yield Finding("warning", twice, f"several graph {side} have this name.")
    yield from _isaac_ros_feedback(bundle)
    for name, node in contract.nodes.items():
        if node.model.backend == "onnx" and node.model.model_path is not None:
            expected = Path(node.model.model_path).name + ".data"
            for location in external_files(read_model(bundle, name), f"model of node '{name}'"):
                if location != expected:
                    yield Finding("error", name, f"external weights are in '{location}', expected '{expected}'.")


def _isaac_ros_feedback(bundle: Bundle) -> Iterator[Finding]:
    if not bundle.contract.pipeline.feedback_flow:
        return
    # While a bundle is being written, its description is not on disk yet.
    written = bundle.path.read_text(encoding="utf-8-sig") if bundle.path.exists() else dump_contract(bundle.contract)
    document: Any = yaml_text.parse(written, bundle.path.name)
    if "feedback_connections" not in document["pipeline"]:
        yield Finding(
            "warning", "pipeline", "versions 4.4 and 4.5 read 'feedback_connections', which this bundle lacks; "
            "newer ones read 'feedback_flow'.",
        )  # fmt: skip
    for where, value in read_initial_values(bundle).items():
        if any(bytes(value.data)):
            yield Finding("warning", where, "versions 4.4 and 4.5 ignore the initial value and start at zero.")


_ONNX_TYPES = frozenset(DTYPES) - {"complex64", "complex128"}
_FLOAT8 = frozenset(dtype for dtype in DTYPES if dtype.startswith("float8"))

_SHAPE_RANGE = (
    "TensorRT builds an engine for a range of shapes: give the smallest, usual and largest batch of every input as "
    "optimization profile, or export with the batch of the robot."
)

TARGETS: dict[str, TargetRules] = {
    "onnxruntime": TargetRules("ONNX Runtime: opset 7 and later, every real type.", _ONNX_TYPES),
    "tensorrt": TargetRules(
        "TensorRT 10: opset 9 to 20; float64 is computed as float32; no int16 and no unsigned type but uint8.",
        frozenset({"float32", "float16", "bfloat16", "int8", "int32", "int64", "uint8", "bool"}) | _FLOAT8,
        (("float64", "float32"),),
        (9, 20),
        any_batch=_SHAPE_RANGE,
    ),
    "openvino": TargetRules("OpenVINO: ONNX models of every real type.", _ONNX_TYPES),
    "isaac-ros": TargetRules(
        "Isaac ROS Deploy: ONNX only, run by TensorRT; a list of names for each axis; unique port names; external weights "
        "beside the model as <model>.onnx.data.",
        frozenset({"float32", "float16", "int8", "int32", "int64", "uint8", "bool"}),
        (("float64", "float32"),),
        (9, 20),
        any_batch=_SHAPE_RANGE,
        more=_isaac_ros,
    ),
}
"""The known targets, by the name ``leapp check --target`` takes."""
