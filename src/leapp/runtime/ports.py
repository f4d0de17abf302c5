"""The catalogue of a pipeline's ports: the facts that a deployer needs to connect each value to a robot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from leapp.graph.contract import Port, split_key


@dataclass(frozen=True, slots=True)
class PortInfo:
    """One port as a deployer sees it.

    Attributes:
        key: The public name, ``node/port``.
        node: The node.
        name: The port's name within the node.
        role: ``input``, ``output`` or ``feedback``.
        kind: What the value is, such as ``state/joint/position``.
        element_names: The names of the elements, without temporal and unnamed axes.
        units: ``units`` (or ``unit``) of the annotation, if given.
        limits: ``limits`` of the annotation, if given.
        shape: The shape.
        batch_axis: The axis of the shape that takes any number of rows, if there is one.
        dtype: The dtype's name.
        temporal_period_ms: The time between two entries of the temporal axis.
        extra: All further keys of the annotation.

    Example:
        >>> port = pipeline.input_ports["policy/obs"]
        >>> port.shape, port.dtype, port.element_names, port.units
        ((2,), 'float32', ('hip', 'knee'), 'rad')
    """

    key: str
    node: str
    name: str
    role: str
    kind: str | None
    element_names: tuple[str, ...]
    units: Any
    limits: Any
    shape: tuple[int, ...]
    dtype: str
    temporal_period_ms: float | None
    extra: dict[str, Any] = field(hash=False)
    batch_axis: int | None = None


def describe(key: str, port: Port, role: str) -> PortInfo:
    """The catalogue entry of a port."""
    names = [axis for axis in port.element_names or () if isinstance(axis, list)]
    return PortInfo(
        key=key,
        node=split_key(key)[0],
        name=port.name,
        role=role,
        kind=port.kind,
        element_names=tuple(str(name) for axis in names for name in axis),
        units=port.units,
        limits=port.extra.get("limits"),
        shape=port.shape,
        dtype=port.dtype,
        temporal_period_ms=port.temporal_period_ms,
        extra=dict(port.extra),
        batch_axis=port.batch_axis,
    )
