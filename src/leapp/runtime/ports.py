"""The catalogue of a pipeline's ports: what a deployer must know of each value to connect it to a robot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from leapp.errors import BundleError, InputError
from leapp.graph.contract import Port, split_key

__all__ = ["PortInfo", "describe", "named_axis", "permutation"]


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
        batch_axis: The axis of it that takes any number of rows, if there is one.
        dtype: The dtype's name.
        temporal_period_ms: The time between two entries of the temporal axis.
        extra: Everything else the annotation said.

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


def named_axis(key: str, port: Port, given: Iterable[str]) -> tuple[int, list[str]]:
    """The axis of a port whose elements have names, with the names. Of several axes, the one with the given names.

    A list of names belongs to the axis it is written for when there is one entry an axis, else to the last axes.

    Raises:
        InputError: No axis has names, or several have and none of them those given.
        BundleError: There are more or fewer names than elements.
    """
    entries = port.element_names or []
    first = len(port.shape) - len(entries)
    axes = [(first + i, [str(n) for n in e]) for i, e in enumerate(entries) if isinstance(e, list) and e]
    if not axes:
        raise InputError(f"{key!r} has no element names. Leave it out of bind, or give them when exporting.")
    if len(axes) > 1:
        known = [names for _, names in axes]
        axes = [(axis, names) for axis, names in axes if set(names) == set(given)]
        if len(axes) != 1:
            raise InputError(f"The names bound to {key!r} are those of no axis, or of several. Its axes have {known}.")
    axis, names = axes[0]
    if axis < 0 or port.shape[axis] != len(names):
        raise BundleError(f"{key!r} has {len(names)} element names for its shape {list(port.shape)}.")
    return axis, names


def permutation(key: str, wanted: Sequence[str], given: Iterable[str]) -> list[int]:
    """For each wanted name its place among the given ones.

    Raises:
        InputError: The two do not hold the same names. The message lists what is missing and what is extra.
    """
    given = list(given)
    missing = [name for name in wanted if name not in given]
    extra = [name for name in given if name not in wanted]
    twice = sorted({name for name in given if given.count(name) > 1})
    if missing or extra or twice:
        found = {"missing": missing, "extra": extra, "twice": twice}
        parts = [f"{what} {names}" for what, names in found.items() if names]
        raise InputError(f"The names bound to {key!r} do not fit its elements: {', '.join(parts)}.")
    return [given.index(name) for name in wanted]
