"""A session: what the annotations do between ``start()`` and ``stop()``.

It owns the recorder and the nodes. It decides what is a port, an edge, feedback or state; it knows nothing of files.
"""

from __future__ import annotations

import difflib
import functools
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import torch

from leapp.capture.devices import require_device
from leapp.capture.holders import containers_in_sight
from leapp.capture.recorder import Recorder
from leapp.capture.tape import snapshot
from leapp.capture.user_line import Where, where
from leapp.errors import (
    AnnotationError,
    AnnotationTypeError,
    LeappError,
    MissingDependencyError,
    SessionError,
    TraceError,
)
from leapp.export.backends import check_params, resolve_backend
from leapp.graph.html import card, picture, table
from leapp.graph.suggest import nearest
from leapp.semantics import TensorSemantics
from leapp.tracing import state
from leapp.tracing.attributes import Attributes
from leapp.tracing.batching import check_batch_axis, checked_axis
from leapp.tracing.edges import Sources, same_bits
from leapp.tracing.finishing import Finisher, Given
from leapp.tracing.later_passes import Passes, refuse_form
from leapp.tracing.log import logger
from leapp.tracing.method import MethodNode, bind_arguments, output_names_of, self_of
from leapp.tracing.node import InputPort, NodeTrace, Role, Sample, TrackedBuffer, dtype_name
from leapp.tracing.payload import Entry, Loans, entries, leaf_names, map_leaves, refuse_nested_state, unpack
from leapp.tracing.second_pass import SecondPass
from leapp.tracing.training import TrainingModes
from leapp.tracing.undeclared import outliving

__all__ = ["Session"]

Tensor = torch.Tensor
_PLAIN = frozenset({Tensor})


def _references(pair: tuple[Any, Any]) -> int:
    return sys.getrefcount(pair[1])


_OURS = _references((None, object()))
"""How many references a value has that nobody but its pair holds; versions of Python count their own differently."""

F = TypeVar("F", bound=Callable[..., Any])


def _one_thread_at_a_time(function: F) -> F:
    @functools.wraps(function)
    def call(self: Session, *args: Any, **kwargs: Any) -> Any:
        with self.recorder.lock:
            return function(self, *args, **kwargs)

    return cast(F, call)


def _located(error: LeappError, node: str, call: str) -> LeappError:
    """What is wrong with a payload, and where it was given."""
    return type(error)(f"{call} for node '{node}' at {where()}: {error}")


class _Running(threading.local):
    """The decorated functions that run in this thread."""

    depth = 0


class Session:
    """The nodes of one traced program. Notebooks show them as a table."""

    def __init__(
        self,
        *,
        non_traced: Iterable[str] = (),
        max_cached_io: int = 5,
        escapes: str = "warn",
        dynamic_batch: bool = False,
        min_passes: int = 1,
    ) -> None:
        self.recorder = Recorder()
        self.min_passes = min_passes
        self.dynamic_batch = dynamic_batch
        self.nodes: dict[str, NodeTrace] = {}
        self.sources = Sources(self.recorder, self.nodes)
        self.non_traced = frozenset(non_traced)
        self.attributes = Attributes()
        self.escapes = escapes
        self.clock = 0
        """The number of the present pass."""
        self.modules: dict[int, weakref.ref[torch.nn.Module]] = {}
        self.training = TrainingModes(self.modules)
        self.finisher = Finisher(self.recorder, self.attributes, self.modules, escapes)
        self.second = SecondPass(self.recorder, self.attributes, self.finisher.cut)
        self.passes = Passes(self.recorder, self.sources, self.second, max(1, max_cached_io))
        self._hook: Any = None
        self._running = _Running()

    # -- on and off ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start listening."""
        Recorder.current = self.recorder
        self._listen()
        self.recorder.arrays.begin()

    def end(self) -> None:
        """Stop listening; open nodes stay unfinished."""
        with self.recorder.silence():
            for node in self.nodes.values():
                self._look_after(node)
                if node.program is not None:
                    node.alive = outliving(node, self.recorder)
        Recorder.current = None
        self.recorder.remove()
        self._watch_modules(False)
        for node in self.nodes.values():
            self.second.drop(node)
            if node.tape is not None:
                if node.tape.open:
                    self.recorder.close(node.tape)
                node.tape.end()
        self.recorder.published.clear()
        self.recorder.arrays.end()

    def unfinished(self) -> list[str]:
        """Names of nodes that have inputs but no outputs yet."""
        return sorted(n.name for n in self.nodes.values() if not n.finished)

    def settle(self) -> None:
        """Decide what only all passes together can tell: which registered tensors are state."""
        for node in self.nodes.values():
            if node.finished and not node.settled:
                self.finisher.settle(node)
                node.settled = True

    def _module_called(self, module: torch.nn.Module, _: Any) -> None:
        if self.recorder.tapes:
            if id(module) not in self.modules:
                self.modules[id(module)] = weakref.ref(module)
                self.training.look(module, self.recorder.tapes[-1].node)
            self.attributes.look(module)

    def _look_after(self, node: NodeTrace) -> None:
        """What is done to state between passes is in no model: note what was done to it since the last one."""
        source, held = self.recorder.published.source, node.buffers
        for name, t in node.left.items():
            found = source(t)
            if found is not None and found.glue:
                node.changed_later.setdefault(name, found.glue[-1])
            elif held and any(b.port == name and b.module is not None and getattr(b.module, b.name, t) is not t for b in held):
                node.changed_later.setdefault(name, ("an assignment", node.outputs[name].where))

    def _repr_html_(self) -> str:
        from leapp.tracing.compiling import sketch

        try:
            drawn = picture("session", sketch(self))
        except Exception:  # not everything that was traced so far makes a graph
            drawn = ""
        return card("Session", *self.described(drawn))

    def described(self, drawn: str = "") -> tuple[dict[str, object], list[str]]:
        """Facts and tables for a notebook, below a picture that is already drawn."""
        rows = [
            (n.name, n.passes, n.backend or "", ", ".join(n.inputs), ", ".join(n.outputs), "finished" if n.finished else "open")
            for n in self.nodes.values()
        ]
        facts: dict[str, object] = {"nodes": len(rows), "open": "yes" if self.recorder.installed else "no"}
        return facts, [drawn, table("nodes", ("node", "passes", "backend", "inputs", "outputs", "state"), rows)]

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def _node(self, name: str, call: str) -> NodeTrace:
        node = self.nodes.get(name)
        if node is None:
            raise SessionError(
                f"{call} at {where()}: there is no node '{name}' yet.{nearest(name, self.nodes)} "
                f"Call annotate.input_tensors('{name}', ...) first; an empty dict is enough."
            )
        return node

    def _open(self, name: str) -> NodeTrace:
        """The node to declare inputs on: new, open, or entered again."""
        node = self.nodes.get(name)
        if node is None:
            check_node_name(name)
            node = self.nodes[name] = NodeTrace(name, self._tape(name), self.clock)
            node.older = containers_in_sight()
            if node.tape is not None:
                self.attributes.look_around()
            node.read_before = [r for r in self.recorder.published.reads.values() if r.passno == self.clock]
            logger.info("Initialised node %s", name)
        if node.finished:
            with self.recorder.silence():
                self._enter(node)
        else:
            self._listen()
        return node

    def _enter(self, node: NodeTrace) -> None:
        """Go on with a pass of a finished node, or begin one. Runs unseen by the modes."""
        if not node.in_pass:
            if node.entered == self.clock:
                self.clock += 1
            if node.left:
                self._look_after(node)
            node.in_pass, node.entered, node.current.passno, node.registered = True, self.clock, self.clock, 0
            if node.late and not node.retraced:
                self._retrace(node)
            else:
                self.second.begin(node)
        elif node.entered != self.clock:
            # The user's code raised in the middle of the pass before; this is another one.
            node.entered, node.current, node.registered = self.clock, Sample(self.clock), 0
            self.second.begin(node)
        self._listen()

    def _listen(self) -> None:
        """Listen in this thread. Inside a node that ran twice nothing is new, so it runs at full speed."""
        recording = bool(self.recorder.tapes)
        known = False
        if not recording:
            for node in self.nodes.values():
                if node.in_pass and node.finished:
                    known = node.passes > 1
                    if not known:
                        break
        if known:
            self.recorder.remove()
        else:
            self.recorder.listen()
        if recording != (self._hook is not None):
            self._watch_modules(recording)

    def _watch_modules(self, on: bool) -> None:
        """Be told of the modules that an open node calls. Being told slows every module down."""
        if on and self._hook is None:
            self._hook = torch.nn.modules.module.register_module_forward_pre_hook(self._module_called)
        elif not on and self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _tape(self, name: str) -> Any:
        return None if name in self.non_traced else self.recorder.open(name, self.dynamic_batch)

    def _retrace(self, node: NodeTrace) -> None:
        """The first pass gave a state its first value without reading one: what counts is what the second pass does."""
        logger.warning(
            "node '%s': the first pass updated %s without declaring it, so the node is traced again in its second pass, and "
            "the bundle starts from the values that the first pass left.", node.name, ", ".join(map(repr, sorted(node.late))),
        )  # fmt: skip
        if node.tape is not None:
            node.tape.end()
        node.begin(self._tape(node.name), self.clock)
        node.retraced = True

    def _restart(self, node: NodeTrace) -> None:
        """Drop what an attempt recorded that the user's code did not finish."""
        logger.warning("node '%s' is declared anew before it was finished; what it had recorded is dropped.", node.name)
        kept = [(node.inputs[n], node.aliases[n], node.current.inputs[n]) for n in node.again]
        if node.tape is not None:
            self.recorder.close(node.tape)
            node.tape.end()
        node.begin(self._tape(node.name), self.clock)
        for port, (t, alias), value in kept:
            node.inputs[port.name], node.aliases[port.name], node.current.inputs[port.name] = port, (t, alias), value
            if node.tape is not None:
                port.slot = node.tape.declare(alias, port.batch).slot

    # -- inputs --------------------------------------------------------------------------------------------------------

    def input_tensors(self, node_name: str, payload: Any, batch: int | str | None = "auto") -> Any:
        """See :meth:`leapp.annotations.Annotate.input_tensors`."""
        if batch != "auto":
            check_batch_axis(batch)
        with self.recorder.lock:
            again = self._again(node_name, payload)
            if again is not None:
                return self._declare_again(again, payload, "input")
            try:
                items = entries(payload)
                plain = _are_plain(items)
                if not plain:
                    leaf_names(items)
            except LeappError as error:
                raise _located(error, node_name, "input_tensors()") from None
            node = self._open(node_name)
            if plain:
                return unpack(self._declare_plain(node, items, "input", batch))
            return unpack(self._declare_entries(node, items, batch))

    def _again(self, node_name: str, payload: Any) -> NodeTrace | None:
        """The finished node, if it is given a dict of tensors. There is nothing to unpack, and its ports are known."""
        node = self.nodes.get(node_name) if type(payload) is dict else None
        if node is None or not node.finished or (node.late and not node.retraced):
            return None
        return node if _PLAIN.issuperset(map(type, payload.values())) else None

    def _declare_again(self, node: NodeTrace, payload: dict[str, Tensor], role: Role) -> Any:
        with self.recorder.silence():
            self._enter(node)
            declared = self.passes.declare(node, payload, role)
        return declared[0] if len(declared) == 1 else tuple(declared)

    def _declare_plain(
        self, node: NodeTrace, items: Sequence[Entry], role: Role, batch: int | str | None
    ) -> list[Tensor]:
        """Declare a payload of tensors, as most are."""
        with self.recorder.silence():
            if node.finished:
                return self.passes.declare(node, {name: t for name, t, _ in items}, role)
            at = where()
            return [self._declare(node, name, t, role, semantics, batch, at) for name, t, semantics in items]

    def _declare_entries(self, node: NodeTrace, items: Sequence[Entry], batch: int | str | None) -> list[Any]:
        def declare(name: str, value: Any, semantics: TensorSemantics | None) -> Any:
            def visit(port: str, leaf: Any) -> Any:
                return self._declare_leaf(node, port, leaf, "input", semantics, batch)

            return map_leaves(name, value, visit, self._not_a_tensor(node, "input"))

        return [declare(*item) for item in items]

    def _declare_leaf(
        self,
        node: NodeTrace,
        name: str,
        leaf: Any,
        role: Role,
        semantics: TensorSemantics | None,
        batch: int | str | None = "auto",
    ) -> Any:
        """Declare a tensor or an array, and return what to go on with."""
        with self.recorder.silence():
            t = self._tensor(leaf, node, name)
            alias = self._declare(node, name, t, role, semantics, batch)
            if isinstance(leaf, Tensor):
                return alias
            return leaf if node.recording is None else self.recorder.arrays.memory.hand_back(leaf, t, alias)

    def _not_a_tensor(self, node: NodeTrace, what: str) -> Callable[[str, Any], None]:
        def tell(name: str, value: Any) -> None:
            if not node.passes:
                logger.warning(
                    "node '%s', %s '%s' (at %s): a %s is no tensor; it stays a constant of the node.",
                    node.name, what, name, where(), type(value).__name__,
                )  # fmt: skip

        return tell

    def _tensor(self, leaf: Any, node: NodeTrace, port: str) -> Tensor:
        if isinstance(leaf, Tensor):
            return leaf
        t = self.recorder.arrays.memory.port(leaf) if isinstance(leaf, (np.ndarray, np.generic)) else None
        if t is not None:
            return t
        what = f"{type(leaf).__name__} of {leaf.dtype}" if isinstance(leaf, np.ndarray) else type(leaf).__name__
        raise AnnotationTypeError(
            f"node '{node.name}', port '{port}' (at {where()}): a {what} cannot be traced. Pass a torch tensor or a numeric "
            "array."
        )

    def _declare(
        self,
        node: NodeTrace,
        name: str,
        t: Tensor,
        role: Role,
        semantics: TensorSemantics | None = None,
        batch: int | str | None = "auto",
        at: Where | None = None,
    ) -> Tensor:
        """Declare one input port and return the tensor to go on with."""
        if node.finished:
            return self.passes.declare(node, {name: t}, role)[0]
        refuse_form(node, name, t)
        at = at or where()
        existing = node.inputs.get(name)
        if existing is not None:
            return self._declared_twice(node, existing, t, role, semantics, at, batch)
        source = self.sources.find(node, name, t) if role == "input" else None
        state.check_name(node, name, at)
        port = InputPort(name, dtype_name(t), tuple(t.shape), role, None, at, semantics, source, batch)
        node.current.inputs[name] = snapshot(t)
        node.inputs[name] = port
        alias = t
        if node.tape is not None:
            alias = self.recorder.declare(node.tape, t, checked_axis(node, port, t.dim()))
            port.slot = node.tape.inputs[-1]
        node.aliases[name] = (t, alias)
        if role == "input" and source is None:
            self.sources.note(node, port, t, alias)
        return alias

    def _declared_twice(
        self,
        node: NodeTrace,
        port: InputPort,
        t: Tensor,
        role: Role,
        semantics: TensorSemantics | None,
        at: Where,
        batch: int | str | None,
    ) -> Tensor:
        """A name that the open node knows: the same value again, a new attempt after an exception, or a mistake."""
        alias = node.aliases.get(port.name)
        if port.role == role and alias is not None:
            another_attempt = node.entered != self.clock or (port.where == at and not self._in_use(node))
            # What an attempt that failed wrote to its input is not in the tensor that is declared now.
            unchanged = same_bits(node.current.inputs[port.name], t) and same_bits(alias[1].detach(), t)
            if not another_attempt and unchanged:
                if role == "state":
                    logger.warning("node '%s': state '%s' is declared twice in one pass (at %s).", node.name, port.name, at)
                node.again.append(port.name)
                return alias[1]
            if another_attempt or port.where == at:
                self._restart(node)
                return self._declare(node, port.name, t, role, semantics, batch)
        raise AnnotationError(
            f"node '{node.name}' already has an input '{port.name}', declared at {port.where}; declared again at {at}. "
            "Give it another name."
        )

    def _in_use(self, node: NodeTrace) -> bool:
        """Whether the user's program still holds a value of the open node; after an exception it usually does not."""
        if node.tape is None:
            return False
        ours = {id(alias) for _, alias in node.aliases.values()} | {id(b.tensor) for b in node.buffers}
        if any(i not in ours and ref.tensor() is not None for i, ref in node.tape.known.items()):
            return True
        return any(_references(pair) > _OURS for pair in node.aliases.values())

    # -- state ---------------------------------------------------------------------------------------------------------

    def _states(self, node_name: str, call: str, payload: Any) -> list[Entry]:
        try:
            if isinstance(payload, dict):
                refuse_nested_state(payload)
            return entries(payload)
        except LeappError as error:
            raise _located(error, node_name, call) from None

    def state_tensors(self, node_name: str, payload: Any, batch: int | str | None = "auto") -> Any:
        """See :meth:`leapp.annotations.Annotate.state_tensors`."""
        if batch != "auto":
            check_batch_axis(batch)
        with self.recorder.lock:
            again = self._again(node_name, payload)
            if again is not None:
                return self._declare_again(again, payload, "state")
            items = self._states(node_name, "state_tensors()", payload)
            self._node(node_name, "state_tensors()")
            node = self._open(node_name)
            if _are_plain(items):
                return unpack(self._declare_plain(node, items, "state", batch))
            return unpack([self._declare_leaf(node, n, v, "state", s, batch) for n, v, s in items])

    def update_state(self, node_name: str, payload: Any) -> Any:
        """See :meth:`leapp.annotations.Annotate.update_state`."""
        with self.recorder.lock, self.recorder.silence():
            again = self._again(node_name, payload)
            if again is not None:
                self.passes.update(again, payload)
                return unpack(tuple(payload.values()))
            items = self._states(node_name, "update_state()", payload)
            node = self._node(node_name, "update_state()")
            given = [(name, self._tensor(value, node, name), semantics) for name, value, semantics in items]
            if node.finished:
                self.passes.update(node, {name: t for name, t, _ in given})
                for name, _, semantics in given:
                    port = node.inputs[name]
                    port.semantics = port.semantics or semantics
            else:
                self._update(node, given)
            return unpack([value for _, value, _ in items])

    def _update(self, node: NodeTrace, given: Sequence[tuple[str, Tensor, TensorSemantics | None]]) -> None:
        at = where()
        for name, t, semantics in given:
            port = node.inputs.get(name)
            if port is None or port.role not in ("state", "buffer"):
                port = self._declare_late(node, name, t, semantics, at, [n for n, _, _ in given])
            node.check(port, t, "state", at)
            require_device(node.name, name, node.current.inputs.get(name), t, at)
            if node.tape is not None:
                self._require_computed(node, name, t, at)
            if port.semantics is None:
                port.semantics = semantics
            node.updates[name] = (t, at)

    def _require_computed(self, node: NodeTrace, name: str, t: Tensor, at: Where) -> None:
        owner = self.recorder.owner([t])
        if owner is None and name in node.late:
            # The first value of a state may be a constant, such as the zeros of an empty history.
            self.recorder.constants.slot(node.require_traced(), t)
        elif owner is not node.tape:
            whose = "is not computed from the node's inputs or states"
            if owner is not None:
                whose = f"belongs to node '{owner.node}'"
            raise TraceError(
                f"node '{node.name}': the update of state '{name}' at {at} {whose}. Compute it from values that "
                "input_tensors() or state_tensors() returned."
            )

    def _declare_late(
        self, node: NodeTrace, name: str, t: Tensor, semantics: TensorSemantics | None, at: Where, together: list[str]
    ) -> InputPort:
        """A state that is updated before it was ever read. Should nothing read it later either, it starts from zeros.

        A name that is almost that of a state which nobody updated, ``together`` with it or before, is a slip.
        """
        if name in node.inputs:
            raise AnnotationError(
                f"node '{node.name}' has no state '{name}' (update_state() at {at}): '{name}' is an input, declared at "
                f"{node.inputs[name].where}. Declare it with annotate.state_tensors() instead of input_tensors()."
            )
        updated = {*node.updates, *together}
        meant = _misspelt(name, [n for n, p in node.inputs.items() if p.role == "state" and n not in updated])
        if meant:
            raise AnnotationError(
                f"node '{node.name}' has no state '{name}' (update_state() at {at}). Did you mean '{meant}', declared at "
                f"{node.inputs[meant].where}?"
            )
        zeros = torch.zeros_like(t)
        self._declare(node, name, zeros, "state", semantics)
        node.late.add(name)
        return node.inputs[name]

    @_one_thread_at_a_time
    def register_buffer(self, node_name: str, payload: Any) -> Any:
        """See :meth:`leapp.annotations.Annotate.register_buffer`."""
        node = self._node(node_name, "register_buffer()")
        at = where()
        if node.finished and not node.in_pass:
            raise SessionError(
                f"register_buffer() for node '{node_name}' at {at} comes after output_tensors(): the node is finished. "
                "Register buffers before declaring the outputs."
            )
        if isinstance(payload, dict):
            items = list(payload.items())
        else:
            values = payload if isinstance(payload, (list, tuple)) else [payload]
            items = [(f"buffer_{node.registered + i}", t) for i, t in enumerate(values)]
            node.registered += len(values)
        leaf_names([(name, value, None) for name, value in items])

        def visit(port: str, leaf: Any) -> Any:
            return self._buffer(node, port, leaf, at)

        def other(port: str, value: Any) -> None:
            if port in dict(items):
                self._tensor(value, node, port)  # says that it cannot be traced
            self._not_a_tensor(node, "buffer")(port, value)

        with self.recorder.silence():
            return unpack([map_leaves(name, value, visit, other) for name, value in items])

    def _buffer(self, node: NodeTrace, name: str, value: Any, at: Where) -> Any:
        """Register a tensor or an array, and return what to go on with."""
        t = self._register(node, name, self._tensor(value, node, name), at)
        return t if isinstance(value, Tensor) else self.recorder.arrays.memory.buffer(value, t)

    def _register(self, node: NodeTrace, name: str, t: Tensor, at: Where) -> Tensor:
        if node.finished:
            if state.registered_again(node, name, t, at):
                self.second.buffer(node, name, t)
            return t
        if node.tape is None or any(b.tensor is t and b.port == name for b in node.buffers):
            return t
        if self.recorder.owner([t]) is not None:
            raise TraceError(
                f"node '{node.name}': register_buffer() for '{name}' at {at} got a traced value. Register plain tensors, "
                "before anything traced is written to them."
            )
        if name in node.inputs:
            raise AnnotationError(
                f"node '{node.name}' already has an input '{name}', declared at {node.inputs[name].where}; register_buffer() "
                f"at {at} needs another name."
            )
        state.track(node, name, TrackedBuffer(name, t, fresh=self.recorder.old_memory.is_fresh(t)), at)
        return t

    @_one_thread_at_a_time
    def module(self, node_name: str, model: torch.nn.Module, buffer_names: list[str] | None) -> None:
        """See :meth:`leapp.annotations.Annotate.module`."""
        self._node(node_name, "module()")
        node = self._open(node_name)
        at = where()
        if not isinstance(model, torch.nn.Module):
            raise AnnotationTypeError(
                f"annotate.module('{node_name}') at {at}: expected an nn.Module, not a {type(model).__name__}."
            )
        known = dict(model.named_buffers())
        unknown = [n for n in buffer_names or () if n not in known]
        if unknown:
            raise AnnotationError(
                f"annotate.module('{node_name}') at {at}: the module has no buffer '{unknown[0]}'."
                f"{nearest(unknown[0], known)}"
            )
        with self.recorder.silence():
            for name in known if buffer_names is None else buffer_names:
                self._track(node, model, name, known[name], at)

    def _track(self, node: NodeTrace, model: torch.nn.Module, name: str, t: Tensor, at: Where) -> None:
        path, _, leaf = name.rpartition(".")
        owner = functools.reduce(getattr, path.split("."), model) if path else model
        port_name = name.replace(".", "_")
        if node.finished:
            buffer = state.tracked(node, owner, leaf, port_name)
            if buffer is not None:
                node.check(node.inputs[buffer.port], t, "buffer", at)
                node.current.inputs[buffer.port] = snapshot(t) if self.passes.is_looked_at(node) else t
                buffer.module, buffer.name, buffer.tensor = owner, leaf, t
                self.second.buffer(node, buffer.port, t)
            return
        mine = next((b for b in node.buffers if b.module is owner and b.name == leaf), None)
        if mine is not None and mine.tensor is not t:
            self._restart(node)
        elif any(b.tensor is t for b in node.buffers):
            return
        free, number = port_name, 2
        while free in node.inputs:
            free, number = f"{port_name} {number}", number + 1
        state.track(node, free, TrackedBuffer(free, t, owner, leaf), at)

    # -- outputs -------------------------------------------------------------------------------------------------------

    def output_tensors(
        self,
        node_name: str,
        payload: Any,
        static_outputs: Any = None,
        export_with: str | None = None,
        backend_params: Mapping[str, Any] | None = None,
        graph_outputs: Any = None,
    ) -> Any:
        """See :meth:`leapp.annotations.Annotate.output_tensors`."""
        asked = (export_with, backend_params, graph_outputs)
        with self.recorder.lock:
            again = self._again(node_name, payload)
            if again is None or static_outputs is not None or asked != again.asked:
                return self._output_tensors(node_name, payload, static_outputs, asked)
            with self.recorder.silence():
                self.passes.finish(again, dict(payload))
                self._listen()
            return unpack(tuple(payload.values()))

    def _output_tensors(self, node_name: str, payload: Any, static_outputs: Any, asked: tuple[Any, Any, Any]) -> Any:
        node = self._node(node_name, "output_tensors()")
        export_with, backend_params, graph_outputs = asked
        try:
            backend = resolve_backend(export_with)
            params = dict(backend_params or {})
            check_params(backend, params)
            items = entries(payload)
            static_items = entries(static_outputs) if static_outputs is not None else []
            if static_items or not _are_plain(items):
                leaf_names([*items, *static_items])
        except LeappError as error:
            raise _located(error, node_name, "output_tensors()") from None
        ports, static = self._collect(node, items), self._collect(node, static_items, "static output")
        wanted = _wanted(node, graph_outputs, ports, static)
        with self.recorder.silence():
            if node.finished:
                self.passes.finish(node, {n: t for given in (ports, static) for n, (t, _) in given.items()})
                self._listen()
            else:
                node.backend, node.backend_params, node.wanted = backend, params, wanted
                self._finish(node, ports, static, where())
                node.asked = asked if backend_params is None and graph_outputs is None else None
        return unpack([value for _, value, _ in items])

    def _collect(self, node: NodeTrace, items: Iterable[Entry], what: str = "output") -> Given:
        if _are_plain(items):
            return {name: (t, semantics) for name, t, semantics in items}
        into: Given = {}
        for name, value, semantics in items:

            def visit(port: str, leaf: Any, semantics: TensorSemantics | None = semantics) -> Any:
                into[port] = (self._tensor(leaf, node, port), semantics)
                return leaf

            map_leaves(name, value, visit, self._not_a_tensor(node, what))
        return into

    def _finish(self, node: NodeTrace, ports: Given, static: Given, at: Where) -> None:
        tensors = self.finisher.finish(node, ports, static, at)
        node.finished = True
        node.order = sum(n.finished for n in self.nodes.values()) - 1
        self.passes.end(node, tensors)
        self._listen()

    def abandon(self, node: NodeTrace) -> None:
        """The user's code raised: the pass did not happen."""
        if node.finished:
            self.second.drop(node)
            node.in_pass, node.current, node.updates = False, Sample(node.entered), {}
        elif node.name in self.nodes:
            if node.tape is not None:
                self.recorder.close(node.tape)
                node.tape.end()
            del self.nodes[node.name]
        self._listen()

    # -- the rest ------------------------------------------------------------------------------------------------------

    @_one_thread_at_a_time
    def mirror_leapp_tags(self, source: Any, target: Any) -> Any:
        """See :meth:`leapp.annotations.Annotate.mirror_leapp_tags`."""
        if isinstance(source, dict) and isinstance(target, dict) and source.keys() == target.keys():
            return {k: self.mirror_leapp_tags(source[k], target[k]) for k in source}
        if isinstance(source, (list, tuple)) and isinstance(target, (list, tuple)) and len(source) == len(target):
            items = [self.mirror_leapp_tags(s, t) for s, t in zip(source, target, strict=True)]
            return type(target)(*items) if hasattr(target, "_fields") else type(target)(items)
        at = where()
        if not isinstance(source, Tensor) or not isinstance(target, Tensor):
            raise AnnotationTypeError(
                f"mirror_leapp_tags() at {at}: source and target differ in structure ({type(source).__name__}, "
                f"{type(target).__name__}). Pass tensors, or containers of the same form."
            )
        with self.recorder.silence():
            if source.shape != target.shape or source.dtype != target.dtype or source.device != target.device:
                raise AnnotationError(
                    f"mirror_leapp_tags() at {at}: source is {dtype_name(source)} {list(source.shape)}, target is "
                    f"{dtype_name(target)} {list(target.shape)}. They must be equal."
                )
            if not same_bits(source, target):
                raise AnnotationError(
                    f"mirror_leapp_tags() at {at}: source and target hold different values. It is for copies only."
                )
            self._mirror(source, target, at)
        return target

    def _mirror(self, source: Tensor, target: Tensor, at: Where) -> None:
        owner = self.recorder.owner([source])
        found = self.recorder.source(source)
        if owner is not None:
            owner.same(source, target)
        elif found is not None:
            self.recorder.published.copy(found, target)
        else:
            logger.error("mirror_leapp_tags() at %s: the source is not a traced value.", at)

    def method(self, function: Callable[..., Any], settings: MethodNode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a decorated function as a node, or as a part of the node that calls it."""
        caller = self._caller(function, args, kwargs)
        if caller is not None:
            caller.inlined.add(function)
            logger.info("'%s' is called inside node '%s' at %s and is a part of it.", settings.name, caller.name, where())
        if caller is not None or self._running.depth:
            return function(*args, **kwargs)
        with self.recorder.lock:
            node = self._open(settings.name)
            before = dict(node.inputs)
            owner = self_of(function, args)
            if owner is not None and node.recording is not None:
                self.attributes.look(owner)
            loans = Loans()

            def declare(port: str, value: Any) -> Any:
                def visit(name: str, leaf: Any) -> Any:
                    return self._declare_leaf(node, name, leaf, "input", settings.meaning(name, leaf, "input"))

                return loans.put(port, value, visit, self._not_a_tensor(node, "input"))

            try:
                args, kwargs = bind_arguments(function, args, kwargs, declare)
            except BaseException:
                loans.give_back(lambda _: False)
                if not before:
                    self.abandon(node)
                raise
        try:
            return self._run_method(function, settings, node, args, kwargs)
        finally:
            loans.give_back(self._is_published)

    def _is_published(self, value: Any) -> bool:
        return isinstance(value, Tensor) and self.recorder.source(value) is not None

    def _run_method(
        self, function: Callable[..., Any], settings: MethodNode, node: NodeTrace, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a decorated function on declared values, and publish what it returns."""
        self._running.depth += 1
        try:
            result = function(*args, **kwargs)
        except BaseException:
            self.abandon(node)
            raise
        finally:
            self._running.depth -= 1
        if result is None:
            raise AnnotationTypeError(
                f"node '{settings.name}' (at {where()}): the decorated function returned None; a node needs outputs."
            )
        try:
            outputs = output_names_of(function, result, settings.output_names)
        except LeappError as error:
            raise _located(error, settings.name, "annotate.method()") from None
        self._publish_result(settings, outputs)
        return result

    def _caller(self, function: Callable[..., Any], args: Any, kwargs: Any) -> NodeTrace | None:
        """The open node whose values a decorated function is given: the function is then a part of that node."""
        from leapp.capture.trees import tensors

        if self._running.depth:
            return None
        with self.recorder.silence():
            for t in tensors((args, kwargs)):
                owner = next((tape for tape in self.recorder.tapes if tape.find(t) is not None), None)
                if owner is not None:
                    return self.nodes[owner.node]
        return next((n for n in self.nodes.values() if n.finished and n.in_pass and function in n.inlined), None)

    def _publish_result(self, settings: MethodNode, outputs: dict[str, Any]) -> None:
        described: list[TensorSemantics] = []

        def visit(name: str, leaf: Any) -> Any:
            described.append(settings.meaning(name, leaf, "output") or TensorSemantics(name, leaf))
            return leaf

        for name, value in outputs.items():
            map_leaves(name, value, visit, lambda *_: None)
        payload: Any = described if settings.output_semantics and described else outputs
        settings.refuse_unknown_ports(self.nodes[settings.name].inputs, [d.name for d in described])
        self.output_tensors(
            settings.name, payload, export_with=settings.export_with, backend_params=settings.backend_params,
            graph_outputs=settings.graph_outputs,
        )  # fmt: skip

    def warp_op(self, node_name: str) -> None:
        """Warp kernels cannot be traced."""
        raise MissingDependencyError(
            f"annotate.warp_op('{node_name}') at {where()}: Warp kernels need a CUDA device and a native runtime; neither is "
            "supported."
        )


def _misspelt(name: str, waiting: Sequence[str]) -> str | None:
    """The state whose name was most likely meant. Names that differ in a number are meant to differ."""
    lowered = {candidate.lower(): candidate for candidate in waiting}
    match = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.8)
    numbered = match and re.sub(r"\d+", "", match[0]) == re.sub(r"\d+", "", name.lower()) and match[0] != name.lower()
    return lowered[match[0]] if match and not numbered else None


def _are_plain(items: Iterable[Entry]) -> bool:
    """Whether the entries of a payload are tensors and nothing else."""
    return {type(value) for _, value, _ in items} <= _PLAIN


def _wanted(node: NodeTrace, given: Any, ports: Given, static: Given) -> set[str]:
    """The outputs that the user asked to be graph outputs."""
    if given is None or given is False:
        return set()
    ports = {**ports, **static}
    if given is True:
        return set(ports)
    names = [given] if isinstance(given, str) else list(given)
    for name in names:
        if name not in ports:
            raise AnnotationError(
                f"node '{node.name}' (at {where()}): graph_outputs names '{name}', which is no output."
                f"{nearest(str(name), ports)}"
            )
    return set(names)


def check_node_name(name: Any) -> None:
    """Refuse node names that cannot be file names inside the bundle."""
    if not isinstance(name, str):
        raise AnnotationTypeError(f"node names are strings, not {type(name).__name__} ({name!r}), at {where()}.")
    if not name or name.startswith(".") or any(c in name for c in '/\\:*?"<>|') or not name.isprintable() or len(name) > 200:
        raise AnnotationError(
            f"{name!r} (at {where()}) cannot be a node name: it names a file in the bundle. Use letters, digits, '_', '-', "
            "'.' and spaces, and do not begin with a dot."
        )
