"""Makes ports of the values that are declared for a node: inputs and states, tensors and arrays, alone or nested."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from leapp.capture.equality import same_bits
from leapp.capture.recorder import Recorder
from leapp.capture.tape import snapshot
from leapp.capture.user_line import Where, where
from leapp.errors import AnnotationError, AnnotationTypeError
from leapp.semantics import TensorSemantics
from leapp.tracing.batching import checked_axis
from leapp.tracing.edges import Sources
from leapp.tracing.later_passes import Passes
from leapp.tracing.log import logger
from leapp.tracing.node import InputPort, NodeTrace, Role, dtype_name, refuse_form
from leapp.tracing.opening import Opening
from leapp.tracing.payload import Entry, map_leaves

Tensor = torch.Tensor
Batch = int | str | None


def _references(pair: tuple[Any, Any]) -> int:
    return sys.getrefcount(pair[1])


_OURS = _references((None, object()))
"""The reference count of a value that only one pair holds. It differs between versions of Python."""

_PLAIN_ARRAYS = (np.ndarray, np.memmap)
"""The types of arrays that a port may have. Other subclasses have operators of their own: ``np.matrix``, masked arrays."""


class Declaring:
    """Declares the inputs and states of the nodes of a session."""

    def __init__(self, recorder: Recorder, opening: Opening, sources: Sources, passes: Passes) -> None:
        self._recorder, self._opening, self._sources, self._passes = recorder, opening, sources, passes

    def declare(self, node: NodeTrace, items: Sequence[Entry], role: Role, batch: Batch) -> list[Any]:
        """Declare every tensor and array of a payload. Returns the values to go on with, in the same form."""
        if node.finished and all(type(value) is Tensor for _, value, _ in items):
            with self._recorder.silence():
                return list(self._passes.declare(node, {name: t for name, t, _ in items}, role))
        at = where()

        def declared(name: str, value: Any, semantics: TensorSemantics | None) -> Any:
            def visit(port: str, leaf: Any) -> Any:
                return self.leaf(node, port, leaf, role, semantics, batch, at)

            return visit(name, value) if role == "state" else map_leaves(name, value, visit, self.tell_constant(node, role))

        return [declared(*item) for item in items]

    def leaf(
        self,
        node: NodeTrace,
        name: str,
        leaf: Any,
        role: Role,
        semantics: TensorSemantics | None = None,
        batch: Batch = "auto",
        at: Where | None = None,
    ) -> Any:
        """Declare one tensor or array. Returns the value to go on with."""
        with self._recorder.silence():
            t = self.tensor(leaf, node, name)
            if node.finished:
                alias = self._passes.declare(node, {name: t}, role)[0]
            else:
                alias = self._port(node, name, t, role, semantics, batch, at or where())
            if isinstance(leaf, Tensor):
                return alias
            return leaf if node.recording is None else self._recorder.arrays.memory.hand_back(leaf, t, alias)

    def tensor(self, leaf: Any, node: NodeTrace, port: str) -> Tensor:
        """The value of a port as a tensor: the tensor itself, or the one over the memory of an array."""
        if isinstance(leaf, Tensor):
            return leaf
        if isinstance(leaf, np.ndarray) and type(leaf) not in _PLAIN_ARRAYS:
            raise AnnotationTypeError(
                f"node '{node.name}', port '{port}' (at {where()}): an array of the class {type(leaf).__name__} computes in a "
                "way of its own, which a model does not have. Pass a plain array: np.asarray(x), or x.filled(value) for a "
                "masked one."
            )
        t = self._recorder.arrays.memory.port(leaf) if isinstance(leaf, (np.ndarray, np.generic)) else None
        if t is not None:
            return t
        what = f"{type(leaf).__name__} of {leaf.dtype}" if isinstance(leaf, np.ndarray) else type(leaf).__name__
        raise AnnotationTypeError(
            f"node '{node.name}', port '{port}' (at {where()}): a {what} cannot be traced. Pass a torch tensor or a numeric "
            "array."
        )

    def tell_constant(self, node: NodeTrace, what: str) -> Callable[[str, Any], None]:
        """A function that warns of a value in a payload that is neither a tensor nor a container."""

        def tell(name: str, value: Any) -> None:
            if not node.passes:
                logger.warning(
                    "node '%s', %s '%s' (at %s): a value of type %s is not a tensor; it stays a constant of the node.",
                    node.name, what, name, where(), type(value).__name__,
                )  # fmt: skip

        return tell

    def _port(
        self, node: NodeTrace, name: str, t: Tensor, role: Role, semantics: TensorSemantics | None, batch: Batch, at: Where
    ) -> Tensor:
        """Make a tensor an input port of an open node. Returns the tensor to go on with."""
        refuse_form(node, name, t)
        existing = node.inputs.get(name)
        if existing is not None:
            if self._is_repeated(node, existing, t, role, at):
                return node.aliases[name][1]
            self._opening.restart(node)
            return self._port(node, name, t, role, semantics, batch, at)
        source = self._sources.find(node, name, t) if role == "input" else None
        if any(b.port == name for b in node.buffers):
            raise AnnotationError(
                f"node '{node.name}' (at {at}): '{name}' is already the name of a tracked buffer. Give the port another name."
            )
        port = InputPort(name, dtype_name(t), tuple(t.shape), role, None, at, semantics, source, batch)
        node.current.inputs[name] = snapshot(t)
        node.inputs[name] = port
        alias = t
        if node.tape is not None:
            alias = self._recorder.declare(node.tape, t, at, checked_axis(node, port, t.dim()))
            port.slot = node.tape.inputs[-1]
        node.aliases[name] = (t, alias)
        if role == "input" and source is None:
            self._sources.note(node, port, t, alias)
        return alias

    def _is_repeated(self, node: NodeTrace, port: InputPort, t: Tensor, role: Role, at: Where) -> bool:
        """Whether an input that the open node already has is declared again with the same value.

        ``False`` means a new attempt: the user's code raised an exception in the pass and was called again.

        Raises:
            AnnotationError: If it is neither, so that two inputs have one name.
        """
        alias = node.aliases.get(port.name)
        if port.role == role and alias is not None:
            another_attempt = node.entered != self._opening.clock or (port.where == at and not _in_use(node))
            # A failed attempt may have written to its input. Then the two differ, and this is another attempt.
            unchanged = same_bits(node.current.inputs[port.name], t) and same_bits(alias[1].detach(), t)
            if not another_attempt and unchanged:
                if role == "state":
                    logger.warning("node '%s': state '%s' is declared twice in one pass (at %s).", node.name, port.name, at)
                node.again.append(port.name)
                return True
            if another_attempt or port.where == at:
                return False
        raise AnnotationError(
            f"node '{node.name}' already has an input '{port.name}', declared at {port.where}; declared again at {at}. "
            "Give it another name."
        )


def _in_use(node: NodeTrace) -> bool:
    """Whether the user's program still holds a value of the open node; after an exception it usually does not."""
    if node.tape is None:
        return False
    ours = {id(alias) for _, alias in node.aliases.values()} | {id(b.tensor) for b in node.buffers}
    if any(i not in ours and ref.tensor() is not None for i, ref in node.tape.known.items()):
        return True
    return any(_references(pair) > _OURS for pair in node.aliases.values())
