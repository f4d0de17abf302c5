"""The plain description of an exported pipeline: nodes, ports, wiring.

These are the contents of a bundle's YAML as Python values. This module knows no file format, no engine and no tensor library:
``leapp.bundle`` reads and writes, ``leapp.runtime`` runs.
"""

# Annotations are not postponed: msgspec would have to evaluate their text when a process opens its first bundle.
import math
from typing import Any

import msgspec

from leapp.graph.dtypes import DTYPES

CONFIG_VERSION = "1.3"


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """A named input or output of a node. ``extra`` is flattened into the port's YAML entry."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    type: str = "tensor"
    kind: str | None = None
    element_names: list[Any] | None = None
    temporal_period_ms: int | float | None = None
    batch_axis: int | None = None
    """The axis of ``shape`` that may have any size, the same in all such ports; ``None`` if the shape is fixed."""
    extra: dict[str, Any] = {}

    @property
    def units(self) -> Any:
        """The units that the annotation gave, under either spelling; None if it gave none."""
        return self.extra.get("units", self.extra.get("unit"))

    @property
    def nbytes(self) -> int:
        """The bytes of one value."""
        return math.prod(self.shape) * DTYPES[self.dtype].size

    def facts(self, node: str) -> dict[str, Any]:
        """The port as plain data, with its public key. ``extra`` has the further keys of the annotation."""
        extra = {name: value for name, value in self.extra.items() if name not in ("units", "unit")}
        known = {"shape": list(self.shape), "dtype": self.dtype, "kind": self.kind, "units": self.units}
        names = {"element_names": self.element_names, "temporal_period_ms": self.temporal_period_ms}
        return {"key": key(node, self.name), **known, **names, "extra": extra}

    def at(self, rows: int) -> "Port":
        """The same port for that many rows."""
        if self.batch_axis is None:
            return self
        shape = (*self.shape[: self.batch_axis], rows, *self.shape[self.batch_axis + 1 :])
        return msgspec.structs.replace(self, shape=shape)


class ModelFile(msgspec.Struct, frozen=True, kw_only=True):
    """The file behind a node: ``parameters`` in the YAML. All ``None`` for a node without a model."""

    model_path: str | None = None
    md5sum: str | None = None
    sha256sum: str | None = None
    backend: str | None = None
    warp_segments: int = 0
    extra: dict[str, Any] = {}
    """Backend metadata written after the fixed keys: ``opset_version`` (onnx), ``torch_version`` (pt2)."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One exported stage."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    model: ModelFile = ModelFile()


class Wiring(msgspec.Struct, frozen=True, kw_only=True):
    """How nodes are wired. Flow maps go from ``node/output`` to the ``node/input`` keys it feeds."""

    data_flow: dict[str, tuple[str, ...]] = {}
    feedback_flow: dict[str, tuple[str, ...]] = {}
    inputs: dict[str, tuple[str, ...]] = {}
    outputs: dict[str, tuple[str, ...]] = {}
    initial_values: str | None = None
    configs: dict[str, Any] | None = None

    @property
    def frequency(self) -> Any:
        """The rate in hertz that the pipeline was made for, if the bundle says."""
        return (self.configs or {}).get("frequency")


class Contract(msgspec.Struct, frozen=True, kw_only=True):
    """The whole content of a bundle's YAML. ``nodes`` has the order in which the nodes were completed."""

    nodes: dict[str, Node]
    pipeline: Wiring
    system: dict[str, Any] = {}


def key(node: str, port: str) -> str:
    """The public name of a port: ``node/port``."""
    return f"{node}/{port}"


def split_key(text: str) -> tuple[str, str]:
    """The node and port of a public key. Port names contain no slash, so the last slash separates them."""
    node, _, port = text.rpartition("/")
    return node, port
