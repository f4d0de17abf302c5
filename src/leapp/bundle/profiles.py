"""What a bundle lacks for whoever deploys it, and whether a named target can take it.

Rules about descriptions and file names only. Nothing is run here, so a target that says yes may still refuse an operator.
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
from leapp.graph.contract import DTYPES, Contract, Port, key
from leapp.semantics import TEMPORAL_AXIS

__all__ = ["PROFILES", "Finding", "Profile", "check_profile", "deployment_gaps", "spelled"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a target would stumble over. An ``error`` stops it; a ``warning`` changes values or needs care."""

    level: Literal["error", "warning"]
    where: str
    text: str


@dataclass(frozen=True, slots=True)
class Profile:
    """What a target takes.

    Attributes:
        about: The facts in a sentence.
        dtypes: Port dtypes it takes as they are.
        converted: Port dtypes it takes as another.
        opsets: The lowest and highest ONNX opset it reads, ``None`` without a bound.
        opset: The ONNX opset that an export for it is written in.
        any_batch: What it takes care to do with models that take any batch; ``None`` where they run as they are.
        more: Rules of its own.
    """

    about: str
    dtypes: frozenset[str]
    converted: tuple[tuple[str, str], ...] = ()
    opsets: tuple[int | None, int | None] = (7, None)
    opset: int = 20
    any_batch: str | None = None
    more: Callable[[Bundle], Iterator[Finding]] | None = None


def check_profile(bundle: Bundle, name: str) -> list[Finding]:
    """Everything the target ``name`` (a key of ``PROFILES``) would stumble over, errors first."""
    profile = PROFILES[name]
    found = [*_models(bundle, profile), *_dtypes(bundle.contract, profile), *_batches(bundle.contract, profile)]
    found += profile.more(bundle) if profile.more else ()
    return sorted(found, key=lambda finding: finding.level)


def spelled(contract: Contract, name: str) -> Contract:
    """The contract as the target ``name`` reads it best. What it means stays the same."""
    contract = replace(contract, system={**contract.system, TARGET: name})
    if name != "isaac-ros":
        return contract
    nodes = {
        node: replace(entry, inputs=_listed(entry.inputs), outputs=_listed(entry.outputs))
        for node, entry in contract.nodes.items()
    }
    return replace(contract, nodes=nodes)


def _listed(ports: tuple[Port, ...]) -> tuple[Port, ...]:
    """Ports whose element names are a list for each axis, empty for an axis without names."""
    return tuple(
        replace(port, element_names=[axis if isinstance(axis, list) else [] for axis in port.element_names])
        if port.element_names is not None
        else port
        for port in ports
    )


def deployment_gaps(contract: Contract) -> list[str]:
    """What a deployer would have to ask for: a sentence for each kind of missing fact."""
    outside = list(_graph_ports(contract))
    gaps = []
    if (contract.pipeline.configs or {}).get("frequency") is None:
        gaps.append("no frequency: pass graph_configs=GraphConfigs(frequency=...) to compile_graph()")
    absent = {
        "no kind": [where for where, port in outside if port.kind is None],
        "no units": [where for where, port in outside if port.units is None],
        "no element names": [where for where, port in outside if _needs_names(port)],
        "no model": [name for name, node in contract.nodes.items() if node.model.model_path is None],
    }
    gaps += [f"{what}: {', '.join(names)}" for what, names in absent.items() if names]
    if contract.pipeline.feedback_flow and contract.pipeline.initial_values is None:
        gaps.append("no initial values: every state starts at zero")
    return gaps


def _graph_ports(contract: Contract) -> Iterator[tuple[str, Port]]:
    for listed, side in ((contract.pipeline.inputs, "inputs"), (contract.pipeline.outputs, "outputs")):
        for name, ports in listed.items():
            declared = {port.name: port for port in getattr(contract.nodes.get(name), side, ())}
            yield from ((key(name, port), declared[port]) for port in ports if port in declared)


def _needs_names(port: Port) -> bool:
    named = any(axis and axis != TEMPORAL_AXIS for axis in port.element_names or ())
    # Images and grids have no names; vectors do.
    return not named and sum(size != 1 for size in port.shape) == 1


def _models(bundle: Bundle, profile: Profile) -> Iterator[Finding]:
    low, high = profile.opsets
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


def _dtypes(contract: Contract, profile: Profile) -> Iterator[Finding]:
    converted = dict(profile.converted)
    for name, node in contract.nodes.items():
        for port in (*node.inputs, *node.outputs):
            if port.dtype in converted:
                yield Finding("warning", key(name, port.name), f"{port.dtype} is computed as {converted[port.dtype]}.")
            elif port.dtype not in profile.dtypes:
                yield Finding("error", key(name, port.name), f"{port.dtype} is not a type it takes.")


def _batches(contract: Contract, profile: Profile) -> Iterator[Finding]:
    for name, node in contract.nodes.items() if profile.any_batch else ():
        if any(port.batch_axis is not None for port in (*node.inputs, *node.outputs)):
            yield Finding("warning", name, f"the model takes any batch. {profile.any_batch}")


def _isaac_ros(bundle: Bundle) -> Iterator[Finding]:
    contract = bundle.contract
    for name, node in contract.nodes.items():
        for port in (*node.inputs, *node.outputs):
            for axis in port.element_names or ():
                if not isinstance(axis, list):
                    shown = "null" if axis is None else repr(axis)
                    yield Finding(
                        "error", key(name, port.name), f"element_names has {shown} for an axis; each entry must be a list. "
                        "Use [] for an unnamed or temporal axis.",
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
    # A bundle that is still being written has no description on disk yet.
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


_ONNX_TYPES = DTYPES - {"complex64", "complex128"}
_FLOAT8 = frozenset(dtype for dtype in DTYPES if dtype.startswith("float8"))

_SHAPE_RANGE = (
    "TensorRT builds an engine for a range of shapes: give the smallest, usual and largest batch of every input as "
    "optimization profile, or export with the batch of the robot."
)

PROFILES: dict[str, Profile] = {
    "onnxruntime": Profile("ONNX Runtime: opset 7 and later, every real type.", _ONNX_TYPES),
    "tensorrt": Profile(
        "TensorRT 10: opset 9 to 20; float64 is computed as float32; no int16 and no unsigned type but uint8.",
        frozenset({"float32", "float16", "bfloat16", "int8", "int32", "int64", "uint8", "bool"}) | _FLOAT8,
        (("float64", "float32"),),
        (9, 20),
        any_batch=_SHAPE_RANGE,
    ),
    "openvino": Profile("OpenVINO: ONNX models of every real type.", _ONNX_TYPES),
    "isaac-ros": Profile(
        "Isaac ROS Deploy: ONNX only, run by TensorRT; a list of names for each axis; unique port names; external weights "
        "beside the model as <model>.onnx.data.",
        frozenset({"float32", "float16", "int8", "int32", "int64", "uint8", "bool"}),
        (("float64", "float32"),),
        (9, 20),
        any_batch=_SHAPE_RANGE,
        more=_isaac_ros,
    ),
}
"""The known targets, by the name ``leapp check --profile`` takes."""
