"""A function decorated with ``annotate.method``, run as a node or as a part of the node that calls it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from leapp.capture.recorder import Recorder
from leapp.capture.trees import tensors
from leapp.capture.user_line import where
from leapp.errors import AnnotationTypeError, LeappError
from leapp.semantics import TensorSemantics
from leapp.tracing.attributes import Attributes
from leapp.tracing.declaring import Declaring
from leapp.tracing.log import logger
from leapp.tracing.method import MethodNode, bind_arguments, output_names_of, positional_names, self_of
from leapp.tracing.node import NodeTrace, Stage
from leapp.tracing.opening import Opening
from leapp.tracing.payload import Loans, located, map_leaves


class _Running(threading.local):
    """How many decorated functions are running in this thread, each called by the one before."""

    depth = 0


class DecoratedFunctions:
    """Runs the decorated functions of a session."""

    def __init__(self, recorder: Recorder, attributes: Attributes, opening: Opening, declaring: Declaring) -> None:
        self._recorder, self._attributes, self._opening, self._declaring = recorder, attributes, opening, declaring
        self._running = _Running()

    def run(
        self,
        function: Callable[..., Any],
        settings: MethodNode,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        publish: Callable[..., Any],
    ) -> Any:
        """Run a decorated function on the caller's values. ``publish`` is the ``output_tensors`` of the session."""
        caller = self._caller(function, args, kwargs)
        if caller is not None:
            caller.inlined.add(function)
            logger.info("'%s' is called inside node '%s' at %s and is a part of it.", settings.name, caller.name, where())
        if caller is not None or self._running.depth:
            return function(*args, **kwargs)
        loans = Loans()
        with self._recorder.lock:
            node, args, kwargs = self._declare(function, settings, args, kwargs, loans)
        try:
            result = self._run(function, node, args, kwargs)
            self._publish(function, settings, node, result, publish)
            return result
        finally:
            loans.give_back(self._is_published)

    def _declare(
        self, function: Callable[..., Any], settings: MethodNode, args: tuple[Any, ...], kwargs: dict[str, Any], loans: Loans
    ) -> tuple[NodeTrace, tuple[Any, ...], dict[str, Any]]:
        """Open the node and declare the arguments. The caller's containers hold the declared values until the function ends."""
        declaring = self._declaring
        node = self._opening.open(settings.name)
        is_new = not node.inputs
        owner = self_of(function, args)
        if node.recording is not None:
            if owner is not None:
                self._attributes.look(owner)
            if (code := getattr(function, "__code__", None)) is not None:
                given = zip(positional_names(function), args, strict=False)
                self._attributes.look_at_variables(code, {**dict(given), **kwargs})

        def declare(port: str, value: Any) -> Any:
            def visit(name: str, leaf: Any) -> Any:
                return declaring.leaf(node, name, leaf, "input", settings.meaning(name, leaf, "input"))

            return loans.put(port, value, visit, declaring.tell_constant(node, "input"))

        try:
            return node, *bind_arguments(function, args, kwargs, declare)
        except BaseException:  # also on Ctrl-C the caller gets the tensors in its containers back
            loans.give_back(lambda _: False)
            if is_new:
                self._opening.abandon(node)
            raise

    def _run(self, function: Callable[..., Any], node: NodeTrace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._running.depth += 1
        try:
            return function(*args, **kwargs)
        except BaseException:  # also after Ctrl-C the session goes on without this pass
            self._opening.abandon(node)
            raise
        finally:
            self._running.depth -= 1

    def _publish(
        self, function: Callable[..., Any], settings: MethodNode, node: NodeTrace, result: Any, publish: Callable[..., Any]
    ) -> None:
        """Declare what the function returned as the outputs of its node."""
        if result is None:
            raise AnnotationTypeError(
                f"node '{settings.name}' (at {where()}): the decorated function returned None; a node needs outputs."
            )
        try:
            outputs = output_names_of(function, result, settings.output_names)
        except LeappError as error:
            raise located(error, f"annotate.method() for node '{settings.name}' at {where()}") from None
        described: list[TensorSemantics] = []

        def visit(name: str, leaf: Any) -> Any:
            described.append(settings.meaning(name, leaf, "output") or TensorSemantics(name, leaf))
            return leaf

        for name, value in outputs.items():
            map_leaves(name, value, visit, lambda *_: None)
        payload: Any = described if settings.output_semantics and described else outputs
        settings.refuse_unknown_ports(node.inputs, [d.name for d in described])
        publish(
            settings.name, payload, export_with=settings.export_with, backend_params=settings.backend_params,
            graph_outputs=settings.graph_outputs,
        )  # fmt: skip

    def _caller(self, function: Callable[..., Any], args: Any, kwargs: Any) -> NodeTrace | None:
        """The open node whose values a decorated function is given: the function is then a part of that node."""
        if self._running.depth:
            return None
        nodes = self._opening.nodes
        with self._recorder.silence():
            for t in tensors((args, kwargs)):
                owner = next((tape for tape in self._recorder.tapes if tape.find(t) is not None), None)
                if owner is not None:
                    return nodes[owner.node]
        return next((n for n in nodes.values() if n.stage is Stage.LATER_PASS and function in n.inlined), None)

    def _is_published(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and self._recorder.source(value) is not None
