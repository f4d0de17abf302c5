"""A session: what the annotations do between ``start()`` and ``stop()``.

It owns the recorder and the nodes. It decides what is a port, an edge, feedback or state; it knows nothing of files.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from leapp.capture.provenance import Published
from leapp.capture.recorder import Recorder
from leapp.capture.replay import Replay, cut
from leapp.capture.source import Where, where
from leapp.capture.tape import snapshot
from leapp.errors import AnnotationError, AnnotationTypeError, MissingDependencyError, SessionError, TraceError
from leapp.semantics import TensorSemantics
from leapp.session.constants import constant_names
from leapp.session.log import logger
from leapp.session.method import bind_arguments, output_names_of
from leapp.session.node import InputPort, NodeTrace, OutputPort, Role, Sample, Source, TrackedBuffer, dtype_name
from leapp.session.payload import entries, map_leaves, refuse_nested_state, unpack
from leapp.session.words import nearest, refuse_unknown

__all__ = ["Session"]

Tensor = torch.Tensor


class Session:
    """The nodes of one traced program."""

    def __init__(self, *, non_traced: Iterable[str] = (), max_cached_io: int = 5, escapes: str = "warn") -> None:
        self.recorder = Recorder()
        self.nodes: dict[str, NodeTrace] = {}
        self.non_traced = frozenset(non_traced)
        self.samples_kept = max(1, max_cached_io)
        self.escapes = escapes
        self.modules: dict[int, weakref.ref[torch.nn.Module]] = {}
        self._hook: Any = None
        self._buffer_count: dict[str, int] = {}

    # -- on and off ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start listening."""
        Recorder.current = self.recorder
        self.recorder.listen()
        self._hook = torch.nn.modules.module.register_module_forward_pre_hook(self._module_called)

    def end(self) -> None:
        """Stop listening; open nodes stay unfinished."""
        Recorder.current = None
        self.recorder.remove()
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        for node in self.nodes.values():
            if node.tape is not None and node.tape.open:
                self.recorder.close(node.tape)

    def unfinished(self) -> list[str]:
        """Names of nodes that have inputs but no outputs yet."""
        return sorted(n.name for n in self.nodes.values() if not n.finished)

    def _module_called(self, module: torch.nn.Module, _: Any) -> None:
        if self.recorder.tapes:
            self.modules.setdefault(id(module), weakref.ref(module))

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
            tape = None if name in self.non_traced else self.recorder.open(name)
            node = self.nodes[name] = NodeTrace(name, tape)
            logger.info("Initialised node %s", name)
        elif node.finished and not node.in_pass:
            node.in_pass, node.current = True, Sample()
        self._listen()
        return node

    def _listen(self) -> None:
        """Listen in this thread; another thread is met at its first annotation."""
        self.recorder.listen()

    # -- inputs --------------------------------------------------------------------------------------------------------

    def input_tensors(self, node_name: str, payload: Any) -> Any:
        """See :meth:`leapp.annotations.Annotate.input_tensors`."""
        items = entries(payload)
        node = self._open(node_name)
        return unpack([self._declare_entry(node, name, value, semantics) for name, value, semantics in items])

    def _declare_entry(self, node: NodeTrace, name: str, value: Any, semantics: TensorSemantics | None) -> Any:
        def visit(port: str, leaf: Any) -> Any:
            return self._declare(node, port, self._tensor(leaf, node, port), "input", semantics)

        return map_leaves(name, value, visit, self._not_a_tensor(node, "input"))

    def _not_a_tensor(self, node: NodeTrace, what: str) -> Callable[[str, Any], None]:
        def tell(name: str, value: Any) -> None:
            logger.warning(
                "node '%s', %s '%s': a %s is no tensor; it stays a constant of the node.",
                node.name, what, name, type(value).__name__,
            )  # fmt: skip

        return tell

    def _tensor(self, leaf: Any, node: NodeTrace, port: str) -> Tensor:
        if isinstance(leaf, Tensor):
            return leaf
        raise AnnotationTypeError(
            f"node '{node.name}', port '{port}': a {type(leaf).__name__} cannot be traced. Pass a torch tensor."
        )

    def _declare(
        self, node: NodeTrace, name: str, t: Tensor, role: Role, semantics: TensorSemantics | None = None
    ) -> Tensor:
        """Declare one input port and return the tensor to go on with."""
        at = where()
        with self.recorder.silence():
            if node.finished:
                return self._again(node, name, t, at)
            existing = node.inputs.get(name)
            if existing is not None:
                return self._declared_twice(node, existing, t, role, at)
            source = self._source(node, t, at)
            port = InputPort(name, dtype_name(t), tuple(t.shape), role, None, at, semantics, source)
            _check_clash(node, name, at)
            node.current.inputs[name] = snapshot(t)
            node.inputs[name] = port
            if node.tape is None:
                return t
            alias = self.recorder.declare(node.tape, t)
            port.slot = node.tape.inputs[-1]
            node.aliases[name] = (t, alias)
            return alias

    def _declared_twice(self, node: NodeTrace, port: InputPort, t: Tensor, role: Role, at: Where) -> Tensor:
        first = node.aliases.get(port.name)
        unchanged = (
            first is not None
            and (t is first[0] or t is first[1])
            and torch.equal(_bits(node.current.inputs[port.name]), _bits(snapshot(t)))
        )
        if first is not None and unchanged and port.role == role:
            return first[1]
        if port.where == at and port.role == role:
            # The same line again with another value: the user's code raised in between and runs the node anew.
            self._restart(node)
            return self._declare(node, port.name, t, role, port.semantics)
        raise AnnotationError(
            f"node '{node.name}' already has an input '{port.name}', declared at {port.where}; declared again at {at}. "
            "Give it another name."
        )

    def _restart(self, node: NodeTrace) -> None:
        logger.warning("node '%s' is declared anew before it was finished; what it had recorded is dropped.", node.name)
        if node.tape is not None:
            self.recorder.close(node.tape)
        fresh = NodeTrace(node.name, None if node.tape is None else self.recorder.open(node.name))
        for slot in ("tape", "inputs", "updates", "buffers", "aliases", "current"):
            setattr(node, slot, getattr(fresh, slot))

    def _again(self, node: NodeTrace, name: str, t: Tensor, at: Where) -> Tensor:
        """An input of a later pass: checked against the first, and kept as a sample."""
        if name in node.pruned:
            return t
        port = node.input(name, at)
        node.check(port, t, "input", at)
        if name in node.current.inputs:
            # The user's code raised in the middle of the pass: this is the beginning of another attempt.
            node.current = Sample()
        if port.role == "input":
            self._check_source(node, port, self._source(node, t, at), at)
        if len(node.samples) < self.samples_kept:
            node.current.inputs[name] = snapshot(t)
        else:
            node.current.inputs[name] = t
        return t

    def _source(self, node: NodeTrace, t: Tensor, at: Where) -> Source | None:
        """The published output that a declared value is, if it is one."""
        owner = self.recorder.owner([t])
        if owner is not None:
            if owner is not node.tape:
                raise TraceError(
                    f"node '{node.name}' declares a value of node '{owner.node}' at {at}, but '{owner.node}' is not finished. "
                    f"Call annotate.output_tensors('{owner.node}', ...) first."
                )
            logger.warning(
                "node '%s' declares one of its own values as an input at %s; what led to it is cut off.", node.name, at
            )
            return None
        found = self.recorder.source(t)
        if found is None:
            self._report_unpublished(node, t, at)
            return None
        if found.glue:
            if not node.finished:
                self._report_glue(node, found, at)
            return None
        age = node.passes - found.passno
        if age not in (0, 1):
            raise TraceError(
                f"node '{node.name}' (at {at}) consumes '{found.node}/{found.port}' from {age} passes ago. "
                "Feedback reaches one pass back; declare older values as state."
            )
        return Source(found.node, found.port, delayed=age == 1)

    def _report_unpublished(self, node: NodeTrace, t: Tensor, at: Where) -> None:
        former = self.recorder.former.get(id(t))
        if former is not None and former[0]() is t:
            logger.error(
                "node '%s' (at %s) declares a value of node '%s' that was not published by output_tensors(); "
                "it becomes an external input.", node.name, at, former[1],
            )  # fmt: skip

    def _report_glue(self, node: NodeTrace, found: Published, at: Where) -> None:
        ops = ", ".join(f"{op} ({place})" for op, place in found.glue)
        logger.warning(
            "node '%s' (at %s) declares '%s/%s' after it was changed between the nodes by %s. These ops are in no model: "
            "move them into a node. The input is external.", node.name, at, found.node, found.port, ops,
        )  # fmt: skip
        self.glue.append((node.name, f"{found.node}/{found.port}", found.glue, at))

    @property
    def glue(self) -> list[tuple[str, str, tuple[tuple[str, Where], ...], Where]]:
        """Published outputs that were changed between nodes: consumer, source, ops, place."""
        if not hasattr(self, "_glue"):
            self._glue: list[tuple[str, str, tuple[tuple[str, Where], ...], Where]] = []
        return self._glue

    def _check_source(self, node: NodeTrace, port: InputPort, source: Source | None, at: Where) -> None:
        if node.passes == 1 and port.source is None:
            port.source = source
        elif port.source != source:
            raise TraceError(
                f"node '{node.name}', input '{port.name}' (at {at}): it was fed by {port.source or 'an external value'} "
                f"before and is fed by {source or 'an external value'} now. An input has one source; use a second port."
            )

    # -- state ---------------------------------------------------------------------------------------------------------

    def state_tensors(self, node_name: str, payload: Any) -> Any:
        """See :meth:`leapp.annotations.Annotate.state_tensors`."""
        if isinstance(payload, dict):
            refuse_nested_state(payload)
        items = entries(payload)
        self._node(node_name, "state_tensors()")
        node = self._open(node_name)
        values = []
        for name, value, semantics in items:
            existing = node.inputs.get(name)
            if not node.finished and existing is not None and existing.role == "state" and name in node.aliases:
                logger.warning("node '%s': state '%s' is declared twice in one pass.", node_name, name)
                values.append(node.aliases[name][1])
                continue
            values.append(self._declare(node, name, self._tensor(value, node, name), "state", semantics))
        return unpack(values)

    def update_state(self, node_name: str, payload: Any) -> Any:
        """See :meth:`leapp.annotations.Annotate.update_state`."""
        if isinstance(payload, dict):
            refuse_nested_state(payload)
        items = entries(payload)
        node = self._node(node_name, "update_state()")
        at = where()
        for name, value, semantics in items:
            t = self._tensor(value, node, name)
            if node.finished and not node.in_pass:
                raise SessionError(
                    f"update_state() for '{node_name}/{name}' at {at} comes after output_tensors(): the node is finished. "
                    "Update states before declaring the outputs."
                )
            port = node.inputs.get(name)
            if port is None or port.role not in ("state", "buffer"):
                port = self._declare_late(node, name, t, semantics, at)
            node.check(port, t, "state", at)
            if node.tape is not None and not node.finished:
                with self.recorder.silence():
                    if node.tape.find(t) is None:
                        raise TraceError(
                            f"node '{node_name}': the update of state '{name}' at {at} is not computed from the node's "
                            "inputs or states."
                        )
            node.updates[name] = (t, at)
        return unpack([value for _, value, _ in items])

    def _declare_late(
        self, node: NodeTrace, name: str, t: Tensor, semantics: TensorSemantics | None, at: Where
    ) -> InputPort:
        """A state that is updated before it was ever read: it exists, and starts from zeros."""
        if name in node.inputs or node.finished:
            raise AnnotationError(
                f"node '{node.name}' has no state '{name}' (update_state() at {at}).{nearest(name, node.inputs)} "
                "Declare it with annotate.state_tensors() first."
            )
        with self.recorder.silence():
            zeros = torch.zeros_like(t)
        self._declare(node, name, zeros, "state", semantics)
        return node.inputs[name]

    def register_buffer(self, node_name: str, payload: Any) -> Any:
        """See :meth:`leapp.annotations.Annotate.register_buffer`."""
        node = self._node(node_name, "register_buffer()")
        single = not isinstance(payload, (dict, list, tuple))
        items = payload.items() if isinstance(payload, dict) else [(None, t) for t in ([payload] if single else payload)]
        values = []
        for name, value in items:
            t = self._tensor(value, node, name or "buffer")
            if node.tape is not None and node.tape.open:
                with self.recorder.silence():
                    if node.tape.find(t) is not None:
                        raise TraceError(f"node '{node_name}': register_buffer() at {where()} got a traced value.")
                    node.tape.adopt(t)
            values.append(t)
        return unpack(values)

    def module(self, node_name: str, model: torch.nn.Module, buffer_names: list[str] | None) -> None:
        """See :meth:`leapp.annotations.Annotate.module`."""
        self._node(node_name, "module()")
        node = self._open(node_name)
        at = where()
        buffers = dict(model.named_buffers())
        unknown = [n for n in buffer_names or () if n not in buffers]
        if unknown:
            raise AnnotationError(
                f"annotate.module('{node_name}') at {at}: the module has no buffer '{unknown[0]}'."
                f"{nearest(unknown[0], buffers)}"
            )
        for name in buffers if buffer_names is None else buffer_names:
            self._track(node, model, name, buffers[name], at)

    def _track(self, node: NodeTrace, model: torch.nn.Module, name: str, t: Tensor, at: Where) -> None:
        path, _, leaf = name.rpartition(".")
        owner = model.get_submodule(path)
        port_name = name.replace(".", "_")
        if node.finished:
            if port_name in node.inputs:
                self._again(node, port_name, t, at)
                self._retrack(node, port_name, owner, leaf, t)
            return
        if any(b.tensor is t for b in node.buffers):
            return
        while port_name in node.inputs:
            port_name += "_2"
        with self.recorder.silence():
            node.current.inputs[port_name] = snapshot(t)
            port = InputPort(port_name, dtype_name(t), tuple(t.shape), "buffer", None, at)
            node.inputs[port_name] = port
            if node.tape is not None:
                # The buffer itself is known from here on, so the module stays as it is.
                port.slot = node.tape.declare(t).slot
        node.buffers.append(TrackedBuffer(owner, leaf, port_name, t))

    def _retrack(self, node: NodeTrace, port: str, owner: torch.nn.Module, leaf: str, t: Tensor) -> None:
        for buffer in node.buffers:
            if buffer.port == port:
                buffer.module, buffer.name, buffer.tensor = owner, leaf, t

    # -- outputs -------------------------------------------------------------------------------------------------------

    def output_tensors(self, node_name: str, payload: Any, static_outputs: Any = None, **kwargs: Any) -> Any:
        """See :meth:`leapp.annotations.Annotate.output_tensors`."""
        from leapp.export import check_params, resolve_backend

        refuse_unknown(kwargs, ("export_with", "backend_params", "static_outputs"), "annotate.output_tensors()")
        node = self._node(node_name, "output_tensors()")
        at = where()
        backend = resolve_backend(kwargs.get("export_with"))
        params = dict(kwargs.get("backend_params") or {})
        check_params(backend, params)
        items = entries(payload)
        ports: dict[str, tuple[Tensor, TensorSemantics | None]] = {}
        for name, value, semantics in items:
            self._collect(node, name, value, semantics, ports, at)
        static: dict[str, tuple[Tensor, TensorSemantics | None]] = {}
        for name, value, semantics in entries(static_outputs) if static_outputs is not None else ():
            self._collect(node, name, value, semantics, static, at, taken=ports)
        if node.finished:
            self._finish_again(node, ports, static, at)
        else:
            node.backend, node.backend_params = backend, params
            self._finish(node, ports, static, at)
        return unpack([value for _, value, _ in items])

    def _collect(
        self,
        node: NodeTrace,
        name: str,
        value: Any,
        semantics: TensorSemantics | None,
        into: dict[str, tuple[Tensor, TensorSemantics | None]],
        at: Where,
        taken: Iterable[str] = (),
    ) -> None:
        def visit(port: str, leaf: Any) -> Any:
            if port in into or port in taken:
                raise AnnotationError(
                    f"node '{node.name}' (at {at}): two outputs are called '{port}' once nested names are joined with '_'. "
                    "Rename one of them."
                )
            into[port] = (self._tensor(leaf, node, port), semantics)
            return leaf

        map_leaves(name, value, visit, self._not_a_tensor(node, "output"))

    def _finish(
        self,
        node: NodeTrace,
        ports: dict[str, tuple[Tensor, TensorSemantics | None]],
        static: dict[str, tuple[Tensor, TensorSemantics | None]],
        at: Where,
    ) -> None:
        with self.recorder.silence():
            tensors: dict[str, Tensor] = {}
            for name, (t, semantics) in ports.items():
                self._output(node, name, t, "output", semantics, at, tensors)
            self._resolve_buffers(node)
            for name, (t, place) in node.updates.items():
                if name in node.outputs:
                    raise AnnotationError(
                        f"node '{node.name}': '{name}' is both a state and an output (at {at}). Rename one of them."
                    )
                port = node.inputs[name]
                node.outputs[name] = OutputPort(
                    name, port.dtype, port.shape, "state", self._slot(node, t, name, place), place, port.semantics
                )
                tensors[name] = t
            for name, (t, semantics) in static.items():
                self._static(node, name, t, semantics, at, tensors)
            if not node.outputs:
                raise AnnotationError(f"node '{node.name}' (at {at}) declares no output. Name at least one tensor.")
            if node.tape is not None:
                self._close(node)
            node.finished = True
            node.order = sum(n.finished for n in self.nodes.values()) - 1
            self._end_pass(node, tensors)
        self._listen()

    def _output(
        self,
        node: NodeTrace,
        name: str,
        t: Tensor,
        role: Role,
        semantics: TensorSemantics | None,
        at: Where,
        tensors: dict[str, Tensor],
    ) -> None:
        slot = self._slot(node, t, name, at)
        node.outputs[name] = OutputPort(name, dtype_name(t), tuple(t.shape), role, slot, at, semantics)
        tensors[name] = t

    def _slot(self, node: NodeTrace, t: Tensor, name: str, at: Where) -> int | None:
        """The slot of an output value, which must be computed from the node's inputs."""
        if node.tape is None:
            return None
        owner = self.recorder.owner([t])
        ref = node.tape.find(t) if owner is node.tape else None
        if ref is not None:
            return ref.slot
        if node.backend is None:
            return None
        whose = f" It belongs to node '{owner.node}'." if owner is not None else ""
        escapes = "".join(f"\n  {e.kind} at {e.where}: {e.where.text}" for e in node.tape.escapes[:5])
        raise TraceError(
            f"node '{node.name}', output '{name}' (at {at}) is a {type(t).__name__} that is not computed from the node's "
            f"inputs.{whose} Pass a constant as static_outputs=; if it should depend on the inputs, their values left the "
            f"graph on the way:{escapes or ' declare them with input_tensors() before the computation.'}"
        )

    def _static(
        self,
        node: NodeTrace,
        name: str,
        t: Tensor,
        semantics: TensorSemantics | None,
        at: Where,
        tensors: dict[str, Tensor],
    ) -> None:
        if name in node.outputs:
            raise AnnotationError(f"node '{node.name}' (at {at}) has two outputs called '{name}'. Rename one of them.")
        if node.tape is not None and node.tape.find(t) is not None:
            raise TraceError(
                f"node '{node.name}', static output '{name}' (at {at}) is computed from the node's inputs. "
                "Declare it among the regular outputs."
            )
        slot = None if node.tape is None else node.tape.constant(t).slot
        node.outputs[name] = OutputPort(name, dtype_name(t), tuple(t.shape), "static", slot, at, semantics)
        tensors[name] = t

    def _resolve_buffers(self, node: NodeTrace) -> None:
        """Tracked buffers that the pass re-assigned or wrote to are state; the others are constants."""
        tape = node.tape
        written = {m for c in tape.calls for m in c.writes} if tape is not None else set()
        for buffer in list(node.buffers):
            port = node.inputs[buffer.port]
            now = buffer.module._buffers.get(buffer.name)
            reassigned = now is not buffer.tensor
            changed = reassigned or (tape is not None and port.slot is not None and tape.memory_of[port.slot] in written)
            if changed and now is not None:
                port.role = "state"
                node.updates[buffer.port] = (now, port.where)
                if tape is not None and tape.find(now) is None:
                    self.recorder.constant(tape, now)
                continue
            node.buffers.remove(buffer)
            del node.inputs[buffer.port]
            value = node.current.inputs.pop(buffer.port)
            if tape is not None and port.slot is not None:
                tape.make_constant(port.slot, value, buffer.tensor, port.where)

    def _close(self, node: NodeTrace) -> None:
        """Cut the program out of the tape and drop the inputs that reach no output."""
        tape = node.require_traced()
        self.recorder.close(tape)
        if node.backend is None and any(p.slot is None for p in node.outputs.values()):
            node.tape = None
            return
        changed = tape.changed_behind()
        if changed is not None:
            raise TraceError(
                f"node '{node.name}': a tensor of shape {list(changed.value.shape)} that it reads at {changed.where} was "
                "changed in place afterwards, unseen. Clone it before it is read, or declare it as an input."
            )
        slots = [p.slot for p in node.outputs.values() if p.slot is not None]
        live = cut(tape, slots).reads() & set(tape.inputs)
        if node.backend is not None:
            self._prune(node, live)
        node.program = cut(tape, slots, [p.slot for p in node.inputs.values() if p.slot is not None])
        node.replay = Replay(node.program, constant_names(node.program, self.modules.values()))
        logger.debug(
            "Compiled graph module for %s:\n%s\ninputs: %s\noutputs: %s",
            node.name, node.program, ", ".join(node.inputs), ", ".join(node.outputs),
        )  # fmt: skip

    def _prune(self, node: NodeTrace, live: set[int]) -> None:
        tape = node.require_traced()
        escaped = {s for e in tape.escapes for s in e.reads}
        for port in list(node.inputs.values()):
            if port.slot in live or (port.name in node.outputs and node.outputs[port.name].role == "state"):
                continue
            led = _leads_to(tape, port.slot, escaped) if port.slot is not None else None
            if led is not None and self.escapes != "ignore":
                raise TraceError(
                    f"node '{node.name}': input '{port.name}' reaches no output, because its value left the graph at "
                    f"{led.where} ({led.kind}): {led.where.text}\nKeep it a tensor up to the output."
                )
            node.pruned.append(port.name)
            del node.inputs[port.name]
            node.current.inputs.pop(port.name, None)
        if node.pruned:
            logger.warning(
                "node '%s': no output depends on %s; left out of the model.",
                node.name, ", ".join(f"'{n}'" for n in node.pruned),
            )  # fmt: skip

    def _finish_again(
        self,
        node: NodeTrace,
        ports: dict[str, tuple[Tensor, TensorSemantics | None]],
        static: dict[str, tuple[Tensor, TensorSemantics | None]],
        at: Where,
    ) -> None:
        if not node.in_pass:
            raise SessionError(
                f"output_tensors('{node.name}') at {at}: the node is finished and no new inputs were declared since. "
                "Each pass declares its inputs, then its outputs."
            )
        with self.recorder.silence():
            tensors = {n: t for n, (t, _) in {**ports, **static}.items()}
            for buffer in node.buffers:
                now = buffer.module._buffers.get(buffer.name)
                if now is not None:
                    tensors[buffer.port] = now
            tensors.update({n: t for n, (t, _) in node.updates.items()})
            for name in tensors:
                if name not in node.outputs:
                    raise AnnotationError(
                        f"node '{node.name}' (at {at}): '{name}' was no output in the first pass.{nearest(name, node.outputs)}"
                    )
            node.missing(node.current.inputs, node.inputs, "input", at)
            node.missing(tensors, node.outputs, "output", at)
            for name, t in tensors.items():
                node.check(node.outputs[name], t, "output", at)
            self._end_pass(node, tensors)
        self._listen()

    def _end_pass(self, node: NodeTrace, tensors: dict[str, Tensor]) -> None:
        """Keep the sample, let go of the pass, and publish the outputs."""
        if len(node.samples) < self.samples_kept:
            node.current.outputs = {n: snapshot(tensors[n]) for n in node.outputs}
            node.current.inputs = {n: node.current.inputs[n] for n in node.inputs}
            node.samples.append(node.current)
        for name in node.outputs:
            static = node.outputs[name].role == "static"
            self.recorder.published.publish(tensors[name], node.name, name, node.passes, static)
        node.current = Sample()
        node.in_pass = False
        node.passes += 1
        node.updates = {}
        node.aliases = {}

    # -- the rest ------------------------------------------------------------------------------------------------------

    def mirror_leapp_tags(self, source: Any, target: Any) -> Any:
        """See :meth:`leapp.annotations.Annotate.mirror_leapp_tags`."""
        if isinstance(source, dict) and isinstance(target, dict) and source.keys() == target.keys():
            return {k: self.mirror_leapp_tags(source[k], target[k]) for k in source}
        if isinstance(source, (list, tuple)) and isinstance(target, (list, tuple)) and len(source) == len(target):
            return type(target)(self.mirror_leapp_tags(s, t) for s, t in zip(source, target, strict=True))
        at = where()
        if not isinstance(source, Tensor) or not isinstance(target, Tensor):
            raise AnnotationTypeError(f"mirror_leapp_tags() at {at}: source and target have different structures.")
        with self.recorder.silence():
            if source.shape != target.shape or source.dtype != target.dtype or source.device != target.device:
                raise AnnotationError(
                    f"mirror_leapp_tags() at {at}: source is {dtype_name(source)} {list(source.shape)}, target is "
                    f"{dtype_name(target)} {list(target.shape)}. They must be equal."
                )
            if not torch.equal(_bits(source), _bits(target)):
                raise AnnotationError(f"mirror_leapp_tags() at {at}: source and target hold different values.")
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

    def method(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        node_name: str | None,
        export_with: str | None,
        backend_params: dict[str, Any],
        output_names: list[str] | None,
    ) -> Any:
        """Run a decorated function as a node."""
        name = str(node_name or getattr(function, "__name__", type(function).__name__))
        if name == "<lambda>":
            name = "lambda"
        node = self._open(name)

        def declare(port: str, value: Any) -> Any:
            return self._declare_entry(node, port, value, None)

        args, kwargs = bind_arguments(function, args, kwargs, declare)
        result = function(*args, **kwargs)
        if result is None:
            raise AnnotationTypeError(f"node '{name}': the decorated function returned None; a node needs outputs.")
        outputs = output_names_of(function, result, output_names)
        self.output_tensors(name, outputs, export_with=export_with, backend_params=backend_params)
        return result

    def warp_op(self, node_name: str) -> None:
        """Warp kernels cannot be traced."""
        raise MissingDependencyError(
            f"annotate.warp_op('{node_name}'): Warp kernels need a CUDA device and a native runtime; neither is supported."
        )


def _bits(t: Tensor) -> Tensor:
    """A tensor compared bit for bit: NaN equals itself."""
    t = t.detach().contiguous()
    return t.view(torch.uint8) if t.dim() and t.dtype.is_floating_point else torch.nan_to_num(t)


def _leads_to(tape: Any, slot: int, escaped: set[int]) -> Any:
    """The first escape that a slot's value reaches."""
    reached = {slot}
    for call in tape.calls:
        if not reached.isdisjoint(call.reads):
            reached.update(call.outs)
    return next((e for e in tape.escapes if not reached.isdisjoint(e.reads)), None) if reached & escaped else None


def _check_clash(node: NodeTrace, name: str, at: Where) -> None:
    if any(b.port == name for b in node.buffers):
        raise AnnotationError(f"node '{node.name}' (at {at}): '{name}' is already the name of a tracked module buffer.")


def check_node_name(name: Any) -> None:
    """Refuse node names that cannot be file names inside the bundle."""
    if not isinstance(name, str):
        raise AnnotationTypeError(f"node names are strings, not {type(name).__name__} ({name!r}).")
    if not name or name in (".", "..") or any(c in name for c in "/\\\0\n") or name.startswith("."):
        raise AnnotationError(
            f"'{name}' cannot be a node name: it names a file in the bundle. Use letters, digits, '_', '-' and spaces."
        )
