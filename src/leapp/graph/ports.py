"""Makes the description of a port from its annotation."""

from __future__ import annotations

from typing import Any

from leapp.graph.contract import Port
from leapp.semantics import TensorSemantics, check_element_names, plain

_OWN_FIELDS = ("kind", "element_names", "temporal_period_ms")


def port(
    name: str,
    dtype: str,
    shape: tuple[int, ...],
    semantics: TensorSemantics | None = None,
    batch_axis: int | None = None,
) -> Port:
    """Describe a port.

    Args:
        name: The public port name. It is used instead of ``semantics.name``, which an exporter may have had to change.
        dtype: The dtype as the YAML spells it.
        shape: The shape of the values.
        semantics: The annotation, if there is one.
        batch_axis: The axis that takes any size, if there is one.

    Raises:
        AnnotationError: If the semantics do not fit the shape.
    """
    if semantics is None:
        return Port(name=name, dtype=dtype, shape=shape, batch_axis=batch_axis)
    fields: dict[str, Any] = plain(semantics.to_dict(), f"semantics of port '{name}'")
    if fields.get("element_names") is not None:
        check_element_names(f"'{name}'", fields["element_names"], shape)
        # An axis without names is written as an empty list, because Isaac ROS Deploy fails on null.
        fields["element_names"] = [[] if axis is None else axis for axis in fields["element_names"]]
    own = {key: fields.pop(key) for key in _OWN_FIELDS if key in fields}
    return Port(name=name, dtype=dtype, shape=shape, batch_axis=batch_axis, extra=fields, **own)
