"""The forms in which users hand over tensors: dicts, ``TensorSemantics``, nested values.

A payload is a list of named entries; an entry's value may be nested, and each tensor in it is a port whose name is the path
joined with underscores. This module knows nothing of nodes or tracing and imports no tensor library.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

from leapp.errors import AnnotationError, AnnotationTypeError, LeappError
from leapp.semantics import TensorSemantics

Entry = tuple[str, Any, TensorSemantics | None]
Parts = list[tuple[Any, Any]]
"""The items of a container, each with its key, position or field name."""


def entries(payload: Any) -> list[Entry]:
    """The named entries of a payload, checked for form."""
    if isinstance(payload, TensorSemantics):
        payload = [payload]
    if type(payload) is dict or isinstance(payload, Mapping):
        for name, value in payload.items():
            if isinstance(value, TensorSemantics):
                raise AnnotationTypeError(
                    f"'{name}' is a TensorSemantics inside a dict. Pass it alone or in a list; its own name is the port's."
                )
        return [(_name(name), value, None) for name, value in payload.items()]
    if isinstance(payload, (list, tuple)) and payload and all(isinstance(p, TensorSemantics) for p in payload):
        names = [p.name for p in payload]
        if None in names:
            raise AnnotationTypeError("a TensorSemantics given to an annotation needs a name.")
        for name in names:
            if names.count(name) > 1:
                raise AnnotationError(f"the name '{name}' is used by more than one TensorSemantics of the list.")
        return [(_name(p.name), p.ref, p) for p in payload]
    if isinstance(payload, (list, tuple)):
        kinds = sorted({type(p).__name__ for p in payload}) or ["nothing"]
        raise AnnotationTypeError(
            f"a {type(payload).__name__} of {', '.join(kinds)} has no port names. "
            "Pass a dict of named tensors, a TensorSemantics, or a list of only TensorSemantics."
        )
    raise AnnotationTypeError(
        f"a bare {type(payload).__name__} has no port name. Pass a dict such as {{'obs': obs}} or a TensorSemantics."
    )


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise AnnotationTypeError(f"port names are strings, not {type(name).__name__} ({name!r}).")
    if not name or "/" in name or not name.isprintable():
        wrong = "'/' separates node and port in 'node/port'. Use '_' or '.' instead."
        if "/" not in name:
            wrong = "it holds characters that cannot be printed." if name else "it is empty."
        raise AnnotationError(f"{name!r} cannot be a port name: {wrong}")
    return name


def leaf_names(items: Sequence[Entry]) -> list[str]:
    """The port names of a payload.

    Raises:
        AnnotationError: If two of them are the same once nested names are joined.
    """
    if all(is_leaf(value) for _, value, _ in items):
        return [name for name, _, _ in items]
    names: list[str] = []

    def visit(name: str, leaf: Any) -> Any:
        if name in names:
            raise AnnotationError(f"two ports are called '{name}' once nested names are joined with '_'. Rename one of them.")
        names.append(name)
        return leaf

    for name, value, _ in items:
        map_leaves(name, value, visit, lambda *_: None)
    return names


def located(error: LeappError, call: str) -> LeappError:
    """The same error with the annotation call that got the payload in front."""
    return type(error)(f"{call}: {error}")


def unpack(values: Sequence[Any]) -> Any:
    """What an annotation returns: the only value, or a tuple."""
    return values[0] if len(values) == 1 else tuple(values)


def is_leaf(value: Any) -> bool:
    """Whether a value is a tensor, an array or a number of NumPy. Does not import torch or NumPy."""
    if type(value) in _leaves:
        return True
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    found = (torch is not None and isinstance(value, torch.Tensor)) or (
        numpy is not None and isinstance(value, (numpy.ndarray, numpy.number, numpy.bool_))
    )
    if found and type(value).__module__ in ("torch", "numpy"):
        _leaves.add(type(value))
    return found


_leaves: set[type] = set()
"""The classes of torch and NumPy that were found to be leaves."""


def map_leaves(
    name: str,
    value: Any,
    visit: Callable[[str, Any], Any],
    other: Callable[[str, Any], None],
    rebuilt: Callable[[Any, Parts, Parts], Any] | None = None,
) -> Any:
    """A copy of ``value`` with each tensor replaced by ``visit(port name, tensor)``, depth first.

    Args:
        name: The port name of ``value``; parts of it get their key, position or field name appended.
        value: A tensor, an array, or containers of them.
        visit: Gets the port name and the tensor or array, and returns its replacement.
        other: Called with a value that is neither a tensor nor a container. Such values stay as they are.
        rebuilt: Gets a container, its parts and their replacements, and returns the container to use.
    """
    if is_leaf(value):
        return visit(name, value)
    parts = _parts(value)
    if parts is None:
        other(name, value)
        return value
    new = [(key, map_leaves(f"{name}_{_part(name, key)}", part, visit, other, rebuilt)) for key, part in parts]
    return (rebuilt or _rebuilt)(value, parts, new)


def _parts(item: Any) -> Parts | None:
    """The items of a container; ``None`` for a value that is not a container."""
    if isinstance(item, Mapping):
        return list(item.items())
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return list(zip(item._fields, item, strict=True))
    if isinstance(item, Sequence) and not isinstance(item, (str, bytes, bytearray)):
        return list(enumerate(item))
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        return [(f.name, getattr(item, f.name)) for f in dataclasses.fields(item) if hasattr(item, f.name)]
    return None


def _rebuilt(item: Any, _: Parts, new: Parts) -> Any:
    """A copy of a container with other parts. ``__init__`` of a dataclass is not called, so derived fields stay the same."""
    if isinstance(item, Mapping):
        return dict(new)
    values = [value for _, value in new]
    if isinstance(item, tuple):
        return type(item)(*values) if hasattr(item, "_fields") else tuple(values)
    if isinstance(item, Sequence):
        return values
    made = object.__new__(type(item))
    for name, value in {**getattr(item, "__dict__", {}), **dict(new)}.items():
        object.__setattr__(made, name, value)
    return made


class Loans:
    """Puts declared tensors into the caller's own containers while a function runs, and the caller's tensors back afterwards.

    The containers are not copied, so what the function does to a dict, a list or a dataclass reaches the caller.
    """

    def __init__(self) -> None:
        self._lent: list[tuple[Any, Any, Any]] = []

    def put(self, name: str, value: Any, visit: Callable[[str, Any], Any], other: Callable[[str, Any], None]) -> Any:
        """As :func:`map_leaves`, but a container that can be changed is changed in place."""
        return map_leaves(name, value, visit, other, self._changed)

    def _changed(self, item: Any, parts: Parts, new: Parts) -> Any:
        if not _is_mutable(item):
            return _rebuilt(item, parts, new)
        for (key, part), (_, value) in zip(parts, new, strict=True):
            if value is not part:
                _set(item, key, value)
                self._lent.append((item, part, value))
        return item

    def give_back(self, kept: Callable[[Any], bool]) -> None:
        """Put the caller's tensors back wherever a container still holds a lent one, unless ``kept`` accepts the lent one."""
        for item, part, new in self._lent:
            for key, value in () if kept(new) else _parts(item) or ():
                if value is new:
                    _set(item, key, part)


def _is_mutable(item: Any) -> bool:
    if isinstance(item, (MutableMapping, MutableSequence)):
        return True
    # getattr(), because mypy does not know the attribute.
    return dataclasses.is_dataclass(item) and not getattr(item, "__dataclass_params__").frozen  # noqa: B009


def _set(item: Any, key: Any, value: Any) -> None:
    if isinstance(item, (MutableMapping, MutableSequence)):
        item[key] = value
    else:
        object.__setattr__(item, key, value)


def _part(path: str, key: Any) -> str:
    text = str(key)
    if "/" in text:
        raise AnnotationError(f"the key '{text}' under '{path}' cannot be part of a port name: it contains '/'.")
    return text


def refuse_nested_state(payload: Mapping[str, Any]) -> None:
    """States are flat: raise if a value is a container."""
    for name, value in payload.items():
        if isinstance(value, (dict, list, tuple)):
            raise AnnotationTypeError(
                f"state '{name}' is a {type(value).__name__}. States are flat: give each tensor a name of its own."
            )
