"""The meaning of ports: role, names of elements, units, limits; and the settings of a whole graph.

This module has descriptions only. It imports no tensor library (tensors are recognised by modules that are loaded already), and
knows no file format and nothing of tracing.
"""

from __future__ import annotations

import functools
import math
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from leapp.errors import AnnotationError, AnnotationTypeError

__all__ = [
    "TEMPORAL_AXIS",
    "GraphConfigs",
    "InputKindEnum",
    "OutputKindEnum",
    "TemporalAxis",
    "TensorDescription",
    "TensorSemantics",
    "check_element_names",
    "dtype_name",
    "is_array",
    "plain",
    "shape_of",
]

TEMPORAL_AXIS = "__temporal_axis__"
"""The entry in ``element_names`` for an axis that runs over time."""

_PORT_KEYS = frozenset({"name", "dtype", "shape", "type", "kind", "element_names", "temporal_period_ms"})
_MEANING = ("units", "limits", "scale", "offset", "frame")
_MAX_DEPTH = 16


class InputKindEnum(str, Enum):
    """Roles an input can play. Any other string is allowed as a kind too.

    Example:
        >>> InputKindEnum.JOINT_POSITION.value
        'state/joint/position'
    """

    JOINT_POSITION = "state/joint/position"
    JOINT_VELOCITY = "state/joint/velocity"
    JOINT_EFFORT = "state/joint/effort"
    BODY_POSE = "state/body/pose"
    BODY_VEL = "state/body/velocity"
    BODY_ACC = "state/body/acceleration"
    BODY_LINEAR_ACCELERATION = "state/body/linear_acceleration"
    BODY_LINEAR_VELOCITY = "state/body/linear_velocity"
    BODY_ANGULAR_ACCELERATION = "state/body/angular_acceleration"
    BODY_ANGULAR_VELOCITY = "state/body/angular_velocity"
    BODY_ROTATION = "state/body/rotation"
    BODY_POSITION = "state/body/position"
    WRENCH = "state/wrench"
    VECTOR3D = "state/vector3d"
    COMMAND_JOINT_POSITION = "command/joint/position"
    COMMAND_JOINT_VELOCITY = "command/joint/velocity"
    COMMAND_JOINT_TORQUES = "command/joint/torques"
    COMMAND_BODY_ROTATION = "command/body/rotation"
    COMMAND_BODY_VELOCITY = "command/body/velocity"
    COMMAND_POSE = "command/body/pose"


class OutputKindEnum(str, Enum):
    """Roles an output can play. Any other string is allowed as a kind too.

    Example:
        >>> OutputKindEnum.JOINT_POSITION.value
        'target/joint/position'
    """

    KP = "kp"
    KD = "kd"
    JOINT_POSITION = "target/joint/position"
    JOINT_VELOCITY = "target/joint/velocity"
    JOINT_TORQUES = "target/joint/torques"
    JOINT_EFFORT = "target/joint/effort"
    BODY_POSITION = "target/body/position"
    BODY_LINEAR_ACCELERATION = "target/body/linear_acceleration"
    BODY_ORIENTATION = "target/body/orientation"
    BODY_LINEAR_VELOCITY = "target/body/linear_velocity"
    BODY_ANGULAR_ACCELERATION = "target/body/angular_acceleration"


@dataclass(frozen=True)
class TemporalAxis:
    """An axis of a port that runs over time, one entry every ``period_ms`` milliseconds.

    Example:
        >>> plan = TensorSemantics("plan", torch.zeros(8, 2), element_names=[TemporalAxis(20), ["hip", "knee"]])
        >>> plan.temporal_period_ms
        20
    """

    period_ms: int | float

    def __post_init__(self) -> None:
        _require_positive(self.period_ms, "TemporalAxis: 'period_ms'")


@dataclass
class TensorSemantics:
    """A named tensor and what it means.

    Attributes:
        name: The port name.
        ref: The tensor or array itself, kept as it is.
        kind: An ``InputKindEnum`` or ``OutputKindEnum`` member, or any string.
        element_names: Names along each axis. ``"z"`` and ``["a", "b"]`` are short for ``[["z"]]`` and ``[["a", "b"]]``;
            ``None`` leaves an axis unnamed, a ``TemporalAxis`` marks the one that runs over time. Fewer entries than
            axes describe the last axes, or the only neighbouring axes they fit.
        extra: Keys of your own, written beside the built-in ones.
        units: Unit of the values, or one for each element.
        limits: ``[low, high]``, each a number or one number for each element.
        scale: The factor by which the values are multiplied before use.
        offset: The number that is added after ``scale``.
        frame: The coordinate frame the values are expressed in.

    Example:
        >>> meaning = TensorSemantics("q", obs, InputKindEnum.JOINT_POSITION, ["hip", "knee"], units="rad")
        >>> q = annotate.input_tensors("policy", meaning)
    """

    name: str | None = None
    ref: Any = None
    kind: str | Enum | None = None
    element_names: Any = None
    temporal_period_ms: int | float | None = field(default=None, init=False)
    extra: dict[str, Any] | None = None
    units: str | Sequence[str] | None = field(default=None, kw_only=True)
    limits: Sequence[Any] | None = field(default=None, kw_only=True)
    scale: float | Sequence[float] | None = field(default=None, kw_only=True)
    offset: float | Sequence[float] | None = field(default=None, kw_only=True)
    frame: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.name is not None and not isinstance(self.name, str):
            raise AnnotationTypeError(f"TensorSemantics: 'name' must be a string, not {type(self.name).__name__}.")
        if not is_array(self.ref):
            raise AnnotationTypeError(
                f"TensorSemantics {self._label}: 'ref' must be a torch tensor, a NumPy array or a Warp array, "
                f"not {type(self.ref).__name__}."
            )
        self._name_elements()
        self._check()

    @property
    def _label(self) -> str:
        return f"'{self.name}'" if self.name is not None else "without a name"

    def _name_elements(self) -> None:
        if self.element_names is None:
            return
        self.element_names, self.temporal_period_ms = _per_axis(self.element_names, self._label)
        check_element_names(self._label, self.element_names, shape_of(self.ref))

    def _check(self) -> None:
        if self.kind is not None and not isinstance(_enum_value(self.kind), str):
            raise AnnotationTypeError(
                f"TensorSemantics {self._label}: 'kind' must be a string or a kind enum, not {self.kind!r}."
            )
        for key in _MEANING:
            setattr(self, key, plain(getattr(self, key), f"{key} of port {self._label}"))
        if self.limits is not None and (not isinstance(self.limits, list) or len(self.limits) != 2):
            raise AnnotationError(f"Port {self._label}: 'limits' must be [low, high], not {self.limits!r}.")
        taken = _PORT_KEYS | {key for key in _MEANING if getattr(self, key) is not None}
        self.extra = _checked_extra(self.extra, f"Port {self._label}", taken)

    def to_dict(self) -> dict[str, Any]:
        """The fields that are set, without ``name`` and ``ref`` and with ``extra`` flattened in at the end."""
        keys = ("kind", "element_names", "temporal_period_ms", *_MEANING)
        fields = {key: getattr(self, key) for key in keys if getattr(self, key) is not None}
        return {**fields, **(self.extra or {})}

    def update(self, values: Mapping[str, Any]) -> None:
        """Set known fields from a mapping; other keys go to ``extra``. All checks run again.

        Example:
            >>> meaning = TensorSemantics("q", obs)
            >>> meaning.update({"units": "rad", "topic": "/joint_states"})
            >>> meaning.to_dict()
            {'units': 'rad', 'topic': '/joint_states'}
        """
        known = {"name", "ref", "kind", "element_names", "extra", *_MEANING}
        rest = {key: value for key, value in values.items() if key not in known}
        for key in known & values.keys():
            setattr(self, key, values[key])
        if rest:
            self.extra = {**(self.extra or {}), **rest}
        if "element_names" in values:
            self._name_elements()
        self._check()


class TensorDescription:
    """The entry of one port in a bundle's YAML."""

    def __init__(self, name: str, tensor: Any, semantics: TensorSemantics | None = None) -> None:
        self.name = name
        self.tensor = tensor
        self.semantics = semantics

    def dict(self) -> dict[str, Any]:
        """The entry: name, dtype, shape, type, then the fields of the semantics."""
        meaning = self.semantics.to_dict() if self.semantics is not None else {}
        if "kind" in meaning:
            meaning["kind"] = _enum_value(meaning["kind"])
        shape = list(shape_of(self.tensor))
        return {"name": self.name, "dtype": dtype_name(self.tensor), "shape": shape, "type": "tensor", **meaning}


@dataclass
class GraphConfigs:
    """Settings of a whole graph, written under ``pipeline.configs``.

    Attributes:
        frequency: How often a second the pipeline is meant to run.
        extra: Keys of your own, written beside ``frequency``.

    Example:
        >>> GraphConfigs(frequency=50, extra={"robot": "quadruped"}).to_dict()
        {'frequency': 50, 'robot': 'quadruped'}
    """

    frequency: int | float | None = None
    extra: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.frequency is not None:
            self.frequency = plain(self.frequency, "GraphConfigs: 'frequency'")
            _require_positive(self.frequency, "GraphConfigs: 'frequency'")
        self.extra = _checked_extra(self.extra, "GraphConfigs", {"frequency"})

    def to_dict(self) -> dict[str, Any]:
        """The mapping written to the YAML."""
        fixed = {} if self.frequency is None else {"frequency": self.frequency}
        return {**fixed, **(self.extra or {})}


def is_array(value: object) -> bool:
    """Whether the value is a torch tensor, a NumPy array or a Warp array, without importing any of them."""
    for module, name in (("torch", "Tensor"), ("numpy", "ndarray"), ("warp", "array")):
        loaded = getattr(sys.modules.get(module), name, None)
        if isinstance(loaded, type) and isinstance(value, loaded):
            return True
    return hasattr(value, "__cuda_array_interface__")


def shape_of(value: Any) -> tuple[int, ...]:
    """The shape of an array. Warp's vector and matrix elements count as trailing axes."""
    inner = getattr(value.dtype, "_shape_", ())
    return tuple(int(size) for size in (*value.shape, *inner))


def dtype_name(value: Any) -> str:
    """The dtype of an array as the YAML spells it: ``float32``, ``bfloat16``, ``bool``."""
    return _dtype_text(value.dtype)


@functools.lru_cache(256)
def _dtype_text(dtype: Any) -> str:
    scalar = getattr(dtype, "_wp_scalar_type_", dtype)
    text = getattr(scalar, "name", None) or getattr(scalar, "__name__", None) or str(scalar)
    return str(text).rpartition(".")[2]


def check_element_names(label: str, element_names: Sequence[Any], shape: tuple[int, ...]) -> None:
    """Refuse element names that do not fit a shape.

    Entries describe neighbouring axes, all of them or the last ones; entries that fit only an earlier run of axes are
    accepted as describing that run. An unnamed or temporal axis fits any length, and one name fits a scalar.

    Args:
        label: The port, for the message.
        element_names: One entry for each described axis.
        shape: The shape of the port.

    Raises:
        AnnotationError: If there is no run of axes the names fit.
    """
    axes, count = shape or (1,), len(element_names)
    if count > len(axes):
        raise AnnotationError(
            f"Port {label}: element_names describes {count} axes, but the shape {list(shape)} has {len(shape)}. "
            "Give at most one entry for each axis."
        )
    last = len(axes) - count
    wrong, *earlier = (_misfit(element_names, axes[first : first + count]) for first in range(last, -1, -1))
    if wrong is None or None in earlier:
        return
    raise AnnotationError(
        f"Port {label}: element_names has {len(element_names[wrong])} names for axis {last + wrong}, "
        f"expected {axes[last + wrong]} (shape {list(shape)}). Name every element of the axis, or use None."
    )


def _misfit(element_names: Sequence[Any], axes: Sequence[int]) -> int | None:
    """The first entry whose number of names is not the length of its axis."""
    pairs = enumerate(zip(element_names, axes, strict=True))
    return next((i for i, (names, size) in pairs if isinstance(names, list) and names and len(names) != size), None)


def plain(value: Any, where: str, depth: int = 0) -> Any:
    """Turn a value into plain data (dict, list, str, int, float, bool, None) that any YAML reader accepts.

    Raises:
        AnnotationTypeError: If the value cannot be written as plain data.
    """
    if depth > _MAX_DEPTH:
        raise AnnotationError(f"{where} is nested deeper than {_MAX_DEPTH} levels.")
    if isinstance(value, Enum):
        return plain(value.value, where, depth)
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return _writable(kind(value), where)
    if isinstance(value, os.PathLike):
        return _writable(str(value), where)
    if isinstance(value, Mapping):
        return {plain(key, where, depth + 1): plain(item, where, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, where, depth + 1) for item in value]
    if hasattr(value, "tolist") and hasattr(value, "dtype"):
        return plain(value.tolist(), where, depth + 1)
    raise AnnotationTypeError(
        f"{where} holds a {type(value).__name__}, which cannot be written to YAML. "
        "Use numbers, strings, booleans, None, lists and dicts."
    )


def _writable(value: Any, where: str) -> Any:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise AnnotationError(f"{where} holds {value!r}, which is not valid Unicode text.") from None
    return value


def _checked_extra(extra: Any, where: str, taken: Collection[str]) -> dict[str, Any] | None:
    if extra is None:
        return None
    if not isinstance(extra, Mapping):
        raise AnnotationTypeError(f"{where}: 'extra' must be a dict, not {type(extra).__name__}.")
    for key in extra:
        if not isinstance(key, str):
            raise AnnotationTypeError(f"{where}: keys of 'extra' must be strings, not {key!r}.")
        if key in taken:
            raise AnnotationError(f"{where}: 'extra' may not overwrite the built-in key '{key}'. Choose another key.")
    found: dict[str, Any] = plain(extra, f"{where}: 'extra'")
    return found


def _enum_value(kind: Any) -> Any:
    return kind.value if isinstance(kind, Enum) else kind


def _require_positive(value: object, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise AnnotationTypeError(f"{what} must be a number, not {type(value).__name__}.")
    if not (value > 0 and math.isfinite(value)):
        raise AnnotationError(f"{what} must be a positive number, not {value!r}.")


def _per_axis(names: Any, label: str) -> tuple[list[Any], int | float | None]:
    """Element names as one entry for each axis, and the period of the temporal axis if there is one."""
    if isinstance(names, str):
        names = [names]
    if isinstance(names, TemporalAxis):
        raise AnnotationError(f"Port {label}: put the TemporalAxis into a list with one entry for each axis.")
    items = _items(names, label)
    if all(isinstance(item, str) and item != TEMPORAL_AXIS for item in items):
        return [[_name(item, label) for item in items]], None
    entries: list[Any] = []
    period: int | float | None = None
    for item in items:
        if isinstance(item, TemporalAxis):
            if period is not None:
                raise AnnotationError(f"Port {label}: element_names has more than one TemporalAxis.")
            period = item.period_ms
            entries.append(TEMPORAL_AXIS)
        elif item is None:
            entries.append(None)
        elif isinstance(item, str):
            raise AnnotationError(
                f"Port {label}: element_names mixes the name {item!r} with entries for whole axes. "
                "Use one list for each axis, and TemporalAxis(period_ms) for an axis over time."
            )
        else:
            entries.append([_name(name, label) for name in _items(item, label)])
    return entries, period


def _items(names: Any, label: str) -> list[Any]:
    if isinstance(names, (Mapping, str)) or not hasattr(names, "__iter__"):
        raise AnnotationTypeError(
            f"Port {label}: element_names must be a string or (nested) lists of strings, not {type(names).__name__}."
        )
    return list(names)


def _name(name: object, label: str) -> str:
    if isinstance(name, TemporalAxis):
        raise AnnotationError(f"Port {label}: a TemporalAxis stands for a whole axis and may not be inside a list.")
    if not isinstance(name, str):
        raise AnnotationTypeError(f"Port {label}: element names must be strings, not {name!r}.")
    if name == TEMPORAL_AXIS:
        raise AnnotationError(f"Port {label}: write TemporalAxis(period_ms) instead of {TEMPORAL_AXIS!r}.")
    return str(_writable(str(name), f"element_names of port {label}"))
