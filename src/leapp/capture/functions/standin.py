"""A traced ``scipy.spatial.transform.Rotation``: scipy's own object, together with the traced quaternion.

While a node is open, the constructors of the class return such an object if an argument is traced. Each of its methods runs in
scipy and on the quaternion, and the results are compared as those of NumPy calls are. A method without a torch form returns the
result of scipy, and the value leaves the graph.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

from leapp.capture.functions import scipy_rotation as rotation
from leapp.capture.numpy.plain import arrays_in, unwrapped
from leapp.capture.numpy.traced import listening
from leapp.capture.trees import mapped

_MAKERS: dict[str, Callable[..., Any]] = {
    "from_quat": rotation.from_quat, "from_matrix": rotation.from_matrix, "from_rotvec": rotation.from_rotvec,
    "from_euler": rotation.from_euler, "from_mrp": rotation.from_mrp, "concatenate": rotation.concatenate,
}  # fmt: skip
_VALUES: dict[str, Callable[..., Any]] = {
    "as_quat": rotation.as_quat, "as_matrix": rotation.as_matrix, "as_rotvec": rotation.as_rotvec,
    "as_euler": rotation.as_euler, "as_mrp": rotation.as_mrp, "magnitude": rotation.magnitude, "apply": rotation.apply,
}  # fmt: skip
_TYPE_CAN_CHANGE = 1 << 9
"""The flag of types whose attributes can be set. Before scipy 1.17 the class is compiled, and they cannot."""


def rotation_rows() -> Iterator[tuple[Any, str, Callable[[Any], Any]]]:
    """Rows of owner, name, and a function from the original to its replacement, for scipy's class."""
    kind = getattr(sys.modules.get("scipy.spatial.transform"), "Rotation", None)
    if kind is None or not kind.__flags__ & _TYPE_CAN_CHANGE:
        return
    for name, form in _MAKERS.items():
        yield kind, name, _followed_as(form, kind=staticmethod)
    yield kind, "apply", _followed_as(rotation.apply, gives_rotation=False)
    yield kind, "__mul__", _followed_as(rotation.compose)


def unfollowed() -> str:
    """A sentence for error messages if scipy's Rotation is loaded and too old to be followed; else empty."""
    kind = getattr(sys.modules.get("scipy.spatial.transform"), "Rotation", None)
    if kind is None or kind.__flags__ & _TYPE_CAN_CHANGE:
        return ""
    have = sys.modules["scipy"].__version__
    return f" Values are followed through scipy's Rotation from scipy 1.17 on; this is scipy {have}."


def _followed_as(
    form: Callable[..., Any], gives_rotation: bool = True, kind: Callable[[Any], Any] = lambda made: made
) -> Callable[[Any], Any]:
    """A function that makes the replacement of a method of the class. ``form`` is the same method for quaternions."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return _followed(original.__name__, original, form, args, kwargs, gives_rotation)

        return kind(call)

    return make


class TracedRotation:
    """A rotation whose quaternion is traced."""

    __slots__ = ("__weakref__", "quat", "rotation")

    def __init__(self, rotation: Any, quat: Any) -> None:
        self.rotation = rotation
        self.quat = quat

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self.rotation)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.rotation, name)
        if name in _VALUES:
            return functools.wraps(found)(functools.partial(self._call, name, _VALUES[name]))
        if name not in ("single", "shape"):
            _tell(self, name, found)
        return found

    def _call(self, name: str, form: Callable[..., Any], *args: Any, gives_rotation: bool = False, **kwargs: Any) -> Any:
        return _followed(name, getattr(type(self.rotation), name), form, (self, *args), kwargs, gives_rotation)

    def inv(self) -> Any:
        """The inverse rotation."""
        return self._call("inv", rotation.inverse, gives_rotation=True)

    def __mul__(self, other: Any) -> Any:
        return self._call("__mul__", rotation.compose, other, gives_rotation=True)

    def __pow__(self, n: float, modulus: None = None) -> Any:
        return self._call("__pow__", rotation.power, n, gives_rotation=True)

    def __getitem__(self, index: Any) -> Any:
        return self._call("__getitem__", lambda q, i: q[i].clone(), index, gives_rotation=True)

    def __len__(self) -> int:
        return len(self.rotation)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return repr(self.rotation)


def _followed(
    name: str, original: Callable[..., Any], form: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
    gives_rotation: bool = False,
) -> Any:  # fmt: skip
    """Call a method of the class. If the result is a rotation with a traced quaternion, it is a :class:`TracedRotation`."""
    made = original(*_bare(args), **_bare(kwargs))
    arrays = listening()
    operands = [] if arrays is None else arrays_in(_quats((args, kwargs)))
    if arrays is None or not operands or not arrays.memory.concerned(operands):
        return made

    def torch_form() -> Any:
        given = [arrays.memory.tensors_for(_quats(a, rotations=True)) for a in args]
        return form(*given, **arrays.memory.tensors_for(_quats(kwargs, rotations=True)))

    result = arrays.runs.perform(f"Rotation.{name}", operands, lambda: made.as_quat() if gives_rotation else made, torch_form)
    if arrays.memory.traced_by(arrays_in(result)) is None:
        return made
    return TracedRotation(made, result) if gives_rotation else result


def _quats(value: Any, rotations: bool = False) -> Any:
    """Arguments with quaternions in place of traced rotations, and with ``rotations`` also in place of scipy's own."""
    kind = sys.modules["scipy.spatial.transform"].Rotation

    def quat(v: Any) -> Any:
        if type(v) is TracedRotation:
            return v.quat
        return v.as_quat() if rotations and isinstance(v, kind) else v

    return mapped(value, quat, slices=False)


def _bare(value: Any) -> Any:
    """Arguments as scipy takes them."""
    return mapped(value, lambda v: v.rotation if type(v) is TracedRotation else unwrapped(v), slices=False)


def _tell(standin: TracedRotation, name: str, value: Any) -> None:
    arrays = listening()
    if arrays is not None:
        arrays.memory.escape(arrays.memory.traced_by([standin.quat]), f"Rotation.{name}", [standin.quat], str(value))
