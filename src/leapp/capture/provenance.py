"""Follows published outputs between nodes.

A published output keeps its name through copies, also through a copy into a whole tensor. Every other op on it is *glue*, which
is noted, so that a message can name the ops between two nodes. Knows neither tapes nor sessions.
"""

from __future__ import annotations

import weakref
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from leapp.capture.aliasing import geometry, same_storage, version_of
from leapp.capture.call_kinds import Kind
from leapp.capture.trees import tensors
from leapp.capture.user_line import Where, where

Tensor = torch.Tensor
Glue = tuple[tuple[str, Where], ...]
_REMEMBERED = 16


class Published:
    """A tensor that is a published output, or was made from one by ``glue``. ``static`` outputs never change."""

    __slots__ = ("glue", "node", "passno", "port", "ref", "static", "version")

    def __init__(self, t: Tensor, node: str, port: str, passno: int, glue: Glue = (), static: bool = False) -> None:
        self.ref = weakref.ref(t)
        self.node, self.port, self.passno, self.glue, self.static = node, port, passno, glue, static
        self.version = version_of(t)

    def of(self, t: Tensor, *ops: tuple[str, Where]) -> Published:
        """The record for ``t``, which these ops made from this one."""
        return Published(t, self.node, self.port, self.passno, (*self.glue, *ops)[-_REMEMBERED:], self.static)


@dataclass(slots=True, eq=False)
class Read:
    """A published output that was read out between nodes, as a number or a list."""

    kind: str
    source: str
    passno: int
    where: Where
    value: Any
    varies: bool = False
    """Whether the same line read another value in a later pass."""


class FormerValue(NamedTuple):
    """The origin of a tensor that a finished node made, or that was computed from such a tensor."""

    node: str
    where: Where
    """The line that made it."""
    slot: int | None
    """The slot of the value on the tape of the first pass; ``None`` if another pass made it."""
    itself: bool = True
    """Whether the tensor is the value itself, not computed from it later."""


class Provenance:
    """The tensors that are published outputs or were made from them, by identity."""

    def __init__(self) -> None:
        self.known: dict[int, Published] = {}
        """By ``id()`` of the tensor. Entries of freed tensors may still be there."""
        self.reads: dict[tuple[str, Where], Read] = {}
        """What was read out between nodes, by line."""

    def __bool__(self) -> bool:
        return bool(self.known)

    def clear(self) -> None:
        """Forget everything."""
        self.known.clear()

    def concerns(self, args: Iterable[Any], kwargs: dict[str, Any]) -> bool:
        """Whether a published output is among the arguments of a call. Faster than looking up each tensor."""
        known = self.known
        for a in args:
            if id(a) in known or (type(a) in (list, tuple) and any(id(t) in known for t in tensors(a))):
                return True
        return bool(kwargs) and any(id(t) in known for t in tensors(kwargs))

    def publish(self, node: str, passno: int, outputs: Mapping[str, Tensor], static: Container[str] = ()) -> None:
        """Remember the outputs of a pass, and forget freed tensors. A tensor with two port names keeps the first."""
        self.known = known = {i: p for i, p in self.known.items() if p.ref() is not None}
        for port, t in outputs.items():
            found = self.source(t) if id(t) in known else None
            if found is None or (found.node, found.passno, found.glue) != (node, passno, ()):
                known[id(t)] = Published(t, node, port, passno, (), port in static)

    def copy(self, source: Published, target: Tensor) -> None:
        """Note that ``target`` is a copy of ``source``."""
        self.known[id(target)] = source.of(target)

    def source(self, t: Tensor) -> Published | None:
        """The published output that ``t`` is, or was made from."""
        found = self.known.get(id(t))
        if found is None or found.ref() is not t:
            return None
        if found.version is not None and found.version != t._version:
            found = self.known[id(t)] = found.of(t, ("an in-place write", where()))
        return found

    def read(self, kind: str, source: Published, value: Any) -> None:
        """Note that a value of ``source`` was read out as a number or a list, outside all nodes."""
        at = where()
        found = self.reads.get((kind, at))
        if found is None:
            name = f"{source.node}/{source.port}"
            self.reads[kind, at] = Read(kind, name, source.passno, at, value)
        elif not found.varies:
            found.varies = repr(found.value) != repr(value)

    def latest(self, node: str, port: str, passno: int) -> Tensor | None:
        """The tensor that was published as an output in a pass, if it still exists and is unchanged."""
        for p in list(self.known.values()):
            t = p.ref()
            if t is not None and (p.node, p.port, p.passno) == (node, port, passno):
                source = self.source(t)
                if source is not None and not source.glue:
                    return t
        return None

    def written(self, target: Tensor, op: str) -> None:
        """Note a write to the memory of ``target``: every published output over it is changed."""
        for p in list(self.known.values()):
            t = p.ref()
            if t is not None and same_storage(t, target):
                self.known[id(t)] = p.of(t, (op, where()))

    def follow(self, kind: Kind, args: tuple[Any, ...], leaves: list[Tensor], results: list[Tensor]) -> None:
        """Note a call outside all nodes that has run: copies keep the name of an output, other results get the call as glue."""
        sources = [(t, s) for t in leaves if (s := self.source(t)) is not None]
        if kind.writes:
            if args and isinstance(args[0], Tensor):
                self._follow_write(kind, args, args[0], sources)
            return
        if not sources:
            return
        origin = next((s for _, s in sources if not s.static), sources[0][1])
        for o in results:
            same = kind.identity and len(leaves) == 1 and o.shape == leaves[0].shape and o.dtype == leaves[0].dtype
            if same and o is leaves[0]:
                continue
            if same:
                self.known[id(o)] = origin.of(o)
            elif not origin.static:
                self.known[id(o)] = origin.of(o, (kind.name, where()))

    def _follow_write(
        self, kind: Kind, args: tuple[Any, ...], target: Tensor, sources: list[tuple[Tensor, Published]]
    ) -> None:
        others = [(t, s) for t, s in sources if t is not target]
        self.written(target, kind.name)
        if not others:
            return
        value, origin = others[-1]
        if kind.identity and _whole_copy(kind, args, target, value):
            self.known[id(target)] = origin.of(target)
            base = target._base
            if base is not None and geometry(base) == geometry(target):
                self.known[id(base)] = origin.of(base)
        elif not origin.static:
            self.known[id(target)] = origin.of(target, (kind.name, where()))


def _whole_copy(kind: Kind, args: tuple[Any, ...], target: Tensor, value: Tensor) -> bool:
    if target.shape != value.shape or target.dtype != value.dtype:
        return False
    if kind.name != "__setitem__":
        return True
    parts = args[1] if isinstance(args[1], tuple) else (args[1],)
    return all(p is Ellipsis or (isinstance(p, slice) and p == slice(None)) for p in parts)
