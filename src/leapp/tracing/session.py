"""A session: receives the annotations between ``start()`` and ``stop()``.

It checks the arguments of each annotation and passes them to the module that does the work: ``opening`` begins passes,
``declaring`` makes ports, ``state`` keeps values for the next call, ``finishing`` ends a first pass, ``later_passes`` the
others. It knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from leapp.capture.equality import same_bits
from leapp.capture.recorder import Recorder
from leapp.capture.user_line import Where, where
from leapp.errors import AnnotationError, AnnotationTypeError, LeappError, MissingDependencyError
from leapp.export.backends import check_params, resolve_backend
from leapp.graph.html import card, picture, table
from leapp.graph.suggest import nearest
from leapp.semantics import TensorSemantics
from leapp.tracing.attributes import Attributes
from leapp.tracing.batching import check_batch_axis
from leapp.tracing.contents import forget_types
from leapp.tracing.declaring import Batch, Declaring
from leapp.tracing.decorated import DecoratedFunctions
from leapp.tracing.edges import Sources
from leapp.tracing.finishing import Finisher, Given
from leapp.tracing.later_passes import Passes
from leapp.tracing.log import logger
from leapp.tracing.method import MethodNode
from leapp.tracing.modules import CalledModules
from leapp.tracing.node import NodeTrace, Role, Stage, dtype_name
from leapp.tracing.opening import Opening
from leapp.tracing.payload import Entry, entries, leaf_names, located, map_leaves, refuse_nested_state, unpack
from leapp.tracing.second_pass import SecondPass
from leapp.tracing.state import Buffers, StateUpdates
from leapp.tracing.undeclared import outliving

Tensor = torch.Tensor
_PLAIN = frozenset({Tensor})


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
        self.is_open = False
        """Whether annotations report to this session. ``ExportManager`` sets it and reads it for ``interpreting``."""
        self.escapes, self.min_passes = escapes, min_passes
        self.recorder = recorder = Recorder()
        self.attributes = attributes = Attributes()
        self.modules = CalledModules(recorder, attributes)
        self.finisher = Finisher(recorder, attributes, self.modules.known, escapes)
        self.second = SecondPass(recorder, attributes, self.finisher.cut)
        self.opening = Opening(recorder, attributes, self.modules, self.second, frozenset(non_traced), dynamic_batch)
        self.nodes = self.opening.nodes
        self.sources = Sources(recorder, self.nodes)
        self.passes = Passes(recorder, self.sources, self.second, max(1, max_cached_io))
        self.declaring = Declaring(recorder, self.opening, self.sources, self.passes)
        self.states = StateUpdates(recorder, self.declaring, self.passes)
        self.buffers = Buffers(recorder, self.opening, self.declaring, self.passes, self.second)
        self.functions = DecoratedFunctions(recorder, attributes, self.opening, self.declaring)

    # -- on and off ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start listening."""
        Recorder.current = self.recorder
        self.opening.listen()
        self.recorder.arrays.begin()

    def end(self) -> None:
        """Stop listening; open nodes stay unfinished."""
        with self.recorder.silence():
            for node in self.nodes.values():
                self.opening.look_after(node)
                if node.program is not None:
                    node.alive = outliving(node, self.recorder)
        Recorder.current = None
        self.recorder.remove()
        self.modules.hook(False)
        for node in self.nodes.values():
            self.second.drop(node)
            if node.stage is Stage.LATER_PASS:
                node.stage = Stage.BETWEEN_PASSES
            if node.tape is not None:
                if node.tape.open:
                    self.recorder.close(node.tape)
                node.tape.end()
        self.recorder.published.clear()
        self.recorder.arrays.end()
        forget_types()

    def unfinished(self) -> list[str]:
        """Names of nodes that have inputs but no outputs yet."""
        return sorted(n.name for n in self.nodes.values() if not n.finished)

    def settle(self) -> None:
        """Decide what only all passes together show, such as which registered tensors are state."""
        for node in self.nodes.values():
            if node.stage is Stage.BETWEEN_PASSES:
                self.finisher.settle(node)
                node.stage = Stage.SETTLED

    def _repr_html_(self) -> str:
        from leapp.tracing.compiling import sketch

        try:
            drawn = picture("session", sketch(self))
        except Exception:  # an unfinished graph may fail anywhere, and a notebook must still show the table
            drawn = ""
        return card("Session", *self.described(drawn))

    def described(self, drawn: str = "") -> tuple[dict[str, object], list[str]]:
        """Facts and tables for a notebook. ``drawn`` is the HTML of a picture to put above them."""
        rows = [
            (n.name, n.passes, n.backend or "", ", ".join(n.inputs), ", ".join(n.outputs), "finished" if n.finished else "open")
            for n in self.nodes.values()
        ]
        facts: dict[str, object] = {"nodes": len(rows), "open": "yes" if self.recorder.installed else "no"}
        return facts, [drawn, table("nodes", ("node", "passes", "backend", "inputs", "outputs", "state"), rows)]

    # -- inputs and states ---------------------------------------------------------------------------------------------

    def input_tensors(self, node_name: str, payload: Any, batch: Batch = "auto") -> Any:
        """See :meth:`leapp.annotations.Annotate.input_tensors`."""
        return self._declare(node_name, payload, "input", batch)

    def state_tensors(self, node_name: str, payload: Any, batch: Batch = "auto") -> Any:
        """See :meth:`leapp.annotations.Annotate.state_tensors`."""
        return self._declare(node_name, payload, "state", batch)

    def _declare(self, node_name: str, payload: Any, role: Role, batch: Batch) -> Any:
        if batch != "auto":
            check_batch_axis(batch)
        with self.recorder.lock:
            again = self._again(node_name, payload)
            if again is not None:
                with self.recorder.silence():
                    self.opening.enter(again)
                    return unpack(self.passes.declare(again, payload, role))
            call = f"{role}_tensors()"
            items = _read(node_name, call, payload, flat=role == "state")
            if role == "state":
                self.opening.known(node_name, call)
            node = self.opening.open(node_name)
            return unpack(self.declaring.declare(node, items, role, batch))

    def _again(self, node_name: str, payload: Any) -> NodeTrace | None:
        """The node, if its first pass is over and the payload is a dict of plain tensors: the fast path of later passes."""
        node = self.nodes.get(node_name) if type(payload) is dict else None
        if node is None or not node.finished or node.to_retrace:
            return None
        return node if _PLAIN.issuperset(map(type, payload.values())) else None

    def update_state(self, node_name: str, payload: Any) -> Any:
        """See :meth:`leapp.annotations.Annotate.update_state`."""
        with self.recorder.lock, self.recorder.silence():
            again = self._again(node_name, payload)
            if again is not None:
                self.passes.update(again, payload)
                return unpack(tuple(payload.values()))
            items = _read(node_name, "update_state()", payload, flat=True)
            self.states.update(self.opening.known(node_name, "update_state()"), items)
            return unpack([value for _, value, _ in items])

    def register_buffer(self, node_name: str, payload: Any) -> Any:
        """See :meth:`leapp.annotations.Annotate.register_buffer`."""
        with self.recorder.lock:
            return self.buffers.register(self.opening.known(node_name, "register_buffer()"), payload)

    def module(self, node_name: str, model: torch.nn.Module, buffer_names: list[str] | None) -> None:
        """See :meth:`leapp.annotations.Annotate.module`."""
        with self.recorder.lock:
            self.opening.known(node_name, "module()")
            self.buffers.module(self.opening.open(node_name), model, buffer_names)

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
                self.opening.listen()
            return unpack(tuple(payload.values()))

    def _output_tensors(self, node_name: str, payload: Any, static_outputs: Any, asked: tuple[Any, Any, Any]) -> Any:
        node = self.opening.known(node_name, "output_tensors()")
        export_with, backend_params, graph_outputs = asked
        try:
            backend = resolve_backend(export_with)
            params = dict(backend_params or {})
            check_params(backend, params)
            items = entries(payload)
            static_items = entries(static_outputs) if static_outputs is not None else []
            leaf_names([*items, *static_items])
        except LeappError as error:
            raise located(error, f"output_tensors() for node '{node_name}' at {where()}") from None
        ports, static = self._collect(node, items, "output"), self._collect(node, static_items, "static output")
        wanted = _wanted(node, graph_outputs, [*ports, *static])
        with self.recorder.silence():
            if node.finished:
                self.passes.finish(node, {n: t for given in (ports, static) for n, (t, _) in given.items()})
            else:
                node.backend, node.backend_params, node.wanted = backend, params, wanted
                tensors = self.finisher.finish(node, ports, static, where())
                node.order = sum(n.finished for n in self.nodes.values())
                self.passes.end(node, tensors)
                node.asked = asked if backend_params is None and graph_outputs is None else None
            self.opening.listen()
        return unpack([value for _, value, _ in items])

    def _collect(self, node: NodeTrace, items: Iterable[Entry], what: str) -> Given:
        """The tensors of a payload by port name."""
        into: Given = {}
        for name, value, semantics in items:

            def visit(port: str, leaf: Any, semantics: TensorSemantics | None = semantics) -> Any:
                into[port] = (self.declaring.tensor(leaf, node, port), semantics)
                return leaf

            map_leaves(name, value, visit, self.declaring.tell_constant(node, what))
        return into

    # -- the rest ------------------------------------------------------------------------------------------------------

    def method(self, function: Callable[..., Any], settings: MethodNode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a decorated function as a node, or as a part of the node that calls it."""
        return self.functions.run(function, settings, args, kwargs, self.output_tensors)

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
        with self.recorder.lock, self.recorder.silence():
            if source.shape != target.shape or source.dtype != target.dtype or source.device != target.device:
                raise AnnotationError(
                    f"mirror_leapp_tags() at {at}: source is {dtype_name(source)} {list(source.shape)} on {source.device}, "
                    f"target is {dtype_name(target)} {list(target.shape)} on {target.device}. Pass a copy of the same dtype, "
                    "shape and device."
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
            logger.error("mirror_leapp_tags() at %s: the source is not a traced value, so nothing is mirrored.", at)

    def warp_op(self, node_name: str) -> None:
        """Warp kernels cannot be traced."""
        raise MissingDependencyError(
            f"annotate.warp_op('{node_name}') at {where()}: Warp kernels cannot be traced. Compute the same with torch or "
            "NumPy, or bring a model of the node with backend_params={'model_path': ...}."
        )


def _read(node_name: str, call: str, payload: Any, flat: bool) -> list[Entry]:
    """The named entries of a payload; ``flat`` ones hold no containers."""
    try:
        if flat and isinstance(payload, dict):
            refuse_nested_state(payload)
        items = entries(payload)
        leaf_names(items)
        return items
    except LeappError as error:
        raise located(error, f"{call} for node '{node_name}' at {where()}") from None


def _wanted(node: NodeTrace, given: Any, ports: list[str]) -> set[str]:
    """The outputs that the user asked to be graph outputs."""
    if given is None or given is False:
        return set()
    if given is True:
        return set(ports)
    names = [given] if isinstance(given, str) else list(given)
    for name in names:
        if name not in ports:
            raise AnnotationError(
                f"node '{node.name}' (at {where()}): graph_outputs names '{name}', which is not an output."
                f"{nearest(str(name), ports)}"
            )
    return set(names)
